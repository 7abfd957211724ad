// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/graph/graph_copy.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "guest_lib/addresses/private_host.h"
#include "guest_lib/addresses/region_memory.h"
#include "guest_lib/callbacks/callbacks.h"
#include "guest_lib/graph/graph_objects.h"
#include "guest_lib/graph/host_nodes.h"
#include "guest_lib/host_register/pinned_reach.h"
#include "guest_lib/memory/memory.h"
#include "guest_lib/process/lock_order.h"
#include "guest_lib/session/captures.h"
#include "guest_lib/stream/remote.h"

namespace causeway::guest {
namespace {

// One host side: where row r of slice z starts.
struct Plane {
  std::byte* first = nullptr;
  size_t pitch = 0, slice = 0;
  std::byte* Row(size_t row, size_t z) const { return first + z * slice + row * pitch; }
};

// Never changed once it is made: launches on their way go on with the one they started with.
struct StagedCopy {
  CUDA_MEMCPY3D given{};
  CUcontext context = nullptr;
  size_t width = 0, rows = 0, slices = 0;
  Plane source, destination;  // of the function: the program's memory, the staging buffer
  void* staging = nullptr;
  uint64_t number = 0;            // of the function
  CUuserObject object = nullptr;  // alive as long as a graph owns the copy
  bool to_device = false, from_device = false;
};

// A staging buffer that no copy uses any more, of a session that shares no memory. The device reaches the buffer, and ending that
// would wait for the device. So the buffer is kept for the next copy, for as long as its context lives.
struct Kept {
  void* memory;
  uint64_t bytes;
  Object* context;
};
Mutex<Lock::kStagedCopiesKept> unused_mutex;
auto& unused_staging = *new std::vector<Kept>;  // never destroyed

bool IsReached(const Kept& buffer) {
  PrivateHost block;
  return FindPrivateHost(reinterpret_cast<uint64_t>(buffer.memory), &block) && block.reached &&
         block.host.device_address != 0;
}

// Takes one of the staging buffers that are kept for later copies of the context. A buffer fits if it has room for the copy and is not much
// larger than the copy, because a copy uses a buffer alone and the room that it does not need would be wasted. The result is null if no
// kept buffer fits. Before it looks for one, the function frees the kept buffers of contexts that have ended: the device no longer
// reaches these.
void* TakeKept(uint64_t bytes, const Object* context) {
  const std::lock_guard lock(unused_mutex);
  std::erase_if(unused_staging, [](const Kept& buffer) {
    const bool gone = !IsReached(buffer);
    if (gone) FreePrivateHost(buffer.memory);
    return gone;
  });
  const auto fits = [&](const Kept& buffer) {
    return buffer.context == context && buffer.bytes >= bytes &&
           buffer.bytes / 4 <= std::max(bytes, kPrivateHostGranule);
  };
  const auto found = std::find_if(unused_staging.begin(), unused_staging.end(), fits);
  if (found == unused_staging.end()) return nullptr;
  void* memory = found->memory;
  unused_staging.erase(found);
  return memory;
}

// Allocates a staging buffer that this process and the device both see.
CUresult AllocateStaging(uint64_t bytes, Object* context, void** staging) {
  Session& session = Session::Made();
  if (session.transport().shares_memory())
    return session.memory().Allocate(bytes, HostKind::kInternal, 0, staging);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if ((*staging = TakeKept(bytes, context)) != nullptr) return CUDA_SUCCESS;
  if (const CUresult result = AllocatePrivateHost(staging, bytes, context, 0, HostKind::kInternal))
    return result;
  const CUresult result = ReachPinned(reinterpret_cast<uint64_t>(*staging));
  if (result != CUDA_SUCCESS) FreePrivateHost(*staging);
  return result;
}

void FreeStaging(void* staging) {
  Session& session = Session::Made();
  if (session.transport().shares_memory()) {
    session.memory().Free(staging);
    return;
  }
  PrivateHost block;
  if (!FindPrivateHost(reinterpret_cast<uint64_t>(staging), &block)) return;
  const std::lock_guard lock(unused_mutex);
  unused_staging.push_back({staging, block.host.bytes, block.host.context});
}

// Staging buffers whose copies are gone. The next call frees them: the callback that tells of it cannot.
Mutex<Lock::kStagedCopiesDone> done_mutex;
auto& done = *new std::vector<StagedCopy*>;  // never destroyed
std::atomic<bool> any_staged{false};

void FreeDone() {
  std::vector<StagedCopy*> ended;
  {
    const std::lock_guard lock(done_mutex);
    ended.swap(done);
  }
  for (StagedCopy* copy : ended) {
    callbacks::Release(copy->number);
    if (copy->staging != nullptr) FreeStaging(copy->staging);
    delete copy;
  }
}

void CUDA_CB EndStagedCopy(void* data) {
  const std::lock_guard lock(done_mutex);
  done.push_back(static_cast<StagedCopy*>(data));
}

void CUDA_CB RunStagedCopy(void* data) {
  const auto& copy = *static_cast<const StagedCopy*>(data);
  for (size_t z = 0; z < copy.slices; ++z) {
    for (size_t row = 0; row < copy.rows; ++row)
      std::memmove(copy.destination.Row(row, z), copy.source.Row(row, z), copy.width);
  }
}

Plane PlaneOf(const BoxSide& side) {
  return {reinterpret_cast<std::byte*>(side.address), side.pitch, side.pitch * side.rows};
}

// Whether the copy has bytes, and neither side is null.
bool IsPossible(const CUDA_MEMCPY3D& box) {
  const auto is_null = [](const BoxSide& side) { return side.type == CU_MEMORYTYPE_HOST && side.base == 0; };
  return !is_null(SideOf(box, true)) && !is_null(SideOf(box, false)) && box.WidthInBytes != 0 &&
         box.Height != 0 && box.Depth != 0;
}

CUresult Make(const CUDA_MEMCPY3D& box, CUcontext context, StagedCopy** made) {
  const RelaxedCaptures relaxed;
  FreeDone();
  const BoxSide from = SideOf(box, true), to = SideOf(box, false);
  const bool from_host = from.type == CU_MEMORYTYPE_HOST, to_host = to.type == CU_MEMORYTYPE_HOST;
  if (!IsPossible(box)) return CUDA_ERROR_INVALID_VALUE;
  auto copy = std::make_unique<StagedCopy>();
  copy->given = box;
  copy->context = context;
  copy->width = box.WidthInBytes;
  copy->rows = box.Height;
  copy->slices = box.Depth;
  copy->to_device = from_host && !to_host;
  copy->from_device = !from_host && to_host;
  const Plane source = PlaneOf(from), destination = PlaneOf(to);
  if (from_host && to_host) {
    copy->source = source;
    copy->destination = destination;
  } else {
    const uint64_t slice = uint64_t{box.WidthInBytes} * box.Height;
    if (slice / box.Height != box.WidthInBytes || slice > (uint64_t{1} << 40) / box.Depth)
      return CUDA_ERROR_INVALID_VALUE;
    Object* owner = context != nullptr ? Find(context) : CurrentContextObject();
    if (const CUresult result = AllocateStaging(slice * box.Depth, owner, &copy->staging)) return result;
    Plane staging;
    staging.first = static_cast<std::byte*>(copy->staging);
    staging.pitch = box.WidthInBytes;
    staging.slice = slice;
    copy->source = from_host ? source : staging;
    copy->destination = from_host ? staging : destination;
  }
  any_staged.store(true);
  *made = copy.release();
  return CUDA_SUCCESS;
}

// The copy between staging buffer and device.
CUDA_MEMCPY3D DeviceHalf(const StagedCopy& copy) {
  CUDA_MEMCPY3D box = copy.given;
  if (copy.to_device) {
    box.srcMemoryType = CU_MEMORYTYPE_HOST;
    box.srcHost = copy.staging;
    box.srcXInBytes = box.srcY = box.srcZ = 0;
    box.srcPitch = copy.width;
    box.srcHeight = copy.rows;
  } else {
    box.dstMemoryType = CU_MEMORYTYPE_HOST;
    box.dstHost = copy.staging;
    box.dstXInBytes = box.dstY = box.dstZ = 0;
    box.dstPitch = copy.width;
    box.dstHeight = copy.rows;
  }
  return box;
}

// Fills an empty graph with the nodes of the copy, which ends with graph, clones and what is made of them.
CUresult Fill(CUgraph graph, StagedCopy* copy) {
  if (const CUresult result = TieToGraph(graph, &EndStagedCopy, copy, &copy->object)) {
    EndStagedCopy(copy);
    return result;
  }
  CUgraphNode first = nullptr, second = nullptr;
  const CUDA_MEMCPY3D half = DeviceHalf(*copy);
  CUgraphNodeParams device{};
  device.type = CU_GRAPH_NODE_TYPE_MEMCPY;
  device.memcpy.copyCtx = copy->context;
  device.memcpy.copyParams = half;
  if (device.memcpy.copyCtx == nullptr)
    device.memcpy.copyCtx = reinterpret_cast<CUcontext>(CurrentContextObject());
  CUresult result = CUDA_SUCCESS;
  if (copy->from_device) result = AddNode(NodeForm::kTyped, &first, graph, {}, &device);
  const Dependencies after{&first, first != nullptr ? 1u : 0u, nullptr};
  CUgraphNode run = nullptr;
  if (result == CUDA_SUCCESS)
    result = AddHostNode(NodeForm::kTyped, &run, graph, after, &RunStagedCopy, copy, &copy->number);
  if (result == CUDA_SUCCESS && copy->to_device)
    result = AddNode(NodeForm::kTyped, &second, graph, {&run, 1, nullptr}, &device);
  return result;
}

// A graph that holds just the copy.
CUresult MakeHidden(const CUDA_MEMCPY3D& box, CUcontext context, CUgraph* graph) {
  StagedCopy* copy = nullptr;
  if (const CUresult result = Make(box, context, &copy)) return result;
  if (const CUresult result = cuGraphCreate(graph, 0)) {
    EndStagedCopy(copy);
    return result;
  }
  const CUresult result = Fill(*graph, copy);
  if (result != CUDA_SUCCESS) cuGraphDestroy(*graph);
  return result;
}

bool NodesOf(CUgraph graph, std::vector<CUgraphNode>* nodes) {
  size_t count = 0;
  if (cuGraphGetNodes(graph, nullptr, &count) != CUDA_SUCCESS || count > 8) return false;
  nodes->resize(count);
  return count == 0 || cuGraphGetNodes(graph, nodes->data(), &count) == CUDA_SUCCESS;
}

const StagedCopy* StagedCopyOf(CUgraphNode node) {
  if (!any_staged.load() || Find(node) == nullptr) return nullptr;
  CUgraphNodeType type{};
  CUgraph child = nullptr;
  std::vector<CUgraphNode> nodes;
  if (Wait<Op::cuGraphNodeGetType>(node, &type) != CUDA_SUCCESS || type != CU_GRAPH_NODE_TYPE_GRAPH ||
      GetChildGraph(node, &child) != CUDA_SUCCESS || !NodesOf(child, &nodes)) {
    return nullptr;
  }
  for (CUgraphNode inner : nodes) {
    CUDA_HOST_NODE_PARAMS host{};
    if (Wait<Op::cuGraphNodeGetType>(inner, &type) == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_HOST &&
        cuGraphHostNodeGetParams(inner, &host) == CUDA_SUCCESS && host.fn == &RunStagedCopy) {
      return static_cast<const StagedCopy*>(host.userData);
    }
  }
  return nullptr;
}

}  // namespace

bool NeedsStaging(const CUDA_MEMCPY3D& box) {
  return SideOf(box, true).pageable || SideOf(box, false).pageable;
}

CUresult GetChildGraph(CUgraphNode node, CUgraph* graph) {
  const CUresult result = Wait<Op::cuGraphChildGraphNodeGetGraph>(node, graph);
  if (result == CUDA_SUCCESS) OwnGraph(node, *graph);
  return result;
}

CUresult RefusedCopy(CUgraphNode node, const CUDA_MEMCPY3D& box) {
  CUgraphNodeType type{};
  if (const CUresult result = Wait<Op::cuGraphNodeGetType>(node, &type)) return result;
  return type == CU_GRAPH_NODE_TYPE_MEMCPY && IsPossible(box) ? CUDA_ERROR_NOT_SUPPORTED
                                                              : CUDA_ERROR_INVALID_VALUE;
}

CUresult AddStagedCopy(CUgraphNode* node, CUgraph graph, const Dependencies& dependencies,
                       const CUDA_MEMCPY3D& box, CUcontext context) {
  CUgraph hidden = nullptr;
  if (const CUresult result = MakeHidden(box, context, &hidden)) return result;
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_GRAPH;
  params.graph.graph = hidden;
  const CUresult result =
      dependencies.edges != nullptr
          ? AddNode(NodeForm::kGeneric, node, graph, dependencies, &params)
          : cuGraphAddChildGraphNode(node, graph, dependencies.nodes, dependencies.count, hidden);
  cuGraphDestroy(hidden);
  return result;
}

bool IsStagedCopy(CUgraphNode node, CUDA_MEMCPY3D* given, CUcontext* context) {
  const StagedCopy* copy = StagedCopyOf(node);
  if (copy == nullptr) return false;
  if (given != nullptr) *given = copy->given;
  if (context != nullptr) *context = copy->context;
  return true;
}

CUresult SetStagedCopy(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D& box, CUcontext context) {
  if (exec != nullptr) {
    CUgraph hidden = nullptr;
    if (const CUresult result = MakeHidden(box, context, &hidden)) return result;
    const CUresult result = Wait<Op::cuGraphExecChildGraphNodeSetParams>(exec, node, hidden);
    cuGraphDestroy(hidden);
    return result;
  }
  CUgraph child = nullptr;
  std::vector<CUgraphNode> nodes;
  StagedCopy* copy = nullptr;
  if (const CUresult result = Make(box, context, &copy)) return result;
  const StagedCopy* before = StagedCopyOf(node);
  CUresult result = GetChildGraph(node, &child);
  if (result == CUDA_SUCCESS && !NodesOf(child, &nodes)) result = CUDA_ERROR_INVALID_VALUE;
  for (CUgraphNode inner : nodes) {
    if (result == CUDA_SUCCESS) result = cuGraphDestroyNode(inner);
  }
  if (result != CUDA_SUCCESS) {
    EndStagedCopy(copy);
    return result;
  }
  if (before != nullptr) cuGraphReleaseUserObject(child, before->object, 1);
  return Fill(child, copy);
}

CUresult CaptureCopy(CUstream stream, const CUDA_MEMCPY3D& box, bool* captured) {
  const RelaxedCaptures relaxed;
  *captured = false;
  CUstreamCaptureStatus status{};
  CUgraph graph = nullptr;
  const CUgraphNode* nodes = nullptr;
  const CUgraphEdgeData* edges = nullptr;
  size_t count = 0;
  CUresult result = cuStreamGetCaptureInfo_v3(stream, &status, nullptr, &graph, &nodes, &edges, &count);
  if (result == CUDA_ERROR_NOT_SUPPORTED)  // a driver of before edge data
    result = cuStreamGetCaptureInfo_v2(stream, &status, nullptr, &graph, &nodes, &count);
  // That the legacy stream would end a capture is an answer that ends none; the copy itself does.
  if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return CUDA_SUCCESS;
  if (result != CUDA_SUCCESS || status == CU_STREAM_CAPTURE_STATUS_NONE) return result;
  *captured = true;
  if (status == CU_STREAM_CAPTURE_STATUS_INVALIDATED) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  const std::vector<CUgraphNode> before(nodes, nodes + count);
  const std::vector<CUgraphEdgeData> data(edges, edges != nullptr ? edges + count : edges);
  bool plain = true;
  for (const CUgraphEdgeData& edge : data) plain = plain && edge.type == 0 && edge.from_port == 0;
  CUgraphNode node = nullptr;
  result = AddStagedCopy(&node, graph, {before.data(), count, plain ? nullptr : data.data()}, box,
                         reinterpret_cast<CUcontext>(CurrentContextObject()));
  if (result != CUDA_SUCCESS) return result;
  return Wait<Op::cuStreamUpdateCaptureDependencies>(stream, &node, size_t{1},
                                                     unsigned{CU_STREAM_SET_CAPTURE_DEPENDENCIES});
}

MaybeResult CaptureLinearCopy(CUstream stream, CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  CUDA_MEMCPY3D box{};
  const bool from_device = IsDeviceSide(KindOfPointer(from)), to_device = IsDeviceSide(KindOfPointer(to));
  box.srcMemoryType = from_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  box.srcDevice = from_device ? from : 0;
  box.srcHost = from_device ? nullptr : reinterpret_cast<const void*>(from);
  box.dstMemoryType = to_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  box.dstDevice = to_device ? to : 0;
  box.dstHost = to_device ? nullptr : reinterpret_cast<void*>(to);
  box.WidthInBytes = bytes;
  box.Height = box.Depth = 1;
  NameOnDevice(box);
  if (!NeedsStaging(box)) return {};
  bool captured = false;
  const CUresult result = CaptureCopy(stream, box, &captured);
  if (!captured && result == CUDA_SUCCESS) return {};
  return result;
}

}  // namespace causeway::guest
