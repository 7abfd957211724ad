// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/stream/completion.h"

#include <time.h>

#include <cstdlib>
#include <mutex>
#include <string_view>
#include <utility>

#include "guest_lib/process/lock_order.h"
#include "guest_lib/process/log.h"
#include "guest_lib/session/captures.h"
#include "guest_lib/stream/giving_back.h"
#include "guest_lib/stream/inquiry.h"
#include "guest_lib/stream/remote.h"
#include "ivshmem_ring/transport/ring.h"
#include "ivshmem_ring/transport/waiter.h"

namespace causeway::guest {
namespace {

constexpr uint32_t kWords = 64;  // streams beyond so many ask the host

std::atomic<bool> any_stream{false};
std::atomic<bool> any_blocking_stream{false};
std::atomic<bool> useless{false};  // a mark did not come although the stream was done

// A word belongs to one stream, whose marks come in order, so that it only grows. Values are numbers of
// posted records, unique in the session.
struct Word {
  const Progress* owner = nullptr;
  uint64_t id = 0;      // of the stream or, for its legacy stream, the context
  uint64_t newest = 0;  // mark
};
struct Words {
  Mutex<Lock::kMarks> mutex;
  HotWord* memory = nullptr;
  Word words[kWords];
};
Words& words = *new Words;  // never destroyed

bool IsContextBlocking() {
  return (ContextOf(CurrentContextObject()).flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_BLOCKING_SYNC;
}

// Whether waiting is all that there is to it.
bool MayWaitForWords() {
  if (words.memory == nullptr || useless.load(std::memory_order_relaxed) || MayKernelsPrint() ||
      MayGiveMemoryBack())
    return false;
  return Session::Get() != nullptr && MayWriteWords(CurrentContextObject());
}

// Where a mark means what a synchronisation does.
bool MayMark(const ResolvedStream& stream) {
  if (!MayWaitForWords()) return false;
  // On a single processor that others want, this thread has to sleep so that the worker can run. The GPU's write into the
  // word wakes no thread, but the worker's reply does, so the host is asked.
  if (KnownProcessors() == 1 && FreeProcessors() == kCrowded) return false;
  // In the legacy stream a mark would wait for, and hold up, every blocking stream: with such streams that is
  // more than a synchronisation does.
  if (stream.IsLegacy()) return !any_blocking_stream.load(std::memory_order_acquire);
  return stream.object() != nullptr && stream.object()->context == CurrentContextObject();
}

// The stream's word, its own as long as it lives. Null: none is left. The caller holds the mutex.
Word* WordOf(const Progress* owner, uint64_t id) {
  Word* free = nullptr;
  for (Word& word : words.words) {
    if (word.owner == owner && word.id == id) return &word;
    if (free == nullptr && word.owner == nullptr) free = &word;
  }
  // The words of streams that are gone serve again once their last mark is there; which are gone is not worth
  // knowing before all are taken.
  for (Word& word : words.words) {
    if (free != nullptr) break;
    if (LoadAcquire(words.memory[&word - words.words]) == word.newest) free = &word;
  }
  if (free != nullptr) *free = {owner, id, 0};
  return free;
}

// Unless CAUSEWAY_COMPLETION turns fences off.
void UseStreamWords(HotWord* memory) {
  const char* value = getenv("CAUSEWAY_COMPLETION");
  if (value != nullptr && std::string_view(value) == "call") return;
  for (uint32_t i = 0; i < kWords; ++i) StoreRelease(memory[i], 0);
  words.memory = memory;
}

[[gnu::constructor]] void SetHook() {
  hooks.use_stream_words = UseStreamWords;
}

}  // namespace

void SleepUs(uint64_t us) {
  const timespec time{static_cast<time_t>(us / 1'000'000), static_cast<long>(us % 1'000'000) * 1000};
  nanosleep(&time, nullptr);
}

void Hurry() {
  if (Session* session = Session::Get()) session->transport().HurryMain();
}

bool MayWatchWords() {
  return MayWaitForWords() && !IsContextBlocking();
}

// Nobody is woken by a word: who sleeps meets it late, so that is left to those who wait for the host.
bool LooksFor(const HotWord* word, uint64_t value, uint64_t expected_us, uint64_t more_us) {
  WaitPolicy policy = ReplyPolicy(false);
  policy.max_sleep_us = 100;
  (policy.spin_us != 0 ? policy.spin_us : policy.yield_us) += static_cast<uint32_t>(expected_us);
  const uint64_t patience_us = policy.spin_us + policy.yield_us + more_us;
  Hurry();
  Waiter waiter(policy, word, nullptr, false);
  for (;;) {
    const uint64_t seen = LoadAcquire(*word);  // partner: the GPU's write, which comes behind its others
    if (seen >= value) return true;
    if (waiter.waited_us() >= patience_us) return false;
    waiter.Step(static_cast<uint32_t>(seen));
  }
}

CUresult AskForStream(CUstream stream) {
  const RelaxedCaptures relaxed;
  Inquiry inquiry = Inquiry::OfStream(stream);
  inquiry.Begin();
  return inquiry.Note(Wait<Op::cuStreamSynchronize>(stream));
}

CUresult DrainDevice() {
  Inquiry inquiry = Inquiry::OfContext();
  inquiry.Begin();
  PendingCall call(Op::kDrainDevice);
  return inquiry.Note(call.Finish());
}

bool Mark::Take(Session& session, const ResolvedStream& stream) {
  Object* object = stream.IsLegacy() ? CurrentContextObject() : stream.object();
  const Progress* owner = stream.IsLegacy() ? &ContextOf(object).legacy_stream : &object->progress;
  lock_ = std::unique_lock(words.mutex);  // until it is posted: nobody may take the word meanwhile
  Word* word = WordOf(owner, object->id);
  if (word == nullptr) {
    lock_.unlock();
    return false;
  }
  newest_ = &word->newest;
  word_ = &words.memory[word - words.words];
  offset_ = reinterpret_cast<uint64_t>(word_) - session.connection().window_address;
  return true;
}

CUresult Mark::Post(PendingPost& post) {
  std::unique_lock lock = std::move(lock_);
  if (post.waits()) {  // a capture has begun meanwhile
    lock.unlock();
    return post.Finish();
  }
  uint64_t sequence = 0;
  const uint16_t flags = slept_kind_ != 0 ? kBlockingWait : 0;
  if (const CUresult result = post.Finish(&sequence, flags)) return result;
  value_ = *newest_ = sequence + 1;
  return CUDA_SUCCESS;
}

bool Mark::Look(uint64_t expected_us) const {
  return value_ != 0 && LooksFor(word_, value_, expected_us);
}

MaybeResult Mark::Await(CUstream stream) {
  const ResolvedStream resolved(stream);
  Session* session = Session::Get();  // once: another thread may be ending the process
  if (session == nullptr || !MayMark(resolved)) return {};
  if (IsContextBlocking() &&
      !MaySleep(resolved.object() != nullptr ? resolved.object() : CurrentContextObject()))
    return {};
  return PostAndAwait(*session, resolved);
}

MaybeResult Mark::AwaitEvent(const Object* event) {
  Session* session = Session::Get();
  const Object* object = nullptr;
  if (session == nullptr || event->context != CurrentContextObject() ||
      !submissions.EndsItsStream(*event, &object))
    return {};
  const ResolvedStream stream(reinterpret_cast<CUstream>(const_cast<Object*>(object)));
  if (!MayMark(stream) || !MaySleep(event)) return {};
  return PostAndAwait(*session, stream);
}

MaybeResult Mark::PostAndAwait(Session& session, const ResolvedStream& stream) {
  if (!Take(session, stream)) return {};
  const Submission submission = stream.submission();
  PendingPost post(Op::kMark, submission);
  Writer& w = post.writer();
  w.Put(MarkBody{stream.wire(), offset_});
  if (const CUresult error = w.ok() ? Post(post) : w.error()) return error;
  if (!(slept_kind_ != 0 && value_ != 0 ? ComesToSleeper() : Look(0))) return {};
  return session.Check();
}

// Whether that is worth it.
bool Mark::MaySleep(const Object* subject) {
  slept_kind_ = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(subject) / sizeof(Object));
  began_us_ = NowUs();
  return ThisThread().look_times.MaySleep(slept_kind_);
}

bool Mark::ComesToSleeper() const {
  LookTimes& times = ThisThread().look_times;
  const uint64_t first_us = times.First(slept_kind_), patience_us = times.Patience(slept_kind_);
  Hurry();
  for (uint32_t sleeps = 0;; ++sleeps) {
    const uint64_t waited_us = NowUs() - began_us_;
    if (LoadAcquire(*word_) >= value_) {  // partner: the GPU's write, which comes behind its others
      if (sleeps == 1 && first_us != 0) {
        times.CameBefore(slept_kind_);
      } else {
        times.Came(slept_kind_, waited_us);
      }
      return true;
    }
    if (waited_us >= patience_us) return false;
    SleepUs(waited_us < first_us ? first_us - waited_us : LookTimes::Nap(waited_us, first_us));
  }
}

MaybeResult Mark::AwaitContext() {
  if (!IsLegacyAlone()) return {};
  const MaybeResult result = Await(nullptr);
  // Another stream that was made meanwhile may have work before the mark.
  return result && *result == CUDA_SUCCESS && !IsLegacyAlone() ? MaybeResult() : result;
}

void Mark::HostWaited() const {
  if (slept_kind_ == 0) return;
  const bool came = value_ == 0 || LoadAcquire(*word_) >= value_;
  ThisThread().look_times.Woken(slept_kind_, came ? NowUs() - began_us_ : 0);
}

void Mark::MustHaveCome() const {
  HostWaited();
  if (value_ != 0 && LoadAcquire(*word_) < value_) NoteUselessWords();
}

void NoteUselessWords() {
  if (!useless.exchange(true))
    Complain("the GPU does not write completion words: synchronisation asks the host");
}

bool IsLegacyAlone() {
  return !any_stream.load(std::memory_order_acquire);
}

void NoteStream(bool blocking) {
  any_stream.store(true, std::memory_order_release);
  if (blocking) any_blocking_stream.store(true, std::memory_order_release);
}

}  // namespace causeway::guest
