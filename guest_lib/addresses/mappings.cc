// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/addresses/mappings.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <string>

namespace causeway::guest {
namespace {

// The whole of /proc/self/maps; empty if it cannot be read.
std::string MapsText() {
  std::string text;
  const int file = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (file < 0) return text;
  char part[16384];
  for (ssize_t got; (got = read(file, part, sizeof part)) > 0;) text.append(part, static_cast<size_t>(got));
  close(file);
  return text;
}

// All of it as text.
bool ReadMapsText(uint64_t begin, uint64_t end, std::vector<Mapping>* mappings) {
  const std::string text = MapsText();
  uint64_t covered = begin;
  bool whole = true;
  for (size_t line = 0; line < text.size() && covered < end;) {
    size_t next = text.find('\n', line);
    if (next == std::string::npos) next = text.size();
    unsigned long from = 0, to = 0, offset = 0, inode = 0;
    unsigned major = 0, minor = 0;
    char modes[5] = "";
    const std::string head = text.substr(line, std::min<size_t>(next - line, 128));
    const int fields =
        sscanf(head.c_str(), "%lx-%lx %4s %lx %x:%x %lu", &from, &to, modes, &offset, &major, &minor, &inode);
    line = next + 1;
    if (fields != 7 || to <= covered) continue;
    if (from >= end) break;
    if (from > covered) {
      whole = false;
      covered = from;
    }
    Mapping mapping{};
    mapping.begin = covered;
    mapping.end = std::min<uint64_t>(to, end);
    mapping.protection = (modes[0] == 'r' ? PROT_READ : 0) | (modes[1] == 'w' ? PROT_WRITE : 0) |
                         (modes[2] == 'x' ? PROT_EXEC : 0);
    mapping.shared = modes[3] == 's';
    mapping.offset = offset + (covered - from);
    mapping.device = makedev(major, minor);
    mapping.inode = inode;
    // As Linux names it where there is no file; what has one must be asked for its page size.
    if (head.find("/anon_hugepage") != std::string::npos) mapping.page_bytes = 2u << 20;
    mappings->push_back(mapping);
    covered = mapping.end;
  }
  return whole && covered >= end;
}

// Linux 6.11's question for one mapping, from its linux/fs.h.
struct ProcMapQuery {
  uint64_t size, flags;
  uint64_t address;  // in
  uint64_t begin, end, mapping_flags, page_bytes, offset, inode;
  uint32_t device_major, device_minor;
  uint32_t name_bytes, build_id_bytes;
  uint64_t name, build_id;
};
constexpr unsigned long kProcMapQuery = _IOWR('f', 17, ProcMapQuery);
constexpr uint64_t kCoveringOrNext = 16;
enum : uint64_t { kReadable = 1, kWritable = 2, kExecutable = 4, kShared = 8 };

// One question for each mapping; false where the kernel has no answer. *whole as ReadMappings returns it.
bool AskForMappings(uint64_t begin, uint64_t end, std::vector<Mapping>* mappings, bool* whole) {
  const int file = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  bool known = true;
  *whole = true;
  for (uint64_t at = begin; at < end && known;) {
    ProcMapQuery query{};
    query.size = sizeof query;
    query.flags = kCoveringOrNext;
    query.address = at;
    const bool found = ioctl(file, kProcMapQuery, &query) == 0;
    known = found || errno == ENOENT;
    if (!found || query.begin >= end) {
      *whole = false;
      break;
    }
    if (query.begin > at) *whole = false;
    const uint64_t from = std::max(query.begin, at);
    const auto has = [&](uint64_t flag) { return (query.mapping_flags & flag) != 0; };
    mappings->push_back({.begin = from,
                         .end = std::min(query.end, end),
                         .protection = (has(kReadable) ? PROT_READ : 0) | (has(kWritable) ? PROT_WRITE : 0) |
                                       (has(kExecutable) ? PROT_EXEC : 0),
                         .shared = has(kShared),
                         .offset = query.offset + (from - query.begin),
                         .device = makedev(query.device_major, query.device_minor),
                         .inode = query.inode,
                         .page_bytes = query.page_bytes});
    at = query.end;
  }
  close(file);
  return known;
}

}  // namespace

bool ReadMappings(uint64_t begin, uint64_t end, std::vector<Mapping>* mappings) {
  return ReadMappings(std::vector<PageRange>{{begin, end}}, mappings);
}

bool ReadMappings(const std::vector<PageRange>& ranges, std::vector<Mapping>* mappings) {
  mappings->clear();
  bool known = true, all = true;
  for (const PageRange& range : ranges) {
    bool whole = false;
    known = known && AskForMappings(range.begin, range.end, mappings, &whole);
    all = all && whole;
  }
  if (known) return all;
  std::vector<Mapping> text;
  mappings->clear();
  all = true;
  ReadMapsText(ranges.front().begin, ranges.back().end, &text);
  for (const PageRange& range : ranges) {
    uint64_t at = range.begin;
    for (const Mapping& mapping : CutMappings(text, range.begin, range.end)) {
      all = all && mapping.begin == at;
      at = mapping.end;
      mappings->push_back(mapping);
    }
    all = all && at == range.end;
  }
  return all;
}

std::vector<Mapping> CutMappings(const std::vector<Mapping>& mappings, uint64_t begin, uint64_t end) {
  std::vector<Mapping> cut;
  for (Mapping mapping : mappings) {
    if (mapping.end <= begin || mapping.begin >= end) continue;
    if (mapping.begin < begin) {
      mapping.offset += begin - mapping.begin;
      mapping.begin = begin;
    }
    mapping.end = std::min(mapping.end, end);
    cut.push_back(mapping);
  }
  return cut;
}

std::vector<Mapping> MappingsOfFile(const std::vector<Mapping>& mappings, uint64_t device, uint64_t inode,
                                    uint64_t offset, uint64_t bytes) {
  std::vector<Mapping> parts;
  for (Mapping mapping : mappings) {
    const uint64_t from = std::max(mapping.offset, offset);
    const uint64_t to = std::min(mapping.offset + (mapping.end - mapping.begin), offset + bytes);
    if (mapping.device != device || mapping.inode != inode || from >= to) continue;
    mapping.begin += from - mapping.offset;
    mapping.end = mapping.begin + (to - from);
    mapping.offset = from;
    parts.push_back(mapping);
  }
  return parts;
}

bool AllWritable(const std::vector<Mapping>& mappings) {
  for (const Mapping& mapping : mappings) {
    if ((mapping.protection & PROT_WRITE) == 0) return false;
  }
  return true;
}

bool IsLocked(const Mapping& mapping) {
  // It does nothing else.
  return msync(reinterpret_cast<void*>(mapping.begin), mapping.end - mapping.begin, MS_INVALIDATE) != 0 &&
         errno == EBUSY;
}

}  // namespace causeway::guest
