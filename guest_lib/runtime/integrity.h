// SPDX-License-Identifier: Apache-2.0
// The value by which the CUDA runtime makes sure that the tables of cuGetExportTable are the driver's own.
// The runtime computes it too, and refuses to start if the two differ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "guest_lib/runtime/md2.h"
#include "guest_lib/session/guest_state.h"

namespace causeway::guest {

// What the value is computed from besides the devices, in this order. Tables and function are addresses.
struct IntegrityInput {
  uint32_t driver_version;
  uint32_t version;  // as the runtime states it: it asks with its own version, then with the next two numbers
  uint32_t process_id;
  uint32_t thread_low;  // the low half of pthread_self()
  uint64_t runtime_table;
  uint64_t integrity_table;
  uint64_t integrity_function;  // slot 1 of integrity_table, by which the runtime asks
  uint64_t time_s;              // as the runtime states it: its time(0)
};
static_assert(sizeof(IntegrityInput) == 48 && offsetof(IntegrityInput, runtime_table) == 16);

// The 16 bytes for this input and `devices`: all visible ones, in enumeration order. A `version` whose last
// decimal digit is 0 or 1 has a constant answer.
Md2Digest IntegrityValue(const IntegrityInput& input, std::span<const DeviceIdentity> devices);

// The bytes that are authenticated: the input, then 28 bytes for each device. Tests look at them.
std::vector<uint8_t> IntegrityMessage(const IntegrityInput& input, std::span<const DeviceIdentity> devices);

}  // namespace causeway::guest
