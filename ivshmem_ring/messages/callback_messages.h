// SPDX-License-Identifier: Apache-2.0
// Functions of the guest that the driver wants called. They travel as numbers that the guest made; the host
// never sees an address. One guest thread pulls: its request says which call it has finished and asks for the
// next one, so the host's side of a function blocks exactly as long as the guest's runs.
//
// Where memory is shared, the GPU itself announces a function of a stream: it writes the number into a word
// of the slot (layout.h, CallbackWords) and waits until the guest has written it into another. No thread of
// the driver is held, and no message is needed. So does a host node of a graph (GraphWords,
// host_backend/worker/driver/host_nodes.h). Functions for which no pair of words is free go the other way.
#pragma once
#include <cstdint>

#include "ivshmem_ring/protocol/handle.h"
#include "ivshmem_ring/transport/layout.h"

namespace causeway {

// The callback thread's own channel. Its requests wait for no posted record: the dispatcher may be held up by
// the very function that they report as finished.
inline constexpr uint32_t kCallbackChannel = kChannelCount - 2;

// Op::kAwaitCallback; the reply is a DueCallback.
struct AwaitCallbackBody {
  uint64_t done_ticket;  // of the DueCallback that has returned; 0: none
  uint32_t wait_ms;      // for the next one, kMostCallbackWaitMs at most; 0: only report
  uint32_t reserved;
};
static_assert(sizeof(AwaitCallbackBody) == 16);
inline constexpr uint32_t kMostCallbackWaitMs = 10'000;

struct DueCallback {
  uint64_t id;      // the guest's number of the function; 0: nothing was due in time
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
  uint32_t word;  // index of its CallbackWords, or one of the two below
  uint32_t reserved;
};
static_assert(sizeof(HostFunctionBody) == 24);
inline constexpr uint32_t kNoCallbackWord = ~uint32_t{0};
inline constexpr uint32_t kGraphCallbackWord = kNoCallbackWord - 1;  // if it is captured: any of GraphWords

// Op::cuDeviceRegisterAsyncNotification
struct NotificationBody {
  WireHandle handle;  // of the registration
  uint64_t id;
  int32_t device;
  uint32_t reserved;
};
static_assert(sizeof(NotificationBody) == 24);

// Op::cuLogsDumpToMemory: the text comes in the bulk buffer. cuLogsRegisterCallback and
// cuLogsUnregisterCallback have no body: they say that the guest listens, and no longer.
struct LogDumpBody {
  uint64_t bytes;  // of the program's buffer
  uint32_t iterator;
  uint32_t has_iterator;
  uint32_t flags;
  uint32_t reserved;
};
static_assert(sizeof(LogDumpBody) == 24);
struct LogDumpReply {
  uint64_t bytes;  // as the driver states them
  uint32_t iterator;
  uint32_t reserved;
};
static_assert(sizeof(LogDumpReply) == 16);

// Op::kFetchOutput also brings lines of the log: their stream is this and the level.
inline constexpr uint32_t kLogStream = 16;

}  // namespace causeway
