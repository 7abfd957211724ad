// SPDX-License-Identifier: Apache-2.0
// Pinned and registered memory that the device does not reach yet. Where a session shares none, such memory is this
// process's own until the program first names it as the device's; then it gets pages on the host
// (guest_lib/host_register/pinned_reach.h). Code that sends an address of the device to the host calls NameOnDevice first, so that
// the device reaches the memory when the message arrives.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace causeway::guest {

// How many blocks of pinned or registered memory the device does not reach. It is an atomic number and needs no lock, because each launch reads it.
inline std::atomic<uint32_t> unreached_blocks{0};
// The smallest range that holds all blocks there are or were. Most numbers that are no addresses lie outside of it, and so does device
// memory, except in programs that register parts of their heap and of their stacks. So NameOnDevice need not search the blocks for nearly
// all words of a kernel's parameters.
inline std::atomic<uint64_t> private_begin{UINT64_MAX}, private_end{0};
// Lets the device reach the block that holds the address, if one does. Set while the library is loaded.
using ReachHook = void (*)(uint64_t address);
inline constinit ReachHook reach_pinned = nullptr;

// Lets the device reach the pinned memory at the address, if there is any. Any thread may call it. It sends messages: the caller has
// begun none, and holds no lock that other threads hold while they wait for the host.
inline void NameOnDevice(uint64_t address) {
  // partner: NoteReached in private_host.cc. A thread that reads 0 because another thread had the device reach the last block also
  // sees that block's pages as watched, so that none of its writes goes unnoticed.
  if (unreached_blocks.load(std::memory_order_acquire) == 0) [[likely]]
    return;
  if (address >= private_begin.load(std::memory_order_relaxed) &&
      address <= private_end.load(std::memory_order_relaxed))
    reach_pinned(address);
}

// The same for the addresses of stream memory operations.
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

// The same for bytes that a kernel is given: each of their words of eight bytes may be an address.
inline void NameAllOnDevice(const void* bytes, size_t count) {
  if (unreached_blocks.load(std::memory_order_relaxed) == 0) return;
  for (size_t at = 0; at + sizeof(uint64_t) <= count; at += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, static_cast<const char*>(bytes) + at, sizeof word);
    NameOnDevice(word);
  }
}

}  // namespace causeway::guest
