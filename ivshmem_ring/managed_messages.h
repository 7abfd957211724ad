// SPDX-License-Identifier: Apache-2.0
// Managed variables (__managed__ in device code). The driver places them itself, in the worker; the guest has
// pages of its own at the same address. What its program changed goes to the worker before any other message,
// and what the device changed comes back with every answer that is waited for.
#pragma once
#include <cstdint>

namespace causeway {

inline constexpr uint64_t kMaxManagedVariableBytes = 64u << 20;
inline constexpr uint32_t kManagedPieceBytes = 2048;

// Op::kFindManaged: whether [address, address + bytes) is managed memory. Reply: u32, 1 if so.
// Op::kWriteManaged, posted: this, then `bytes` for it. Op::kReadManaged: the reply's bulk buffer holds them.
struct ManagedBody {
  uint64_t address;
  uint64_t bytes;
};

}  // namespace causeway
