// SPDX-License-Identifier: Apache-2.0
// Stream capture, graphs, tensor maps: what the rows alone cannot carry.
#include <atomic>
#include <cstring>

#include "guest_lib/remote.h"

namespace causeway::guest {
namespace {

// Captures begun and not ended. While there is none, no stream of this process is capturing.
std::atomic<int> captures{0};

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

CUresult Encode(Op op, CUtensorMap* map, const TensorMapBody& body) {
  PendingCall call(op);
  call.writer().Put(body);
  const CUresult result = call.writer().ok() ? call.Finish() : call.writer().error();
  if (result != CUDA_SUCCESS) return result;
  const std::byte* bytes = call.reader().Take(sizeof *map);
  if (bytes == nullptr) return CUDA_ERROR_UNKNOWN;
  std::memcpy(map, bytes, sizeof *map);
  return CUDA_SUCCESS;
}

CUresult FillTensorMap(TensorMapBody* body, cuuint32_t rank, const cuuint64_t* dimensions,
                       const cuuint64_t* strides, const cuuint32_t* element_strides) {
  if (rank < 1 || rank > 5 || dimensions == nullptr || element_strides == nullptr ||
      (rank > 1 && strides == nullptr)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  body->rank = rank;
  for (cuuint32_t i = 0; i < rank; ++i) {
    body->dimensions[i] = dimensions[i];
    body->element_strides[i] = element_strides[i];
    if (i + 1 < rank) body->strides[i] = strides[i];
  }
  return CUDA_SUCCESS;
}

}  // namespace
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
  if (result == CUDA_SUCCESS) captures.fetch_add(1);
  return result;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  if (const CUresult result = NeedContext()) return result;
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = Wait<Op::cuStreamEndCapture>(stream, graph);
  // These two leave the capture as it was; every other answer ends it.
  if (result != CUDA_ERROR_ILLEGAL_STATE && result != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD) {
    int now = captures.load();
    while (now > 0 && !captures.compare_exchange_weak(now, now - 1)) {
    }
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

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                const cuuint64_t* dimensions, const cuuint64_t* strides,
                                const cuuint32_t* box, const cuuint32_t* element_strides,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  TensorMapBody body{};
  if (map == nullptr || box == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = FillTensorMap(&body, rank, dimensions, strides, element_strides)) return result;
  body.data_type = type;
  body.address = reinterpret_cast<uint64_t>(address);
  std::memcpy(body.box, box, rank * sizeof *box);
  body.interleave = interleave;
  body.swizzle = swizzle;
  body.promotion = promotion;
  body.fill = fill;
  return Encode(Op::cuTensorMapEncodeTiled, map, body);
}

CUresult cuTensorMapEncodeIm2col(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                 const cuuint64_t* dimensions, const cuuint64_t* strides, const int* lower,
                                 const int* upper, cuuint32_t channels, cuuint32_t pixels,
                                 const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                                 CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                 CUtensorMapFloatOOBfill fill) {
  TensorMapBody body{};
  if (map == nullptr || lower == nullptr || upper == nullptr || rank < 3) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = FillTensorMap(&body, rank, dimensions, strides, element_strides)) return result;
  body.data_type = type;
  body.address = reinterpret_cast<uint64_t>(address);
  std::memcpy(body.lower_corner, lower, (rank - 2) * sizeof *lower);
  std::memcpy(body.upper_corner, upper, (rank - 2) * sizeof *upper);
  body.channels_per_pixel = channels;
  body.pixels_per_column = pixels;
  body.interleave = interleave;
  body.swizzle = swizzle;
  body.promotion = promotion;
  body.fill = fill;
  return Encode(Op::cuTensorMapEncodeIm2col, map, body);
}

}  // extern "C"
