// SPDX-License-Identifier: Apache-2.0
// Waiting for pieces of pageable copies.
#include "host_backend/worker/session/deferred_replies.h"

#include <immintrin.h>
#include <sched.h>

#include <chrono>

#include "host_backend/worker/session/session.h"

namespace causeway::host {

bool IsStaged(const Session& session, const RecordHeader& header) {
  const auto op = static_cast<Op>(header.op);
  return (header.flags & kStaged) != 0 && session.shares_memory() &&
         (op == Op::kCopyToDevice || op == Op::kCopyToHost || op == Op::cuMemcpy3D_v2);
}

CUresult AnswerWhenDone(Request& request, CUstream stream) {
  Driver& driver = TheDriver();
  if (driver.cuEventCreate != nullptr &&
      driver.cuEventCreate(&request.done, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS) {
    if (driver.cuEventRecord(request.done, stream) == CUDA_SUCCESS) return CUDA_SUCCESS;
    driver.cuEventDestroy_v2(request.done);
  }
  request.done = nullptr;
  return driver.cuStreamSynchronize(stream);
}

bool AwaitPostedCopies(const std::function<bool()>& more, CUresult* result) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kPatience = std::chrono::milliseconds(200);  // what is under way elsewhere may hold them up
  constexpr int kSpins = 64;
  Driver& driver = TheDriver();
  *result = CUDA_SUCCESS;
  if (driver.cuStreamQuery == nullptr || driver.cuThreadExchangeStreamCaptureMode == nullptr) return true;
  // Asking must not end a capture that another thread has begun meanwhile.
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  driver.cuThreadExchangeStreamCaptureMode(&mode);
  const auto end = Clock::now() + kPatience;
  bool interrupted = false;
  *result = driver.cuStreamQuery(nullptr);
  for (int tries = 0; *result == CUDA_ERROR_NOT_READY && Clock::now() < end; ++tries) {
    if ((interrupted = more())) break;
    if (tries > kSpins) sched_yield();
    *result = driver.cuStreamQuery(nullptr);
  }
  driver.cuThreadExchangeStreamCaptureMode(&mode);
  if (*result == CUDA_ERROR_NOT_READY) *result = CUDA_SUCCESS;
  return !interrupted;
}

StagedPieces::~StagedPieces() {
  for (; count_ > 0; --count_, first_ = (first_ + 1) % kMost) {
    if (pieces_[first_].done != nullptr) TheDriver().cuEventDestroy_v2(pieces_[first_].done);
  }
}

void StagedPieces::Add(const RecordHeader& reply, CUevent done) {
  pieces_[(first_ + count_++) % kMost] = {reply, done};
}

bool StagedPieces::Take(RecordHeader* reply) {
  constexpr uint32_t kPauses = 16, kPolls = 2000;  // some milliseconds; then the driver waits as it would
  Piece& piece = pieces_[first_];
  if (piece.done != nullptr) {
    Driver& driver = TheDriver();
    CUresult result = CUDA_ERROR_NOT_READY;
    if (++asked_ < kPolls) result = driver.cuEventQuery(piece.done);
    if (result == CUDA_ERROR_NOT_READY && asked_ < kPolls) {
      if (asked_ > kPolls / 100) sched_yield();
      for (uint32_t i = 0; i < kPauses; ++i) _mm_pause();
      return false;
    }
    // With the copy's end comes what kernels printed before it, as with a blocking copy.
    if (result == CUDA_ERROR_NOT_READY || (result == CUDA_SUCCESS && (piece.reply.flags & kStagedLast) != 0))
      result = driver.cuEventSynchronize(piece.done);
    driver.cuEventDestroy_v2(piece.done);
    piece.reply.result = result;
  }
  *reply = piece.reply;
  asked_ = 0;
  first_ = (first_ + 1) % kMost;
  --count_;
  return true;
}

}  // namespace causeway::host
