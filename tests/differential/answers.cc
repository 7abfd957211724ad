// SPDX-License-Identifier: Apache-2.0
// The part of the executor that takes what a call has answered, and that ends a program.
#include <cstring>

#include "tests/differential/callbacks.h"
#include "tests/differential/kernels.h"
#include "tests/differential/ready.h"

namespace causeway::differential {
namespace {

constexpr uint8_t kFill = 0x11;  // new memory holds this
constexpr uint64_t kLeastUsable = 16384;
constexpr uint64_t kMostFilled = 1 << 16;

size_t BytesOfElement(CUarray_format format) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
      return 4;
    default:
      return 0;
  }
}

void HashText(const char* text, Hash& hash, std::string* told) {
  const size_t bytes = strnlen(text, 256);
  hash.AddBytes(text, bytes);
  if (told != nullptr) *told += "\"" + std::string(text, bytes) + "\"";
}

}  // namespace

// A list of handles that the library lends, in place of its address. Its length is another output.
void Executor::FetchList(const Call& call, size_t i, Ready& ready) {
  const int count = call.row->Find("numDependencies_out");
  const uint64_t at = ready.Word(i);
  const bool has_length = count >= 0 && call.arguments[count].kind == ArgumentKind::kOut;
  const uint64_t length = has_length && at != 0 ? ready.Word(static_cast<size_t>(count)) : 0;
  std::memset(ready.scratch[i], 0, 8);
  const size_t copied = 8 * std::min<uint64_t>(length, kElements - 1);
  if (copied > 0) std::memcpy(ready.scratch[i], reinterpret_cast<void*>(at), copied);
}

void Executor::TakeOutput(const Call& call, const RowPlan& plan, size_t i, Ready& ready, Hash& hash,
                          std::string* told) {
  const Parameter& parameter = call.row->parameters[i];
  const ParameterPlan& its = plan.parameters[i];
  const ArgumentKind kind = call.arguments[i].kind;
  const bool given = kind == ArgumentKind::kOut || (kind == ArgumentKind::kBuilt && !parameter.type.constant);
  if (!given || parameter.type.depth == 0) return;
  if (its.allocation) TakeAllocation(call, plan, i, ready);
  if (its.no_output) return;
  if (told != nullptr) *told += "; " + parameter.name + " ";
  if (its.handle != HandleKind::kNone && parameter.type.depth == 2) FetchList(call, i, ready);
  if (its.handle != HandleKind::kNone && !parameter.type.constant)
    return TakeHandles(call, plan, i, ready, hash, told);
  const TypeInfo& type = parameter.type;
  if (type.base == Base::kCharacter) {
    const auto* text = type.depth == 1 ? reinterpret_cast<const char*>(ready.scratch[i])
                                       : reinterpret_cast<const char*>(ready.Word(i));
    if (text != nullptr) HashText(text, hash, told);
    return;
  }
  // Numbers are compared as they are; elsewhere a word that looks like an address may be one.
  const bool pointers = type.base == Base::kVoid || (type.base == Base::kStruct && !type.flat) ||
                        type.depth == 2 || parameter.DeclaredAs("CUdeviceptr");
  size_t bytes = type.base == Base::kVoid || type.depth == 2 ? 64 : std::min<size_t>(type.bytes, kBuiltBytes);
  if (kind == ArgumentKind::kBuilt && type.base == Base::kVoid) bytes = 384;
  if (type.clear_padding != nullptr && bytes == type.bytes) type.clear_padding(ready.scratch[i]);
  for (size_t at = 0; at < bytes; at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, ready.scratch[i] + at, std::min<size_t>(8, bytes - at));
    hash.Add(world_.Named(word, pointers));
    if (told != nullptr && (word != 0 || at == 0))
      *told += (at == 0 ? "" : " ") + world_.NamedText(word, pointers);
  }
}

