// SPDX-License-Identifier: Apache-2.0
// Pinned memory that the device does not reach yet. Where a session shares no memory, pinned memory is this
// process's own until the program first names it as the device's; then it gets pages on the host
// (guest_lib/host_register/pinned_reach.h). Whoever sends an address of the device to the host says so before.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace causeway::guest {

// How many blocks of pinned memory the device does not reach. Lock-free: it is asked with each launch.
inline std::atomic<uint32_t> unreached_blocks{0};
// Where blocks lie or lay: from the first byte of any to the end of any. Device memory lies elsewhere, and so do numbers that are
// no addresses, so that nearly all words of a kernel's parameters need no look at the blocks.
inline std::atomic<uint64_t> private_begin{UINT64_MAX}, private_end{0};
// Lets the device reach the block that holds the address, if one does. Set while the library is loaded.
using ReachHook = void (*)(uint64_t address);
inline constinit ReachHook reach_pinned = nullptr;

// Any thread, before the message with that address is begun and without a lock of this library's that others
// might hold while they wait for the host.
inline void NameOnDevice(uint64_t address) {
  // partner: NoteReached in private_host.cc. Who sees that another thread was faster also sees that pages are watched.
  if (unreached_blocks.load(std::memory_order_acquire) == 0) [[likely]]
    return;
  if (address >= private_begin.load(std::memory_order_relaxed) &&
      address <= private_end.load(std::memory_order_relaxed))
    reach_pinned(address);
}

// The same for operations on words.
inline void NameOnDevice(const CUstreamBatchMemOpParams* operations, size_t count) {
  if (unreached_blocks.load(std::memory_order_relaxed) == 0 || operations == nullptr) return;
  for (size_t i = 0; i < count; ++i) {
    const CUstreamBatchMemOpParams& one = operations[i];
    if (one.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 || one.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64)
      NameOnDevice(one.waitValue.address);
    if (one.operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 || one.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64)
      NameOnDevice(one.writeValue.address);
  }
}

// The same for all that may be addresses among bytes that a kernel is given: words of eight bytes.
inline void NameAllOnDevice(const void* bytes, size_t count) {
  if (unreached_blocks.load(std::memory_order_relaxed) == 0) return;
  for (size_t at = 0; at + sizeof(uint64_t) <= count; at += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, static_cast<const char*>(bytes) + at, sizeof word);
    NameOnDevice(word);
  }
}

}  // namespace causeway::guest
