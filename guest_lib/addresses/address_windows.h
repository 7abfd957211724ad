// SPDX-License-Identifier: Apache-2.0
// The address windows in this process (docs/memory.md). The windows are reserved when the library is loaded,
// so that no pointer of this process can ever equal a device pointer; which kind a pointer is can then be
// computed. What the process had mapped there before stays its own, and the worker is asked to keep its
// driver away from it. Should the driver place memory outside of the windows, those addresses are reserved
// when it does. Any thread may call these functions.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <atomic>
#include <cstdint>

#include "guest_lib/connection/connection.h"
#include "ivshmem_ring/messages/address_windows.h"

namespace causeway::guest {

// Agrees with the worker on a window of shared memory that is free on both sides, and tells it the ranges
// from which its driver must keep away. Called before both map anything. An error has been written to stderr.
CUresult AgreeOnAddresses(Connection& connection);

// How many ranges of the windows the process had mapped before; set when the library is loaded.
extern std::atomic<uint32_t> taken_ranges;
bool IsTaken(uint64_t address, uint64_t bytes);

// How many further windows AdmitDeviceMemory has added.
extern std::atomic<uint32_t> further_windows;
bool IsInFurtherWindow(uint64_t address, uint64_t bytes);

// Whether all of [address, address + bytes) is device memory's.
inline bool IsDeviceAddress(uint64_t address, uint64_t bytes = 1) {
  if (InDeviceWindow(address, bytes))
    return taken_ranges.load(std::memory_order_relaxed) == 0 || !IsTaken(address, bytes);
  return further_windows.load(std::memory_order_relaxed) != 0 && IsInFurtherWindow(address, bytes);
}

// To be called when the driver has placed device memory. Outside of the windows its addresses are reserved
// now. False: they mean something else to this process; a sentence on stderr says so, and the call that made
// the memory is to be refused.
bool AdmitDeviceMemory(CUdeviceptr address, uint64_t bytes);

}  // namespace causeway::guest
