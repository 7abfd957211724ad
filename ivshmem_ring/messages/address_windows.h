// SPDX-License-Identifier: Apache-2.0
// Address windows: ranges in which an address means the same to a guest process, its worker and the GPU, and
// how both processes keep them free (docs/memory.md). Any thread may call these functions.
#pragma once
#include <cstdint>
#include <vector>

namespace causeway {

// The addresses [begin, end).
struct Window {
  uint64_t begin, end;
};

// Where the host's driver places device memory, as measured with driver 580. The first window is for the
// driver's own reservations: the first of them was 0x2'0560'0000 to 0x4c'ea00'0000, and more follow above it
// once pools and graphs have used that up (0x8e'd200'0000 was seen), so there is room for three. The second
// is for mappings of a worker that starts with the old bottom-up layout (ADDR_COMPAT_LAYOUT), which begin at
// a third of the address space.
#ifdef __SANITIZE_THREAD__
// TSan leaves a program few ranges, and the region lies above this one.
inline constexpr uint64_t kLowWindowEnd = 0x4d'0000'0000;
#else
inline constexpr uint64_t kLowWindowEnd = 0x100'0000'0000;
#endif
inline constexpr Window kDeviceWindows[] = {{0x2'0000'0000, kLowWindowEnd},
                                            {0x2aaa'aaaa'b000, 0x3fff'0000'0000}};

// Whether all of [address, address + bytes) lies in one window.
constexpr bool InDeviceWindow(uint64_t address, uint64_t bytes = 1) {
  for (const Window& window : kDeviceWindows) {
    if (address >= window.begin && address < window.end && bytes <= window.end - address) return true;
  }
  return false;
}

// Whether any byte of the range lies in a window.
constexpr bool OverlapsDeviceWindow(Window range) {
  for (const Window& window : kDeviceWindows) {
    if (range.begin < window.end && range.end > window.begin) return true;
  }
  return false;
}

// Reserves the free pages of the window, so that nothing new is mapped there, and returns the parts that were
// taken already, in order. Reservations of kHugeReservation and more are not listed: they are no memory but,
// for example, a sanitizer's shadow, to which no program has pointers.
inline constexpr uint64_t kHugeReservation = uint64_t{1} << 40;
std::vector<Window> ReserveFree(Window window);

// Reserves exactly the window. False: something is mapped there, and nothing was reserved.
bool ReserveAll(Window window);

}  // namespace causeway
