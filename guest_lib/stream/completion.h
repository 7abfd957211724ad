// SPDX-License-Identifier: Apache-2.0
// Fences (docs/waiting.md). A fence is a stream memory operation that is posted behind work: when the stream
// comes there, the GPU itself writes a fence value, a number that only grows, into a word of shared memory.
// In this file a fence is a Mark. A thread that synchronises polls the word for a moment and then asks the
// host as always. So whatever may go wrong with a fence (a fault before it, a device or driver that cannot
// write words, a lost session) is the host's to report. CAUSEWAY_COMPLETION=call turns fences off.
//
// A no-spin wait (blocking events, blocking contexts) sleeps until the value is expected to be there, and
// makes timed sleeps from then on (look_times.h). Where long waits of a kind differed, the host is asked.
//
// Any thread may call these functions. They may send messages, so no lock of this library's is held around
// them but the one of RecordPlace (quiet_event.h).
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"
#include "ivshmem_ring/protocol/maybe_result.h"

#include <atomic>
#include <cstdint>
#include <mutex>

#include "guest_lib/process/lock_order.h"
#include "guest_lib/session/captures.h"
#include "guest_lib/session/context.h"
#include "ivshmem_ring/transport/layout.h"

namespace causeway::guest {

class PendingPost;
class ResolvedStream;
class Session;

// One fence, from its post to its value. It belongs to one thread.
class Mark {
 public:
  // Posts a fence behind what the stream has now and waits for its value. CUDA_SUCCESS: it came, so
  // everything up to posts() that works there is done. Others are known errors. None: the host must be asked.
  MaybeResult Await(CUstream stream);
  // The same for the current context, whose only stream the legacy one must be.
  MaybeResult AwaitContext();
  // The same for a blocking event that was recorded behind all other work of its stream.
  MaybeResult AwaitEvent(const Object* event);
  // The number of posts up to the fence, which is its value; 0: none was posted.
  uint64_t posts() const { return value_; }
  // To be called when the host has said that the work is done. If the value did not come by then it never
  // does, and no other will: fences are used no more.
  void MustHaveCome() const;
  // The same after a wait for an event, whose fence may come a little later.
  void HostWaited() const;

  // For records that bring work of their own, and whose handlers put the fence behind that work. The steps:
  // Take; offset() goes into the record; Post posts the record; Look polls. From Take to Post a lock keeps
  // other threads from posting fences; it is taken before the main lock. Take is false if no word is left.
  bool Take(Session& session, const ResolvedStream& stream);
  uint64_t offset() const { return offset_; }
  CUresult Post(PendingPost& post);
  // Polls for the value as for other fences, and for `expected_us` longer, which the work should take.
  bool Look(uint64_t expected_us) const;

 private:
  MaybeResult PostAndAwait(Session& session, const ResolvedStream& stream);
  // Whether a no-spin wait for that stream, event or context should sleep for its fence value.
  bool MaySleep(const Object* subject);
  bool ComesToSleeper() const;
  std::unique_lock<Mutex<Lock::kMarks>> lock_;
  uint64_t* newest_ = nullptr;
  const HotWord* word_ = nullptr;
  uint64_t offset_ = 0;
  uint64_t value_ = 0;       // 0: the fence is not posted
  uint32_t slept_kind_ = 0;  // the kind of a no-spin wait (LookTimes); 0: the wait may spin
  uint64_t began_us_ = 0;
};

// Whether the GPU can write a word behind work of that context. It cannot while a stream captures.
inline bool MayWriteWords(const Object* context) {
  if (context == nullptr || AnyCapture()) return false;
  const Context& detail = ContextOf(context);
  return detail.has_words && detail.active.load(std::memory_order_relaxed);
}
// Whether the calling thread may wait for fence values instead of asking the host: the GPU can write words
// for its context, and synchronising has no other effect than waiting.
bool MayWatchWords();
// Polls until the word is at least `value`: for expected_us and as long as a waiting thread spins, then with
// timed sleeps for more_us. The result is whether it came.
bool LooksFor(const HotWord* word, uint64_t value, uint64_t expected_us = 0, uint64_t more_us = 0);
// To be called before a thread waits for what the GPU does without asking the host (ClientTransport::HurryMain).
void Hurry();
void SleepUs(uint64_t us);
// Waits for the stream by the host's answer, after a fence value that did not come. It ends no capture.
CUresult AskForStream(CUstream stream);
// Waits for the device as cuMemFree does, also while other threads capture.
CUresult DrainDevice();
// To be called when the host says that work is done whose fence value did not come: fences are used no more.
void NoteUselessWords();
// Whether the legacy stream is all that contexts have.
bool IsLegacyAlone();
// To be called when a stream was made. A fence in the legacy stream would hold up a blocking stream, and its
// value says nothing about a non-blocking one.
void NoteStream(bool blocking);

}  // namespace causeway::guest
