// SPDX-License-Identifier: Apache-2.0
// How memory that the program keeps, that is registered memory and memory of pools, comes back to it: when its exchange ends, and when the
// program has unmapped, moved or replaced some of it meanwhile.
#include <sys/mman.h>

#include <algorithm>

#include "guest_lib/addresses/private_host.h"
#include "guest_lib/managed/areas.h"

namespace causeway::guest {

// Lets the program have a part of an area, unwatched, wherever it lies now, with what both sides have written.
void ManagedAreas::BringHome(const Area& area, const Mapping& part) {
  const uint64_t begin = area.begin + (part.offset - area.offset), end = begin + (part.end - part.begin);
  const WatchedPages pages{part.begin, part.end, area.Alias(begin)};
  std::vector<ManagedSpan> written, read;
  bool was_watched = false;
  for (size_t i = (begin - area.begin) / area.chunk_bytes; i < area.state.size() && area.ChunkBegin(i) < end;
       ++i)
    was_watched = was_watched || AccessOf(area, area.state[i]) != Access::kFree;
  // Nothing that the program writes meanwhile is lost.
  if (was_watched) watch_.Set(pages, Access::kWrite, Access::kNone);
  for (size_t i = (begin - area.begin) / area.chunk_bytes; i < area.state.size() && area.ChunkBegin(i) < end;
       ++i) {
    if (area.state[i] == State::kAbsent || area.state[i] == State::kOwned) continue;
    if (area.state[i] == State::kShared) AddShared(area, i, area.twins.at(i), &written);
    AddSpans(area, std::max(begin, area.ChunkBegin(i)), std::min(end, area.ChunkEnd(i)), &read);
  }
  if (!written.empty()) Failed(link_.Write(written));
  if (!read.empty()) Failed(link_.Read(read, nullptr));
  watch_.Set(pages, was_watched ? Access::kNone : Access::kFree, Access::kFree);
}

// The mappings of the area's pages among those given, without this class's own.
std::vector<Mapping> ManagedAreas::PartsOf(const Area& area, const std::vector<Mapping>& mappings) {
  uint64_t device = 0, inode = 0;
  if (!PrivatePages().FileIdentity(&device, &inode)) return {};
  std::vector<Mapping> parts = MappingsOfFile(mappings, device, inode, area.offset, area.end - area.begin);
  const auto alias = reinterpret_cast<uint64_t>(area.alias);
  std::erase_if(parts,
                [&](const Mapping& part) { return part.begin == alias + (part.offset - area.offset); });
  return parts;
}

bool ManagedAreas::IsStillThere(const Area& area, PageRange pages, const std::vector<Mapping>& mappings) {
  uint64_t at = pages.begin;
  for (const Mapping& part : PartsOf(area, CutMappings(mappings, pages.begin, pages.end))) {
    if (part.begin == at && part.offset == area.offset + (at - area.begin)) at = part.end;
  }
  return at == pages.end;
}

// The pages of an area that must still be the program's before their access changes: those to which the program has access, or with
// `include_away` all of them.
std::vector<PageRange> ManagedAreas::PagesToChange(const Area& area, bool include_away) {
  if (include_away) return {{area.begin, area.end}};
  std::vector<PageRange> pages;
  for (size_t i = 0; area.accessible != 0 && i < area.state.size(); ++i) {
    if (area.state[i] == State::kAbsent || area.state[i] == State::kAway) continue;
    if (!pages.empty() && pages.back().end == area.ChunkBegin(i)) {
      pages.back().end = area.ChunkEnd(i);
    } else {
      pages.push_back({area.ChunkBegin(i), area.ChunkEnd(i)});
    }
  }
  return pages;
}

bool ManagedAreas::HasMappings(const Area& area, const std::vector<PageRange>& pages) {
  std::vector<Mapping> mappings, first;
  // Where nothing can be read, as without descriptors, all is taken to be there.
  if (!ReadMappings(pages, &mappings) && mappings.empty()) {
    const auto code = reinterpret_cast<uint64_t>(&accessible_chunks);
    if (!ReadMappings(PageFloor(code), PageFloor(code) + kPageBytes, &first)) return true;
  }
  return std::all_of(pages.begin(), pages.end(),
                     [&](const PageRange& range) { return IsStillThere(area, range, mappings); });
}

// Ends each area of registered memory of which the program has unmapped, moved or replaced a page, because other memory may lie at those
// addresses now, and its access must not be changed. The program gets back the pages of the area that it still has, there or elsewhere.
// Callers are about to change the access to pages that the program did not just touch. With `include_away` areas are looked at too of which
// all chunks are away: a caller that gives access needs that, and one that takes it does not. An area that has ended stays in memory until
// BuryGone, since callers may hold a pointer to it.
void ManagedAreas::ForgetGone(bool include_away) {
  constexpr uint64_t kAddressSpace = uint64_t{1} << 47;
  std::vector<Mapping> everywhere;
  for (auto at = areas_.begin(); at != areas_.end();) {
    const auto here = at++;
    Area& area = here->second;
    if (!area.is_kept) continue;
    const std::vector<PageRange> pages = PagesToChange(area, include_away);
    if (pages.empty() || HasMappings(area, pages)) continue;
    if (everywhere.empty()) ReadMappings(0, kAddressSpace, &everywhere);
    for (const Mapping& part : PartsOf(area, everywhere)) BringHome(area, part);
    Mark(area, {0, area.state.size()}, State::kAbsent);
    gone_.push_back(areas_.extract(here));
  }
}

// To be called when no request is being served.
void ManagedAreas::BuryGone() {
  for (auto& node : gone_) munmap(node.mapped().alias, node.mapped().end - node.mapped().begin);
  gone_.clear();
}

}  // namespace causeway::guest
