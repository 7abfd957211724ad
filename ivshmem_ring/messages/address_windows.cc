// SPDX-License-Identifier: Apache-2.0
#include "ivshmem_ring/messages/address_windows.h"

#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

namespace causeway {
namespace {

// What this process has mapped inside the window; mappings that adjoin are one.
std::vector<Window> Mapped(Window window) {
  std::vector<Window> found;
  FILE* maps = fopen("/proc/self/maps", "re");
  if (maps == nullptr) return found;
  char line[512];
  bool whole = true;  // lines longer than the buffer go on
  unsigned long long begin = 0, end = 0;
  while (fgets(line, sizeof line, maps) != nullptr) {
    const bool first_part = whole;
    whole = false;
    for (const char* at = line; *at != '\0'; ++at) whole = whole || *at == '\n';
    if (!first_part || sscanf(line, "%llx-%llx", &begin, &end) != 2) continue;
    if (end <= window.begin || begin >= window.end) continue;
    const Window part{std::max<uint64_t>(begin, window.begin), std::min<uint64_t>(end, window.end)};
    if (!found.empty() && found.back().end == part.begin) {
      found.back().end = part.end;
    } else {
      found.push_back(part);
    }
  }
  fclose(maps);
  return found;
}

}  // namespace

bool ReserveAll(Window window) {
  auto* address = reinterpret_cast<void*>(window.begin);
  const uint64_t bytes = window.end - window.begin;
  // Not through mmap(): TSan's would end the program for an address outside its ranges.
  void* got = reinterpret_cast<void*>(
      syscall(SYS_mmap, address, bytes, PROT_NONE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0));
  if (got == address) return true;
  if (got != MAP_FAILED) syscall(SYS_munmap, got, bytes);
  return false;
}

std::vector<Window> ReserveFree(Window window) {
  if (ReserveAll(window)) return {};
  std::vector<Window> taken;
  // Other threads may map meanwhile: what they took is found in the next look.
  for (int looks = 0; looks < 4; ++looks) {
    std::vector<Window> own;  // reserved by this call
    std::vector<Window> theirs = Mapped(window);
    bool complete = true;
    uint64_t at = window.begin;
    for (size_t i = 0; i <= theirs.size(); ++i) {
      const Window gap{at, i < theirs.size() ? theirs[i].begin : window.end};
      if (gap.begin < gap.end) {
        if (ReserveAll(gap)) {
          own.push_back(gap);
        } else {
          complete = false;
        }
      }
      if (i < theirs.size()) at = theirs[i].end;
    }
    if (complete || looks == 3) {
      taken = std::move(theirs);
      break;
    }
    for (const Window& gap : own)
      syscall(SYS_munmap, reinterpret_cast<void*>(gap.begin), gap.end - gap.begin);
  }
  std::erase_if(taken, [](const Window& range) { return range.end - range.begin >= kHugeReservation; });
  return taken;
}

}  // namespace causeway
