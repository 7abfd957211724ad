// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/address_windows.h"

#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <mutex>
#include <string>

#include "guest_lib/log.h"

namespace causeway::guest {
namespace {

bool Reserve(uint64_t begin, uint64_t end) {
  auto* address = reinterpret_cast<void*>(begin);
  // Not through mmap(): TSan's would end the program for an address outside its ranges.
  void* got = reinterpret_cast<void*>(
      syscall(SYS_mmap, address, end - begin, PROT_NONE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0));
  if (got == address) return true;
  if (got != MAP_FAILED) munmap(got, end - begin);
  return false;
}

void ReserveOnce() {
  for (const Window& window : kDeviceWindows) {
    if (Reserve(window.begin, window.end)) continue;
    // Something is mapped inside: reserve around it piece by piece, so that at least nothing new lands there.
    constexpr uint64_t kPiece = uint64_t{1} << 32;
    bool complained = false;
    for (uint64_t at = window.begin; at < window.end; at += kPiece) {
      const uint64_t end = at + kPiece < window.end ? at + kPiece : window.end;
      if (Reserve(at, end) || complained) continue;
      complained = true;
      char text[160];
      snprintf(text, sizeof text,
               "memory of this process lies at 0x%llx where device memory will be: pointers there may be "
               "taken for device pointers",
               static_cast<unsigned long long>(at));
      Complain(text);
    }
  }
}

// At load, before the program has mapped much of its own.
__attribute__((constructor)) void AtLoad() {
  ReserveDeviceWindows();
}

}  // namespace

void ReserveDeviceWindows() {
  static std::once_flag once;
  std::call_once(once, ReserveOnce);
}

}  // namespace causeway::guest
