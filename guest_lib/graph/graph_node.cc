// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/graph/graph_node.h"

#include <algorithm>
#include <cstring>

#include "guest_lib/addresses/address_windows.h"
#include "guest_lib/callbacks/callbacks.h"
#include "guest_lib/code/kernel_parameters.h"
#include "guest_lib/graph/graph_objects.h"
#include "guest_lib/memory/memory.h"
#include "guest_lib/stream/remote.h"

namespace causeway::guest {
namespace {

constexpr size_t kMostDependencies = 32768;  // of one message
constexpr size_t kRecordRoom = kMaxChannelRecordBytes - sizeof(RecordHeader) - sizeof(uint64_t);

// A handle inside a struct that is about to travel: its wire handle takes its place.
template <class T>
void ToWire(T* handle, Writer& w) {
  const WireHandle wire = Remote{}.ToWire(*handle, w);
  std::memcpy(handle, &wire, sizeof wire);
}
template <class T>
void FromWire(T* handle) {
  WireHandle wire;
  std::memcpy(&wire, handle, sizeof wire);
  *handle = reinterpret_cast<T>(wire != 0 ? ObjectOf(wire) : nullptr);
}

// A node's parameters in the form that travels.
class Packed {
 public:
  CUresult Take(const CUgraphNodeParams& params);
  size_t bytes() const { return payload_bytes_; }
  KernelPacking packing() const { return packing_; }
  size_t bodies() const {
    return params_.type == CU_GRAPH_NODE_TYPE_CONDITIONAL && params_.conditional.size <= kMaxConditionalBodies
               ? params_.conditional.size
               : 0;
  }
  void Put(Writer& w);

 private:
  CUresult TakeKernel();
  CUresult TakeSide(CUmemorytype* type, const void* host, CUdeviceptr device, const void** resolved);
  CUresult TakeCopy();
  void PutHandles(Writer& w);

