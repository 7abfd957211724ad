// SPDX-License-Identifier: Apache-2.0
#include "tests/differential/plan.h"

#include <fstream>
#include <sstream>

namespace causeway::differential {
namespace {

bool OneOf(std::string_view name, std::initializer_list<std::string_view> names) {
  for (const std::string_view one : names) {
    if (name == one) return true;
  }
  return false;
}
bool Has(std::string_view text, std::initializer_list<std::string_view> parts) {
  for (const std::string_view part : parts) {
    if (text.find(part) != std::string_view::npos) return true;
  }
  return false;
}

bool Ends(const Row& row, const Parameter& parameter) {
  if (parameter.use == Use::kEnds) return true;
  return &parameter == &row.parameters.front() && parameter.type.base == Base::kHandle &&
         parameter.type.depth == 0 &&
         Has(row.text(), {"Destroy", "Unload", "cuCtxDetach", "cuUserObjectRelease"});
}

// Numbers that are handles or addresses, by their types' names in cuda.h.
bool PlanNumberType(const Parameter& p, const Row& row, ParameterPlan& plan) {
  const bool ends = Has(row.text(), {"ObjectDestroy", "cuMemRelease"});
  const auto handle = [&](HandleKind kind) {
    plan.handle = kind;
    plan.role = ends ? Role::kEndedHandle : Role::kHandle;
    return true;
  };
  if (p.DeclaredAs("CUtexObject")) return handle(kTextureObject);
  if (p.DeclaredAs("CUsurfObject")) return handle(kSurfaceObject);
  if (p.DeclaredAs("CUgraphConditionalHandle")) return handle(kConditional);
  if (p.DeclaredAs("CUmemGenericAllocationHandle")) return handle(HandleKind::kAllocation);
  if (!p.DeclaredAs("CUdeviceptr")) return false;
  plan.role = Role::kAddress;
  if (row.Named("WriteValue") || row.Named("WaitValue")) plan.role = Role::kWord;
  if (row.Named("cuMemFree") || row.Named("cuMemAddressFree") || row.Named("cuIpcClose"))
    plan.role = Role::kFreedAddress;
  if (row.Named("cuMemAddressReserve")) plan.role = Role::kNull;
  if (OneOf(row.text(), {"cuMemMap", "cuMemUnmap", "cuMemSetAccess"})) plan.role = Role::kFreedAddress;
  return true;
}

Role NumberRole(const Parameter& p, const Row& row) {
  const std::string_view name = p.name;
  if (p.DeclaredAs("CUdevice ")) return Role::kDevice;
  if (name.starts_with("gridDim") || name.starts_with("grid_")) return Role::kGrid;
  if (name.starts_with("blockDim") || row.Named("cuFuncSetBlockShape")) return Role::kBlock;
  if (name == "sharedMemBytes" || name == "dynamicSMemSize") return Role::kShared;
  if (Has(name, {"flags", "Flags"})) return row.Named("WaitValue") ? Role::kWaitFlags : Role::kFlags;
  if (row.Named("WaitValue") && name == "value") return Role::kWaited;
  if (row.Named("WriteValue") && name == "value") return Role::kWritten;
  if (name == "defaultLaunchValue") return Role::kNull;
  if (name.starts_with("num") || name.starts_with("nb") || name == "count" || name == "maxSize")
    return Role::kCount;
  if (p.DeclaredAs("size_t")) return Has(name, {"Offset", "offset"}) ? Role::kOffset : Role::kSize;
  if (OneOf(name, {"ByteCount", "N", "Width", "Height", "dstPitch", "bytesize"})) return Role::kSize;
  return Role::kNumber;
}

Role TextRole(const Parameter& p, const Row& row) {
  if (row.Named("cuGetProcAddress")) return Role::kEntryPoint;
  if (row.Named("cuModuleGet") || row.Named("cuLibraryGet")) return Role::kSymbol;
  return p.type.constant ? Role::kText : Role::kOut;
}

Role VoidRole(const Parameter& p, const Row& row) {
  const std::string_view name = p.name;
  if (p.use == Use::kAttribute || row.Named("Attribute") || row.Named("ShareableHandle")) return Role::kOut;
  if (OneOf(name, {"image", "fatCubin", "code"}) || (name == "data" && row.Named("cuLinkAddData")))
    return Role::kImage;
  if (Has(name, {"userData", "ptr"}) && row.Named("Callback")) return Role::kCounter;
  if (OneOf(name, {"userData", "ptr"})) return row.Named("cuParamSetv") ? Role::kOut : Role::kCounter;
  if (row.Named("cuMemHostRegister") || row.Named("cuMemHostUnregister")) return Role::kPages;
  if (row.Named("cuMemFreeHost")) return Role::kFreedAddress;
  return Role::kHostMemory;
}

ParameterPlan PlanParameter(const Row& row, size_t number) {
  const Parameter& p = row.parameters[number];
  ParameterPlan plan;
  plan.handle = p.type.handle;
  plan.builder = BuilderFor(row, number);
  const bool out = p.type.depth > 0;
  if (p.type.base == Base::kFunction) {
    plan.role = Role::kCallback;
  } else if (p.name == "extra" || p.name == "reserved") {
    plan.role = Role::kNull;
  } else if (plan.builder != nullptr) {
    plan.role = Role::kBuilt;
  } else if (p.type.base == Base::kCharacter && p.type.depth == 1) {
    plan.role = TextRole(p, row);
  } else if (p.type.base == Base::kVoid && p.type.depth == 1) {
    plan.role = VoidRole(p, row);
  } else if (p.type.base == Base::kHandle && out) {
    const bool in = p.type.constant || Has(row.text(), {"UpdateCaptureDependencies"});
    plan.role = in && p.type.handle == HandleKind::kGraphNode ? Role::kNodes : Role::kOut;
  } else if (out) {
    plan.role = Role::kOut;
    ParameterPlan pointee;
    if (p.type.base == Base::kNumber && PlanNumberType(p, row, pointee)) plan.handle = pointee.handle;
  } else if (p.type.base == Base::kHandle) {
    plan.role = Ends(row, p) ? Role::kEndedHandle : Role::kHandle;
    if (p.type.handle == HandleKind::kStream && plan.role == Role::kHandle) plan.role = Role::kStream;
    if (p.type.handle == HandleKind::kFunction && Has(row.text(), {"cuLaunch"})) plan.role = Role::kLaunched;
  } else if (p.type.base == Base::kEnum) {
    plan.role = Role::kEnum;
  } else if (p.type.base == Base::kFloat) {
    plan.role = Role::kFloat;
  } else if (!PlanNumberType(p, row, plan)) {
    plan.role = NumberRole(p, row);
  }
  return plan;
}

bool Allocates(const Row& row) {
  return row.text().starts_with("cuMemAlloc") || row.text().starts_with("cuMemHostAlloc") ||
         row.text().starts_with("cuMemAddressReserve");
}

Effect EffectOf(const Row& row) {
  const std::string_view name = row.text();
  if (Allocates(row)) return Effect::kAllocates;
  if (Has(name, {"cuMemFree", "cuMemAddressFree"})) return Effect::kFrees;
  if (name.starts_with("cuStreamBeginCapture")) return Effect::kBeginsCapture;
  if (name.starts_with("cuStreamEndCapture")) return Effect::kEndsCapture;
  if (Has(name, {"UpdateCaptureDependencies", "cuGraphRemoveDependencies", "cuGraphDestroyNode"}))
    return Effect::kLosesEdges;
  if (name.starts_with("cuGraphAdd") && !Has(name, {"Dependencies"})) return Effect::kAddsNode;
  if (name.starts_with("cuGraph") && Has(name, {"SetParams", "NodeSetEnabled"})) return Effect::kChangesNode;
  if (name.starts_with("cuGraphInstantiate") || name == "cuGraphClone") return Effect::kInheritsGraph;
  if (Has(name, {"cuGraphChildGraphNodeGetGraph"})) return Effect::kInheritsGraph;
  if (name.starts_with("cuGraphExecUpdate")) return Effect::kUpdatesExec;
  if (name.starts_with("cuGraphLaunch")) return Effect::kLaunchesGraph;
  if (name.starts_with("cuStreamWaitEvent") || name == "cuCtxWaitEvent" || name == "cuGreenCtxWaitEvent")
    return Effect::kWaitsForEvent;
  if (Has(name, {"cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxReset"})) return Effect::kEndsPrimary;
  if (OneOf(name, {"cuDeviceSetMemPool", "cuMemSetMemPool"})) return Effect::kSetsPool;
  return Effect::kNone;
}

// The first that fits. Calls that natively take milliseconds are rare.
uint32_t WeightOf(const Row& row) {
  const std::string_view name = row.text();
  if (Has(name, {"cuCtxCreate", "cuGreenCtxCreate", "cuDevicePrimaryCtx"})) return 1;
  if (Has(name, {"cuModuleLoad", "cuLibraryLoad", "cuLinkAdd", "cuLinkComplete", "cuMemHostRegister"}))
    return 2;
  if (Has(name, {"cuCtxSynchronize", "cuIpc", "cuMemAllocManaged", "cuMemCreate", "cuCtxDetach"})) return 5;
  if (name.starts_with("cuLaunchKernel") || name.starts_with("cuGraphLaunch") ||
      name.starts_with("cuStreamSynchronize"))
    return 60;
  if (Has(name, {"cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphInstantiate", "cuEventRecord",
                 "cuStreamWaitEvent"}))
    return 40;
  if (Has(name, {"Create", "cuMemAlloc", "cuGraphAdd"})) return 30;
  if (Has(name, {"_ptsz", "_ptds"})) return 6;
  if (Has(name, {"cuTexRef", "cuSurfRef", "cuDeviceGet"})) return 4;
  return 12;
}

int ThemeOf(const Row& row) {
  static constexpr std::string_view kParts[kThemes] = {
      "cuGraph", "Capture", "cuMemcpy", "cuMemset",  "cuStream", "cuEvent", "cuLaunch", "cuMemPool",
      "cuTex",   "rray",    "cuModule", "cuLibrary", "cuFunc",   "cuCtx",   "cuMem",    "cuDevice"};
  for (int i = 0; i < kThemes; ++i) {
    if (row.Named(kParts[i])) return i;
  }
  return kThemes - 1;
}

}  // namespace

bool LeftOut::Read(const char* path) {
  std::ifstream in(path);
  std::string line, row, parameter, kind;
  while (std::getline(in, line)) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    if (!(words >> row >> parameter >> kind)) return false;
    if (row.back() == '*') {  // all rows that begin so, and "*" all rows
      row.pop_back();
      for (const Row& one : AllRows()) {
        if (one.text().starts_with(row)) lines_.insert(std::string(one.name) + " " + parameter + " " + kind);
      }
    } else {
      if (FindRow(row) == nullptr) return false;
      lines_.insert(row + " " + parameter + " " + kind);
    }
  }
  return !in.bad();
}
bool LeftOut::Has(const Row& row, size_t parameter, const char* kind) const {
  return lines_.contains(std::string(row.name) + " " + row.parameters[parameter].name + " " + kind);
}

