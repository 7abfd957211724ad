// SPDX-License-Identifier: Apache-2.0
// Bulk buffers that are lent to the GPU.
#include "guest_lib/posted_copy.h"

#include <atomic>
#include <cstring>
#include <mutex>

#include "guest_lib/completion.h"
#include "guest_lib/copy_threads.h"
#include "guest_lib/remote.h"
#include "ivshmem_ring/ring.h"

namespace causeway::guest {
namespace {

// The others serve copies that wait: a stream may hold a lent buffer for as long as it likes, and a mark that
// never comes (a fault before it, a driver that cannot) for good.
constexpr uint32_t kMostLent = kBulkBuffers / 2;
constexpr uint64_t kUnitBytes = 64u << 10;
constexpr uint64_t kBytesPerHelper = 384u << 10;

struct Lent {
  std::mutex mutex;
  HotWord* words = nullptr;
  uint64_t awaited[kBulkBuffers] = {};  // what its word will say; 0: not lent
  std::atomic<uint32_t> count{0};
};
Lent& TheLent() {
  static auto* lent = new Lent;
  return *lent;
}

constexpr uint64_t kNever = UINT64_MAX;  // no record has this number

bool MayLend(Session& session, CUstream stream) {
  const Object* current = CurrentContextObject();
  if (TheLent().words == nullptr || !MayWriteWords(session, current)) return false;
  if (stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) return true;
  const Object* object = Find(stream);
  return object != nullptr && object->context == current;
}

bool Borrow(Session& session, uint32_t* index) {
  ReclaimLentBuffers(session);
  std::atomic<uint32_t>& count = TheLent().count;
  if (count.fetch_add(1, std::memory_order_relaxed) < kMostLent && session.TryAcquireBulk(index)) return true;
  count.fetch_sub(1, std::memory_order_relaxed);
  return false;
}

// `mark`: what the GPU will write. 0: nothing was sent, the buffer is free.
void Settle(Session& session, uint32_t index, uint64_t mark) {
  Lent& lent = TheLent();
  const std::lock_guard lock(lent.mutex);
  lent.awaited[index] = mark;
  if (mark != 0) return;
  lent.count.fetch_sub(1, std::memory_order_relaxed);
  session.ReleaseBulk(index);
}

void Fill(std::byte* to, const void* from, uint64_t bytes) {
  const auto helpers = std::min(static_cast<uint32_t>(bytes / kBytesPerHelper), PipelineThreadCount() - 1);
  if (helpers == 0) {
    std::memcpy(to, from, bytes);
  } else {
    CopyInParts(to, from, bytes, kUnitBytes, helpers);
  }
}

// The number of the mark's record, plus one; kNever if it could not be sent.
uint64_t PostMark(Session& session, const Works& works, CUstream stream, HotWord* word) {
  PendingPost post(Op::kMark, works);
  Writer& w = post.writer();
  w.Put(MarkBody{Remote{}.ToWire(stream, w),
                 reinterpret_cast<uint64_t>(word) - session.connection().window_address});
  uint64_t sequence = 0;
  return w.ok() && post.FinishNumbered(&sequence) == CUDA_SUCCESS ? sequence + 1 : kNever;
}

}  // namespace

bool PostFromBuffer(CUdeviceptr to, const void* from, uint64_t bytes, CUstream stream, CopyForm form,
                    CUresult* result) {
  Session* session = Session::Get();
  uint32_t index = 0;
  if (session == nullptr || bytes > kBulkBytes || !MayLend(*session, stream) || !Borrow(*session, &index))
    return false;
  const Bulk bulk = session->bulk(index);
  Fill(bulk.bytes, from, bytes);
  HotWord* word = &TheLent().words[index];
  StoreRelease(*word, 0);
  Works works = WorksOn(stream);
  works.is_copy = form == CopyForm::kSynchronous;
  PendingPost post(Op::kCopyToDevice, works);
  Writer& w = post.writer();
  w.Put(CopyBody{to, bytes, Remote{}.ToWire(stream, w), static_cast<uint32_t>(form), kBytesLent});
  w.Put(bulk.offset);
  *result = w.ok() ? post.Finish() : w.error();
  // A post that had to be waited for (a capture has begun) needs the buffer no longer.
  const bool lent = *result == CUDA_SUCCESS && !post.waits();
  Settle(*session, index, lent ? PostMark(*session, works, stream, word) : 0);
  return true;
}

void UseLentWords(HotWord* memory) {
  TheLent().words = memory;
}

void ReclaimLentBuffers(Session& session) {
  Lent& lent = TheLent();
  if (lent.count.load(std::memory_order_relaxed) == 0) return;
  const std::lock_guard lock(lent.mutex);
  for (uint32_t i = 0; i < kBulkBuffers; ++i) {
    if (lent.awaited[i] == 0) continue;
    // partner: the GPU's write, which comes behind its reading of the buffer
    if (LoadAcquire(lent.words[i]) != lent.awaited[i]) continue;
    lent.awaited[i] = 0;
    lent.count.fetch_sub(1, std::memory_order_relaxed);
    session.ReleaseBulk(i);
  }
}

}  // namespace causeway::guest
