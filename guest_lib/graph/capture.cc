// SPDX-License-Identifier: Apache-2.0
// Stream capture: beginning and ending it, and what can be asked about it.
#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "guest_lib/graph/graph_node.h"
#include "guest_lib/graph/graph_objects.h"
#include "guest_lib/process/lock_order.h"
#include "guest_lib/stream/capture_rule.h"
#include "guest_lib/stream/remote.h"

namespace causeway::guest {
namespace {

// What the program has been told of a capturing stream: the arrays are lent until the next call on it.
struct Told {
  uint64_t capture = 0;
  CUgraph graph = nullptr;
  std::vector<CUgraphNode> nodes;
  std::vector<CUgraphEdgeData> edges;
};
// Never destroyed: a stream may be captured to the very end. By the stream's object.
struct AllTold {
  Mutex<Lock::kCapturesTold> mutex;
  std::unordered_map<const Object*, Told> of_stream;
  std::unordered_map<const Object*, CUgraph> given_graph;  // of cuStreamBeginCaptureToGraph
};
AllTold& known_captures = *new AllTold;  // never destroyed

Object* ObjectOfStream(CUstream stream) {
  return Find(stream == CU_STREAM_PER_THREAD ? PerThreadStream() : stream);
}

struct CaptureInfo {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  uint64_t id = 0;
  CUgraph graph = nullptr;
  uint64_t count = 0;
  std::vector<CUgraphNode> nodes;
  std::vector<CUgraphEdgeData> edges;
};

// `form` is the driver's function that is meant. Asks again with more room where there are more dependencies.
CUresult AskOnce(CUstream stream, uint8_t form, bool wants_nodes, bool wants_edges, uint32_t room,
                 CaptureInfo* info) {
  Remote remote;
  PendingCall call(Op::cuStreamGetCaptureInfo_v2, sizeof(CaptureReply) + size_t{room} * 16,
                   remote.submission);
  if (room * sizeof(WireHandle) + sizeof(CaptureBody) > 1024) call.Enlarge();
  Writer& w = call.writer();
  const WireHandle wire = remote.ToWire(stream, w);
  auto fresh = remote.Make<CUgraph>(w);
  w.Put(CaptureBody{wire, remote.ToWire(fresh, w), room, wants_nodes, wants_edges, form, 0});
  std::vector<CUgraphNode> nodes(room);
  for (CUgraphNode& node : nodes) {
    node = remote.Make<CUgraphNode>(w);
    w.Put(remote.ToWire(node, w));
  }
  const CUresult result = call.Finish();
  Reader& r = call.reader();
  const auto reply = result == CUDA_SUCCESS ? r.Get<CaptureReply>() : CaptureReply{};
  info->status = static_cast<CUstreamCaptureStatus>(reply.status);
  info->id = reply.id;
  info->graph = remote.Settle(fresh, reply.graph);
  info->count = reply.dependency_count;
  const size_t told = wants_nodes && reply.graph != 0 ? std::min<uint64_t>(room, reply.dependency_count) : 0;
  for (size_t i = 0; i < room; ++i) {
    nodes[i] = remote.Settle(nodes[i], i < told ? r.Get<WireHandle>() : 0);
    if (i < told && wants_edges) info->edges.push_back(r.Get<CUgraphEdgeData>());
    OwnNode(info->graph, nodes[i]);
  }
  nodes.resize(told);
  info->nodes = std::move(nodes);
  return result != CUDA_SUCCESS ? result : r.error();
}

CUresult Ask(CUstream stream, uint8_t form, bool wants_nodes, bool wants_edges, CaptureInfo* info) {
  const WithContextOf scope(stream);
  if (const CUresult result = NeedContext()) return result;
  if (!AnyCapture()) return ResolvedStream(stream).error();
  CUresult result = AskOnce(stream, form, wants_nodes, wants_edges, wants_nodes ? 8 : 0, info);
  const uint64_t count = info->count;
  if (result == CUDA_SUCCESS && wants_nodes && count > info->nodes.size() && count <= kListPage) {
    *info = {};
    result = AskOnce(stream, form, wants_nodes, wants_edges, static_cast<uint32_t>(count), info);
  }
  return result;
}

CUresult GetInfo(CUstream stream, uint8_t form, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                 const CUgraphNode** nodes, const CUgraphEdgeData** edges, size_t* count) {
  if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const bool only_edges = edges != nullptr && nodes == nullptr;
  CaptureInfo info;
  if (const CUresult result = Ask(stream, form, nodes != nullptr, edges != nullptr && !only_edges, &info))
    return result;
  *status = info.status;
  if (info.status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
  if (only_edges) return CUDA_ERROR_INVALID_VALUE;
  if (id != nullptr) *id = info.id;
  if (graph != nullptr) *graph = info.graph;
  const std::lock_guard lock(known_captures.mutex);
  Told& told = known_captures.of_stream[ObjectOfStream(stream)];
  told.capture = info.id;
  told.graph = info.graph;
  if (count != nullptr) *count = info.count;
  if (nodes == nullptr) return CUDA_SUCCESS;
  told.nodes = std::move(info.nodes);
  told.edges = std::move(info.edges);
  *nodes = told.nodes.data();
  if (edges != nullptr) *edges = told.edges.data();
  return CUDA_SUCCESS;
}

// The graph that the program has seen of the stream's capture and that a failed end takes with it.
CUgraph SeenGraph(const Object* stream) {
  const std::lock_guard lock(known_captures.mutex);
  const auto found = known_captures.of_stream.find(stream);
  if (found == known_captures.of_stream.end() || known_captures.given_graph.contains(stream)) return nullptr;
  return found->second.graph;
}

// Whether the stream's capture was begun with a graph of the program's.
bool CapturesToGiven(const Object* stream) {
  const std::lock_guard lock(known_captures.mutex);
  return known_captures.given_graph.contains(stream);
}

void ForgetTold(const Object* stream, bool all_captures) {
  const std::lock_guard lock(known_captures.mutex);
  const auto found = known_captures.of_stream.find(stream);
  const uint64_t capture = found != known_captures.of_stream.end() ? found->second.capture : 0;
  std::erase_if(known_captures.of_stream, [&](const auto& entry) {
    return all_captures || entry.first == stream || entry.second.capture == capture;
  });
  known_captures.given_graph.erase(stream);
}

CUresult Begin(CUstream stream, CUresult begun, CUgraph given) {
  if (begun != CUDA_SUCCESS) return begun;
  NoteCapture(ObjectOfStream(stream), true);
  if (given == nullptr) return CUDA_SUCCESS;
  const std::lock_guard lock(known_captures.mutex);
  known_captures.given_graph[ObjectOfStream(stream)] = given;
  return CUDA_SUCCESS;
}

// What the driver says of a stream that does not capture, before it looks at the other arguments.
CUresult OnlyCapturing(CUstream stream) {
  if (const CUresult result = NeedContext()) return result;
  if (const CUresult result = CaptureRefusal(CaptureRule::kInStream, stream)) return result;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (const CUresult result = cuStreamIsCapturing(stream, &status)) return result;
  if (status == CU_STREAM_CAPTURE_STATUS_NONE) return CUDA_ERROR_ILLEGAL_STATE;
  return status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

// Body: the stream, a fresh graph, the graph that ends with a failed capture.
CUresult SendEnd(CUstream stream, CUgraph seen, CUgraph* graph) {
  Remote remote;
  PendingCall call = remote.StartCall(Op::cuStreamEndCapture);
  Writer& w = call.writer();
  w.Put(remote.ToWire(stream, w));
  auto fresh = remote.Make<CUgraph>(w);
  w.Put(remote.ToWire(fresh, w));
  w.Put(Find(seen) != nullptr ? WireOf(Find(seen)) : WireHandle{0});
  const CUresult result = call.Finish();
  *graph = remote.Settle(fresh, result == CUDA_SUCCESS ? call.reader().Get<WireHandle>() : 0);
  return result;
}

}  // namespace
}  // namespace causeway::guest

using namespace causeway;
using namespace causeway::guest;

extern "C" {

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // Driver 580 takes numbers that are no mode, too, and is as strict then as in the first one.
  const bool is_mode = *mode >= CU_STREAM_CAPTURE_MODE_GLOBAL && *mode <= CU_STREAM_CAPTURE_MODE_RELAXED;
  const auto wanted = is_mode ? *mode : CU_STREAM_CAPTURE_MODE_GLOBAL;
  *mode = std::exchange(ThisThread().capture_mode, wanted);
  return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  const WithContextOf scope(stream);
  if (const CUresult result = NeedContext()) return result;
  return Begin(stream, Wait<Op::cuStreamBeginCapture_v2>(stream, mode), nullptr);
}

// The form of CUDA 10.0, in which a capture forbade no other call: modes came with 10.1.
CUresult cuStreamBeginCapture(CUstream stream) {
  return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode* dependencies,
                                     const CUgraphEdgeData* edges, size_t count, CUstreamCaptureMode mode) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const WithContextOf scope(stream);
  if (const CUresult result = NeedContext()) return result;
  return Begin(stream, Wait<Op::cuStreamBeginCaptureToGraph>(stream, graph, dependencies, edges, count, mode),
               graph);
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  const WithContextOf scope(stream);
  if (const CUresult result = NeedContext()) return result;
  Object* object = ObjectOfStream(stream);
  // A program that gives no place has the graph already, or lets it go.
  CUgraph unwanted = nullptr;
  const bool lets_go = graph == nullptr && !CapturesToGiven(object);
  if (graph == nullptr) graph = &unwanted;
  const CUgraph seen = SeenGraph(object);
  const CUresult result = SendEnd(stream, seen, graph);
  // Every other answer leaves the capture as it was.
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_STREAM_CAPTURE_INVALIDATED &&
      result != CUDA_ERROR_STREAM_CAPTURE_UNJOINED) {
    return result;
  }
  NoteCapture(object, false);
  ForgetTold(object, !AnyCapture());
  if (result != CUDA_SUCCESS && seen != nullptr) {
    EndContents(seen);
    FreeObject(Find(seen));
  }
  if (result == CUDA_SUCCESS && lets_go) cuGraphDestroy(unwanted);
  return result;
}

CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode* dependencies, size_t count,
                                           unsigned int flags) {
  const WithContextOf scope(stream);
  const CUresult result = OnlyCapturing(stream);
  return result != CUDA_SUCCESS
             ? result
             : Wait<Op::cuStreamUpdateCaptureDependencies>(stream, dependencies, count, flags);
}

CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode* dependencies,
                                              const CUgraphEdgeData* edges, size_t count,
                                              unsigned int flags) {
  const WithContextOf scope(stream);
  const CUresult result = OnlyCapturing(stream);
  return result != CUDA_SUCCESS
             ? result
             : Wait<Op::cuStreamUpdateCaptureDependencies_v2>(stream, dependencies, edges, count, flags);
}

CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id) {
  return GetInfo(stream, 2, status, id, nullptr, nullptr, nullptr, nullptr);
}

CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                   CUgraph* graph, const CUgraphNode** dependencies, size_t* count) {
  return GetInfo(stream, 2, status, id, graph, dependencies, nullptr, count);
}

CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                   CUgraph* graph, const CUgraphNode** dependencies,
                                   const CUgraphEdgeData** edges, size_t* count) {
  return GetInfo(stream, 3, status, id, graph, dependencies, edges, count);
}

}  // extern "C"
