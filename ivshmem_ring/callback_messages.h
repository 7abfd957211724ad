// SPDX-License-Identifier: Apache-2.0
// Functions of the guest that the driver wants called. They travel as numbers that the guest made; the host
// never sees an address. One guest thread pulls: its request says which call it has finished and asks for the
// next one, so the host's side of a function blocks exactly as long as the guest's runs.
#pragma once
#include <cstdint>

#include "ivshmem_ring/handle.h"
#include "ivshmem_ring/layout.h"

namespace causeway {

// The callback thread's own channel. Its requests wait for no posted record: the dispatcher may be held up by
// the very function that they report as finished.
inline constexpr uint32_t kCallbackChannel = kChannelCount - 2;

// Op::kAwaitCallback; the reply is a DueCallback.
struct AwaitCallbackBody {
  uint64_t done_ticket;  // of the DueCallback that has returned; 0: none
  uint32_t wait;         // 0: only report
  uint32_t reserved;
};
static_assert(sizeof(AwaitCallbackBody) == 16);

struct DueCallback {
  uint64_t id;      // the guest's number of the function; 0: nothing is due
  uint64_t ticket;  // to be returned as done_ticket; 0: nobody waits for this one
  uint32_t status;  // CUresult that a stream's callback gets
  uint32_t type;    // CUasyncNotificationType
  uint64_t detail;  // of the notification
};
static_assert(sizeof(DueCallback) == 32);

// Op::cuLaunchHostFunc, cuStreamAddCallback
struct HostFunctionBody {
  WireHandle stream;
  uint64_t id;
};
static_assert(sizeof(HostFunctionBody) == 16);

}  // namespace causeway