  CUgraphNodeParams params_{};
  KernelPacking packing_ = KernelPacking::kNone;
  KernelParameters parameters_;
  const Function* function_ = nullptr;
  const void* array_ = nullptr;
  size_t payload_bytes_ = 0;
};

CUresult Packed::TakeKernel() {
  CUDA_KERNEL_NODE_PARAMS_v3& kernel = params_.kernel;
  if (const CUresult result = parameters_.Take(kernel.kernelParams, kernel.extra)) return result;
  function_ = kernel.func != nullptr ? FunctionOf(kernel.func) : FunctionOf(kernel.kern);
  uint32_t bytes = 0;
  if (function_ != nullptr) {
    if (const CUresult result = parameters_.SizeFor(*function_, &bytes)) return result;
    parameters_.NameOnDevice(*function_);
  }
  packing_ = kernel.extra != nullptr          ? KernelPacking::kBuffer
             : kernel.kernelParams != nullptr ? KernelPacking::kPointers
                                              : KernelPacking::kNone;
  payload_bytes_ = bytes;
  kernel.kernelParams = nullptr;
  kernel.extra = nullptr;
  return CUDA_SUCCESS;
}

CUresult Packed::TakeSide(CUmemorytype* type, const void* host, CUdeviceptr device, const void** resolved) {
  if (*type == CU_MEMORYTYPE_UNIFIED) {
    host = reinterpret_cast<const void*>(device);
    *type = IsDeviceSide(KindOfPointer(device)) ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  }
  *resolved = *type == CU_MEMORYTYPE_HOST ? host : nullptr;
  return *type == CU_MEMORYTYPE_HOST &&
                 KindOfPointer(reinterpret_cast<uint64_t>(host)) == PointerKind::kPageable
             ? CUDA_ERROR_NOT_SUPPORTED
             : CUDA_SUCCESS;
}

CUresult Packed::TakeCopy() {
  CUDA_MEMCPY3D& box = params_.memcpy.copyParams;
  NameManagedAsDevice(&box);
  const void *source = nullptr, *destination = nullptr;
  if (const CUresult result = TakeSide(&box.srcMemoryType, box.srcHost, box.srcDevice, &source))
    return result;
  if (const CUresult result = TakeSide(&box.dstMemoryType, box.dstHost, box.dstDevice, &destination))
    return result;
  box.srcHost = source;
  box.dstHost = const_cast<void*>(destination);
  if (box.srcMemoryType != CU_MEMORYTYPE_ARRAY) box.srcArray = nullptr;
  if (box.dstMemoryType != CU_MEMORYTYPE_ARRAY) box.dstArray = nullptr;
  return CUDA_SUCCESS;
}

CUresult Packed::Take(const CUgraphNodeParams& params) {
  params_ = params;
  switch (params.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return TakeKernel();
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return TakeCopy();
    case CU_GRAPH_NODE_TYPE_MEMSET:
      NameOnDevice(params.memset.dst);
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      if (params.alloc.accessDescCount > kMaxDevices * 4 ||
          (params.alloc.accessDescs == nullptr && params.alloc.accessDescCount != 0)) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      array_ = params.alloc.accessDescs;
      payload_bytes_ = params.alloc.accessDescCount * sizeof(CUmemAccessDesc);
      params_.alloc.accessDescs = nullptr;
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      if (params.memOp.count > kMaxMemOps || (params.memOp.paramArray == nullptr && params.memOp.count != 0))
        return CUDA_ERROR_INVALID_VALUE;
      NameOnDevice(params.memOp.paramArray, params.memOp.count);
      array_ = params.memOp.paramArray;
      payload_bytes_ = params.memOp.count * sizeof(CUstreamBatchMemOpParams);
      params_.memOp.paramArray = nullptr;
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      params_.conditional.phGraph_out = nullptr;
      return params.conditional.size > kMaxConditionalBodies ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT:
      return CUDA_ERROR_NOT_SUPPORTED;
    default:
      return CUDA_SUCCESS;
  }
}

void Packed::PutHandles(Writer& w) {
  switch (params_.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      ToWire(&params_.kernel.func, w);
      ToWire(&params_.kernel.kern, w);
      return ToWire(&params_.kernel.ctx, w);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      ToWire(&params_.memcpy.copyCtx, w);
      ToWire(&params_.memcpy.copyParams.srcArray, w);
      return ToWire(&params_.memcpy.copyParams.dstArray, w);
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return ToWire(&params_.memset.ctx, w);
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return ToWire(&params_.graph.graph, w);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return ToWire(&params_.eventWait.event, w);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return ToWire(&params_.eventRecord.event, w);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return ToWire(&params_.memOp.ctx, w);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      return ToWire(&params_.conditional.ctx, w);
    default:
      return;
  }
}

void Packed::Put(Writer& w) {
  PutHandles(w);
  w.Put(params_);
  if (params_.type != CU_GRAPH_NODE_TYPE_KERNEL) return w.PutBytes(array_, payload_bytes_);
  std::byte* space = w.Reserve(payload_bytes_);
  if (space != nullptr && function_ != nullptr)
    parameters_.Pack(*function_, space, static_cast<uint32_t>(payload_bytes_));
}

// What the driver wrote into the parameters of a new node.
CUresult TakeAnswer(Reader& reply, CUgraphNode node, std::vector<CUgraph> bodies, CUgraphNodeParams* params) {
  const auto added = reply.Get<AddedNode>();
  if (params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
    params->alloc.dptr = added.address;
    if (!AdmitDeviceMemory(added.address, params->alloc.bytesize)) return CUDA_ERROR_OUT_OF_MEMORY;
    RememberAllocation(added.address, params->alloc.bytesize, true);
  }
  if (params->type != CU_GRAPH_NODE_TYPE_CONDITIONAL) return reply.error();
  for (CUgraph& body : bodies) {
    body = Remote{}.Settle(body, reply.Get<WireHandle>());
    OwnGraph(node, body);
  }
  params->conditional.phGraph_out = KeepBodies(node, std::move(bodies));
  return reply.error();
}

CUresult AddOnce(NodeForm form, CUgraphNode* node, CUgraph graph, const Dependencies& dependencies,
                 CUgraphNodeParams* params) {
  Packed packed;
  if (const CUresult result = packed.Take(*params)) return result;
  PendingCall call(Op::cuGraphAddNode_v2, packed.bodies() * sizeof(WireHandle) + sizeof(AddedNode));
  const size_t links = dependencies.count * (sizeof(WireHandle) + sizeof(CUgraphEdgeData));
  const size_t estimate = sizeof(NodeBody) + links + sizeof(CUgraphNodeParams) + packed.bytes() +
                          packed.bodies() * sizeof(WireHandle);
  if (estimate > kRecordRoom) call.Enlarge();
  Writer& w = call.writer();
  Remote remote;
  const WireHandle owner = remote.ToWire(graph, w);
  auto fresh = remote.Make<CUgraphNode>(w);
  const bool by_word = params->type == CU_GRAPH_NODE_TYPE_HOST && callbacks::AnnouncedInGraphs();
  w.Put(NodeBody{NodeVerb::kAdd, form, w.ok() ? WireOf(Find(fresh)) : 0, owner, dependencies.count,
                 dependencies.edges != nullptr ? 1u : 0u, packed.packing(),
                 static_cast<uint32_t>(packed.bytes()), by_word ? 1u : 0u});
  for (size_t i = 0; i < dependencies.count && w.ok(); ++i) w.Put(remote.ToWire(dependencies.nodes[i], w));
  if (dependencies.edges != nullptr)
    w.PutBytes(dependencies.edges, dependencies.count * sizeof(CUgraphEdgeData));
  packed.Put(w);
  std::vector<CUgraph> bodies(packed.bodies());
  for (CUgraph& body : bodies) {
    body = remote.Make<CUgraph>(w);
    w.Put(remote.ToWire(body, w));
  }
  CUresult result = call.Finish();
  if (result != CUDA_SUCCESS) {
    remote.Forget(fresh);
    for (CUgraph body : bodies) remote.Forget(body);
    return result;
  }
  OwnNode(graph, fresh);
  SetPackedForm(fresh, packed.packing() == KernelPacking::kBuffer);
  if (params->type == CU_GRAPH_NODE_TYPE_GRAPH && form == NodeForm::kGeneric &&
      params->graph.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE) {
    OwnGraph(fresh, params->graph.graph);
  }
  *node = fresh;
  return TakeAnswer(call.reader(), fresh, std::move(bodies), params);
}

// A reply to a Get, with the arrays that the program will see.
CUresult ReadNode(Reader& reply, CUgraphNode node, NodeSnapshot* snapshot) {
  CUgraphNodeParams& params = snapshot->params;
  params = reply.Get<CUgraphNodeParams>();
  const auto payload = reply.Get<NodePayload>();
  std::vector<ParameterLayout> layout(std::min<uint32_t>(payload.parameter_count, kMaxNodeParameters));
  for (ParameterLayout& at : layout) at = reply.Get<ParameterLayout>();
  const std::byte* from = reply.Take(payload.bytes);
  if (!reply.ok()) return CUDA_ERROR_UNKNOWN;
  snapshot->bytes.assign(from, from + payload.bytes);
  if (params.type == CU_GRAPH_NODE_TYPE_MEMCPY) {
    FromWire(&params.memcpy.copyParams.srcArray);
    FromWire(&params.memcpy.copyParams.dstArray);
  } else if (params.type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP) {
    FromWire(&params.memOp.ctx);
  } else if (params.type == CU_GRAPH_NODE_TYPE_KERNEL) {
    FromWire(&params.kernel.ctx);
    // Every launch travels as one buffer, so a captured one looks as if the program had passed it so.
    const bool as_pointers =
        payload.packing == KernelPacking::kPointers ||
        (payload.packing == KernelPacking::kBuffer && !HasPackedForm(node) && !layout.empty());
    for (const ParameterLayout& at : layout) {
      if (uint64_t{at.offset} + at.bytes > payload.bytes) return CUDA_ERROR_UNKNOWN;
      if (as_pointers) snapshot->pointers.push_back(snapshot->bytes.data() + at.offset);
    }
    if (!as_pointers && payload.packing == KernelPacking::kBuffer) snapshot->buffer_bytes = payload.bytes;
  }
  return CUDA_SUCCESS;
}

// The parameters as the program gets them: the arrays are the kept snapshot's.
void Show(const NodeSnapshot& kept, CUgraphNodeParams* params) {
  *params = kept.params;
  auto* bytes = const_cast<std::byte*>(kept.bytes.data());
  switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      params->kernel.kernelParams =
          kept.pointers.empty() ? nullptr : const_cast<void**>(kept.pointers.data());
      params->kernel.extra = kept.extra[0] != nullptr ? const_cast<void**>(kept.extra) : nullptr;
      return;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      params->alloc.accessDescs =
          kept.bytes.empty() ? nullptr : reinterpret_cast<const CUmemAccessDesc*>(bytes);
      return;
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      params->memOp.paramArray =
          kept.bytes.empty() ? nullptr : reinterpret_cast<CUstreamBatchMemOpParams*>(bytes);
      return;
    default:
      return;
  }
}

}  // namespace

