// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/host_register/pinned_reach.h"

#include <atomic>
#include <mutex>
#include <string>

#include "guest_lib/addresses/private_host.h"
#include "guest_lib/host_register/register_messages.h"
#include "guest_lib/managed/pager.h"
#include "guest_lib/process/lock_order.h"
#include "guest_lib/process/log.h"
#include "guest_lib/session/captures.h"
#include "guest_lib/session/device_reach.h"

namespace causeway::guest {
namespace {

// One block at a time, with its messages: whoever names it as well waits until the device reaches it.
Mutex<Lock::kPinnedReach> mutex;

// The context of the block, whatever is current: pages on the host end with that.
class InContextOf {
 public:
  explicit InContextOf(const HostAllocation& host) { ThisThread().contexts.push_back(host.context); }
  ~InContextOf() { ThisThread().contexts.pop_back(); }
  InContextOf(const InContextOf&) = delete;
  InContextOf& operator=(const InContextOf&) = delete;
};

CUresult Reach(const PrivateHost& block) {
  const InContextOf context(block.host);
  const RelaxedCaptures relaxed;  // the driver registers memory, beside whatever is captured
  const RegisterBody body{.address = block.host.address,
                          .bytes = block.reserved,
                          .offset = 0,
                          .flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP,
                          .writable = 1};
  PendingRegistration registration(body);
  uint64_t device_address = 0;
  if (const CUresult result = registration.Finish(&device_address)) return result;
  const CUresult result = device_address == block.host.address
                              ? AddPinned(block.host, block.reserved, block.file, block.offset)
                              : CUDA_ERROR_NOT_SUPPORTED;
  if (result != CUDA_SUCCESS) SendUnregister(block.host.address, [] {});
  return result;
}

// The device has no pages there any more. The caller holds the mutex.
void Leave(const PrivateHost& block) {
  if (!block.reached || block.host.device_address == 0) return;
  ForgetMigrating(block.host.address);
  const InContextOf context(block.host);
  SendUnregister(block.host.address, [] {});
  NotePrivateHostReached(block.host.address, 0);
}

[[gnu::constructor]] void SetHook() {
  reach_pinned = [](uint64_t address) {
    const CUresult result = ReachPinned(address);
    static std::atomic<bool> said{false};
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_INVALID_VALUE && !said.exchange(true))
      Complain("the device cannot reach pinned memory of this process (error " + std::to_string(result) +
               ")");
  };
}

}  // namespace

CUresult ReachPinned(uint64_t address) {
  PrivateHost block;
  if (!FindPrivateHost(address, &block)) return CUDA_ERROR_INVALID_VALUE;
  if (!block.reached) {
    const std::lock_guard lock(mutex);
    if (!FindPrivateHost(address, &block)) return CUDA_ERROR_INVALID_VALUE;
    if (!block.reached) {
      const CUresult result = block.file >= 0 ? Reach(block) : CUDA_ERROR_NOT_SUPPORTED;
      if (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_SUPPORTED)
        NotePrivateHostReached(block.host.address, result == CUDA_SUCCESS ? block.host.address : 0);
      return result;
    }
  }
  return block.host.device_address != 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult FreePinned(uint64_t address) {
  PrivateHost block;
  if (!FindPrivateHost(address, &block) || block.host.address != address) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(mutex);
  if (!FindPrivateHost(address, &block)) return CUDA_ERROR_INVALID_VALUE;
  Leave(block);
  return FreePrivateHost(reinterpret_cast<void*>(address));
}

void LeavePinnedOf(const Object* context) {
  const std::lock_guard lock(mutex);
  for (const PrivateHost& block : PrivateHostOf(context)) Leave(block);
}

void FreePinnedOf(const Object* context) {
  for (const PrivateHost& block : PrivateHostOf(context)) {
    if (block.host.kind != HostKind::kInternal) FreePrivateHost(reinterpret_cast<void*>(block.host.address));
  }
}

}  // namespace causeway::guest
