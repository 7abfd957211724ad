// SPDX-License-Identifier: Apache-2.0
// Stream capture: which operations become nodes, which calls it forbids, and how a capture ends.
#include <algorithm>
#include <atomic>
#include <unordered_set>
#include <utility>

#include "tests/software_gpu/event.h"
#include "tests/software_gpu/graph.h"
#include "tests/software_gpu/graph_handles.h"
#include "tests/software_gpu/stream_handles.h"

namespace causeway::software_gpu {
namespace {

thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

struct Captures {
  std::vector<CaptureRef> active;  // guarded by GraphLock()
  std::atomic<size_t> count{0};    // active.size(), read without the lock: no capture, no further checks
  uint64_t next_id = 1;            // guarded by GraphLock()
};

Captures& All() {
  static auto* captures = new Captures;
  return *captures;
}

bool NoCaptures() {
  return All().count.load(std::memory_order_acquire) == 0;
}

// Caller holds GraphLock(), as for all functions below that take a capture.
void EndSequence(const CaptureRef& capture) {
  for (const StreamRef& stream : capture->streams) stream->capture = nullptr;
  std::erase(All().active, capture);
  All().count.store(All().active.size(), std::memory_order_release);
}

void JoinCapture(const StreamRef& stream, const CaptureRef& capture) {
  if (stream->capture == capture) return;
  stream->capture = capture;
  capture->streams.push_back(stream);
}

bool EveryTailIsJoined(const CaptureSequence& capture) {
  std::unordered_set<const Node*> reached;
  std::vector<NodeRef> open;
  if (auto origin = capture.tails.find(capture.origin.get()); origin != capture.tails.end())
    open = origin->second;
  while (!open.empty()) {
    NodeRef node = std::move(open.back());
    open.pop_back();
    if (!reached.insert(node.get()).second) continue;
    open.insert(open.end(), node->dependencies.begin(), node->dependencies.end());
  }
  for (const auto& [stream, tail] : capture.tails) {
    for (const NodeRef& node : tail) {
      if (!reached.contains(node.get())) return false;
    }
  }
  return true;
}

CUresult BeginCapture(const StreamRef& stream, CUstreamCaptureMode mode, const ContextRef& context,
                      GraphRef graph, std::vector<NodeRef> dependencies) {
  if (stream->kind == Stream::Kind::kLegacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  std::lock_guard lock(GraphLock());
  if (stream->capture != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  auto capture = std::make_shared<CaptureSequence>();
  capture->id = All().next_id++;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->context = context;
  capture->origin = stream;
  capture->given = graph != nullptr;
  capture->graph = graph != nullptr ? std::move(graph) : MakeGraph();
  capture->tails[stream.get()] = std::move(dependencies);
  JoinCapture(stream, capture);
  All().active.push_back(capture);
  All().count.store(All().active.size(), std::memory_order_release);
  return CUDA_SUCCESS;
}

CUresult EndCapture(const StreamRef& stream, CUgraph* graph) {
  std::lock_guard lock(GraphLock());
  if (graph != nullptr) *graph = nullptr;
  CaptureRef capture = stream->capture;
  if (capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != std::this_thread::get_id()) {
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  CUresult result = CUDA_SUCCESS;
  if (capture->origin != stream) {
    capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  if (capture->invalidated) {
    result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  } else if (!EveryTailIsJoined(*capture)) {
    result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  }
  EndSequence(capture);
  if (result == CUDA_SUCCESS && graph != nullptr) {
    *graph = capture->graph->handle;
  } else if (!capture->given) {
    Graphs().Remove(capture->graph->handle);
  }
  return result;
}

CUstreamCaptureStatus StatusOf(const StreamRef& stream) {
  if (stream->capture == nullptr) return CU_STREAM_CAPTURE_STATUS_NONE;
  return stream->capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                      : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

// A capture that work on the legacy stream would have to wait for.
CaptureRef OrderedByLegacy(const Stream& stream) {
  if (stream.kind != Stream::Kind::kLegacy) return nullptr;
  for (const CaptureRef& capture : All().active) {
    bool blocking = std::any_of(capture->streams.begin(), capture->streams.end(),
                                [](const StreamRef& member) { return member->IsBlocking(); });
    if (blocking && capture->context == stream.context.lock()) return capture;
  }
  return nullptr;
}

CUresult GetCaptureInfo(const StreamRef& stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                        CUgraph* graph, const CUgraphNode** dependencies, size_t* count) {
  // The array belongs to the driver and lives until the thread's next call.
  thread_local std::vector<CUgraphNode> tail_handles;
  std::lock_guard lock(GraphLock());
  if (OrderedByLegacy(*stream) != nullptr) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;  // and ends none
  *status = StatusOf(stream);
  if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
  CaptureSequence& capture = *stream->capture;
  tail_handles.clear();
  for (const NodeRef& node : capture.tails[stream.get()]) tail_handles.push_back(node->handle);
  if (id != nullptr) *id = capture.id;
  if (graph != nullptr) *graph = capture.graph->handle;
  if (dependencies != nullptr) *dependencies = tail_handles.data();
  if (count != nullptr) *count = tail_handles.size();
  return CUDA_SUCCESS;
}

}  // namespace

std::mutex& GraphLock() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

bool IsCapturing(const StreamRef& stream) {
  if (NoCaptures()) return false;
  std::lock_guard lock(GraphLock());
  return stream->capture != nullptr;
}

bool IsCaptureBroken(const StreamRef& stream) {
  if (NoCaptures()) return false;
  std::lock_guard lock(GraphLock());
  return stream->capture != nullptr && stream->capture->invalidated;
}

bool MeetsCapture(const StreamRef& stream) {
  if (NoCaptures()) return false;
  std::lock_guard lock(GraphLock());
  return OrderedByLegacy(*stream) != nullptr;
}

CUresult Submit(const StreamRef& stream, Operation operation, CompletionRef* done) {
  if (!NoCaptures()) {
    std::lock_guard lock(GraphLock());
    if (CaptureRef capture = stream->capture) {
      if (capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
      std::vector<NodeRef>& tail = capture->tails[stream.get()];
      tail = {AddNode(capture->graph, std::move(operation), tail)};
      return CUDA_SUCCESS;
    }
    if (CaptureRef capture = OrderedByLegacy(*stream)) {
      capture->invalidated = true;
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
  }
  CompletionRef completion = Enqueue(stream, std::move(operation.run), {}, operation.always);
  if (done != nullptr) *done = completion;
  return CUDA_SUCCESS;
}

CUresult RefuseWhileCapturing() {
  if (NoCaptures() || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  std::lock_guard lock(GraphLock());
  CUresult result = CUDA_SUCCESS;
  for (const CaptureRef& capture : All().active) {
    bool own =
        capture->thread == std::this_thread::get_id() && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    bool global =
        capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!own && !global) continue;
    capture->invalidated = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

CUresult RefuseWhileStreamCaptures(const StreamRef& stream) {
  if (NoCaptures()) return CUDA_SUCCESS;
  std::lock_guard lock(GraphLock());
  if (stream->capture == nullptr) return CUDA_SUCCESS;
  stream->capture->invalidated = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult RefuseInCapture(const StreamRef& stream) {
  if (NoCaptures()) return CUDA_SUCCESS;
  {
    std::lock_guard lock(GraphLock());
    if (CaptureRef capture = OrderedByLegacy(*stream)) {
      capture->invalidated = true;
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
  }
  return RefuseWhileStreamCaptures(stream);
}

CUresult RefuseWhileContextCaptures(const Context& context) {
  if (NoCaptures()) return CUDA_SUCCESS;
  std::lock_guard lock(GraphLock());
  CUresult result = CUDA_SUCCESS;
  for (const CaptureRef& capture : All().active) {
    if (capture->context.get() != &context) continue;
    capture->invalidated = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

void EndCapturesOf(const Context& context) {
  if (NoCaptures()) return;
  std::lock_guard lock(GraphLock());
  for (const CaptureRef& capture : std::vector(All().active)) {
    if (capture->context.get() != &context) continue;
    EndSequence(capture);
    if (!capture->given) Graphs().Remove(capture->graph->handle);
  }
}

bool RecordInCapture(const StreamRef& stream, Event& event, CUresult* result) {
  if (NoCaptures()) return false;
  std::lock_guard lock(GraphLock());
  *result = CUDA_SUCCESS;
  if (CaptureRef conflict = OrderedByLegacy(*stream)) {
    conflict->invalidated = true;
    *result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    return true;
  }
  CaptureRef capture = stream->capture;
  if (capture == nullptr) return false;
  if (capture->invalidated) {
    *result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    return true;
  }
  std::lock_guard event_lock(event.mutex);
  event.recorded = nullptr;
  event.capture = capture;
  event.capture_nodes = capture->tails[stream.get()];
  return true;
}

bool WaitInCapture(const StreamRef& stream, Event& event, CUresult* result) {
  if (NoCaptures()) return false;
  std::lock_guard lock(GraphLock());
  CaptureRef recorded;
  std::vector<NodeRef> nodes;
  {
    std::lock_guard event_lock(event.mutex);
    recorded = event.capture.lock();
    nodes = event.capture_nodes;
  }
  // An event of a capture that has ended behaves as one that was never recorded.
  if (recorded != nullptr &&
      std::find(All().active.begin(), All().active.end(), recorded) == All().active.end()) {
    recorded = nullptr;
  }
  CaptureRef own = stream->capture;
  *result = CUDA_SUCCESS;
  if (own == nullptr && recorded == nullptr) {
    CaptureRef conflict = OrderedByLegacy(*stream);
    if (conflict == nullptr) return false;
    conflict->invalidated = true;
    *result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    return true;
  }
  if (own != nullptr && own->invalidated) {
    *result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    return true;
  }
  if (own != nullptr && recorded != own) {
    own->invalidated = true;
    if (recorded != nullptr) recorded->invalidated = true;
    *result = recorded != nullptr ? CUDA_ERROR_STREAM_CAPTURE_MERGE : CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    return true;
  }
  if (stream->kind == Stream::Kind::kLegacy) {
    recorded->invalidated = true;
    *result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    return true;
  }
  JoinCapture(stream, recorded);
  std::vector<NodeRef>& tail = recorded->tails[stream.get()];
  for (const NodeRef& node : nodes) {
    if (std::find(tail.begin(), tail.end(), node) == tail.end()) tail.push_back(node);
  }
  return true;
}

}  // namespace causeway::software_gpu

using namespace causeway::software_gpu;

extern "C" {

CUresult cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    StreamRef stream = FindStream(context, hStream);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED)
      return CUDA_ERROR_INVALID_VALUE;
    return BeginCapture(stream, mode, context, nullptr, {});
  });
}

CUresult cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph, const CUgraphNode* dependencies,
                                     const CUgraphEdgeData*, size_t numDependencies,
                                     CUstreamCaptureMode mode) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    StreamRef stream = FindStream(context, hStream);
    GraphRef graph = Graphs().Find(hGraph);
    if (stream == nullptr || graph == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    std::vector<NodeRef> nodes;
    if (!FindNodes(dependencies, numDependencies, &nodes)) return CUDA_ERROR_INVALID_VALUE;
    return BeginCapture(stream, mode, context, graph, std::move(nodes));
  });
}

CUresult cuStreamEndCapture(CUstream hStream, CUgraph* phGraph) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    StreamRef stream = FindStream(context, hStream);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    return EndCapture(stream, phGraph);
  });
}

CUresult cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus* captureStatus) {
  return InContextOfStream(__func__, hStream, [&](const ContextRef& context) -> CUresult {
    StreamRef stream = FindStream(context, hStream);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (captureStatus == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard lock(GraphLock());
    if (OrderedByLegacy(*stream) != nullptr) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    *captureStatus = StatusOf(stream);
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamGetCaptureInfo_v2(CUstream hStream, CUstreamCaptureStatus* captureStatus_out,
                                   cuuint64_t* id_out, CUgraph* graph_out,
                                   const CUgraphNode** dependencies_out, size_t* numDependencies_out) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    StreamRef stream = FindStream(context, hStream);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (captureStatus_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return GetCaptureInfo(stream, captureStatus_out, id_out, graph_out, dependencies_out,
                          numDependencies_out);
  });
}

CUresult cuStreamGetCaptureInfo_v3(CUstream hStream, CUstreamCaptureStatus* captureStatus_out,
                                   cuuint64_t* id_out, CUgraph* graph_out,
                                   const CUgraphNode** dependencies_out, const CUgraphEdgeData** edgeData_out,
                                   size_t* numDependencies_out) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    StreamRef stream = FindStream(context, hStream);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (captureStatus_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    thread_local std::vector<CUgraphEdgeData> edges;  // lent as the nodes are; there are none but full ones
    size_t count = 0;
    CUresult result = GetCaptureInfo(stream, captureStatus_out, id_out, graph_out, dependencies_out, &count);
    if (result != CUDA_SUCCESS || *captureStatus_out != CU_STREAM_CAPTURE_STATUS_ACTIVE) return result;
    if (edgeData_out != nullptr && dependencies_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    edges.assign(count + 1, CUgraphEdgeData{});
    if (edgeData_out != nullptr) *edgeData_out = edges.data();
    if (numDependencies_out != nullptr) *numDependencies_out = count;
    return CUDA_SUCCESS;
  });
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return Initialised(__func__, [&]() -> CUresult {
    if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const auto wanted = std::clamp(*mode, CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED);
    *mode = std::exchange(thread_mode, wanted);
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamUpdateCaptureDependencies_v2(CUstream hStream, CUgraphNode* dependencies,
                                              const CUgraphEdgeData*, size_t numDependencies,
                                              unsigned int flags) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    StreamRef stream = FindStream(context, hStream);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    {
      std::lock_guard lock(GraphLock());
      if (OrderedByLegacy(*stream) != nullptr) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
      if (StatusOf(stream) == CU_STREAM_CAPTURE_STATUS_NONE) return CUDA_ERROR_ILLEGAL_STATE;
      if (StatusOf(stream) == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    std::vector<NodeRef> nodes;
    if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES || !FindNodes(dependencies, numDependencies, &nodes)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    std::lock_guard lock(GraphLock());
    std::vector<NodeRef>& tail = stream->capture->tails[stream.get()];
    if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) tail.clear();
    tail.insert(tail.end(), nodes.begin(), nodes.end());
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
