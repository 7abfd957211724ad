// SPDX-License-Identifier: Apache-2.0
// Replaces pages of this process by others at the same address, with the same bytes, while other threads go
// on. A piece of memory is made read-only, several threads copy it into its replacement
// (guest_lib/process/copy_threads.h), and one system call moves the replacement over it. A thread that writes
// to the piece meanwhile faults, waits in this library's handler and writes again. Most of that system call
// would be freeing the old pages, so they can be parked: moved elsewhere, to be freed later or to come back.
//
// What this cannot hide: While a piece is exchanged (a few milliseconds at most), a system call that writes
// into it answers EFAULT. One that reads from it does so too while anonymous memory is parked (the last tenth
// of a millisecond). A thread whose own stack top lies in the piece must have an alternate signal stack; who
// exchanges pages of its own stack does it through AwayFrom (guest_lib/host_register/away_from.h).
//
// Any thread may call these functions; one exchange is made at a time.
#pragma once
#include <cstddef>
#include <cstdint>

#include "guest_lib/addresses/mappings.h"
#include "guest_lib/connection/connection.h"
#include "ivshmem_ring/messages/registration.h"

namespace causeway::guest {

// Reserves address space for this library, with nothing mapped. From 2 MiB on its begin has the same offset
// within 2 MiB as `address`, so that whole page tables can be moved. Null: there is no such space.
std::byte* ReserveLike(uint64_t address, uint64_t bytes);

// The same, with anonymous memory mapped there, all zeros.
std::byte* FreshLike(uint64_t address, uint64_t bytes);

// Whether mremap() can move the region's pages to the place of a program's own pages; `offset` is that of one of the region's pages. In a
// paravirtual guest of Xen mremap() cannot (kernel_module/causeway_xen_pv.c), and the kernel unmaps what lies at the new place before it refuses.
bool RegionPagesMove(Connection& connection, uint64_t offset);

// What has to be done to pages before writing them causes hardly any fault.
enum class PageSource {
  kMapped,  // pages of a file, which have to be mapped
  kMade,    // zeroed pages, which have to be made
  kThere    // nothing
};

// Pages that are to take the place of others. They are mapped where ReserveLike said.
struct Replacements {
  std::byte* pages;
  bool zeroed;  // they hold zeros, so pages that the program never touched need no copy
  PageSource source;
  // They are inaccessible now: each step of the exchange makes its own pages accessible, while other threads
  // copy the step before.
  bool asleep = false;
  // The range that has the program's registered bytes alone. Other bytes may lie on the first and the last
  // page, so those two pages are exchanged by themselves.
  PageRange own = {0, UINT64_MAX};
  // Where the old pages are parked, reserved like `pages`; null: all are freed at once. Only for anonymous
  // memory and shared mappings. Anonymous pages are inaccessible there, and their bytes mean nothing. Pages
  // outside of `own` are not parked.
  std::byte* aside = nullptr;
  // A second mapping of the same pages, reserved like `pages`, which the exchange takes over. Pieces that
  // were moved one by one stay mappings of their own where the kernel does not merge them (a device's:
  // VM_PFNMAP), and mremap refuses a range that spans two mappings. So this one takes the place of all pieces
  // in the end. Null: the kernel merges, or ExchangesAtOnce().
  std::byte* whole = nullptr;
};

// Whether one mremap moves all of `piece`.
bool ExchangesAtOnce(const Mapping& piece, PageRange own);

// Moves the replacements to `piece`, with the piece's bytes and protection. True: it is done, and the piece
// is one mapping. False: the first *done bytes are replaced, and the others are as before.
bool ExchangePages(const Mapping& piece, const Replacements& fresh, uint64_t* done);

// An munmap of which several threads do most of the work without the lock of the address space.
void UnmapInParallel(std::byte* pages, uint64_t bytes);

// Keep exchanges from being made while the process forks.
void LockExchange();
void UnlockExchange();

}  // namespace causeway::guest
