// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/staging/posted_copy.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <mutex>

#include "guest_lib/memory/memory.h"
#include "guest_lib/process/copy_threads.h"
#include "guest_lib/process/lock_order.h"
#include "guest_lib/stream/completion.h"
#include "guest_lib/stream/remote.h"
#include "ivshmem_ring/transport/ring.h"

namespace causeway::guest {
namespace {

constexpr uint64_t kUnitBytes = 64u << 10;
constexpr uint64_t kPostedBytesPerHelper = 384u << 10;

struct Lent {
  Mutex<Lock::kLentBuffers> mutex;
  HotWord* words = nullptr;
  // What words will say of each, null and 0 beyond; the first 0: not lent.
  AwaitedWord awaited[kBulkBuffers][kMostAwaited] = {};
  std::atomic<uint32_t> count{0};
};
Lent& lent_buffers = *new Lent;  // never destroyed

// One of the places of those that may be lent.
bool Reserve() {
  if (lent_buffers.count.fetch_add(1, std::memory_order_relaxed) < kMostLent) return true;
  lent_buffers.count.fetch_sub(1, std::memory_order_relaxed);
  return false;
}

// Of a buffer that has its place.
void Leave(Session& session, const LentBuffer& buffer) {
  const std::lock_guard lock(lent_buffers.mutex);
  lent_buffers.awaited[buffer.index][0] = {&lent_buffers.words[buffer.index], buffer.mark};
  if (buffer.mark != 0) return;
  lent_buffers.count.fetch_sub(1, std::memory_order_relaxed);
  session.ReleaseBulk(buffer.index);
}

bool HasCome(const AwaitedWord& awaited) {
  // partner: the GPU's write, which comes behind its copy
  return awaited.value == 0 || LoadAcquire(*awaited.word) >= awaited.value;
}

// Gives back to the session what the GPU is done with.
void ReclaimLentBuffers(Session& session) {
  if (lent_buffers.count.load(std::memory_order_relaxed) == 0) return;
  const std::lock_guard lock(lent_buffers.mutex);
  for (uint32_t i = 0; i < kBulkBuffers; ++i) {
    auto& awaited = lent_buffers.awaited[i];
    if (awaited[0].value == 0 || !std::all_of(std::begin(awaited), std::end(awaited), HasCome)) continue;
    std::fill(std::begin(awaited), std::end(awaited), AwaitedWord{});
    lent_buffers.count.fetch_sub(1, std::memory_order_relaxed);
    session.ReleaseBulk(i);
  }
}

[[gnu::constructor]] void SetHooks() {
  hooks.reclaim_buffers = ReclaimLentBuffers;
  hooks.use_buffer_words = [](HotWord* words) { lent_buffers.words = words; };
}

}  // namespace

bool MayLend(const ResolvedStream& stream) {
  const Object* current = CurrentContextObject();
  if (lent_buffers.words == nullptr || !MayWriteWords(current)) return false;
  return stream.IsLegacy() || (stream.object() != nullptr && stream.object()->context == current);
}

CUresult PostLent(Session& session, CopyBody copy, const ResolvedStream& stream, const Submission& submission,
                  bool to_device, bool settles, LentBuffer* buffer) {
  const HotWord* word = &lent_buffers.words[buffer->index];
  copy.bytes_in = BytesIn::kRegion;
  PendingPost post(to_device ? Op::kCopyToDevice : Op::kCopyToHost, submission);
  Writer& w = post.writer();
  copy.stream = stream.Put(w);
  if (to_device && !settles && !post.waits() && copy.form == CopyForm::kSynchronous) {
    copy.form = CopyForm::kAsynchronous;
    copy.stream = kLegacyStreamWire;
  }
  w.Put(copy);
  w.Put(LentBody{session.bulk(buffer->index).offset + buffer->offset,
                 reinterpret_cast<uint64_t>(word) - session.connection().window_address});
  if (!w.ok()) return w.error();
  // A capture may have begun meanwhile: then the copy is waited for.
  if (post.waits()) return post.Finish();
  uint64_t sequence = 0;
  const CUresult result = post.Finish(&sequence);
  buffer->mark = result == CUDA_SUCCESS ? sequence + 1 : 0;
  return result;
}

bool IsBack(const LentBuffer& buffer) {
  return HasCome({&lent_buffers.words[buffer.index], buffer.mark});
}

bool AwaitBack(const LentBuffer& buffer, uint64_t more_us) {
  return buffer.mark == 0 || LooksFor(&lent_buffers.words[buffer.index], buffer.mark, 0, more_us);
}

bool LeaveLent(Session& session, const LentBuffer& buffer) {
  if (!Reserve()) return false;
  Leave(session, buffer);
  return true;
}

bool LeaveBuffer(Session&, uint32_t index, std::span<const AwaitedWord> awaited) {
  if (awaited.empty() || awaited.size() > kMostAwaited || !Reserve()) return false;
  const std::lock_guard lock(lent_buffers.mutex);
  std::copy(awaited.begin(), awaited.end(), lent_buffers.awaited[index]);
  return true;
}

MaybeResult PostFromBuffer(const LinearCopy& copy, const ResolvedStream& stream, bool alone) {
  Session* session = Session::Get();
  if (session == nullptr || copy.bytes > kBulkBytes || !MayLend(stream)) return {};
  ReclaimLentBuffers(*session);
  if (alone && lent_buffers.count.load(std::memory_order_relaxed) != 0) return {};
  if (!Reserve()) return {};
  LentBuffer buffer;
  if (!session->TryAcquireBulk(&buffer.index)) {
    lent_buffers.count.fetch_sub(1, std::memory_order_relaxed);
    return {};
  }
  std::byte* bytes = session->bulk(buffer.index).bytes;
  if (copy.bytes < kPostedBytesPerHelper || PipelineThreadCount() == 1) {
    std::memcpy(bytes, copy.host, copy.bytes);
  } else {
    const auto helpers =
        std::min(static_cast<uint32_t>(copy.bytes / kPostedBytesPerHelper), PipelineThreadCount() - 1);
    CopyInParts(bytes, copy.host, copy.bytes, kUnitBytes, helpers);
  }
  Submission submission = stream.submission();
  submission.is_copy = copy.form == CopyForm::kSynchronous;
  submission.is_apart = IsApart(copy.device);
  const CUresult result = PostLent(*session, {copy.device, copy.bytes, 0, copy.form, BytesIn::kRegion},
                                   stream, submission, true, true, &buffer);
  Leave(*session, buffer);
  return result;
}

}  // namespace causeway::guest
