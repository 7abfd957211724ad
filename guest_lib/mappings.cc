// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/mappings.h"

#include <fcntl.h>
#include <stdio.h>
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

}  // namespace

bool ReadMappings(uint64_t begin, uint64_t end, std::vector<Mapping>* mappings) {
  mappings->clear();
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
    mappings->push_back(mapping);
    covered = mapping.end;
  }
  return whole && covered >= end;
}

}  // namespace causeway::guest
