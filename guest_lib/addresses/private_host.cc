// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/addresses/private_host.h"

#include <sys/mman.h>

#include <map>
#include <mutex>

#include "guest_lib/process/lock_order.h"
#include "guest_lib/session/context.h"
#include "guest_lib/session/handles.h"

namespace causeway::guest {
namespace {

Mutex<Lock::kPrivateHost> mutex;
auto& blocks = *new std::map<uint64_t, HostAllocation>;  // by address; never destroyed

}  // namespace

CUresult AllocatePrivateHost(void** address, uint64_t bytes, uint32_t flags) {
  void* block = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  HostAllocation host{.address = reinterpret_cast<uint64_t>(block), .bytes = bytes, .flags = flags};
  host.context = CurrentContextObject();
  host.id = NextId();
  const std::lock_guard lock(mutex);
  blocks[host.address] = host;
  *address = block;
  return CUDA_SUCCESS;
}

CUresult FreePrivateHost(void* address) {
  const std::lock_guard lock(mutex);
  const auto found = blocks.find(reinterpret_cast<uint64_t>(address));
  if (found == blocks.end()) return CUDA_ERROR_INVALID_VALUE;
  munmap(address, found->second.bytes);
  blocks.erase(found);
  return CUDA_SUCCESS;
}

bool FindPrivateHost(uint64_t address, HostAllocation* allocation) {
  const std::lock_guard lock(mutex);
  const auto next = blocks.upper_bound(address);
  if (next == blocks.begin() || address - std::prev(next)->first >= std::prev(next)->second.bytes)
    return false;
  *allocation = std::prev(next)->second;
  return true;
}

void FreePrivateHostOf(const Object* context) {
  const std::lock_guard lock(mutex);
  for (auto at = blocks.begin(); at != blocks.end();) {
    const auto here = at++;
    if (here->second.context != context) continue;
    munmap(reinterpret_cast<void*>(here->first), here->second.bytes);
    blocks.erase(here);
  }
}

}  // namespace causeway::guest
