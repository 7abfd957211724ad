// SPDX-License-Identifier: Apache-2.0
// What the test of the sandbox and the library that it puts into a worker agree on.
#pragma once
#include <cstddef>

namespace causeway::test {

inline constexpr size_t kAttackBytes = 0x4154'0000;  // plus the attack's number in attacks.def
inline constexpr const char* kBait = "/dev/shm/causeway-attack-bait";  // anybody may read it on the host

}  // namespace causeway::test