CUresult AddInPieces(CUgraphNode* node, CUgraph graph, const Dependencies& dependencies,
                     const std::function<CUresult(const Dependencies&)>& add) {
  if (dependencies.count != 0 && dependencies.nodes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Dependencies first = dependencies;
  first.count = std::min(dependencies.count, kMostDependencies);
  if (const CUresult result = add(first)) return result;
  for (size_t at = first.count; at < dependencies.count; at += kMostDependencies) {
    const size_t count = std::min(dependencies.count - at, kMostDependencies);
    const std::vector<CUgraphNode> to(count, *node);
    const CUgraphEdgeData* edges = dependencies.edges != nullptr ? dependencies.edges + at : nullptr;
    if (const CUresult result =
            cuGraphAddDependencies_v2(graph, dependencies.nodes + at, to.data(), edges, count)) {
      cuGraphDestroyNode(*node);
      return result;
    }
  }
  return CUDA_SUCCESS;
}

CUresult AddNode(NodeForm form, CUgraphNode* node, CUgraph graph, const Dependencies& dependencies,
                 CUgraphNodeParams* params) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (node == nullptr || params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return AddInPieces(node, graph, dependencies,
                     [&](const Dependencies& first) { return AddOnce(form, node, graph, first, params); });
}

CUresult SetNode(NodeForm form, CUgraphExec exec, CUgraphNode node, const CUgraphNodeParams& params) {
  if (const CUresult result = InitialisedOrError()) return result;
  Packed packed;
  if (const CUresult result = packed.Take(params)) return result;
  PendingCall call(Op::cuGraphAddNode_v2);
  if (sizeof(NodeBody) + sizeof params + packed.bytes() > kRecordRoom) call.Enlarge();
  Writer& w = call.writer();
  Remote remote;
  w.Put(NodeBody{exec != nullptr ? NodeVerb::kSetInExec : NodeVerb::kSet, form, remote.ToWire(node, w),
                 remote.ToWire(exec, w), 0, 0, packed.packing(), static_cast<uint32_t>(packed.bytes()), 0});
  packed.Put(w);
  const CUresult result = call.Finish();
  if (result == CUDA_SUCCESS && exec == nullptr)
    SetPackedForm(node, packed.packing() == KernelPacking::kBuffer);
  return result;
}

CUresult GetNode(CUgraphNode node, CUgraphNodeType type, CUgraphNodeParams* params) {
  if (const CUresult result = InitialisedOrError()) return result;
  auto snapshot = std::make_unique<NodeSnapshot>();
  {
    PendingCall call(Op::cuGraphKernelNodeGetParams_v2, kBulkBytes);
    Writer& w = call.writer();
    Remote remote;
    const bool is_kernel = type == CU_GRAPH_NODE_TYPE_KERNEL;
    auto function = is_kernel ? remote.Make<CUfunction>(w) : nullptr;
    auto kernel = is_kernel ? remote.Make<CUkernel>(w) : nullptr;
    w.Put(GetNodeBody{remote.ToWire(node, w), type, 0, remote.ToWire(function, w), remote.ToWire(kernel, w)});
    CUresult result = call.Finish();
    if (result == CUDA_SUCCESS) result = ReadNode(call.reader(), node, snapshot.get());
    if (result != CUDA_SUCCESS) {
      remote.Forget(function);
      remote.Forget(kernel);
      return result;
    }
    if (is_kernel) {
      CUDA_KERNEL_NODE_PARAMS_v3& found = snapshot->params.kernel;
      found.func = remote.Settle(function, reinterpret_cast<WireHandle>(found.func));
      found.kern = remote.Settle(kernel, reinterpret_cast<WireHandle>(found.kern));
    }
  }
  const bool packed = snapshot->buffer_bytes != 0;
  const NodeSnapshot* kept = KeepSnapshot(node, std::move(snapshot));
  if (kept == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (packed && kept->extra[0] == nullptr) {
    auto* fill = const_cast<NodeSnapshot*>(kept);
    void* const extra[5] = {CU_LAUNCH_PARAM_BUFFER_POINTER, fill->bytes.data(), CU_LAUNCH_PARAM_BUFFER_SIZE,
                            &fill->buffer_bytes, CU_LAUNCH_PARAM_END};
    std::copy(std::begin(extra), std::end(extra), fill->extra);
  }
  Show(*kept, params);
  return CUDA_SUCCESS;
}

namespace {

// Adds a node by a row of its own: the older calls without pointers inside.
template <Op op, class... P>
CUresult AddByRow(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                  P... rest) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return AddInPieces(node, graph, {dependencies, count, nullptr}, [&](const Dependencies& first) {
    const CUresult result = Wait<op>(node, graph, first.nodes, first.count, rest...);
    if (result == CUDA_SUCCESS) OwnNode(graph, *node);
    return result;
  });
}

}  // namespace
}  // namespace causeway::guest

