// SPDX-License-Identifier: Apache-2.0
// Addresses that belong to the host's driver. They are reserved here at load, so that no pointer of this
// process can ever equal a device pointer; which side a pointer belongs to is then a matter of arithmetic.
// What the process had mapped there before stays its own: the worker is asked to keep its driver away from
// it. Should the driver place memory outside of the windows, what is there is reserved when it comes.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <atomic>
#include <cstdint>

#include "guest_lib/connection/connection.h"
#include "ivshmem_ring/messages/address_windows.h"

namespace causeway::guest {

// Before anything is mapped for both: the window of shared memory, free on both sides, and what the driver
// must keep away from. An error has been explained.
CUresult AgreeOnAddresses(Connection& connection);

// How many ranges of the windows the process had taken before; set at load.
extern std::atomic<uint32_t> taken_ranges;
bool IsTaken(uint64_t address, uint64_t bytes);

// How many windows there are besides, which AdmitDeviceMemory has added.
extern std::atomic<uint32_t> further_windows;
bool IsInFurtherWindow(uint64_t address, uint64_t bytes);

inline bool IsDeviceAddress(uint64_t address, uint64_t bytes = 1) {
  if (InDeviceWindow(address, bytes))
    return taken_ranges.load(std::memory_order_relaxed) == 0 || !IsTaken(address, bytes);
  return further_windows.load(std::memory_order_relaxed) != 0 && IsInFurtherWindow(address, bytes);
}

// Device memory that the driver has placed. Outside of the windows its addresses are reserved now; false, and
// one sentence, where they mean something else to this process.
bool AdmitDeviceMemory(CUdeviceptr address, uint64_t bytes);

}  // namespace causeway::guest
