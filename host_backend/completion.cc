// SPDX-License-Identifier: Apache-2.0
// Marks: the GPU tells the guest by itself how far a stream has come.
#include "host_backend/session.h"

namespace causeway::host {

// A driver or device that cannot, or a context that is lost, leaves the word as it is: the guest then asks.
CUresult Serve_kMark(Session& session, Request& request) {
  const auto body = request.in.Get<MarkBody>();
  auto stream = static_cast<CUstream>(session.ToDriver(HandleKind::kStream, body.stream, request.in));
  if (!request.in.ok()) return request.in.error();
  std::byte* word = session.ResolveOffset(body.offset, sizeof(uint64_t));
  if (word == nullptr || body.offset % sizeof(uint64_t) != 0) {
    session.violations.fetch_add(1);
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (TheDriver().cuStreamWriteValue64_v2 != nullptr) {
    TheDriver().cuStreamWriteValue64_v2(stream, reinterpret_cast<CUdeviceptr>(word),
                                        request.header.sequence + 1, CU_STREAM_WRITE_VALUE_DEFAULT);
  }
  return CUDA_SUCCESS;
}

}  // namespace causeway::host
