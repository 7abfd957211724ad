// SPDX-License-Identifier: Apache-2.0
// Modules: parsing, variables, functions, and the cuModule calls.
#include "tests/software_gpu/module.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include "tests/software_gpu/config.h"
#include "tests/software_gpu/fatbin.h"
#include "tests/software_gpu/faults.h"
#include "tests/software_gpu/graph.h"
#include "tests/software_gpu/handles.h"
#include "tests/software_gpu/kept_mapped.h"
#include "tests/software_gpu/stream.h"

namespace causeway::software_gpu {
namespace {

constexpr int kDefaultSharedBytes = 49152;

Registry<CUmodule, Module>& Modules() {
  static auto* modules = new Registry<CUmodule, Module>;
  return *modules;
}

Registry<CUfunction, Function>& Functions() {
  static auto* functions = new Registry<CUfunction, Function>;
  return *functions;
}

void Explain(const std::string& sentence, JitLog* log) {
  std::fprintf(stderr, "software GPU: cannot load a module: %s.\n", sentence.c_str());
  if (log != nullptr) log->Error(sentence + "\n");
}

// The number in ".target sm_80"; 0 when there is none.
unsigned TargetOf(const std::string& ptx) {
  size_t target = ptx.find(".target");
  size_t name = target == ptx.npos ? ptx.npos : ptx.find("sm_", target);
  return name == ptx.npos ? 0 : static_cast<unsigned>(std::strtoul(ptx.c_str() + name + 3, nullptr, 10));
}

// The context may end, and its memory with it, while another thread loads a module there.
template <typename Write>
void WriteIfThere(uintptr_t address, size_t bytes, const Write& write) {
  const std::shared_lock kept(KeptMapped());
  if (MayTouch({address, bytes, true})) write();
}

CUresult PlaceVariables(const ContextRef& context, Module& module, ManagedVariables* managed) {
  for (Variable& variable : module.program->variables()) {
    const size_t bytes = std::max<size_t>(variable.bytes, 1);
    const bool shared = variable.managed && managed != nullptr;
    AllocationRef memory = shared && managed->contains(variable.name) ? (*managed)[variable.name] : nullptr;
    if (memory == nullptr) {
      memory = variable.managed ? AllocateHostMemory(context, bytes, MemoryKind::kManaged, 0)
                                : AllocateDeviceMemory(context, bytes, MemoryKind::kDevice);
      if (memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
      memory->internal = true;
      WriteIfThere(memory->base, variable.bytes, [&] { std::memset(memory->address(), 0, variable.bytes); });
      module.fresh.push_back(&variable);
      if (shared) (*managed)[variable.name] = memory;
    }
    variable.address = memory->address();
    if (!shared) module.memory.push_back(std::move(memory));
  }
  return CUDA_SUCCESS;
}

void WriteInitialValues(Module& module) {
  for (const Variable* variable : module.fresh) {
    if (variable->initial.empty()) continue;
    WriteIfThere(reinterpret_cast<uintptr_t>(variable->address), variable->initial.size(),
                 [&] { std::memcpy(variable->address, variable->initial.data(), variable->initial.size()); });
  }
  module.fresh.clear();
}

CUresult LoadModule(const ContextRef& context, const void* image, JitLog log, CUmodule* handle) {
  if (handle == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (log.Check() != CUDA_SUCCESS) return log.Check();
  SynchronizeDevice();  // NVIDIA's driver waits here too
  ParsedImage parsed;
  CUresult result = ParseImage(image, false, log, &parsed);
  if (result != CUDA_SUCCESS) return result;
  ModuleRef module;
  result = MakeModule(context, std::move(parsed.program), parsed.ptx_architecture, &module);
  if (result == CUDA_SUCCESS) *handle = module->handle;
  return result;
}

}  // namespace

CUresult ParseImage(const void* image, bool accept_wrapper, JitLog& log, ParsedImage* parsed) {
  std::string error;
  CUresult result = ExtractPtx(image, accept_wrapper, &parsed->ptx, &error);
  if (result == CUDA_SUCCESS) {
    parsed->program = Program::Parse(parsed->ptx, &error);
    if (parsed->program == nullptr) result = CUDA_ERROR_INVALID_PTX;
  }
  if (result != CUDA_SUCCESS) {
    Explain(error, &log);
    return result;
  }
  parsed->ptx_architecture = TargetOf(parsed->ptx);
  log.Info("software GPU: parsed\n");
  return CUDA_SUCCESS;
}

CUresult MakeModule(const ContextRef& context, std::unique_ptr<Program> program, unsigned ptx_architecture,
                    ModuleRef* module, ManagedVariables* managed) {
  ModuleRef made(new Module, [](Module* dying) {
    for (const AllocationRef& memory : dying->memory) ReleaseMemory(memory);
    delete dying;
  });
  made->context = context;
  made->ptx_architecture = ptx_architecture;
  made->program = std::move(program);
  if (CUresult result = PlaceVariables(context, *made, managed); result != CUDA_SUCCESS) return result;
  std::string error;
  if (!made->program->Link(&error)) {
    Explain(error, nullptr);
    return CUDA_ERROR_INVALID_PTX;
  }
  WriteInitialValues(*made);
  for (const Kernel& kernel : made->program->kernels()) {
    auto function = std::make_shared<Function>();
    function->module = made;
    function->kernel = &kernel;
    function->settings.max_dynamic_shared_bytes =
        std::max(0, kDefaultSharedBytes - static_cast<int>(kernel.static_shared_bytes));
    function->handle = Functions().Add(function);
    made->functions.push_back(std::move(function));
  }
  made->handle = Modules().Add(made);
  *module = std::move(made);
  return CUDA_SUCCESS;
}

void UnloadModule(const ModuleRef& module) {
  Modules().Remove(module->handle, false);
  for (const FunctionRef& function : module->functions) Functions().Remove(function->handle, false);
}

ModuleRef FindModule(CUmodule handle) {
  return Modules().Find(handle);
}

CUresult ResolveFunction(const ContextRef& context, CUfunction handle, FunctionRef* function) {
  *function = Functions().Find(handle);
  if (*function != nullptr) return CUDA_SUCCESS;
  LibraryKernelRef kernel = FindLibraryKernel(reinterpret_cast<CUkernel>(handle));
  LibraryRef library = kernel == nullptr ? nullptr : kernel->library.lock();
  if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  ModuleRef module;
  CUresult result = ModuleOfLibrary(context, *library, &module);
  if (result == CUDA_SUCCESS) *function = module->functions[kernel->index];
  return result;
}

CUresult FindGlobal(const Module& module, const char* name, CUdeviceptr* address, size_t* bytes) {
  for (const Variable& variable : module.program->variables()) {
    if (variable.name != name) continue;
    if (address != nullptr) *address = reinterpret_cast<CUdeviceptr>(variable.address);
    if (bytes != nullptr) *bytes = variable.bytes;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_FOUND;
}

void UnloadModulesOf(Context& context) {
  auto modules =
      Modules().RemoveIf([&](const Module& module) { return module.context.lock().get() == &context; });
  for (const ModuleRef& module : modules) {
    UnloadModule(module);
    if (LibraryRef library = module->library.lock()) {
      std::lock_guard lock(library->mutex);
      std::erase_if(library->modules, [&](const auto& entry) { return entry.second == module; });
    }
  }
}

}  // namespace causeway::software_gpu

using namespace causeway::software_gpu;

extern "C" {

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  return InContext(__func__,
                   [&](const ContextRef& context) { return LoadModule(context, image, {}, module); });
}

CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int numOptions,
                            CUjit_option* options, void** optionValues) {
  return InContext(__func__, [&](const ContextRef& context) {
    return LoadModule(context, image, JitLog(options, optionValues, numOptions), module);
  });
}

CUresult cuModuleLoadFatBinary(CUmodule* module, const void* fatCubin) {
  return InContext(__func__,
                   [&](const ContextRef& context) { return LoadModule(context, fatCubin, {}, module); });
}

CUresult cuModuleLoad(CUmodule* module, const char* fname) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    if (module == nullptr || fname == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::ifstream file(fname, std::ios::binary);
    if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
    std::string image((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    return LoadModule(context, image.c_str(), {}, module);
  });
}

CUresult cuModuleUnload(CUmodule hmod) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    ModuleRef module = FindModule(hmod);
    if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (CUresult refused = RefuseWhileCapturing(); refused != CUDA_SUCCESS) return refused;
    if (module->library.lock() != nullptr) return CUDA_ERROR_NOT_PERMITTED;
    SynchronizeDevice();
    UnloadModule(module);
    return CUDA_SUCCESS;
  });
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  return Initialised(__func__, [&]() -> CUresult {
    if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
    // Libraries with cubins for all their kernels are large.
    *mode = GetConfig().outline_cubins ? CU_MODULE_LAZY_LOADING : CU_MODULE_EAGER_LOADING;
    return CUDA_SUCCESS;
  });
}

