// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/stream/completion.h"

#include <atomic>

#include "host_backend/worker/addresses/arenas.h"
#include "host_backend/worker/session/dispatcher.h"
#include "host_backend/worker/session/session.h"

namespace causeway::host {

// A driver or device that cannot, or a context that is lost, leaves the word as it is: the guest then asks.
CUresult WriteMark(Session& session, Request& request, CUstream stream, uint64_t offset, bool is_awaited) {
  if (request.channel != kChannelCount) return CUDA_SUCCESS;  // its guest has the answer
  const HostSpan word = session.part<Arenas>().ResolveOffset(offset, sizeof(uint64_t));
  if (!word || offset % sizeof(uint64_t) != 0) {
    session.Violation("it wants a mark where it has no word");
    return CUDA_ERROR_INVALID_VALUE;
  }
  const uint64_t value = request.header.sequence + 1;
  if (is_awaited && !request.in_lane && session.gates().OthersCopy() &&
      session.part<Dispatcher>().IsDoneSoon(stream, request.header.sequence)) {
    std::atomic_ref(*reinterpret_cast<uint64_t*>(word.data())).store(value, std::memory_order_release);
    request.is_over = true;
    session.gates().TellOver();
    return CUDA_SUCCESS;
  }
  session.gates().WriteWord(!request.in_lane, stream, reinterpret_cast<CUdeviceptr>(word.data()), value);
  return CUDA_SUCCESS;
}

CUresult Serve_kMark(Session& session, Request& request) {
  const auto body = request.in.Get<MarkBody>();
  auto stream = session.objects().ToDriver<CUstream>(body.stream, request.in);
  if (!request.in.ok()) return request.in.error();
  if (const CUresult result = session.objects().Prepare()) return result;
  return WriteMark(session, request, stream, body.offset);
}

CUresult Serve_kPostedResult(Session& session, Request& request) {
  const auto sequence = request.in.Get<uint64_t>();
  return request.in.ok() ? session.part<Dispatcher>().TakePostedResult(sequence) : request.in.error();
}

// To free nothing is such a call, which needs no context.
CUresult Serve_kUnsafeCall(Session&, Request&) {
  return TheDriver().cuMemFree_v2(0);
}

}  // namespace causeway::host
