// SPDX-License-Identifier: Apache-2.0
// Completion words (unless CAUSEWAY_COMPLETION=call): the GPU itself writes into shared memory that a stream
// has come to a mark, by a stream memory operation that is posted behind the work. Whoever synchronises looks
// at the word for a moment and then asks the host as always, so that whatever may go wrong with a word (a
// fault before it, a device or driver that cannot, a session that is lost) is the host's to tell.
//
// Waits that the program wants to cost no processor time (blocking events, blocking contexts) sleep until
// the word is expected to be there, and nap from then on (guest_lib/process/look_times.h). On a GPU host a
// nap costs 7 us of processor time, the driver's own blocking wait 70 to 80. Where long waits of a kind
// differed, the host is asked.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>

#include "ivshmem_ring/transport/layout.h"

namespace causeway::guest {

struct Object;
struct Progress;
class PendingPost;
class ResolvedStream;
class Session;

class Mark {
 public:
  // Puts a mark behind what the stream has now and looks for it. None: the host must be asked. 0: it came, and
  // with it everything posted there before it (posts()); else an error that was known.
  std::optional<CUresult> Await(CUstream stream);
  // The same for the current context, whose only stream the legacy one must be.
  std::optional<CUresult> AwaitContext();
  // The same for a blocking event that was recorded behind all other work of its stream.
  std::optional<CUresult> AwaitEvent(const Object* event);
  uint64_t posts() const { return value_; }
  // The host has said that the work is done. A mark that did not come by then never does, nor will others.
  void MustHaveCome() const;
  // The same of an event, whose mark may come a little later.
  void HostWaited() const;

  // In the steps that records with work of their own take, whose handlers put the mark behind it: offset()
  // goes into the record, Post puts that into the ring. No other thread posts marks in between.
  // False: no word is left.
  bool Take(Session& session, const ResolvedStream& stream);
  uint64_t offset() const { return offset_; }
  CUresult Post(PendingPost& post);
  // Looks for the mark of work that should not take longer than so, beyond what others do.
  bool Look(uint64_t expected_us) const;

 private:
  std::optional<CUresult> PostAndAwait(Session& session, const ResolvedStream& stream);
  // Whether a wait for that stream, event or context is worth sleeping for its word.
  bool MaySleep(const Object* subject);
  bool ComesToSleeper() const;
  std::unique_lock<std::mutex> lock_;
  uint64_t* newest_ = nullptr;
  const HotWord* word_ = nullptr;
  uint64_t offset_ = 0;
  uint64_t value_ = 0;       // 0: not posted
  uint32_t slept_kind_ = 0;  // of a wait that is to cost no processor time; 0: of another
  uint64_t began_us_ = 0;
};

// Whether the GPU can write a word behind work of that context: not in a capture.
bool MayWriteWords(Session& session, const Object* context);
// Whether the calling thread may look for words instead of asking the host: its context can write them, and
// waiting is all that there is to it.
bool MayWatchWords();
// Looks for the word to say so much, for as long as a waiting thread spins, beyond the time that is expected;
// then now and then, for so long.
bool LooksFor(const HotWord* word, uint64_t value, uint64_t expected_us = 0, uint64_t more_us = 0);
void SleepUs(uint64_t us);
// Waits for the stream by the host's answer, behind work whose word has not come. Ends no thread's capture.
CUresult AskForStream(CUstream stream);
// Waits as cuMemFree does: for the device, whatever other threads capture.
CUresult DrainDevice();
// The host has said that the work is done, and its word did not come: it never does, nor will others.
void NoteUselessWords();
// By CAUSEWAY_COMPLETION.
bool AreMarksWanted();
// Shared memory for the words, registered with the driver before any work exists.
void UseCompletionWords(HotWord* memory);
// Whether the legacy stream is all that contexts have.
bool IsLegacyAlone();
// A stream was made. Marks in the legacy stream would hold up one that orders with it, and none says anything
// of another.
void NoteStream(bool blocking);

}  // namespace causeway::guest
