// SPDX-License-Identifier: Apache-2.0
// What daemon and workers tell each other about copies between host and one GPU, whose link is divided by weight
// (docs/sharing.md). As in turn_words.h: LinkGrantWords are the daemon's, one set for each VM and GPU, and read-only for
// workers; LinkWords are one worker's own, and the daemon reads them as what an attacker may have written.
#pragma once
#include <atomic>
#include <cstdint>

namespace causeway {

// A VM or a worker copies much while it copies more than kMuchBytes within kMuchNs.
inline constexpr uint64_t kMuchBytes = 32 << 20, kMuchNs = 100'000'000;

// Who copies much over a GPU's link beside the worker that reads this. The daemon writes it for the workers of each VM. While others copy
// much, the GPU writes the completion word of a small copy some microseconds late, so a worker then asks the driver whether the copy is
// done (Dispatcher::IsDoneSoon).
enum class OtherCopies : uint32_t {
  kNone,       // nobody; an older daemon, which does not write this word, leaves it so
  kAnotherVm,  // another VM
  kThisVm,  // no other VM, but a worker of this one, which has several; the reader may be that worker itself
};

enum class LinkGrant : uint32_t {
  // The daemon does not look, because at most one VM has copied lately: copy, and tell it. A VM with a cap, which is one whose
  // window is not 0, copies one piece and waits for the daemon's look.
  kAsleep,
  kOpen,    // nobody else copies, and nothing caps this VM: copy without asking
  kWindow,  // copy in pieces, so many bytes of which may be under way
  kClosed,  // wait: the others have had less, or the VM is at its cap
};

// Each direction of a link is by itself.
inline constexpr uint32_t kToDevice = 0, kToHost = 1, kLinkDirections = 2;
inline constexpr uint32_t kLinkMarks = 4;

struct LinkGrantWords {
  // A LinkGrant; also what waiting threads sleep on.
  alignas(64) std::atomic<uint32_t> grant[kLinkDirections];
  std::atomic<uint32_t> window_kib[kLinkDirections];   // of each worker
  std::atomic<uint64_t> seen_ns;                       // CLOCK_MONOTONIC of the daemon's last look
  std::atomic<uint32_t> others_copy[kLinkDirections];  // an OtherCopies
};

struct LinkWords {
  alignas(64) std::atomic<uint64_t> copied[kLinkDirections];  // bytes given to the driver
  std::atomic<uint32_t> waiting[kLinkDirections];             // threads that hold back a copy
  std::atomic<uint32_t> done[kLinkDirections][kLinkMarks];    // marks, written by the GPU (turn_words.h)
};
static_assert(sizeof(LinkGrantWords) == 64 && sizeof(LinkWords) == 64);

}  // namespace causeway