using namespace causeway;
using namespace causeway::guest;

extern "C" {

CUresult cuGraphAddEmptyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                             size_t count) {
  return AddByRow<Op::cuGraphAddEmptyNode>(node, graph, dependencies, count);
}
CUresult cuGraphAddChildGraphNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                  size_t count, CUgraph child) {
  return AddByRow<Op::cuGraphAddChildGraphNode>(node, graph, dependencies, count, child);
}
CUresult cuGraphAddEventRecordNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                   size_t count, CUevent event) {
  return AddByRow<Op::cuGraphAddEventRecordNode>(node, graph, dependencies, count, event);
}
CUresult cuGraphAddEventWaitNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                 size_t count, CUevent event) {
  return AddByRow<Op::cuGraphAddEventWaitNode>(node, graph, dependencies, count, event);
}
CUresult cuGraphAddMemsetNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                              const CUDA_MEMSET_NODE_PARAMS* params, CUcontext context) {
  return AddByRow<Op::cuGraphAddMemsetNode>(node, graph, dependencies, count, params, context);
}
CUresult cuGraphAddMemFreeNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                               size_t count, CUdeviceptr address) {
  return AddByRow<Op::cuGraphAddMemFreeNode>(node, graph, dependencies, count, address);
}

}  // extern "C"
