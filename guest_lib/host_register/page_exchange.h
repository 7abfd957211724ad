// SPDX-License-Identifier: Apache-2.0
// Pages of this process are replaced by others at the same address, with the same bytes, while other threads
// go on: a piece is made read-only, copied into its replacement by several threads
// (guest_lib/process/copy_threads.h), and the replacement moved over it in one system call. A thread that
// writes to the piece meanwhile faults, waits in our handler and writes again. Freeing the old pages takes
// that system call longer than all the rest, so they can be moved aside, to be freed elsewhere or to come
// back.
//
// What this cannot hide: a system call that writes into the piece during its window (a few milliseconds at
// most) answers EFAULT, one that reads from it too while anonymous memory moves aside (its last tenth of a
// millisecond), and a thread whose own stack top lies in the piece must have an alternate signal stack; the
// caller's own stack is taken care of.
#pragma once
#include <cstddef>
#include <cstdint>

#include "guest_lib/addresses/mappings.h"
#include "ivshmem_ring/messages/registration.h"

namespace causeway::guest {

// Address space of our own, nothing mapped. From 2 MiB on it lies in its first 2 MiB as `address` does: whole
// page tables can then be moved from one to the other. Null if there is none.
std::byte* ReserveLike(uint64_t address, uint64_t bytes);

// The same with anonymous memory in it, all zeros.
std::byte* FreshLike(uint64_t address, uint64_t bytes);

// What must happen before they can be written at no more than a fault here and there.
enum class PageSource { kMapped, kMade, kThere };  // a file's; zeroed ones; nothing

// Pages to take the place of others: ours, mapped where ReserveLike said.
struct Replacements {
  std::byte* pages;
  bool zeroed;  // they hold zeros: what was never touched needs no copy
  PageSource source;
  // They are inaccessible: each step of the way makes its own accessible, while others copy the one before.
  bool asleep = false;
  // The program's bytes alone. On the first and the last page there may be others', so these go by
  // themselves.
  PageRange own = {0, UINT64_MAX};
  // Where the old pages go, reserved as `pages` was; null: all are freed at once. Only for anonymous memory
  // and shared mappings. Anonymous pages can be had back from there, inaccessible and with any bytes; those
  // outside of `own` do not go there.
  std::byte* aside = nullptr;
  // A second mapping of the same pages, reserved as `pages` was, which becomes ours. Pieces that were moved
  // one by one lie side by side and stay mappings of their own where the kernel does not merge them (a
  // device's: VM_PFNMAP), and mremap refuses what spans two; so this one takes the place of all of them.
  // Null: the kernel merges, or ExchangesAtOnce().
  std::byte* whole = nullptr;
};

// Whether all of `piece` is moved by one mremap.
bool ExchangesAtOnce(const Mapping& piece, PageRange own);

// Moves the replacements to `piece`, with the piece's bytes and protection. True: it is one mapping then.
// False: the first `*done` bytes are replaced, the others as before.
bool ExchangePages(const Mapping& piece, const Replacements& fresh, uint64_t* done);

// munmap, most of it by several threads and not under the lock that all of them need.
void UnmapInParallel(std::byte* pages, uint64_t bytes);

// Runs `work` on a stack that lies outside [begin, end): another thread's, if need be.
void AwayFrom(uint64_t begin, uint64_t end, void (*work)(void*), void* argument);

// No exchange may be under way while the process forks.
void LockExchange();
void UnlockExchange();

}  // namespace causeway::guest
