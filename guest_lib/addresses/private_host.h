// SPDX-License-Identifier: Apache-2.0
// Pinned memory for sessions that share no memory (TCP): ordinary memory of this process, which copies treat as
// such. Its pages lie in a memory file, so that they can be mapped a second time once the device is to reach a
// block (guest_lib/host_register/pinned_reach.h). Any thread may call these functions; they send no messages.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <vector>

#include "guest_lib/addresses/host_allocation.h"

namespace causeway::guest {

// How a block's bytes are laid out: the smallest part of managed memory that is exchanged (managed/areas.h).
inline constexpr uint64_t kPrivateHostGranule = 64u << 10;

struct PrivateHost {
  HostAllocation host;
  uint64_t reserved = 0;  // bytes that are mapped from host.address on: whole granules
  int file = -1;  // where they lie, from `offset` on; -1: in no file, so that no device can reach them
  uint64_t offset = 0;
  bool reached = false;  // by the device, or it was tried in vain, or will be no more
  bool closed = false;   // to further loans
  uint32_t lent = 0;     // copies under way that have lent its bytes to the connection (PrivateHostLoan)
};

// The context to which the memory belongs, `flags` as cuMemHostAlloc's, and only kept. CUDA_ERROR_OUT_OF_MEMORY if there is
// none.
CUresult AllocatePrivateHost(void** address, uint64_t bytes, Object* context, uint32_t flags,
                             HostKind kind = HostKind::kPinned);
// CUDA_ERROR_INVALID_VALUE if no allocation begins there.
CUresult FreePrivateHost(void* address);
// The allocation that holds the address; false if there is none.
bool FindPrivateHost(uint64_t address, HostAllocation* allocation);
// `at_end`: also the one that ends at the address, which a program may count down from.
bool FindPrivateHost(uint64_t address, PrivateHost* block, bool at_end = false);
// Sets CU_POINTER_ATTRIBUTE_SYNC_MEMOPS of what holds the address. False: there is no such memory.
bool SetPrivateHostSyncMemops(uint64_t address, bool value);
// Notes that the device reaches the block that begins there from now on, at `device_address`; 0: it cannot.
void NotePrivateHostReached(uint64_t address, uint64_t device_address);
// The blocks that belong to that context.
std::vector<PrivateHost> PrivateHostOf(const Object* context);

// Before the device is let reach a block: no copy lends its bytes to the connection from now on, and those that do have ended.
// Their pages must not become inaccessible, because the thread that would wait for such a page is the one that the page comes
// through. False: they have not ended for so long that they may wait for what the caller is about to start.
bool AwaitPrivateHostLoans(uint64_t address);

// While it lives a copy may lend bytes of the program to the connection.
class PrivateHostLoan {
 public:
  PrivateHostLoan(const void* first, uint64_t bytes);
  ~PrivateHostLoan();
  PrivateHostLoan(const PrivateHostLoan&) = delete;
  PrivateHostLoan& operator=(const PrivateHostLoan&) = delete;
  // False: the device reaches the memory, or is about to. The copy goes through staging buffers.
  bool given() const { return given_; }

 private:
  uint64_t block_ = 0;  // 0: the bytes are in none
  bool given_ = true;
};

}  // namespace causeway::guest
