// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/host_register/pinned_reach.h"

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "guest_lib/addresses/address_windows.h"
#include "guest_lib/addresses/private_host.h"
#include "guest_lib/host_register/host_register.h"
#include "guest_lib/host_register/register_messages.h"
#include "guest_lib/managed/pager.h"
#include "guest_lib/process/lock_order.h"
#include "guest_lib/process/log.h"
#include "guest_lib/session/captures.h"
#include "guest_lib/session/device_reach.h"
#include "guest_lib/stream/completion.h"

namespace causeway::guest {
namespace {

// Held while one block is registered on the host, across the messages for it. A second thread that names the block waits for this
// mutex, because the message in which it names the block must not arrive before the registration.
Mutex<Lock::kPinnedReach> mutex;

CUresult Reach(const PrivateHost& block, Object* context) {
  if (block.file < 0) return CUDA_ERROR_NOT_SUPPORTED;
  if (!AwaitPrivateHostLoans(block.host.address)) return CUDA_ERROR_NOT_READY;
  const RegisterBody body{.address = block.host.address,
                          .bytes = block.reserved,
                          .offset = 0,
                          .flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP,
                          .writable = 1};
  return RegisterOnHost(context, body,
                        [&] { return AddPinned(block.host, block.reserved, block.file, block.offset); });
}

// Notes that the device is to reach the block no longer, so that no thread registers it again. True: it was registered, and the caller
// has to call Leave; no other thread gets this answer. The caller holds the mutex.
bool Close(const PrivateHost& block) {
  NotePrivateHostReached(block.host.address, 0, block.reached_in);
  return block.reached && block.host.device_address != 0;
}

// Ends the exchange of the block's bytes and its registration. The caller does not hold the mutex: the driver waits for the device,
// and the device may wait for a thread that needs the mutex to name another block.
void Leave(const PrivateHost& block, bool discard) {
  ForgetMigrating(block.host.address, discard);
  const InContext context(block.reached_in);
  SendUnregister(block.host.address, [] {});
}

[[gnu::constructor]] void SetHook() {
  reach_pinned = [](uint64_t address) {
    if (IsDeviceAddress(address)) return;
    const CUresult result = ReachPinned(address);
    static std::atomic<bool> said{false};
    if (result != CUDA_SUCCESS && !said.exchange(true))
      Complain("the device cannot reach pinned or registered memory of this process (error " +
               std::to_string(result) + ")");
  };
}

}  // namespace

CUresult ReachPinned(uint64_t address) {
  PrivateHost block;
  if (!FindPrivateHost(address, &block, true)) return CUDA_SUCCESS;
  if (!block.reached) {
    if (block.host.kind == HostKind::kRegistered) return ReachRegistered(block.host.address);
    const std::lock_guard lock(mutex);
    if (!FindPrivateHost(address, &block, true)) return CUDA_SUCCESS;
    if (!block.reached) {
      // Memory of a pool belongs to no context.
      Object* context = block.host.context != nullptr ? block.host.context : CurrentContextObject();
      if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
      const CUresult result = Reach(block, context);
      if (!MayComeRight(result))
        NotePrivateHostReached(block.host.address, result == CUDA_SUCCESS ? block.host.address : 0, context);
      return result;
    }
  }
  return block.host.device_address != 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult FreePinned(uint64_t address) {
  PrivateHost block;
  bool leaves = false;
  {
    const std::lock_guard lock(mutex);
    if (!FindPrivateHost(address, &block) || block.host.address != address ||
        block.host.kind == HostKind::kRegistered)
      return CUDA_ERROR_INVALID_VALUE;
    leaves = Close(block);
  }
  if (leaves) Leave(block, true);
  return FreePrivateHost(reinterpret_cast<void*>(address));
}

void LeavePinnedOf(Object* context) {
  const std::vector<PrivateHost> blocks = PrivateHostReachedIn(context);
  if (blocks.empty()) return;
  std::vector<PrivateHost> reached;
  {
    const std::lock_guard lock(mutex);
    for (PrivateHost block : blocks) {
      if (FindPrivateHost(block.host.address, &block) && Close(block)) reached.push_back(block);
    }
  }
  if (reached.empty()) return;
  {
    // Work in flight may still use the blocks, and so may the program's callbacks behind it; natively the end of a context waits.
    const InContext current(context);
    DrainDevice();
  }
  for (const PrivateHost& block : reached) {
    Leave(block, false);
    if (block.host.kind == HostKind::kPooled) NotePrivateHostLeft(block.host.address, block.host.id);
  }
}

void FreePinnedOf(const Object* context) {
  for (const PrivateHost& block : PrivateHostOf(context)) {
    if (block.host.kind != HostKind::kInternal) FreePrivateHost(reinterpret_cast<void*>(block.host.address));
  }
}

}  // namespace causeway::guest