void Executor::TakeHandles(const Call& call, const RowPlan& plan, size_t i, Ready& ready, Hash& hash,
                           std::string* told) {
  for (size_t e = 0; e < kElements; ++e) {
    const uint64_t raw = ready.Word(i, e);
    if (raw == 0 || (e == 0 && raw == call.arguments[i].number && raw < 4096)) break;
    const bool small = raw < 4096 && plan.parameters[i].handle == HandleKind::kStream;
    if (!small && world_.FindRaw(plan.parameters[i].handle, raw) == nullptr) {
      Object& object = world_.Add(MakeObject(call, plan, i, e, raw));
      if (object.kind == HandleKind::kArray) FillArray(object);
    }
    hash.Add(world_.Named(raw, true));
    if (told != nullptr) *told += " " + world_.NamedText(raw, true);
  }
}

Object Executor::MakeObject(const Call& call, const RowPlan& plan, size_t i, size_t element, uint64_t raw) {
  const Row& row = *call.row;
  Object object;
  object.id = MadeId(call.id, i, element);
  object.kind = plan.parameters[i].handle;
  object.raw = raw;
  object.is_kernel = row.parameters[i].type.tag == &kTagOf<CUkernel>;
  object.own = row.Named("Create") || row.Named("Add") || row.Named("Load") || row.Named("Instantiate") ||
               row.Named("Clone") || row.Named("EndCapture") || row.Named("cuMemImport") ||
               row.Named("cuCtxAttach");
  const bool within = row.Named("Get") || row.Named("Enumerate") || row.Named("GraphAdd") ||
                      row.Named("FromGreenCtx") || row.Named("cuGreenCtxStreamCreate") ||
                      row.Named("FindInClone") || row.Named("cuIpc");
  Object* source = nullptr;
  for (size_t p = 0; p < row.parameters.size() && source == nullptr; ++p) {
    if (ready_->objects[p] != nullptr && ready_->objects[p]->kind != HandleKind::kStream)
      source = ready_->objects[p];
  }
  object.parent = within && source != nullptr ? source->id : world_.CurrentMade();
  if (object.kind == HandleKind::kFunction) {
    for (size_t p = 0; p < row.parameters.size(); ++p) {
      const Argument& argument = call.arguments[p];
      if (argument.kind == ArgumentKind::kText && argument.number < kKernelCount)
        object.kernel = static_cast<int8_t>(argument.number);
    }
    if (source != nullptr && source->kind == HandleKind::kFunction) object.kernel = source->kernel;
  }
  if (object.kind == HandleKind::kGraph && plan.effect == Effect::kEndsCapture)
    object.unordered = world_.capture_unordered;
  const bool made_anew = row.text() == "cuGraphCreate";
  if (object.kind == HandleKind::kGraph) object.opaque = !made_anew;
  if (plan.effect == Effect::kInheritsGraph && source != nullptr) {
    object.unordered = source->unordered || source->kind == HandleKind::kGraphNode;
    object.opaque = object.opaque && object.kind == HandleKind::kGraph ? true : source->opaque;
  }
  return object;
}

void Executor::TakeAllocation(const Call& call, const RowPlan& plan, size_t i, Ready& ready) {
  Region region;
  region.id = MadeId(call.id, i, 0);
  region.base = ready.Word(i);
  region.parent = world_.CurrentMade();
  const int bytes = call.row->Find(call.row->Named("Pitch")     ? "Height"
                                   : call.row->Named("Reserve") ? "size"
                                                                : "bytesize");
  if (bytes < 0 || call.arguments[bytes].kind != ArgumentKind::kNumber) return;
  region.bytes = call.arguments[bytes].number;
  if (call.row->Named("Pitch")) region.bytes *= ready.Word(1);
  region.own = !(plan.stream >= 0 && world_.AnyCapture());
  region.usable = region.bytes >= kLeastUsable && region.own && !world_.AnyCapture();
  region.place = call.row->Named("Host")      ? Place::kPinned
                 : call.row->Named("Managed") ? Place::kManaged
                 : call.row->Named("Reserve") ? Place::kReserved
                                              : Place::kDevice;
  region.usable = region.usable && region.place != Place::kReserved;
  const size_t filled = std::min(region.bytes, kMostFilled);
  if (region.usable && region.place == Place::kPinned) {
    std::memset(reinterpret_cast<void*>(region.base), kFill, filled);
  } else if (region.usable) {
    region.usable =
        DRIVER(cuMemsetD8Async)(region.base, kFill, filled, StreamOfKey(ready.stream_key)) == CUDA_SUCCESS;
    region.owner = ready.stream_key;
  }
  if (region.place != Place::kReserved) region.bytes = std::min(region.bytes, kMostFilled);
  world_.AddRegion(region);
}

