// SPDX-License-Identifier: Apache-2.0
// Addresses that mean the same to a guest process, its worker and the GPU, and how both sides keep them free.
#pragma once
#include <cstdint>
#include <vector>

namespace causeway {

struct Window {
  uint64_t begin, end;
};

// Where the host's driver places device memory. Measured with driver 580: its own reservations, the first of
// them 0x2'0560'0000 to 0x4c'ea00'0000, and mappings of a worker that starts with the old bottom-up layout
// (ADDR_COMPAT_LAYOUT), which begin at a third of the address space. Once pools and graphs have used the
// first reservation up, more follow above it (0x8e'd200'0000 was seen): there is room for three.
#ifdef __SANITIZE_THREAD__
inline constexpr uint64_t kLowWindowEnd =
    0x4d'0000'0000;  // TSan allows a program few ranges: the region lies above
#else
inline constexpr uint64_t kLowWindowEnd = 0x100'0000'0000;
#endif
inline constexpr Window kDeviceWindows[] = {{0x2'0000'0000, kLowWindowEnd},
                                            {0x2aaa'aaaa'b000, 0x3fff'0000'0000}};

// Both ends in one of the windows.
constexpr bool InDeviceWindow(uint64_t address, uint64_t bytes = 1) {
  for (const Window& window : kDeviceWindows) {
    if (address >= window.begin && address < window.end && bytes <= window.end - address) return true;
  }
  return false;
}

// Any byte of the range in one of the windows.
constexpr bool OverlapsDeviceWindow(Window range) {
  for (const Window& window : kDeviceWindows) {
    if (range.begin < window.end && range.end > window.begin) return true;
  }
  return false;
}

// Reserves what is free of [begin, end), whole pages, so that nothing new lands there; returns what is not,
// in order. Reservations of kHugeReservation and more are no memory but somebody's arithmetic, as a
// sanitizer's shadow, and are not listed.
inline constexpr uint64_t kHugeReservation = uint64_t{1} << 40;
std::vector<Window> ReserveFree(Window window);

// Reserves exactly that; false if anything is there.
bool ReserveAll(Window window);

}  // namespace causeway
