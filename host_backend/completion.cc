// SPDX-License-Identifier: Apache-2.0
#include "host_backend/completion.h"

#include "host_backend/session.h"

namespace causeway::host {

// A driver or device that cannot, or a context that is lost, leaves the word as it is: the guest then asks.
CUresult WriteMark(Session& session, const Request& request, CUstream stream, uint64_t offset) {
  if (request.channel != kChannelCount) return CUDA_SUCCESS;  // its guest has the answer
  const HostSpan word = session.ResolveOffset(offset, sizeof(uint64_t));
  if (!word || offset % sizeof(uint64_t) != 0) {
    session.Violation("it wants a mark where it has no word");
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (TheDriver().cuStreamWriteValue64_v2 != nullptr) {
    TheDriver().cuStreamWriteValue64_v2(stream, reinterpret_cast<CUdeviceptr>(word.data()),
                                        request.header.sequence + 1, CU_STREAM_WRITE_VALUE_DEFAULT);
  }
  return CUDA_SUCCESS;
}

CUresult Serve_kMark(Session& session, Request& request) {
  const auto body = request.in.Get<MarkBody>();
  auto stream = static_cast<CUstream>(session.ToDriver(HandleKind::kStream, body.stream, request.in));
  return request.in.ok() ? WriteMark(session, request, stream, body.offset) : request.in.error();
}

}  // namespace causeway::host
