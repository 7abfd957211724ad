// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/host_register/replaced_pages.h"

#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <mutex>

#include "guest_lib/addresses/region_pages.h"
#include "guest_lib/host_register/page_exchange.h"
#include "guest_lib/host_register/pages_aside.h"
#include "guest_lib/process/log.h"

namespace causeway::guest {
namespace {

// Private memory in the place of the file's pages: the pages that wait at `aside`, or fresh ones if that is null.
// False: there is no memory, and the file's pages stay, with the right bytes.
bool PutAnonymousBack(PageFile& file, const Mapping& mapping, PageRange own, std::byte* aside) {
  const uint64_t bytes = mapping.end - mapping.begin;
  if (aside != nullptr) StopWaiting(aside, bytes);
  const bool there = aside != nullptr && AreThere(aside, bytes);
  if (aside != nullptr && !there && !WakeAside(aside, bytes)) {
    DropAside(aside, bytes);
    aside = nullptr;
  }
  std::byte* pages = aside != nullptr ? aside : FreshLike(mapping.begin, bytes);
  if (pages == nullptr) return false;
  // What is little is unmapped on the way, and what no mremap moves aside.
  const bool moves = bytes >= kAlignedRunBytes && file.HasOrdinaryPages();
  std::byte* old = moves ? ReserveLike(mapping.begin, bytes) : nullptr;
  const Replacements replacements{.pages = pages,
                                  .zeroed = aside == nullptr,
                                  .source = there ? PageSource::kThere : PageSource::kMade,
                                  .asleep = there,
                                  .own = own,
                                  .aside = old};
  uint64_t done = 0;
  ExchangePages(mapping, replacements, &done);
  if (old != nullptr) UnmapInParallel(old, bytes);
  if (done < bytes) munmap(pages + done, bytes - done);
  if (aside != nullptr) ForgetAside(bytes);
  return done == bytes;
}

// The bytes go into the file, then its mapping comes back.
bool PutFileBack(const Mapping& mapping, PageRange own, const ReplacedRun& run, std::byte* alias) {
  const uint64_t bytes = mapping.end - mapping.begin;
  uint64_t done = 0;
  if ((run.protection & PROT_WRITE) != 0) {
    const Replacements pages{.pages = alias, .zeroed = false, .source = PageSource::kMapped, .own = own};
    return ExchangePages(mapping, pages, &done);
  }
  auto* at = reinterpret_cast<void*>(mapping.begin);
  return mremap(alias, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) == at;
}

// Ordinary pages for those of the file's that the program has moved elsewhere (mremap, as realloc does).
bool PutMovedBack(PageFile& file, uint64_t device, uint64_t inode, const ReplacedRun& run) {
  constexpr uint64_t kAddressSpace = uint64_t{1} << 47;
  std::vector<Mapping> mappings;
  ReadMappings(0, kAddressSpace, &mappings);
  bool all = true;
  for (const Mapping& mapping : MappingsOfFile(mappings, device, inode, run.offset, run.bytes)) {
    const PageRange own{0, kAddressSpace};
    const bool back = run.alias != nullptr
                          ? PutFileBack(mapping, own, run, run.alias + (mapping.offset - run.offset))
                          : PutAnonymousBack(file, mapping, own, nullptr);
    all = all && back;
  }
  return all;
}

// Ordinary pages again, for those of [begin, end) that are still the file's: the program may have unmapped
// its memory, moved it, or mapped something else there. False: some still are, and nobody else may have them.
bool PutBack(PageFile& file, PageRange own, uint64_t begin, const ReplacedRun& run) {
  uint64_t device = 0, inode = 0;
  std::vector<Mapping> mappings;
  bool all = file.FileIdentity(&device, &inode);
  if (all) ReadMappings(begin, begin + run.bytes, &mappings);
  uint64_t at = begin, in_place = 0;  // what waits for this and what follows
  const auto drop_aside = [&](uint64_t end) {
    if (run.aside != nullptr && at < end) DropAside(run.aside + (at - begin), end - at);
  };
  for (const Mapping& mapping : mappings) {
    const uint64_t skip = mapping.begin - begin;
    if (mapping.device != device || mapping.inode != inode || mapping.offset != run.offset + skip) continue;
    drop_aside(mapping.begin);
    at = mapping.end;
    in_place += mapping.end - mapping.begin;
    const bool back =
        run.alias != nullptr
            ? PutFileBack(mapping, own, run, run.alias + skip)
            : PutAnonymousBack(file, mapping, own, run.aside != nullptr ? run.aside + skip : nullptr);
    // A shared mapping is locked still: it was only elsewhere.
    if (back && run.locked && run.alias == nullptr)
      mlock(reinterpret_cast<void*>(mapping.begin), mapping.end - mapping.begin);
    all = all && back;
  }
  drop_aside(begin + run.bytes);
  if (in_place < run.bytes && inode != 0) all = PutMovedBack(file, device, inode, run) && all;
  return all;
}

void WarnOfSharedMemory() {
  static std::once_flag once;
  std::call_once(once, [] {
    Complain(
        "shared memory is registered: until it no longer is, other processes do not see what this one "
        "writes, and what they write is lost");
  });
}

// What replaces `mapping` a second time, if its pieces would stay several; null too if there is no room.
std::byte* MapWhole(ReplaceJob& job, const Mapping& mapping, uint64_t offset) {
  if (job.file.HasOrdinaryPages() || ExchangesAtOnce(mapping, job.own)) return nullptr;
  const uint64_t bytes = mapping.end - mapping.begin;
  std::byte* whole = ReserveLike(mapping.begin, bytes);
  if (whole == nullptr || job.file.MapPages(whole, offset, bytes)) return whole;
  munmap(whole, bytes);
  return nullptr;
}

bool ReplaceMapping(ReplaceJob& job, const Mapping& mapping) {
  const uint64_t bytes = mapping.end - mapping.begin;
  ReplacedRun run{bytes,
                  job.offset + (mapping.begin - job.pages.begin),
                  mapping.protection,
                  nullptr,
                  nullptr,
                  IsLocked(mapping)};
  if (mapping.shared) {
    if ((mapping.protection & PROT_WRITE) != 0) WarnOfSharedMemory();
    void* alias = mremap(reinterpret_cast<void*>(mapping.begin), 0, bytes, MREMAP_MAYMOVE);
    if (alias == MAP_FAILED) return false;
    run.alias = static_cast<std::byte*>(alias);
  }
  std::byte* fresh = ReserveLike(mapping.begin, bytes);
  run.aside = ReserveAside(mapping);
  uint64_t done = 0;
  const bool mapped = fresh != nullptr && job.file.MapPages(fresh, run.offset, bytes);
  const Replacements pages{.pages = fresh,
                           .zeroed = job.zeroed,
                           .source = PageSource::kMapped,
                           .own = job.own,
                           .aside = run.aside,
                           .whole = mapped ? MapWhole(job, mapping, run.offset) : nullptr};
  if (mapped && ExchangePages(mapping, pages, &done)) {
    if (run.aside != nullptr) KeepAside(run.aside, bytes);
    job.made.emplace_back(mapping.begin, run);
    return true;
  }
  if (run.aside != nullptr) DropAside(run.aside + done, bytes - done);
  const ReplacedRun replaced{done, run.offset, run.protection, run.alias, run.aside, run.locked};
  if (done != 0 && !PutBack(job.file, job.own, mapping.begin, replaced)) job.stuck = true;
  if (fresh != nullptr) munmap(fresh + done, bytes - done);
  if (run.alias != nullptr) munmap(run.alias + done, bytes - done);
  return false;
}

}  // namespace

void PutAllBack(void* argument) {
  auto& job = *static_cast<PutBackJob*>(argument);
  for (const auto& [begin, run] : job.runs) {
    job.back.push_back(PutBack(job.file, job.own, begin, run));
  }
}

void Replace(void* argument) {
  auto& job = *static_cast<ReplaceJob*>(argument);
  for (const Mapping& mapping : job.mappings) {
    if (ReplaceMapping(job, mapping)) continue;
    for (const auto& [begin, run] : job.made) {
      job.stuck = !PutBack(job.file, job.own, begin, run) || job.stuck;
    }
    job.made.clear();
    return;
  }
  job.ok = true;
}

}  // namespace causeway::guest
