// SPDX-License-Identifier: Apache-2.0
// One session's way to the host: its transport and, where memory is shared, its part of the region. Each way
// in (connect.h) implements Connection. A Connection is a PageFile, too: its pages are those of the region, and over TCP, where there is
// none, MapPages fails. Any thread may call its functions, several at once. Offsets and sizes are in bytes, offsets from the beginning
// of the region.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "ivshmem_ring/transport/layout.h"
#include "ivshmem_ring/transport/transport.h"

namespace causeway::guest {

// A file that has pages for memory which the program registers: they replace the program's own (guest_lib/host_register/replaced_pages.h), so
// that the host can map the same ones, or exchange their bytes. It is the region where memory is shared (Connection), and otherwise the
// memory file (guest_lib/addresses/private_host.h). Any thread may call these functions.
class PageFile {
 public:
  // Maps the file's pages from `offset` on over the reservation at `at`. They stay there. A forked child inherits them where the file
  // allows it. False: it failed, or the file has none.
  virtual bool MapPages(std::byte* /*at*/, uint64_t /*offset*/, uint64_t /*bytes*/) { return false; }
  // Whether the kernel merges two mappings that lie side by side both in memory and in the file, and can move their pages elsewhere
  // (MREMAP_DONTUNMAP).
  virtual bool HasOrdinaryPages() const { return true; }
  // The file's device and inode, as /proc/self/maps has them. False: there is no such file.
  virtual bool FileIdentity(uint64_t* /*device*/, uint64_t* /*inode*/) { return false; }

 protected:
  ~PageFile() = default;
};

struct Connection : PageFile {
  virtual ~Connection() = default;
  std::unique_ptr<ClientTransport> transport;
  // The region; both are 0 over TCP. A slice at `offset` is mapped at window_address + offset.
  uint64_t window_address = 0;
  uint64_t region_bytes = 0;

  // Chooses another window_address, because the worker has something at this one. False: there is no other.
  virtual bool MoveWindow() { return false; }

  // Takes a run of whole granules for this session; FreeSlices gives it back. False: no run of that length is
  // left. *zeroed says whether all of its bytes are known to be zero.
  virtual bool AllocateSlices(uint64_t bytes, uint64_t* offset, bool* zeroed) = 0;
  virtual void FreeSlices(uint64_t offset, uint64_t bytes) = 0;
  // Maps slices of this session at window_address + offset. Null: it failed.
  virtual std::byte* MapSlices(uint64_t offset, uint64_t bytes) = 0;
  // The session's words for callbacks; null over TCP.
  virtual CallbackWords* callback_words() { return nullptr; }
  // The bytes of a staging buffer where memory is not shared; null where it is.
  virtual std::byte* PrivateBulk(uint32_t) { return nullptr; }
  // Called in a forked child: closes descriptors without ending the parent's session.
  virtual void Abandon() = 0;
  enum class Ending {
    kUnloaded,  // the program closes the library (dlclose) and goes on; none of its threads is inside a call
    kExit,  // the process is at its end, and other threads may still be inside a call until the kernel ends them
  };
  // Ends the session. With kExit no memory is taken away from those threads, and no number of a descriptor becomes free: what is left
  // ends with the process.
  virtual void End(Ending ending) = 0;
};

}  // namespace causeway::guest
