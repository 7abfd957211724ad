// SPDX-License-Identifier: Apache-2.0
// Replaces a program's own pages by pages of a file, at the same address and with the same bytes, because the host can map the file's pages,
// or exchange their bytes, and not the program's. Where memory is shared that is done when the program registers memory, and over TCP when
// the device first reaches it. When the registration ends, the program has ordinary pages again (docs/registered_memory.md).
//
// One thread at a time calls these functions, with Lock::kRegistrations. Replace and PutAllBack are meant for AwayFrom
// (guest_lib/host_register/away_from.h), since the pages may be those of the caller's own stack.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "guest_lib/addresses/host_allocation.h"
#include "guest_lib/addresses/mappings.h"
#include "guest_lib/connection/connection.h"
#include "ivshmem_ring/messages/registration.h"

namespace causeway::guest {

// A run of pages of the program that pages of the file have replaced, with what is needed to put ordinary ones back.
struct ReplacedRun {
  uint64_t bytes;
  uint64_t offset;  // in the file
  int protection;
  std::byte* alias;            // the file mapping that was here, if it was a shared one
  std::byte* aside = nullptr;  // the anonymous pages that were here, if they wait (pages_aside.h)
  bool locked = false;         // the program will not have them swapped
};

// The pages on which a registered range alone has bytes. On the page before these and on the one after them others have some. Empty, with
// `begin` perhaps behind `end`, where there is none: bytes() must not be asked then.
inline PageRange WholePages(const HostAllocation& range) {
  return {PageCeiling(range.address), PageFloor(range.address + range.bytes)};
}

// Replaces what is mapped at `pages` by the file's pages from `offset` on. What it could not finish it puts back.
struct ReplaceJob {
  PageFile& file;
  PageRange pages;
  PageRange own;  // those on which the registered range alone has bytes
  uint64_t offset;
  bool zeroed;  // the file's pages are
  std::vector<Mapping> mappings;
  std::vector<std::pair<uint64_t, ReplacedRun>> made = {};  // by the first page
  bool ok = false;
  bool stuck = false;  // pages of the file stay in the program's memory
};
void Replace(void* replace_job);

// Puts ordinary pages in the place of the file's again, for those of the file's that are still there: the program may have unmapped its
// memory, moved it, or mapped something else.
struct PutBackJob {
  PageFile& file;
  PageRange own;
  std::vector<std::pair<uint64_t, ReplacedRun>> runs;
  // Of each run. False: some of the file's pages are still the program's, and nobody else may have them.
  std::vector<bool> back = {};
};
void PutAllBack(void* put_back_job);

}  // namespace causeway::guest