// A new array holds what lay there before: what copies read of it must be known.
void Executor::FillArray(Object& array) {
  array.readable = false;
  CUDA_ARRAY3D_DESCRIPTOR desc{};
  if (world_.AnyCapture() ||
      DRIVER(cuArray3DGetDescriptor_v2)(&desc, reinterpret_cast<CUarray>(array.raw)) != CUDA_SUCCESS)
    return;
  const size_t bytes = BytesOfElement(desc.Format) * desc.NumChannels * desc.Width;
  const size_t height = std::max<size_t>(desc.Height, 1), depth = std::max<size_t>(desc.Depth, 1);
  if (bytes == 0 || bytes * height * depth > kMostFilled || (desc.Flags & ~uint32_t{0xf}) != 0) return;
  static const std::vector<unsigned char> fill(kMostFilled, kFill);
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = fill.data();
  copy.srcPitch = copy.WidthInBytes = bytes;
  copy.srcHeight = copy.Height = height;
  copy.Depth = depth;
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = reinterpret_cast<CUarray>(array.raw);
  array.readable = DRIVER(cuMemcpy3D_v2)(&copy) == CUDA_SUCCESS && DRIVER(cuCtxSynchronize)() == CUDA_SUCCESS;
}

// Of one stream of the current context, or of one that has a context of its own.
void Executor::EndCapture(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (DRIVER(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS || status == CU_STREAM_CAPTURE_STATUS_NONE)
    return;
  CUgraph graph = nullptr;
  if (DRIVER(cuStreamEndCapture)(stream, &graph) == CUDA_SUCCESS && graph != nullptr &&
      world_.FindRaw(HandleKind::kGraph, reinterpret_cast<uint64_t>(graph)) == nullptr) {
    DRIVER(cuGraphDestroy)(graph);
  }
}

// Also those of the calling thread's own streams, of which each context has one.
void Executor::EndCaptures() {
  for (const Object& object : world_.objects) {
    if (!object.alive) continue;
    if (object.kind == HandleKind::kStream) {
      EndCapture(reinterpret_cast<CUstream>(object.raw));
      world_.Capturing(object.raw, false);
    } else if (object.kind == HandleKind::kContext &&
               DRIVER(cuCtxPushCurrent_v2)(reinterpret_cast<CUcontext>(object.raw)) == CUDA_SUCCESS) {
      CUcontext popped = nullptr;
      EndCapture(CU_STREAM_PER_THREAD);
      DRIVER(cuCtxPopCurrent_v2)(&popped);
    }
  }
}

void Executor::EndObjects() {
  for (size_t i = world_.objects.size(); i-- > 0;) {
    const Object object = world_.objects[i];
    if (!object.alive || !object.own) continue;
    const uint64_t raw = object.raw;
#define ENDS(kind, type, fn)                 \
  case HandleKind::kind:                     \
    DRIVER(fn)(reinterpret_cast<type>(raw)); \
    break;
    switch (object.kind) {
      ENDS(kContext, CUcontext, cuCtxDestroy_v2)
      ENDS(kModule, CUmodule, cuModuleUnload)
      ENDS(kLibrary, CUlibrary, cuLibraryUnload)
      ENDS(kStream, CUstream, cuStreamDestroy_v2)
      ENDS(kEvent, CUevent, cuEventDestroy_v2)
      ENDS(kGraph, CUgraph, cuGraphDestroy)
      ENDS(kGraphExec, CUgraphExec, cuGraphExecDestroy)
      ENDS(kArray, CUarray, cuArrayDestroy)
      ENDS(kMipmappedArray, CUmipmappedArray, cuMipmappedArrayDestroy)
      ENDS(kMemoryPool, CUmemoryPool, cuMemPoolDestroy)
      ENDS(kLink, CUlinkState, cuLinkDestroy)
      ENDS(kTextureReference, CUtexref, cuTexRefDestroy)
      default:
        break;
    }
#undef ENDS
    if (object.kind == kTextureObject) DRIVER(cuTexObjectDestroy)(raw);
    if (object.kind == kSurfaceObject) DRIVER(cuSurfObjectDestroy)(raw);
    if (object.kind == HandleKind::kAllocation) DRIVER(cuMemRelease)(raw);
    if (object.kind == HandleKind::kUserObject)
      DRIVER(cuUserObjectRelease)(reinterpret_cast<CUuserObject>(raw), 1);
    if (object.kind == HandleKind::kGreenContext && FindRow("cuGreenCtxDestroy")->function != nullptr) {
      DRIVER(cuGreenCtxDestroy)(reinterpret_cast<CUgreenCtx>(raw));
    }
    world_.End(object.id);
  }
}

uint64_t Executor::EndProgram(std::string* told) {
  const CUcontext base = world_.base;
  const std::function<void()> leave = [&] {
    auto mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    DRIVER(cuThreadExchangeStreamCaptureMode)(&mode);
    CUcontext popped = nullptr;
    for (int i = 0; i < 64 && DRIVER(cuCtxPopCurrent_v2)(&popped) == CUDA_SUCCESS && popped != nullptr; ++i) {
    }
    DRIVER(cuCtxSetCurrent)(base);
    EndCaptures();
    mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    DRIVER(cuThreadExchangeStreamCaptureMode)(&mode);
  };
  if (helper_used_) OnHelper(leave);
  leave();
  helper_used_ = false;
  world_.EndCapturing();
  if (!world_.Quiesce()) world_.broken = true;
  Hash hash;
  hash.Add(world_.broken);
  if (world_.broken) return hash.value();
  if (pool_set_) {
    CUmemoryPool pool = nullptr;
    if (DRIVER(cuDeviceGetDefaultMemPool)(&pool, 0) == CUDA_SUCCESS) DRIVER(cuDeviceSetMemPool)(0, pool);
    pool_set_ = false;
  }
  LookAtMemory(hash, told);
  EndObjects();
  for (const Region& region : world_.regions) {
    if (!region.alive || !region.own || region.id < kFirstMade) continue;
    if (region.place == Place::kPinned) {
      DRIVER(cuMemFreeHost)(reinterpret_cast<void*>(region.base));
    } else if (region.place == Place::kReserved) {
      DRIVER(cuMemAddressFree)(region.base, region.bytes);
    } else {
      DRIVER(cuMemFree_v2)(region.base);
    }
  }
  return hash.value();
}

// Adds what the permanent memory holds where the program has used it, and gives it its first contents back.
void Executor::LookAtMemory(Hash& hash, std::string* told) {
  static std::vector<uint64_t> bytes;
  for (Region& region : world_.regions) {
    const bool host = region.place == Place::kPinned || region.place == Place::kPageable;
    if (region.place == Place::kPageable) DRIVER(cuMemHostUnregister)(reinterpret_cast<void*>(region.base));
    if (region.id >= kFirstMade || !region.dirty) continue;
    bytes.assign(region.bytes / 8, 0);
    if (host) {
      std::memcpy(bytes.data(), reinterpret_cast<void*>(region.base), region.bytes);
    } else if (DRIVER(cuMemcpyDtoH_v2)(bytes.data(), region.base, region.bytes) != CUDA_SUCCESS) {
      world_.broken = true;
      return;
    }
    Hash its;
    its.AddBytes(bytes.data(), region.bytes);
    hash.Add(its.value());
    if (told != nullptr)
      *told += "region" + std::to_string(region.id) + " holds " + std::to_string(its.value()) + "\n";
    ResetRegion(region);
  }
  for (auto& counter : counters) {
    hash.Add(counter.load());
    if (told != nullptr) *told += "a counter is " + std::to_string(counter.load()) + "\n";
    counter.store(0);
  }
}

void ResetRegion(Region& region) {
  static std::vector<uint64_t> first;
  first.resize(region.bytes / 8);
  for (size_t i = 0; i < first.size(); ++i)
    first[i] = region.place == Place::kWords ? 0 : Mixed(region.id * 1000003 + i);
  region.dirty = false;
  if (region.place == Place::kPinned || region.place == Place::kPageable) {
    std::memcpy(reinterpret_cast<void*>(region.base), first.data(), region.bytes);
  } else {
    DRIVER(cuMemcpyHtoD_v2)(region.base, first.data(), region.bytes);
  }
}

}  // namespace causeway::differential
