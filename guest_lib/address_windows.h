// SPDX-License-Identifier: Apache-2.0
// Addresses that belong to the host's driver. They are reserved here at load, so that no pointer of this
// process can ever equal a device pointer; which side a pointer belongs to is then a matter of arithmetic.
#pragma once
#include <cstdint>

namespace causeway::guest {

struct Window {
  uint64_t begin, end;
};
// Measured with driver 580: its own reservations, and mappings of a worker that starts with the old
// bottom-up layout (ADDR_COMPAT_LAYOUT), which begin at a third of the address space.
inline constexpr Window kDeviceWindows[] = {{0x2'0000'0000, 0x4d'0000'0000},
                                            {0x2aaa'aaaa'b000, 0x3fff'0000'0000}};

// Idempotent. Complains once if something of this process lies in the way already.
void ReserveDeviceWindows();

constexpr bool IsDeviceAddress(uint64_t address) {
  for (const Window& window : kDeviceWindows) {
    if (address >= window.begin && address < window.end) return true;
  }
  return false;
}

}  // namespace causeway::guest
