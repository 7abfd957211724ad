// SPDX-License-Identifier: Apache-2.0
// How memory that the program keeps, that is registered memory and memory of pools, comes back to it: when its exchange ends, and when the
// program has unmapped, moved or replaced some of it meanwhile.
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>

#include "guest_lib/managed/areas.h"

namespace causeway::guest {

// Lets the program have a part of an area, unwatched, wherever it lies now, with what the host has. The area's chunks are away there, or
// owned where the memory is fresh.
void ManagedAreas::BringHome(const Area& area, const Mapping& part) {
  const uint64_t begin = area.begin + (part.offset - area.offset), end = begin + (part.end - part.begin);
  std::vector<ManagedSpan> spans;
  bool was_watched = false;
  for (size_t i = (begin - area.begin) / area.chunk_bytes; i < area.state.size() && area.ChunkBegin(i) < end;
       ++i) {
    was_watched = was_watched || AccessOf(area, area.state[i]) != Access::kFree;
    if (area.state[i] == State::kAway || area.state[i] == State::kReady)
      AddSpans(area, std::max(begin, area.ChunkBegin(i)), std::min(end, area.ChunkEnd(i)), &spans);
  }
  if (!spans.empty()) Failed(link_.Read(spans, nullptr));
  watch_.Set({part.begin, part.end, area.Alias(begin)}, was_watched ? Access::kNone : Access::kFree,
             Access::kFree);
}

// The mappings of the area's pages among those given.
std::vector<Mapping> ManagedAreas::PartsOf(const Area& area, const std::vector<Mapping>& mappings) {
  std::vector<Mapping> parts;
  struct stat file;
  if (fstat(area.file, &file) != 0) return parts;
  const auto alias = reinterpret_cast<uint64_t>(area.alias);
  const uint64_t bytes = area.end - area.begin;
  for (Mapping mapping : mappings) {
    const uint64_t from = std::max(mapping.offset, area.offset);
    const uint64_t to = std::min(mapping.offset + (mapping.end - mapping.begin), area.offset + bytes);
    if (mapping.device != file.st_dev || mapping.inode != file.st_ino || from >= to) continue;
    mapping.begin += from - mapping.offset;
    mapping.end = mapping.begin + (to - from);
    mapping.offset = from;
    if (mapping.begin != alias + (from - area.offset)) parts.push_back(mapping);
  }
  return parts;
}

bool ManagedAreas::IsStillThere(const Area& area, const std::vector<Mapping>& mappings) {
  uint64_t at = area.begin;
  for (const Mapping& part : PartsOf(area, mappings)) {
    if (part.begin == at && part.offset == area.offset + (at - area.begin)) at = part.end;
  }
  return at == area.end;
}

// Forgets each area of registered memory of which the program has unmapped, moved or replaced a page: others' memory may lie there now, whose
// access must not be changed. What the program still has of it, there or elsewhere, it gets back. To be called before access changes to pages
// that the program did not just touch. `include_away`: also areas of which all chunks are away, for callers that give access instead of taking
// it. Areas are kept until BuryGone, because callers may be at work on them.
void ManagedAreas::ForgetGone(bool include_away) {
  constexpr uint64_t kAddressSpace = uint64_t{1} << 47;
  uint64_t begin = kAddressSpace, end = 0;
  const auto is_looked_at = [&](const Area& area) {
    return area.is_kept && (include_away || area.accessible != 0);
  };
  for (const auto& [at, area] : areas_) {
    if (!is_looked_at(area)) continue;
    begin = std::min(begin, area.begin);
    end = std::max(end, area.end);
  }
  if (begin >= end) return;
  std::vector<Mapping> mappings, everywhere;
  // Where nothing can be read, as without descriptors, all is taken to be there.
  if (!ReadMappings(begin, end, &mappings) && mappings.empty() &&
      !ReadMappings(0, kAddressSpace, &everywhere) && everywhere.empty())
    return;
  for (auto at = areas_.begin(); at != areas_.end();) {
    const auto here = at++;
    Area& area = here->second;
    if (!is_looked_at(area) || IsStillThere(area, mappings)) continue;
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
