// SPDX-License-Identifier: Apache-2.0
// What the fake driver does with memory: it touches every byte that a call gives it, at the moment at which
// the real one may. Copies to and from registered memory happen later, those of graphs with each launch, so
// an address that has outlived what it named is found. Logs of the compiler are filled to the last byte that
// was offered. Managed memory is this process's own, as natively, and poisoned where none was allocated.
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <map>
#include <vector>

#include "host_backend/worker/driver/driver.h"
#include "tests/fuzz/fake_driver.h"
#include "tests/fuzz/fake_objects.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/guarded_buffer.h"
#include "tests/fuzz/worker_setup.h"

namespace causeway::fuzz {
namespace {

volatile uint8_t sink;

// All of it: a sanitizer sees the first byte that is not there.
void Read(const void* bytes, size_t count) {
  static std::byte copy[4096];
  const auto* from = static_cast<const std::byte*>(bytes);
  for (size_t done = 0; done < count; done += sizeof copy)
    std::memcpy(copy, from + done, std::min(sizeof copy, count - done));
  sink = static_cast<uint8_t>(copy[0]);
}
void Write(void* bytes, size_t count) {
  if (count != 0) std::memset(bytes, 1, count);
}

// ---- registered memory, and what waits for a stream

std::map<uintptr_t, size_t> registered;
struct Later {
  void* bytes;
  size_t count;
  bool to_device;
};
std::vector<Later> later;

void Finish() {
  for (const Later& copy : later)
    copy.to_device ? Read(copy.bytes, copy.count) : Write(copy.bytes, copy.count);
  later.clear();
}

bool IsRegistered(const void* bytes, size_t count) {
  const auto at = reinterpret_cast<uintptr_t>(bytes);
  const auto next = registered.upper_bound(at);
  if (next == registered.begin()) return false;
  const auto& [begin, size] = *std::prev(next);
  return at - begin < size && count <= size - (at - begin);
}

CUresult Register(void* address, size_t bytes, unsigned) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (ByChance(16)) return SomeError();
  sink = *static_cast<const volatile uint8_t*>(address);  // it is mapped
  registered[reinterpret_cast<uintptr_t>(address)] = bytes;
  return CUDA_SUCCESS;
}
CUresult Unregister(void* address) {
  Finish();
  return registered.erase(reinterpret_cast<uintptr_t>(address)) != 0 ? CUDA_SUCCESS
                                                                     : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}
CUresult DevicePointer(CUdeviceptr* device, void* host, unsigned) {
  *device = reinterpret_cast<CUdeviceptr>(host);
  return CUDA_SUCCESS;
}

// ---- managed memory

constexpr size_t kManagedBytes = 1u << 20;
std::byte* ManagedBase() {
  static std::byte* base = [] {
    void* mapped = mmap(nullptr, kManagedBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    Require(mapped != MAP_FAILED);
    ASAN_POISON_MEMORY_REGION(mapped, kManagedBytes);
    return static_cast<std::byte*>(mapped);
  }();
  return base;
}
std::map<uintptr_t, size_t> managed;
size_t managed_end;

CUresult AllocManaged(CUdeviceptr* address, size_t bytes, unsigned) {
  if (bytes == 0 || bytes > 128 * 1024 || managed_end + bytes + 64 > kManagedBytes)
    return CUDA_ERROR_OUT_OF_MEMORY;
  std::byte* at = ManagedBase() + managed_end;
  managed_end += (bytes + 63 + 64) / 64 * 64;
  ASAN_UNPOISON_MEMORY_REGION(at, bytes);
  managed[reinterpret_cast<uintptr_t>(at)] = bytes;
  *address = reinterpret_cast<CUdeviceptr>(at);
  return CUDA_SUCCESS;
}
CUresult Free(CUdeviceptr address) {
  Finish();
  const auto found = managed.find(address);
  if (found == managed.end()) return ByChance(16) ? SomeError() : CUDA_SUCCESS;
  ASAN_POISON_MEMORY_REGION(reinterpret_cast<void*>(address), found->second);
  managed.erase(found);
  return CUDA_SUCCESS;
}
CUresult FreeAsync(CUdeviceptr address, CUstream) {
  return Free(address);
}
bool IsManaged(CUdeviceptr address) {
  const auto next = managed.upper_bound(address);
  return next != managed.begin() && address - std::prev(next)->first < std::prev(next)->second;
}
CUresult PointerAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  uint64_t answer = 0;
  size_t bytes = sizeof(int);
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      answer = IsManaged(address) ? 1 : 0;
      break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      if (!IsManaged(address) && !IsFakeDeviceMemory(address)) return CUDA_ERROR_INVALID_VALUE;
      answer = CU_MEMORYTYPE_DEVICE;
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      break;
    default:
      return ByChance(2) ? SomeError() : CUDA_SUCCESS;
  }
  std::memcpy(value, &answer, bytes);
  return CUDA_SUCCESS;
}

