// SPDX-License-Identifier: Apache-2.0
// The value by which the CUDA runtime makes sure that the driver's tables are the driver's own. The runtime
// computes it too and refuses to start if the two differ.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "guest_lib/runtime/md2.h"
#include "guest_lib/session/guest_state.h"

namespace causeway::guest {

// Everything that enters the value, in the order in which it does.
struct IntegrityInput {
  uint32_t driver_version;
  uint32_t version;  // the caller's: the runtime's version, and the two after it
  uint32_t process_id;
  uint32_t thread_low;  // the low half of pthread_self()
  uint64_t runtime_table;
  uint64_t integrity_table;
  uint64_t integrity_function;  // slot 1 of that table
  uint64_t time_s;              // the caller's time(0)
};
static_assert(sizeof(IntegrityInput) == 48 && offsetof(IntegrityInput, runtime_table) == 16);

// The 16 bytes for this input and these devices, which are all visible ones in enumeration order. Versions
// that end in 0 or 1 have a constant answer.
Md2Digest IntegrityValue(const IntegrityInput& input, std::span<const DeviceIdentity> devices);

// The message that is authenticated: the input, then 28 bytes for each device. For tests.
std::vector<uint8_t> IntegrityMessage(const IntegrityInput& input, std::span<const DeviceIdentity> devices);

}  // namespace causeway::guest
