// SPDX-License-Identifier: Apache-2.0
// Stream capture and graphs: what the rows alone cannot carry.
#include <atomic>
#include <mutex>
#include <utility>

#include "guest_lib/remote.h"

namespace causeway::guest {
namespace {

// Captures begun and not ended. While there is none, no stream of this process is capturing.
std::atomic<size_t> captures{0};
std::mutex origins_mutex;
struct Origin {
  Object* stream;
  uint64_t id;
};
auto& origins = *new std::vector<Origin>;  // the streams they began in; never destroyed

// Streams that were destroyed have taken their captures along.
void SetOrigins(Object* stream, bool begins) {
  const std::lock_guard lock(origins_mutex);
  std::erase_if(origins, [&](const Origin& origin) {
    return origin.stream == stream || origin.stream->id != origin.id ||
           FindObject(HandleKind::kStream, origin.stream) == nullptr;
  });
  if (begins) origins.push_back({stream, stream->id});
  captures.store(origins.size(), std::memory_order_release);
}

Object* CapturingStream(CUstream stream) {
  return Find(stream == CU_STREAM_PER_THREAD ? PerThreadStream() : stream);
}

CUresult NeedContext() {
  if (const CUresult result = InitialisedOrError()) return result;
  return CurrentContextObject() != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult Instantiate(CUgraphExec* executable, CUgraph graph, unsigned long long flags) {
  if (const CUresult result = NeedContext()) return result;
  if (executable == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (Find(graph) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return Wait<Op::cuGraphInstantiateWithFlags>(executable, graph, flags);
}

struct CaptureInfo {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  uint64_t id = 0;
  CUgraph graph = nullptr;
};

CUresult Ask(CUstream stream, CaptureInfo* info) {
  if (const CUresult result = NeedContext()) return result;
  if (captures.load(std::memory_order_acquire) == 0) return CUDA_SUCCESS;
  PendingCall call(Op::cuStreamGetCaptureInfo_v2);
  Writer& w = call.writer();
  Remote remote;
  w.Put(remote.ToWire(stream, w));
  auto fresh = remote.Make<CUgraph>(w);
  w.Put(remote.ToWire(fresh, w));
  const CUresult result = w.ok() ? call.Finish() : w.error();
  if (result != CUDA_SUCCESS) {
    remote.Forget(fresh);
    return result;
  }
  info->status = static_cast<CUstreamCaptureStatus>(call.reader().Get<uint32_t>());
  info->id = call.reader().Get<uint64_t>();
  info->graph = remote.Settle(fresh, call.reader().Get<WireHandle>());
  return call.reader().error();
}

}  // namespace

bool AnyCapture() {
  return captures.load(std::memory_order_acquire) != 0;
}

CUresult CheckUnsafeCall() {
  if (!AnyCapture()) return CUDA_SUCCESS;
  PendingCall call(Op::kUnsafeCall);
  return call.writer().ok() ? call.Finish() : call.writer().error();
}

}  // namespace causeway::guest

using namespace causeway;
using namespace causeway::guest;

extern "C" {

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (mode == nullptr || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  std::swap(*mode, ThisThread().capture_mode);
  return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  if (const CUresult result = NeedContext()) return result;
  const CUresult result = Wait<Op::cuStreamBeginCapture_v2>(stream, mode);
  if (result == CUDA_SUCCESS) SetOrigins(CapturingStream(stream), true);
  return result;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  if (const CUresult result = NeedContext()) return result;
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = Wait<Op::cuStreamEndCapture>(stream, graph);
  // Every other answer leaves the capture as it was.
  if (result == CUDA_SUCCESS || result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED ||
      result == CUDA_ERROR_STREAM_CAPTURE_UNJOINED) {
    SetOrigins(CapturingStream(stream), false);
  }
  if (result != CUDA_SUCCESS) *graph = nullptr;
  return result;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = NeedContext()) return result;
  if (captures.load(std::memory_order_acquire) != 0) return Wait<Op::cuStreamIsCapturing>(stream, status);
  Writer check{{}};
  Remote{}.ToWire(stream, check);
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return check.error();
}

CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                   CUgraph* graph, const CUgraphNode** dependencies, size_t* count) {
  if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CaptureInfo info;
  if (const CUresult result = Ask(stream, &info)) return result;
  *status = info.status;
  if (info.status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
  if (dependencies != nullptr || count != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  if (id != nullptr) *id = info.id;
  if (graph != nullptr) *graph = info.graph;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                   CUgraph* graph, const CUgraphNode** dependencies,
                                   const CUgraphEdgeData** edges, size_t* count) {
  if (edges != nullptr && dependencies == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return cuStreamGetCaptureInfo_v2(stream, status, id, graph, dependencies, count);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph, unsigned long long flags) {
  return Instantiate(executable, graph, flags);
}

CUresult cuGraphInstantiate_v2(CUgraphExec* executable, CUgraph graph, CUgraphNode* error_node, char* log,
                               size_t room) {
  if (error_node != nullptr) *error_node = nullptr;
  if (log != nullptr && room > 0) log[0] = '\0';
  return Instantiate(executable, graph, 0);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec* executable, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const bool upload = (parameters->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0;
  const CUresult result = Instantiate(
      executable, graph, parameters->flags & ~static_cast<cuuint64_t>(CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD));
  parameters->hErrNode_out = nullptr;
  parameters->result_out =
      result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
  return result == CUDA_SUCCESS && upload ? cuGraphUpload(*executable, parameters->hUploadStream) : result;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  constexpr size_t kMost = (kMaxChannelRecordBytes - 512) / sizeof(WireHandle);
  const size_t wanted = nodes != nullptr ? *count : 0;
  if (wanted > kMost) return CUDA_ERROR_NOT_SUPPORTED;
  PendingCall call(Op::cuGraphGetNodes);
  Writer& w = call.writer();
  Remote remote;
  w.Put(remote.ToWire(graph, w));
  for (size_t i = 0; i < wanted && w.ok(); ++i) {
    nodes[i] = remote.Make<CUgraphNode>(w);
    w.Put(remote.ToWire(nodes[i], w));
  }
  const CUresult result = w.ok() ? call.Finish() : w.error();
  const uint64_t got = result == CUDA_SUCCESS ? call.reader().Get<uint64_t>() : 0;
  for (size_t i = 0; i < wanted; ++i) {
    if (i < got) {
      nodes[i] = remote.Settle(nodes[i], call.reader().Get<WireHandle>());
    } else {
      remote.Forget(nodes[i]);
      nodes[i] = nullptr;
    }
  }
  if (result == CUDA_SUCCESS) *count = got;
  return result;
}

}  // extern "C"
