// SPDX-License-Identifier: Apache-2.0
// What is known of one piece of host memory that CUDA knows, whichever part of this library made it.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <cstdint>

namespace causeway::guest {

struct Object;

enum class HostKind {
  kPinned,
  kManaged,
  kRegistered,
  kPooled,   // guest_lib/memory/host_pool.h: outlasts every context
  kInternal  // this library's own: outlasts every context
};

// Host memory that CUDA knows: cuMemHostAlloc, cuMemAllocManaged, cuMemHostRegister.
struct HostAllocation {
  uint64_t address = 0;
  uint64_t bytes = 0;  // as the program asked for
  HostKind kind = HostKind::kPinned;
  uint32_t flags = 0;  // as the program gave them
  Object* context = nullptr;
  uint64_t id = 0;              // CU_POINTER_ATTRIBUTE_BUFFER_ID
  uint64_t device_address = 0;  // equals `address`, unless the host's driver says otherwise
  bool sync_memops = false;
};

}  // namespace causeway::guest
