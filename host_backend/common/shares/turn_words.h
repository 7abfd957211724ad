// SPDX-License-Identifier: Apache-2.0
// What daemon and workers tell each other about turns on a GPU, in words of shared memory. GrantWords are the
// daemon's, one set for each VM and GPU, and read-only for workers. TurnWords are one worker's own: it and the
// GPU write them, and the daemon reads them as what an attacker may have written.
#pragma once
#include <atomic>
#include <cstdint>

namespace causeway {

enum class Grant : uint32_t {
  kAsleep,  // the daemon does not look, because nobody has submitted for long: submit, and tell it
  kOpen,    // nobody else wants the GPU: submit without asking
  kTurn,    // the VM has the turn: submit, with marks
  kBeside,  // as kTurn for a moment, beside the one that has the turn: its work may wait for what comes now
  kClosed,  // wait
  kSoon,    // wait without sleeping: the turn comes next
};

// How long a grant counts after the daemon was last seen. Later everything passes: without a daemon, or with one
// that hangs, shares are the GPU's own, and work goes on. A thread that sleeps sees it 5 ms later, and its work then waits for the
// slices of others: together that stays below 50 ms and a slice.
inline constexpr uint64_t kGrantLifeNs = 35'000'000;
// Work of which nothing was finished for so long may wait for other work: a gate lets more pass, and the daemon no longer counts it as
// one that will end.
inline constexpr uint64_t kNothingFinishedNs = 50'000'000;

struct GrantWords {
  alignas(64) std::atomic<uint32_t> grant;  // a Grant; also what waiting threads sleep on
  std::atomic<uint32_t> openings;           // how often it became kOpen: what passed meanwhile has no marks
  // CLOCK_MONOTONIC of the daemon's last look, while anybody waits.
  alignas(64) std::atomic<uint64_t> seen_ns;
  // How long the GPU is to serve each process of the VM before it looks at the next one; 0: as the driver has set it.
  std::atomic<uint32_t> slice_us;
  // Grows when another VM comes while this one is kOpen or kAsleep, and with each other slice; what a thread of the worker
  // sleeps on for that.
  std::atomic<uint32_t> news;
  // How much work each process is to have queued in its VM's turn, because work that does not end competes with it by the GPU's
  // own slices: a process whose queue runs dry loses the rest of its slice. 0: as little as keeps the GPU fed.
  std::atomic<uint32_t> queue_us;
};

inline constexpr uint32_t kTurnMarks = 8;
inline constexpr uint32_t kWaitPlaces = 32;

struct TurnWords {
  alignas(64) std::atomic<uint64_t> submitted;  // records that submit work; may miss some of several threads
  std::atomic<uint32_t> waiting;                // threads that hold back a record
  std::atomic<uint32_t> unmarked;               // records since the last mark
  // A mark is a number that the GPU writes when all before it is done; it is outstanding while the two differ.
  std::atomic<uint32_t> sent[kTurnMarks];
  // GrantWords::slice_us, once the GPU obeys; 0: it does not, or the driver's own.
  std::atomic<uint32_t> slice_us;
  alignas(64) std::atomic<uint32_t> done[kTurnMarks];  // written by the GPU
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

}  // namespace causeway