// ---- copies

void CopyIn(const void* from, size_t bytes, bool waits) {
  if (!waits && IsRegistered(from, bytes)) {
    later.push_back({const_cast<void*>(from), bytes, true});
  } else {
    Read(from, bytes);
  }
}
void CopyOut(void* to, size_t bytes, bool waits) {
  if (!waits && IsRegistered(to, bytes)) {
    later.push_back({to, bytes, false});
  } else {
    Write(to, bytes);
  }
}

CUresult HtoD(CUdeviceptr, const void* from, size_t bytes) {
  CopyIn(from, bytes, true);
  return ByChance(16) ? SomeError() : CUDA_SUCCESS;
}
CUresult HtoDAsync(CUdeviceptr, const void* from, size_t bytes, CUstream stream) {
  RequireFakeObject("cuMemcpyHtoDAsync", HandleKind::kStream, stream);
  CopyIn(from, bytes, false);
  return CUDA_SUCCESS;
}
CUresult DtoH(void* to, CUdeviceptr, size_t bytes) {
  CopyOut(to, bytes, true);
  return ByChance(16) ? SomeError() : CUDA_SUCCESS;
}
CUresult DtoHAsync(void* to, CUdeviceptr, size_t bytes, CUstream stream) {
  RequireFakeObject("cuMemcpyDtoHAsync", HandleKind::kStream, stream);
  CopyOut(to, bytes, false);
  return CUDA_SUCCESS;
}
CUresult StreamDone(CUstream stream) {
  RequireFakeObject("cuStreamSynchronize", HandleKind::kStream, stream);
  Finish();
  return ByChance(32) ? SomeError() : CUDA_SUCCESS;
}
CUresult AllDone() {
  Finish();
  return ByChance(32) ? SomeError() : CUDA_SUCCESS;
}

