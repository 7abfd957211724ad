// SPDX-License-Identifier: Apache-2.0
// Pinned memory, memory of pools on the host, and registered memory, for sessions that share no memory (TCP). Each is ordinary memory
// of this process, and copies treat it as such. The pages of the first two lie in a memory file, so that they can be mapped a second time
// once the device is to reach a block (guest_lib/host_register/pinned_reach.h); pages of that file then replace whole pages of registered
// memory, unless the range is small (guest_lib/managed/compared_bytes.h). Any thread may call these functions; they send no messages.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <vector>

#include "guest_lib/addresses/host_allocation.h"
#include "guest_lib/connection/connection.h"

namespace causeway::guest {

// A block begins at a multiple of this, and its pages end at one: it is the smallest part that managed/areas.h exchanges.
inline constexpr uint64_t kPrivateHostGranule = 64u << 10;

struct PrivateHost {
  HostAllocation host;
  uint64_t reserved = 0;  // of pinned memory, bytes that are mapped from host.address on: whole granules
  int file = -1;          // of pinned memory, holds the pages, from `offset` on; -1: they lie in no file
  uint64_t offset = 0;
  // The device reaches the block, or never will: it cannot, or the block is being freed.
  bool reached = false;
  Object* reached_in = nullptr;  // the context in which the host has registered it
  bool closed = false;           // AwaitPrivateHostLoans was called: there are no further loans
  uint32_t lent = 0;             // how many PrivateHostLoan of it live
};

// Allocates a block that belongs to the context, or with null to none. `flags` are cuMemHostAlloc's; they are kept and have no effect here.
// CUDA_ERROR_OUT_OF_MEMORY: the kernel has no memory of that size.
CUresult AllocatePrivateHost(void** address, uint64_t bytes, Object* context, uint32_t flags,
                             HostKind kind = HostKind::kPinned);
// CUDA_ERROR_INVALID_VALUE if no allocation begins there.
CUresult FreePrivateHost(void* address);
// Notes a registration, which is a block from now until RemovePrivateRegistered; its pages stay the program's. A device_address of 0 says
// that no device can reach it. Removing what is not there does nothing.
void AddPrivateRegistered(const HostAllocation& host);
void RemovePrivateRegistered(uint64_t address);
// The memory file, as the source of pages that replace those of registered memory.
PageFile& PrivatePages();
// Takes pages of it, which are zero. `bytes` are whole pages. False: the file cannot grow.
bool AllocatePrivatePages(uint64_t bytes, int* file, uint64_t* offset);
// Gives them back, all or a part; no mapping of the program's shows them any more.
void FreePrivatePages(uint64_t offset, uint64_t bytes);
// The allocation that holds the address; false if there is none.
bool FindPrivateHost(uint64_t address, HostAllocation* allocation);
// Copies the block that holds the address; false if there is none. With `at_end` also the block that ends at the address, since a
// kernel may be given a block's end and count down from it.
bool FindPrivateHost(uint64_t address, PrivateHost* block, bool at_end = false);
// Sets CU_POINTER_ATTRIBUTE_SYNC_MEMOPS of what holds the address. False: there is no such memory.
bool SetPrivateHostSyncMemops(uint64_t address, bool value);
// Notes that the device reaches the block that begins there from now on, at `device_address`, since the host has registered it in that
// context; 0: it cannot.
void NotePrivateHostReached(uint64_t address, uint64_t device_address, Object* context);
// Notes that the device no longer reaches the block of that id, and may be let reach it again.
void NotePrivateHostLeft(uint64_t address, uint64_t id);
// The block becomes another allocation's, with that id.
void RenewPrivateHost(uint64_t address, uint64_t id);
// Whether the device reaches the block that begins there.
bool IsPrivateHostReached(uint64_t address);
// The blocks of pinned memory that belong to that context, and those that the host has registered in it.
std::vector<PrivateHost> PrivateHostOf(const Object* context);
std::vector<PrivateHost> PrivateHostReachedIn(const Object* context);

// To be called before the device is let reach a block: forbids further loans of it, and waits until those there are have ended.
// While a loan lives the connection's thread reads and writes the bytes itself. If their pages were taken away it would wait for a
// page that only it could receive. False: the loans have not ended for ten seconds; their copies may wait for the work that the
// caller is about to send.
bool AwaitPrivateHostLoans(uint64_t address);

// A copy's right to have the connection read and write bytes of the program in place, without a staging buffer, for as long as the
// object lives. It lends all blocks that hold some of the bytes, or none of them.
class PrivateHostLoan {
 public:
  PrivateHostLoan(const void* first, uint64_t bytes);
  ~PrivateHostLoan();
  PrivateHostLoan(const PrivateHostLoan&) = delete;
  PrivateHostLoan& operator=(const PrivateHostLoan&) = delete;
  // False: the device reaches the memory, or is about to, and the copy has to go through staging buffers.
  bool given() const { return given_; }

 private:
  std::vector<uint64_t> blocks_;  // the addresses of those that hold some of the bytes
  bool given_ = true;
};

}  // namespace causeway::guest