std::vector<std::pair<int, int>> LeftOut::Same(const Row& row) const {
  std::vector<std::pair<int, int>> same;
  const std::string begin = std::string(row.name) + " ";
  for (auto line = lines_.lower_bound(begin); line != lines_.end() && line->starts_with(begin); ++line) {
    int result = 0, other = 0;
    if (std::sscanf(line->c_str() + begin.size(), "%d=%d", &result, &other) == 2)
      same.emplace_back(result, other);
  }
  return same;
}

std::vector<RowPlan> MakePlans(const LeftOut& left_out) {
  std::vector<RowPlan> plans;
  for (const Row& row : AllRows()) {
    RowPlan& plan = plans.emplace_back();
    plan.row = &row;
    plan.effect = EffectOf(row);
    plan.theme = ThemeOf(row);
    plan.per_thread = Has(row.text(), {"_ptsz", "_ptds"});
    plan.query = row.Named("Query") || row.Named("cuEventElapsedTime");
    plan.lasting = row.text().starts_with("cuGraph") || row.text().starts_with("cuTex") ||
                   row.text().starts_with("cuSurf");
    plan.weight = row.function == nullptr || row.refused || left_out.Whole(row) ? 0 : WeightOf(row);
    plan.same = left_out.Same(row);
    for (size_t i = 0; i < row.parameters.size(); ++i) {
      ParameterPlan& parameter = plan.parameters.emplace_back(PlanParameter(row, i));
      if (parameter.role == Role::kStream) plan.stream = static_cast<int>(i);
      const TypeInfo& type = row.parameters[i].type;
      const bool address = type.depth > 0 && row.parameters[i].DeclaredAs("CUdeviceptr");
      parameter.no_null = left_out.Has(row, i, "null");
      parameter.no_wild = left_out.Has(row, i, "wild");
      parameter.no_output = left_out.Has(row, i, "output");
      parameter.allocation = Allocates(row) && i == 0 && (address || type.depth == 2);
    }
  }
  return plans;
}

}  // namespace causeway::differential
