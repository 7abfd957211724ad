// SPDX-License-Identifier: Apache-2.0
#include "tests/differential/builders.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <map>

#include "tests/differential/callbacks.h"
#include "tests/differential/kernels.h"

namespace causeway::differential {

void Building::Tell(const char* format, ...) {
  if (text == nullptr) return;
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  *text += line;
}

uint64_t Building::Memory(std::initializer_list<Place> places, uint32_t alignment) {
  const auto count = static_cast<uint32_t>(world.regions.size());
  const uint32_t first = random.Below(count);
  const Place wanted = random.Of(places);
  for (uint32_t i = 0; i < count; ++i) {
    Region& region = world.regions[(first + i) % count];
    if (!region.alive || !region.usable || region.place != wanted || region.large || (region.own && lasting))
      continue;
    if (std::find(used.begin(), used.end(), &region) != used.end() || !world.Acquire(region, stream_key))
      continue;
    used.push_back(&region);
    region.dirty = true;
    const uint32_t offset = random.Of({0u, 0u, 4u, 64u, 1000u, 4096u}) / alignment * alignment;
    return region.base + offset;
  }
  return 0;
}
uint64_t Building::DeviceMemory(uint32_t alignment) {
  return Memory(
      {Place::kDevice, Place::kDevice, Place::kDevice, Place::kDevice, Place::kPinned, Place::kManaged},
      alignment);
}
uint64_t Building::HostMemory() {
  return Memory({Place::kPinned, Place::kPageable, Place::kPageable});
}

namespace {

// Values of which most suit: a small power of two, or one in fifty something else.
uint32_t SmallSize(Building& b) {
  return b.random.Chance(20) ? b.random.Of({0u, 3u, 1u << 20}) : b.random.Of({1u, 4u, 8u, 16u, 32u});
}
int Device(Building& b) {
  return b.random.Chance(10) ? 1 : 0;
}
CUmemLocation Location(Building& b) {
  CUmemLocation location{};
  location.type =
      b.random.Chance(850) ? CU_MEM_LOCATION_TYPE_DEVICE : static_cast<CUmemLocationType>(b.random.Below(5));
  location.id = Device(b);
  return location;
}
CUarray SomeArray(Building& b, bool read) {
  const Object* array = b.world.Choose(
      b.random, HandleKind::kArray, [&](const Object& one) { return !b.lasting && (one.readable || !read); });
  return array == nullptr ? nullptr : reinterpret_cast<CUarray>(array->raw);
}

// One side of a 2D or 3D copy.
template <class Copy>
void BuildSource(Building& b, Copy& c) {
  c.srcMemoryType =
      b.random.Of({CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_ARRAY});
  if (c.srcMemoryType == CU_MEMORYTYPE_ARRAY && SomeArray(b, true) == nullptr)
    c.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  if (c.srcMemoryType == CU_MEMORYTYPE_HOST) c.srcHost = reinterpret_cast<void*>(b.HostMemory());
  if (c.srcMemoryType == CU_MEMORYTYPE_DEVICE)
    c.srcDevice = static_cast<decltype(c.srcDevice)>(b.DeviceMemory(1));
  if (c.srcMemoryType == CU_MEMORYTYPE_ARRAY) c.srcArray = SomeArray(b, true);
  c.srcPitch = b.random.Of({0u, 64u, 64u, 128u});
  c.srcXInBytes = b.random.Chance(800) ? 0 : 4;
  c.srcY = b.random.Chance(900) ? 0 : 1;
}
template <class Copy>
void BuildDestination(Building& b, Copy& c) {
  c.dstMemoryType =
      b.random.Of({CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_ARRAY});
  c.dstArray = c.dstMemoryType == CU_MEMORYTYPE_ARRAY ? SomeArray(b, false) : nullptr;
  if (c.dstMemoryType == CU_MEMORYTYPE_ARRAY && c.dstArray == nullptr) c.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  if (c.dstMemoryType == CU_MEMORYTYPE_HOST) c.dstHost = reinterpret_cast<void*>(b.HostMemory());
  if (c.dstMemoryType == CU_MEMORYTYPE_DEVICE)
    c.dstDevice = static_cast<decltype(c.dstDevice)>(b.DeviceMemory(1));
  c.dstPitch = b.random.Of({0u, 64u, 64u, 128u});
  c.dstXInBytes = b.random.Chance(800) ? 0 : 4;
  c.dstY = b.random.Chance(900) ? 0 : 1;
}
template <class Copy>
void BuildCopy2D(Building& b, Copy& c) {
  BuildSource(b, c);
  BuildDestination(b, c);
  c.WidthInBytes = SmallSize(b);
  c.Height = b.random.Of({1u, 1u, 2u, 7u});
  b.Tell("{%d from %#llx %p pitch %zu x %zu y %zu, %d to %#llx %p pitch %zu x %zu y %zu, %zu x %zu}",
         c.srcMemoryType, static_cast<unsigned long long>(c.srcDevice), c.srcHost, size_t{c.srcPitch},
         size_t{c.srcXInBytes}, size_t{c.srcY}, c.dstMemoryType, static_cast<unsigned long long>(c.dstDevice),
         c.dstHost, size_t{c.dstPitch}, size_t{c.dstXInBytes}, size_t{c.dstY}, size_t{c.WidthInBytes},
         size_t{c.Height});
}
template <class Copy>
void BuildCopy3D(Building& b, Copy& c) {
  BuildCopy2D(b, c);
  c.Depth = b.random.Of({1u, 1u, 1u, 2u, 0u});
  c.srcHeight = b.random.Of({0u, 8u, 8u});
  c.dstHeight = b.random.Of({0u, 8u, 8u});
  if constexpr (requires { c.srcContext; }) {
    c.srcContext = b.Some<CUcontext>(true);
    c.dstContext = b.Some<CUcontext>(true);
  }
  b.Tell(" depth %zu heights %zu %zu", size_t{c.Depth}, size_t{c.srcHeight}, size_t{c.dstHeight});
}

// The values of a kernel's parameters; null where the function is none of ours.
void** Parameters(Building& b, const Object* function) {
  if (function == nullptr || function->kernel < 0) return nullptr;
  auto** list = b.Take<void*>(4);
  auto* words = b.Take<uint64_t>(4);
  if (list == nullptr || words == nullptr) return nullptr;
  for (int i = 0; i < 4; ++i) list[i] = &words[i];
  const int addresses = function->kernel == kIdle ? 0 : function->kernel == 1 ? 2 : 1;
  for (int i = 0; i < addresses; ++i) words[i] = b.DeviceMemory();
  const bool mapped = addresses == 0 || (words[0] != 0 && (addresses == 1 || words[1] != 0));
  words[addresses] = mapped && function->kernel != kIdle ? b.random.Of({0u, 1u, 33u, 256u}) : 0;
  words[addresses + 1 < 4 ? addresses + 1 : 3] = b.random.Below(1000);
  b.Tell("{%s: %#llx, %#llx, %llu, %llu}", kKernelNames[function->kernel],
         static_cast<unsigned long long>(words[0]), static_cast<unsigned long long>(words[1]),
         static_cast<unsigned long long>(words[2]), static_cast<unsigned long long>(words[3]));
  return list;
}
void BuildKernelParameters(Building& b, std::byte* at) {
  void** list = Parameters(b, b.function);
  if (list != nullptr) std::memcpy(at, list, 4 * sizeof(void*));
}

template <class Shape>
void BuildShape(Building& b, Shape& s) {
  s.gridDimX = b.random.Chance(15) ? 0 : b.random.Of({1u, 1u, 2u, 3u});
  s.gridDimY = b.random.Of({1u, 1u, 1u, 2u});
  s.gridDimZ = 1;
  s.blockDimX = b.random.Chance(15) ? 1025 : b.random.Of({1u, 32u, 64u, 33u});
  s.blockDimY = b.random.Of({1u, 1u, 1u, 2u});
  s.blockDimZ = 1;
  s.sharedMemBytes = b.random.Of({0u, 0u, 16u, 1024u});
  b.Tell("<%u,%u,%u; %u,%u,%u; %u>", s.gridDimX, s.gridDimY, s.gridDimZ, s.blockDimX, s.blockDimY,
         s.blockDimZ, s.sharedMemBytes);
}
Object* SomeKernel(Building& b, bool kernel) {
  return b.world.Choose(b.random, HandleKind::kFunction, [&](const Object& one) {
    return one.kernel >= 0 && one.is_kernel == kernel && !one.foreign && (one.id < kFirstMade || !b.lasting);
  });
}
template <class Node>
void BuildKernelNode(Building& b, Node& node) {
  BuildShape(b, node);
  Object* function = SomeKernel(b, false);
  node.func = function == nullptr ? nullptr : reinterpret_cast<CUfunction>(function->raw);
  if constexpr (requires { node.kern; }) {
    Object* kernel = b.random.Chance(200) ? SomeKernel(b, true) : nullptr;
    if (kernel != nullptr) {
      function = kernel;
      node.func = nullptr;
      node.kern = reinterpret_cast<CUkernel>(kernel->raw);
      node.ctx = b.random.Chance(500) ? nullptr : b.Some<CUcontext>(true);
    }
  }
  node.kernelParams = b.random.Chance(10) ? nullptr : Parameters(b, function);
}
template <class Node>
void BuildMemsetNode(Building& b, Node& node) {
  node.dst = b.DeviceMemory();
  node.elementSize = b.random.Chance(20) ? 3 : b.random.Of({1u, 2u, 4u});
  node.value = b.random.Below(256);
  node.width = SmallSize(b);
  node.height = b.random.Of({1u, 1u, 2u});
  node.pitch = 256;
  if constexpr (requires { node.ctx; }) node.ctx = b.random.Chance(500) ? nullptr : b.Some<CUcontext>(true);
  b.Tell("{memset %#llx %u of %u bytes, %zu x %zu}", static_cast<unsigned long long>(node.dst), node.value,
         node.elementSize, node.width, node.height);
}
template <class Node>
void BuildHostNode(Building& b, Node& node) {
  node.fn = b.random.Chance(20) ? nullptr : &CountUp;
  node.userData = CounterAddress(b.random.Below(kCounters));
}
template <class Props>
void BuildPoolProps(Building& b, Props& props) {
  props.allocType = b.random.Chance(20) ? CU_MEM_ALLOCATION_TYPE_INVALID : CU_MEM_ALLOCATION_TYPE_PINNED;
  props.handleTypes =
      b.random.Chance(900) ? CU_MEM_HANDLE_TYPE_NONE : CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  props.location = Location(b);
  props.maxSize = b.random.Of({0u, 0u, 1u << 21});
}
template <class Node>
void BuildAllocNode(Building& b, Node& node) {
  BuildPoolProps(b, node.poolProps);
  node.poolProps.handleTypes = CU_MEM_HANDLE_TYPE_NONE;
  node.bytesize = b.random.Of({0u, 64u, 4096u, 1u << 20});
}
void BuildMemOp(Building& b, CUstreamBatchMemOpParams& op) {
  op.operation = b.random.Chance(20)
                     ? static_cast<CUstreamBatchMemOpType>(9)
                     : b.random.Of({CU_STREAM_MEM_OP_WRITE_VALUE_32, CU_STREAM_MEM_OP_WRITE_VALUE_64,
                                    CU_STREAM_MEM_OP_WAIT_VALUE_32, CU_STREAM_MEM_OP_BARRIER});
  if (op.operation == CU_STREAM_MEM_OP_BARRIER) {
    op.memoryBarrier.flags = b.random.Below(2);
    return;
  }
  op.writeValue.address = b.Memory({Place::kWords});
  op.writeValue.address &= ~uint64_t{7};
  // A wait is for what already holds: it never blocks.
  op.writeValue.value64 = op.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 ? 0 : b.random.Below(100);
  b.Tell("{op %d at %#llx, %llu}", op.operation, static_cast<unsigned long long>(op.writeValue.address),
         static_cast<unsigned long long>(op.writeValue.value64));
}
template <class Node>
void BuildMemOpNode(Building& b, Node& node) {
  node.ctx = b.Some<CUcontext>(true);
  node.count = b.random.Of({1u, 1u, 1u, 0u});
  node.paramArray = b.Take<CUstreamBatchMemOpParams>();
  if (node.paramArray != nullptr) BuildMemOp(b, *node.paramArray);
}
template <class Desc>
void BuildArray(Building& b, Desc& desc) {
  desc.Width = b.random.Chance(20) ? b.random.Of({0u, 1u << 30}) : b.random.Of({4u, 16u, 64u});
  desc.Height = b.random.Of({0u, 1u, 8u});
  desc.Format = b.random.Chance(900)
                    ? b.random.Of({CU_AD_FORMAT_UNSIGNED_INT8, CU_AD_FORMAT_FLOAT, CU_AD_FORMAT_HALF})
                    : static_cast<CUarray_format>(b.random.Below(64));
  desc.NumChannels = b.random.Chance(20) ? 3 : b.random.Of({1u, 2u, 4u});
  if constexpr (requires { desc.Depth; }) {
    desc.Depth = b.random.Of({0u, 0u, 0u, 2u, 6u});
    desc.Flags = b.random.Of({0u, 0u, 0u, 1u, 2u, 4u, 8u});
  }
  b.Tell("{%zu x %zu, format %d, %u channels}", size_t{desc.Width}, size_t{desc.Height}, desc.Format,
         desc.NumChannels);
}
void BuildResource(Building& b, CUDA_RESOURCE_DESC& desc) {
  desc.resType = b.random.Of({CU_RESOURCE_TYPE_ARRAY, CU_RESOURCE_TYPE_LINEAR, CU_RESOURCE_TYPE_LINEAR,
                              CU_RESOURCE_TYPE_PITCH2D, CU_RESOURCE_TYPE_MIPMAPPED_ARRAY});
  if (desc.resType == CU_RESOURCE_TYPE_ARRAY) desc.res.array.hArray = SomeArray(b, false);
  if (desc.resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY)
    desc.res.mipmap.hMipmappedArray = b.Some<CUmipmappedArray>();
  if (desc.resType == CU_RESOURCE_TYPE_LINEAR) {
    desc.res.linear.devPtr = b.Memory({Place::kDevice}, 4096);
    desc.res.linear.format = CU_AD_FORMAT_UNSIGNED_INT32;
    desc.res.linear.numChannels = b.random.Of({1u, 2u, 4u});
    desc.res.linear.sizeInBytes = 1024;
  }
  if (desc.resType == CU_RESOURCE_TYPE_PITCH2D) {
    desc.res.pitch2D.devPtr = b.Memory({Place::kDevice}, 4096);
    desc.res.pitch2D.format = CU_AD_FORMAT_UNSIGNED_INT8;
    desc.res.pitch2D.numChannels = 1;
    desc.res.pitch2D.width = desc.res.pitch2D.height = 8;
    desc.res.pitch2D.pitchInBytes = b.random.Of({512u, 512u, 100u});
  }
  b.Tell("{resource %d}", desc.resType);
}
void BuildTexture(Building& b, CUDA_TEXTURE_DESC& desc) {
  for (CUaddress_mode& mode : desc.addressMode) mode = static_cast<CUaddress_mode>(b.random.Below(4));
  desc.filterMode = static_cast<CUfilter_mode>(b.random.Below(2));
  desc.flags = b.random.Of({0u, 1u, 2u, 3u});
}
template <class Prop>
void BuildAllocationProp(Building& b, Prop& prop) {
  prop.type = b.random.Chance(20) ? CU_MEM_ALLOCATION_TYPE_INVALID : CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = Location(b);
  prop.requestedHandleTypes =
      b.random.Chance(900) ? CU_MEM_HANDLE_TYPE_NONE : CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
}
void BuildAccess(Building& b, CUmemAccessDesc& desc) {
  desc.location = Location(b);
  desc.flags = b.random.Of(
      {CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CU_MEM_ACCESS_FLAGS_PROT_READ, CU_MEM_ACCESS_FLAGS_PROT_NONE});
}
void BuildLocation(Building& b, CUmemLocation& location) {
  location = Location(b);
}
void BuildConfig(Building& b, CUlaunchConfig& config) {
  BuildShape(b, config);
  config.hStream = b.Some<CUstream>(true);
  b.stream_key =
      b.world.KeyOf(reinterpret_cast<uint64_t>(config.hStream), b.call.row->Named("_ptsz"), b.call.thread);
  b.Tell("{stream %#llx}",
         static_cast<unsigned long long>(b.world.Named(reinterpret_cast<uint64_t>(config.hStream), true)));
  config.numAttrs = b.random.Of({0u, 0u, 1u});
  config.attrs = config.numAttrs == 0 ? nullptr : b.Take<CUlaunchAttribute>();
  if (config.attrs == nullptr) return;
  config.attrs->id = b.random.Of(
      {CU_LAUNCH_ATTRIBUTE_IGNORE, CU_LAUNCH_ATTRIBUTE_PRIORITY, CU_LAUNCH_ATTRIBUTE_COOPERATIVE});
  b.Tell("{attribute %d}", config.attrs->id);
}
void BuildAttributes(Building& b, CUmemcpyAttributes& attributes) {
  attributes.srcAccessOrder =
      static_cast<CUmemcpySrcAccessOrder>(b.random.Chance(30) ? 0 : 1 + b.random.Below(3));
}
void BuildOperand(Building& b, CUmemcpy3DOperand& operand, bool read) {
  CUarray array = b.random.Chance(200) ? SomeArray(b, read) : nullptr;
  operand.type = array == nullptr ? CU_MEMCPY_OPERAND_TYPE_POINTER : CU_MEMCPY_OPERAND_TYPE_ARRAY;
  if (array != nullptr) {
    operand.op.array.array = array;
  } else {
    operand.op.ptr.ptr = b.DeviceMemory();
  }
}
void BuildBatchOp(Building& b, CUDA_MEMCPY3D_BATCH_OP& op) {
  BuildOperand(b, op.src, true);
  BuildOperand(b, op.dst, false);
  op.extent = {SmallSize(b), 1, 1};
  op.srcAccessOrder = static_cast<CUmemcpySrcAccessOrder>(1 + b.random.Below(3));
}
void BuildInstantiate(Building& b, CUDA_GRAPH_INSTANTIATE_PARAMS& params) {
  params.flags = b.random.Of({0u, 0u, 1u, 8u});
  params.hUploadStream = b.random.Chance(100) ? b.Some<CUstream>() : nullptr;
}
template <class T>
void BuildNothing(Building&, T&) {}

void BuildNode(Building& b, CUgraphNodeParams& node) {
  node.type =
      b.random.Chance(20)
          ? static_cast<CUgraphNodeType>(b.random.Of({8u, 14u, 77u}))
          : b.random.Of({CU_GRAPH_NODE_TYPE_KERNEL, CU_GRAPH_NODE_TYPE_MEMCPY, CU_GRAPH_NODE_TYPE_MEMSET,
                         CU_GRAPH_NODE_TYPE_HOST, CU_GRAPH_NODE_TYPE_EMPTY, CU_GRAPH_NODE_TYPE_WAIT_EVENT,
                         CU_GRAPH_NODE_TYPE_EVENT_RECORD, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP});
  b.Tell("{node %d}", node.type);
  switch (node.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return BuildKernelNode(b, node.kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      node.memcpy.copyCtx = b.Some<CUcontext>(true);
      return BuildCopy3D(b, node.memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return BuildMemsetNode(b, node.memset);
    case CU_GRAPH_NODE_TYPE_HOST:
      return BuildHostNode(b, node.host);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      node.eventRecord.event = b.Some<CUevent>();
      return;
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return BuildMemOpNode(b, node.memOp);
    default:
      return;
  }
}

template <auto build>
struct Erased;
template <class T, void (*build)(Building&, T&)>
struct Erased<build> {
  static void Run(Building& b, std::byte* at) {
    static_assert(sizeof(T) <= kBuiltBytes);
    build(b, *reinterpret_cast<T*>(at));
  }
  static std::pair<TypeTag, Builder> Entry() { return {&kTagOf<T>, &Run}; }
};

// Three addresses; sizes for them; numbers of attributes.
void BuildAddresses(Building& b, std::byte* at) {
  for (int i = 0; i < 3; ++i) {
    const uint64_t address = b.Memory({Place::kDevice, Place::kPinned});
    std::memcpy(at + 8 * i, &address, 8);
  }
}
void BuildSizes(Building& b, std::byte* at) {
  for (int i = 0; i < 3; ++i) {
    const size_t size = SmallSize(b);
    std::memcpy(at + 8 * i, &size, 8);
  }
}
void BuildManagedAddresses(Building& b, std::byte* at) {
  const uint64_t address = b.Memory({Place::kManaged}, 4096);
  std::memcpy(at, &address, 8);
}
void BuildJitOptions(Building& b, std::byte* at) {
  for (int i = 0; i < 2; ++i) {
    const auto option =
        b.random.Of({CU_JIT_MAX_REGISTERS, CU_JIT_OPTIMIZATION_LEVEL, CU_JIT_GENERATE_LINE_INFO});
    std::memcpy(at + sizeof option * i, &option, sizeof option);
  }
}
void BuildJitValues(Building& b, std::byte* at) {
  for (int i = 0; i < 2; ++i) {
    const uint64_t value = b.random.Of({0u, 1u, 32u});
    std::memcpy(at + 8 * i, &value, 8);
  }
}
void BuildPointers(Building&, std::byte* at) {
  for (int i = 0; i < 3; ++i) {
    std::byte* const room = at + 128 + 64 * i;
    std::memcpy(at + 8 * i, &room, 8);
  }
}
void BuildZeros(Building&, std::byte*) {}
void BuildMany(Building& b, std::byte* at) {
  for (int i = 0; i < 3; ++i) BuildMemOp(b, reinterpret_cast<CUstreamBatchMemOpParams*>(at)[i]);
}

const std::map<TypeTag, Builder>& ByType() {
#define TYPE(T, build) Erased<static_cast<void (*)(Building&, T&)>(&build)>::Entry()
  static const std::map<TypeTag, Builder> all = {
      TYPE(CUDA_MEMCPY2D, BuildCopy2D),
      TYPE(CUDA_MEMCPY2D_v1, BuildCopy2D),
      TYPE(CUDA_MEMCPY3D, BuildCopy3D),
      TYPE(CUDA_MEMCPY3D_v1, BuildCopy3D),
      TYPE(CUDA_MEMCPY3D_PEER, BuildCopy3D),
      TYPE(CUDA_KERNEL_NODE_PARAMS_v1, BuildKernelNode),
      TYPE(CUDA_KERNEL_NODE_PARAMS, BuildKernelNode),
      TYPE(CUDA_MEMSET_NODE_PARAMS, BuildMemsetNode),
      TYPE(CUDA_HOST_NODE_PARAMS, BuildHostNode),
      TYPE(CUDA_MEM_ALLOC_NODE_PARAMS, BuildAllocNode),
      TYPE(CUDA_BATCH_MEM_OP_NODE_PARAMS, BuildMemOpNode),
      TYPE(CUgraphNodeParams, BuildNode),
      TYPE(CUDA_ARRAY_DESCRIPTOR, BuildArray),
      TYPE(CUDA_ARRAY_DESCRIPTOR_v1, BuildArray),
      TYPE(CUDA_ARRAY3D_DESCRIPTOR, BuildArray),
      TYPE(CUDA_ARRAY3D_DESCRIPTOR_v1, BuildArray),
      TYPE(CUDA_RESOURCE_DESC, BuildResource),
      TYPE(CUDA_TEXTURE_DESC, BuildTexture),
      TYPE(CUDA_RESOURCE_VIEW_DESC, BuildNothing<CUDA_RESOURCE_VIEW_DESC>),
      TYPE(CUmemPoolProps, BuildPoolProps),
      TYPE(CUmemAllocationProp, BuildAllocationProp),
      TYPE(CUmemAccessDesc, BuildAccess),
      TYPE(CUmemLocation, BuildLocation),
      TYPE(CUlaunchConfig, BuildConfig),
      TYPE(CUmemcpyAttributes, BuildAttributes),
      TYPE(CUDA_MEMCPY3D_BATCH_OP, BuildBatchOp),
      TYPE(CUDA_GRAPH_INSTANTIATE_PARAMS, BuildInstantiate),
      TYPE(CUgraphEdgeData, BuildNothing<CUgraphEdgeData>),
      TYPE(CUlaunchAttributeValue, BuildNothing<CUlaunchAttributeValue>),
      TYPE(CUexecAffinityParam, BuildNothing<CUexecAffinityParam>),
      TYPE(CUctxCreateParams, BuildNothing<CUctxCreateParams>),
  };
#undef TYPE
  return all;
}

}  // namespace

Builder BuilderFor(const Row& row, size_t number) {
  const Parameter& parameter = row.parameters[number];
  const std::string_view name = parameter.name;
  const bool pointer = parameter.type.depth > 0;
  if (parameter.type.base == Base::kVoid && parameter.type.depth == 2 && name == "data") return BuildPointers;
  if (name == "kernelParams") return BuildKernelParameters;
  if (pointer && (name == "dsts" || name == "srcs")) return BuildAddresses;
  if (pointer && name == "dptrs") return BuildManagedAddresses;
  if (pointer && parameter.declared.starts_with("size_t") && name == "sizes") return BuildSizes;
  if (pointer && (name == "attrsIdxs" || name == "prefetchLocIdxs" || name == "dataSizes")) return BuildZeros;
  if (pointer && (name == "options" || name == "jitOptions")) return BuildJitOptions;
  if (pointer && (name == "optionValues" || name == "jitOptionsValues")) return BuildJitValues;
  if (parameter.type.tag == &kTagOf<CUstreamBatchMemOpParams>) return BuildMany;
  if (parameter.type.base != Base::kStruct) return nullptr;
  const bool answer =
      !parameter.type.constant && pointer && row.Named("Get") && !parameter.DeclaredAs("CUmemLocation");
  if (answer) return nullptr;
  const auto found = ByType().find(parameter.type.tag);
  if (found != ByType().end()) return found->second;
  return parameter.type.constant || parameter.type.depth == 0 ? BuildZeros : nullptr;
}

}  // namespace causeway::differential
