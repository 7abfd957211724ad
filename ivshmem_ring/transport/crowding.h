// SPDX-License-Identifier: Apache-2.0
// Whether other threads want the processors on which this process waits. A thread that spins beside them
// keeps them from running, and often they include the very thread that it waits for (docs/waiting.md).
//
// Threads: all functions may be called by any thread at once. Times are in microseconds of CLOCK_MONOTONIC.
#pragma once
#include <atomic>
#include <cstdint>

namespace causeway {

class Crowding {
 public:
  static Crowding& OfProcess();

  enum class Kind : uint32_t {
    kNone,
    kTurns,   // the others wait as this process does: a yield comes back soon
    kSlices,  // the others do not sleep: whoever yields gets the processor back after their time slice
  };
  // Whether there ever was a crowd: if not, the clock need not be read for At(). A relaxed load.
  bool seen() const { return until_us_.load(std::memory_order_relaxed) != 0; }
  // What yields told lately. Two relaxed loads.
  Kind At(uint64_t now_us) const;
  // A yield took `took_us` and ended at `now_us`; or, in a VM, the clock of a spinning thread stood still for so long. The caller reports
  // yields during which the kernel let another thread run, and all that took kSliceUs or longer. A yield of kAloneUs at most does not count. kLongYields longer ones within kTogetherUs are a
  // crowd, and so is a single one of kSliceUs. That a crowd was found holds for kFirstUs, and twice as long each time that it is
  // found again soon after: beside threads that do not sleep up to kMostUs, because finding out costs a time slice there, and
  // beside threads that take turns up to kMostTurnsUs, because it costs next to nothing.
  void Yielded(uint64_t now_us, uint64_t took_us) { Note(now_us, took_us, kAloneUs, Kind::kTurns); }
  // The same on a single processor, where each yield lets the very thread run that is waited for: only what takes
  // longer than kTurnUs tells of others. By such yields a thread gives away more than it gets, whoever the others are.
  void YieldedOnOne(uint64_t now_us, uint64_t took_us) { Note(now_us, took_us, kTurnUs, Kind::kSlices); }

  static constexpr uint64_t kTurnUs = 50;
  static constexpr uint64_t kAloneUs = 5, kSliceUs = 1'000, kTogetherUs = 4'000;
  static constexpr uint32_t kLongYields = 3;
  static constexpr uint64_t kFirstUs = 2'000, kMostTurnsUs = 8'000, kMostUs = 128'000;

 private:
  void Note(uint64_t now_us, uint64_t took_us, uint64_t short_us, Kind kind);

  std::atomic<uint64_t> first_us_{
      0};  // when a yield longer than kAloneUs began to be counted, for kTogetherUs
  std::atomic<uint32_t> count_{0};
  std::atomic<uint64_t> until_us_{0};  // the crowd is taken to last until then
  std::atomic<uint64_t> window_us_{0};
  std::atomic<Kind> kind_{Kind::kNone};
};

}  // namespace causeway
