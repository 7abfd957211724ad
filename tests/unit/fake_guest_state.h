// SPDX-License-Identifier: Apache-2.0
// A guest without a host: two devices, contexts and streams that are plain numbers. It stands where the
// session and the context stack are in the real library, so that the guest-local parts can be tested alone.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "guest_lib/session/guest_state.h"
#include "ivshmem_ring/protocol/driver_api.h"

namespace causeway::guest::test {

struct FakeGuest {
  bool initialised = false;
  std::vector<DeviceIdentity> devices;
  std::map<CUcontext, uint64_t> contexts;  // handle to id; the primary ones are there from the start
  std::map<CUstream, uint64_t> streams;    // handle to id

  // What the module and library calls were given, newest last: "load", "library with 3 options", "unload".
  std::vector<std::string> module_calls;
  const void* loaded_image = nullptr;
  unsigned functions_in_module = 0;
};

// The one guest of this process.
FakeGuest& Guest();

// Back to the state before cuInit, with the calling thread's context stack empty.
void ResetGuest();

inline CUcontext PrimaryOf(int device) {
  return reinterpret_cast<CUcontext>(0x1000 + 16 * device);
}

}  // namespace causeway::guest::test
