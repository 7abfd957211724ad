// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/session/deferred_replies.h"

#include <sched.h>
#include <xmmintrin.h>

#include "host_backend/worker/session/session.h"

namespace causeway::host {

bool MayBeDeferred(const RecordHeader& header) {
  return (header.flags & kStaged) != 0 && TraitsOf(static_cast<Op>(header.op)).Has(traits::kInPieces);
}

CUresult AnswerWhenDone(Request& request, CUstream stream) {
  const Driver& driver = TheDriver();
  if (driver.cuEventCreate(&request.done, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS) {
    if (driver.cuEventRecord(request.done, stream) == CUDA_SUCCESS) return CUDA_SUCCESS;
    driver.cuEventDestroy_v2(request.done);
  }
  request.done = nullptr;
  return driver.cuStreamSynchronize(stream);
}

DeferredReplies::~DeferredReplies() {
  for (; count_ > 0; --count_, first_ = (first_ + 1) % kMost) {
    if (replies_[first_].done != nullptr) TheDriver().cuEventDestroy_v2(replies_[first_].done);
  }
}

void DeferredReplies::Add(const RecordHeader& reply, CUevent done) {
  replies_[(first_ + count_++) % kMost] = {reply, done};
}

bool DeferredReplies::Take(RecordHeader* reply) {
  constexpr uint32_t kPauses = 16, kPolls = 2000;  // some milliseconds; then the driver waits as it would
  Deferred& oldest = replies_[first_];
  if (oldest.done != nullptr) {
    const Driver& driver = TheDriver();
    CUresult result = CUDA_ERROR_NOT_READY;
    if (++asked_ < kPolls) result = driver.cuEventQuery(oldest.done);
    if (result == CUDA_ERROR_NOT_READY && asked_ < kPolls) {
      if (asked_ > kPolls / 100) sched_yield();
      for (uint32_t i = 0; i < kPauses; ++i) _mm_pause();
      return false;
    }
    // With the copy's end comes what kernels printed before it, as with a blocking copy.
    if (result == CUDA_ERROR_NOT_READY || (result == CUDA_SUCCESS && (oldest.reply.flags & kStagedLast) != 0))
      result = driver.cuEventSynchronize(oldest.done);
    driver.cuEventDestroy_v2(oldest.done);
    oldest.reply.result = result;
  }
  *reply = oldest.reply;
  asked_ = 0;
  first_ = (first_ + 1) % kMost;
  --count_;
  return true;
}

}  // namespace causeway::host