CUresult cuModuleGetFunction(CUfunction* hfunc, CUmodule hmod, const char* name) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    if (hfunc == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    ModuleRef module = FindModule(hmod);
    if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    for (const FunctionRef& function : module->functions) {
      if (function->kernel->name != name) continue;
      *hfunc = function->handle;
      return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_FOUND;
  });
}

CUresult cuModuleGetFunctionCount(unsigned int* count, CUmodule mod) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    ModuleRef module = FindModule(mod);
    if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    *count = static_cast<unsigned>(module->functions.size());
    return CUDA_SUCCESS;
  });
}

CUresult cuModuleEnumerateFunctions(CUfunction* functions, unsigned int numFunctions, CUmodule mod) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    if (functions == nullptr) return CUDA_ERROR_INVALID_VALUE;
    ModuleRef module = FindModule(mod);
    if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    size_t count = std::min<size_t>(numFunctions, module->functions.size());
    for (size_t i = 0; i < count; ++i) functions[i] = module->functions[i]->handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr* dptr, size_t* bytes, CUmodule hmod, const char* name) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    ModuleRef module = FindModule(hmod);
    return module == nullptr ? CUDA_ERROR_INVALID_HANDLE : FindGlobal(*module, name, dptr, bytes);
  });
}

}  // extern "C"
