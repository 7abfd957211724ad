// SPDX-License-Identifier: Apache-2.0
// One session's way to the host: its transport, and the region where memory is shared.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "ivshmem_ring/transport/layout.h"
#include "ivshmem_ring/transport/transport.h"

namespace causeway::guest {

struct Connection {
  virtual ~Connection() = default;
  std::unique_ptr<ClientTransport> transport;
  // Region memory; all zero over TCP. Slices appear at window_address + offset once mapped.
  uint64_t window_address = 0;
  uint64_t region_bytes = 0;

  // The worker has something at window_address: takes another one. False: there is none.
  virtual bool MoveWindow() { return false; }

  // A run of whole granules. False: none of that length is left. *zeroed: nothing was ever written to them.
  virtual bool AllocateSlices(uint64_t bytes, uint64_t* offset, bool* zeroed) = 0;
  virtual void FreeSlices(uint64_t offset, uint64_t bytes) = 0;
  // Maps slices of ours at window_address + offset; null on failure.
  virtual std::byte* MapSlices(uint64_t offset, uint64_t bytes) = 0;
  // Maps pages of slices of ours over what is reserved at `at`, for good. A forked child inherits them where
  // the way in allows it.
  virtual bool MapPages(std::byte* /*at*/, uint64_t /*offset*/, uint64_t /*bytes*/) { return false; }
  // Whether the kernel does with these mappings what it does with a file's: makes one of two that lie side by
  // side, in memory and in the region, and moves pages aside (MREMAP_DONTUNMAP).
  virtual bool HasOrdinaryPages() const { return true; }
  // The session's words for callbacks; null over TCP.
  virtual CallbackWords* callback_words() { return nullptr; }
  // The file that region memory is mapped from, as /proc/self/maps names it.
  virtual bool RegionFile(uint64_t*, uint64_t*) { return false; }
  // The bytes of a bulk buffer where memory is not shared.
  virtual std::byte* PrivateBulk(uint32_t) { return nullptr; }
  // In a forked child: closes descriptors without ending the parent's session.
  virtual void Abandon() = 0;
  // The library is unloaded, in most cases because the process exits; other threads may still be inside a
  // call.
  virtual void End() { Abandon(); }
};

}  // namespace causeway::guest