// One host side of a box: each row, where the driver's rules for pitch and height put it.
struct Side {
  void* base;
  size_t x, y, z, pitch, rows;
};
void TouchSide(const Side& side, size_t width, size_t height, size_t depth, bool writes) {
  const size_t pitch = side.pitch != 0 ? side.pitch : width + side.x;
  const size_t rows = side.rows != 0 ? side.rows : height + side.y;
  for (size_t z = 0; z < depth; ++z) {
    for (size_t y = 0; y < height; ++y) {
      auto* row = static_cast<std::byte*>(side.base) + ((side.z + z) * rows + side.y + y) * pitch + side.x;
      if (writes) {
        Write(row, width);
      } else {
        Read(row, width);
      }
    }
  }
}
template <class Box>
CUresult CopyBox(const Box& box) {
  const size_t height = box.Height, depth = box.Depth;
  if (box.WidthInBytes == 0 || height == 0 || depth == 0) return CUDA_SUCCESS;
  // What the driver refuses.
  if ((box.srcPitch != 0 && box.srcPitch < box.WidthInBytes + box.srcXInBytes) ||
      (box.dstPitch != 0 && box.dstPitch < box.WidthInBytes + box.dstXInBytes) ||
      (box.srcHeight != 0 && box.srcHeight < height + box.srcY) ||
      (box.dstHeight != 0 && box.dstHeight < height + box.dstY)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (box.WidthInBytes > (1u << 22) || height > (1u << 16) || depth > (1u << 12) ||
      box.WidthInBytes * height * depth > (1u << 22)) {
    return CUDA_ERROR_INVALID_VALUE;  // more than any device's array, and than an input should take
  }
  Require(box.srcMemoryType != CU_MEMORYTYPE_UNIFIED && box.dstMemoryType != CU_MEMORYTYPE_UNIFIED);
  if (box.srcMemoryType == CU_MEMORYTYPE_ARRAY) RequireFakeObject("box", HandleKind::kArray, box.srcArray);
  if (box.dstMemoryType == CU_MEMORYTYPE_ARRAY) RequireFakeObject("box", HandleKind::kArray, box.dstArray);
  if (box.srcMemoryType == CU_MEMORYTYPE_HOST)
    TouchSide(
        {const_cast<void*>(box.srcHost), box.srcXInBytes, box.srcY, box.srcZ, box.srcPitch, box.srcHeight},
        box.WidthInBytes, height, depth, false);
  if (box.dstMemoryType == CU_MEMORYTYPE_HOST)
    TouchSide({box.dstHost, box.dstXInBytes, box.dstY, box.dstZ, box.dstPitch, box.dstHeight},
              box.WidthInBytes, height, depth, true);
  return ByChance(16) ? SomeError() : CUDA_SUCCESS;
}
CUresult Copy3D(const CUDA_MEMCPY3D* box) {
  return CopyBox(*box);
}
CUresult Copy3DAsync(const CUDA_MEMCPY3D* box, CUstream stream) {
  RequireFakeObject("cuMemcpy3DAsync", HandleKind::kStream, stream);
  return CopyBox(*box);
}
CUresult Copy3DPeer(const CUDA_MEMCPY3D_PEER* box) {
  return CopyBox(*box);
}
CUresult Copy3DPeerAsync(const CUDA_MEMCPY3D_PEER* box, CUstream stream) {
  RequireFakeObject("cuMemcpy3DPeerAsync", HandleKind::kStream, stream);
  return CopyBox(*box);
}

// ---- copies in graphs: with every launch

std::map<uintptr_t, std::vector<CUDA_MEMCPY3D>> boxes;  // of graphs and executable graphs

CUresult AddMemcpyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* before, size_t count,
                       const CUDA_MEMCPY3D* box, CUcontext context) {
  RequireFakeObject("cuGraphAddMemcpyNode", HandleKind::kGraph, graph);
  RequireFakeObject("cuGraphAddMemcpyNode", HandleKind::kContext, context);
  for (size_t i = 0; i < count; ++i) RequireFakeObject("dependency", HandleKind::kGraphNode, before[i]);
  if (ByChance(16)) return SomeError();
  if (const CUresult result = CopyBox(*box); result == CUDA_ERROR_INVALID_VALUE) return result;
  boxes[reinterpret_cast<uintptr_t>(graph)].push_back(*box);
  *node = reinterpret_cast<CUgraphNode>(
      MakeFakeObject(HandleKind::kGraphNode, reinterpret_cast<uintptr_t>(graph)));
  return CUDA_SUCCESS;
}
CUresult AddNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* before, size_t count,
                 CUgraphNodeParams* parameters) {
  RequireFakeObject("cuGraphAddNode", HandleKind::kGraph, graph);
  for (size_t i = 0; i < count; ++i) RequireFakeObject("dependency", HandleKind::kGraphNode, before[i]);
  if (ByChance(16)) return SomeError();
  if (parameters->type == CU_GRAPH_NODE_TYPE_MEMCPY) {
    return AddMemcpyNode(node, graph, before, count, &parameters->memcpy.copyParams, nullptr);
  }
  if (parameters->type == CU_GRAPH_NODE_TYPE_KERNEL && parameters->kernel.func != nullptr)
    RequireFakeObject("cuGraphAddNode", HandleKind::kFunction, parameters->kernel.func);
  if (parameters->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP)
    Read(parameters->memOp.paramArray, parameters->memOp.count * sizeof(CUstreamBatchMemOpParams));
  *node = reinterpret_cast<CUgraphNode>(
      MakeFakeObject(HandleKind::kGraphNode, reinterpret_cast<uintptr_t>(graph)));
  return CUDA_SUCCESS;
}
CUresult AddNodeWithEdges(CUgraphNode* node, CUgraph graph, const CUgraphNode* before,
                          const CUgraphEdgeData* edges, size_t count, CUgraphNodeParams* parameters) {
  if (edges != nullptr) Read(edges, count * sizeof *edges);
  return AddNode(node, graph, before, count, parameters);
}
CUresult Instantiated(CUgraphExec* exec, CUgraph graph) {
  RequireFakeObject("cuGraphInstantiate", HandleKind::kGraph, graph);
  if (ByChance(16)) return SomeError();
  *exec = reinterpret_cast<CUgraphExec>(MakeFakeObject(HandleKind::kGraphExec, 0));
  if (const auto found = boxes.find(reinterpret_cast<uintptr_t>(graph)); found != boxes.end())
    boxes[reinterpret_cast<uintptr_t>(*exec)] = std::vector(found->second);
  return CUDA_SUCCESS;
}
CUresult Instantiate(CUgraphExec* exec, CUgraph graph, unsigned long long) {
  return Instantiated(exec, graph);
}
CUresult InstantiateWithParams(CUgraphExec* exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  parameters->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
  return Instantiated(exec, graph);
}
CUresult LaunchGraph(CUgraphExec exec, CUstream stream) {
  RequireFakeObject("cuGraphLaunch", HandleKind::kGraphExec, exec);
  RequireFakeObject("cuGraphLaunch", HandleKind::kStream, stream);
  if (exec == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (const auto found = boxes.find(reinterpret_cast<uintptr_t>(exec)); found != boxes.end()) {
    for (const CUDA_MEMCPY3D& box : found->second) CopyBox(box);
  }
  return CUDA_SUCCESS;
}

// ---- the compiler's logs

// As the real one takes them: each option in turn, and the last of its kind counts.
struct Logs {
  void* text[2] = {};
  size_t bytes[2] = {};

  void Take(CUjit_option option, void* value) {
    switch (option) {
      case CU_JIT_INFO_LOG_BUFFER:
        text[0] = value;
        break;
      case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
        bytes[0] = static_cast<unsigned>(reinterpret_cast<uintptr_t>(value));
        break;
      case CU_JIT_ERROR_LOG_BUFFER:
        text[1] = value;
        break;
      case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
        bytes[1] = static_cast<unsigned>(reinterpret_cast<uintptr_t>(value));
        break;
      default:
        break;
    }
  }
  void Fill() const {
    for (int i = 0; i < 2; ++i) {
      if (text[i] != nullptr) Write(text[i], bytes[i]);
    }
  }
};
Logs Compile(unsigned count, CUjit_option* options, void** values) {
  Logs logs;
  for (unsigned i = 0; i < count; ++i) logs.Take(options[i], values[i]);
  logs.Fill();
  return logs;
}
// ELF, a container or text; a wrapper says where the container is, and the real driver goes there.
bool LooksLikeImage(const void* image) {
  constexpr uint32_t kElf = 0x464c457f, kFatbin = 0xba55ed50, kWrapper = 0x466243b1;
  uint32_t magic;
  std::memcpy(&magic, image, sizeof magic);
  if (magic != kWrapper) return magic == kElf || magic == kFatbin || ByChance(2);
  struct {
    uint32_t magic, version;
    const void* data;
  } wrapper;
  std::memcpy(&wrapper, image, sizeof wrapper);
  Read(wrapper.data, 16);  // the container's header
  return true;
}
CUresult LoadModule(CUmodule* module, const void* image, unsigned count, CUjit_option* options,
                    void** values) {
  Compile(count, options, values);
  if (!LooksLikeImage(image) || ByChance(16)) return CUDA_ERROR_INVALID_IMAGE;
  *module = reinterpret_cast<CUmodule>(MakeFakeObject(HandleKind::kModule, CurrentFakeContext()));
  return CUDA_SUCCESS;
}
CUresult LoadModulePlain(CUmodule* module, const void* image) {
  return LoadModule(module, image, 0, nullptr, nullptr);
}
CUresult LoadLibrary(CUlibrary* library, const void* image, CUjit_option* options, void** values,
                     unsigned count, CUlibraryOption*, void**, unsigned) {
  Compile(count, options, values);
  if (!LooksLikeImage(image) || ByChance(16)) return CUDA_ERROR_INVALID_IMAGE;
  *library = reinterpret_cast<CUlibrary>(MakeFakeObject(HandleKind::kLibrary, 0));
  return CUDA_SUCCESS;
}
// A link keeps its logs until it is destroyed.
std::map<uintptr_t, Logs> links;
CUresult LinkCreate(unsigned count, CUjit_option* options, void** values, CUlinkState* link) {
  Logs logs = Compile(count, options, values);
  if (ByChance(16)) return SomeError();
  *link = reinterpret_cast<CUlinkState>(MakeFakeObject(HandleKind::kLink, 0));
  links[reinterpret_cast<uintptr_t>(*link)] = logs;
  return CUDA_SUCCESS;
}
CUresult LinkAdd(CUlinkState link, CUjitInputType, void* data, size_t bytes, const char* name, unsigned count,
                 CUjit_option* options, void** values) {
  RequireFakeObject("cuLinkAddData", HandleKind::kLink, link);
  if (link == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Read(data, bytes);
  if (name != nullptr) sink = static_cast<uint8_t>(strlen(name));
  Compile(count, options, values);
  links[reinterpret_cast<uintptr_t>(link)].Fill();
  return ByChance(8) ? CUDA_ERROR_INVALID_PTX : CUDA_SUCCESS;
}
CUresult LinkComplete(CUlinkState link, void** image, size_t* bytes) {
  RequireFakeObject("cuLinkComplete", HandleKind::kLink, link);
  if (link == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  static std::byte cubin[256];
  links[reinterpret_cast<uintptr_t>(link)].Fill();
  *image = cubin;
  *bytes = sizeof cubin;
  return ByChance(8) ? CUDA_ERROR_INVALID_PTX : CUDA_SUCCESS;
}

// A mark is written at once, as by a GPU that is idle, unless the call fails.
decltype(&::cuStreamWriteValue32_v2) write_other_word;
CUresult WriteWord(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  if (!IsMarkWord(address)) return write_other_word(stream, address, value, flags);
  if (stream != nullptr) RequireFakeObject("cuStreamWriteValue32", HandleKind::kStream, stream);
  if (ByChance(16)) return SomeError();
  reinterpret_cast<std::atomic<uint32_t>*>(address)->store(value);
  return CUDA_SUCCESS;
}
decltype(&::cuStreamBatchMemOp_v2) run_other_batch;
CUresult WriteWords(CUstream stream, unsigned count, CUstreamBatchMemOpParams* each, unsigned flags) {
  const bool has_mark = count == 2 && each[1].operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 &&
                        IsMarkWord(each[1].writeValue.address);
  const CUresult result = run_other_batch(stream, has_mark ? 1 : count, each, flags);
  if (!has_mark || result != CUDA_SUCCESS) return result;
  return WriteWord(stream, each[1].writeValue.address, each[1].writeValue.value, 0);
}

}  // namespace

void InstallFakeMemory() {
  host::Driver& driver = host::DriverToFill();
  write_other_word = driver.cuStreamWriteValue32_v2;
  run_other_batch = driver.cuStreamBatchMemOp_v2;
  driver.cuStreamWriteValue32_v2 = WriteWord;
  driver.cuStreamBatchMemOp_v2 = WriteWords;
  driver.cuMemHostRegister_v2 = Register;
  driver.cuMemHostUnregister = Unregister;
  driver.cuMemHostGetDevicePointer_v2 = DevicePointer;
  driver.cuPointerGetAttribute = PointerAttribute;
  driver.cuMemAllocManaged = AllocManaged;
  driver.cuMemFree_v2 = Free;
  driver.cuMemFreeAsync = FreeAsync;
  driver.cuMemcpyHtoD_v2 = HtoD;
  driver.cuMemcpyHtoDAsync_v2 = HtoDAsync;
  driver.cuMemcpyDtoH_v2 = DtoH;
  driver.cuMemcpyDtoHAsync_v2 = DtoHAsync;
  driver.cuMemcpy3D_v2 = Copy3D;
  driver.cuMemcpy3DAsync_v2 = Copy3DAsync;
  driver.cuMemcpy3DPeer = Copy3DPeer;
  driver.cuMemcpy3DPeerAsync = Copy3DPeerAsync;
  driver.cuStreamSynchronize = StreamDone;
  driver.cuCtxSynchronize = AllDone;
  driver.cuGraphAddMemcpyNode = AddMemcpyNode;
  driver.cuGraphAddNode = AddNode;
  driver.cuGraphAddNode_v2 = AddNodeWithEdges;
  driver.cuGraphInstantiateWithFlags = Instantiate;
  driver.cuGraphInstantiateWithParams = InstantiateWithParams;
  driver.cuGraphLaunch = LaunchGraph;
  driver.cuModuleLoadData = LoadModulePlain;
  driver.cuModuleLoadDataEx = LoadModule;
  driver.cuLibraryLoadData = LoadLibrary;
  driver.cuLinkCreate_v2 = LinkCreate;
  driver.cuLinkAddData_v2 = LinkAdd;
  driver.cuLinkComplete = LinkComplete;
}

void ResetFakeMemory() {
  registered.clear();
  later.clear();
  boxes.clear();
  links.clear();
  if (managed_end != 0) ASAN_POISON_MEMORY_REGION(ManagedBase(), managed_end);
  managed.clear();
  managed_end = 0;
}

}  // namespace causeway::fuzz
