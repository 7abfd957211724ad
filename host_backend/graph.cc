// SPDX-License-Identifier: Apache-2.0
// Graph and capture calls whose answers hold handles.
#include "host_backend/session.h"

namespace causeway::host {

// Body: the graph, then as many fresh handles as the guest has room for (none: it asks for the count alone).
// Reply: the count, then the handles.
CUresult Serve_cuGraphGetNodes(Session& session, Request& request) {
  auto graph =
      static_cast<CUgraph>(session.ToDriver(HandleKind::kGraph, request.in.Get<WireHandle>(), request.in));
  if (!request.in.ok()) return request.in.error();
  size_t count = request.in.left() / sizeof(WireHandle);
  std::vector<CUgraphNode> nodes(count);
  const bool wants_nodes = count != 0;
  if (const CUresult result =
          TheDriver().cuGraphGetNodes(graph, wants_nodes ? nodes.data() : nullptr, &count)) {
    return result;
  }
  request.out.Put(static_cast<uint64_t>(count));
  for (size_t i = 0; wants_nodes && i < nodes.size() && i < count; ++i) {
    const auto fresh = request.in.Get<WireHandle>();
    request.out.Put(session.BindOrKnown(HandleKind::kGraphNode, fresh, nodes[i], request.out));
  }
  return request.out.error();
}

// Body: the stream and a fresh graph handle. Reply: status, id, the graph's handle (0 if none).
CUresult Serve_cuStreamGetCaptureInfo_v2(Session& session, Request& request) {
  auto stream =
      static_cast<CUstream>(session.ToDriver(HandleKind::kStream, request.in.Get<WireHandle>(), request.in));
  const auto fresh = request.in.Get<WireHandle>();
  if (!request.in.ok()) return request.in.error();
  if (TheDriver().cuStreamGetCaptureInfo_v2 == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  CUgraph graph = nullptr;
  const CUresult result =
      TheDriver().cuStreamGetCaptureInfo_v2(stream, &status, &id, &graph, nullptr, nullptr);
  if (result != CUDA_SUCCESS) return result;
  request.out.Put(static_cast<uint32_t>(status));
  request.out.Put(static_cast<uint64_t>(id));
  const bool active = status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
  request.out.Put(active ? session.BindOrKnown(HandleKind::kGraph, fresh, graph, request.out)
                         : WireHandle{0});
  return request.out.error();
}

}  // namespace causeway::host
