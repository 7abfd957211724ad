// SPDX-License-Identifier: Apache-2.0
// What the test of the sandbox and the library that it puts into a worker agree on.
#pragma once
#include <cstddef>

namespace causeway::test {

inline constexpr size_t kAttackBytes = 0x4154'0000;  // plus the attack's number in attacks.def
inline constexpr size_t kNodeBytes = 0x4e4f'0000;    // plus a number: opens /dev/nvidiaNUMBER
inline constexpr size_t kNodes = 16;
inline constexpr const char* kVmRegion = "/dev/shm/causeway-attack-region";
inline constexpr const char* kBait = "/dev/shm/causeway-attack-bait";  // anybody may read it on the host

}  // namespace causeway::test
