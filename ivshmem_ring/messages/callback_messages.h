// SPDX-License-Identifier: Apache-2.0
// Functions of the guest program that the driver wants called (docs/graphs_and_callbacks.md). They travel as
// numbers that the guest made; the host never sees an address.
//
// Where memory is shared, the GPU itself announces a function of a stream: it writes the number into a word
// of the slot (layout.h, CallbackWords) and waits until the guest has written the number into another word.
// No thread of the driver is held, and no message is needed. A host node of a graph does the same
// (GraphWords, host_backend/worker/driver/host_nodes.h).
//
// Functions for which no pair of words is free are called by the messages below. One guest thread asks: its
// request says which function has returned and waits for the next one. So the worker's thread that stands for
// a function blocks exactly as long as the function runs in the guest.
#pragma once
#include <cstdint>

#include "ivshmem_ring/protocol/handle.h"
#include "ivshmem_ring/transport/layout.h"

namespace causeway {

// The callback thread's own channel. Its requests wait for no posted record, because the dispatcher may be
// held up by the very function that a request reports as finished.
inline constexpr uint32_t kCallbackChannel = kChannelCount - 2;

// Op::kAwaitCallback; the reply is a DueCallback.
struct AwaitCallbackBody {
  uint64_t done_ticket;  // the ticket of the DueCallback whose function has returned; 0: none
  uint32_t wait_ms;      // how long to wait for the next one, kMostCallbackWaitMs at most; 0: only report
  uint32_t reserved;
};
static_assert(sizeof(AwaitCallbackBody) == 16);
inline constexpr uint32_t kMostCallbackWaitMs = 10'000;

struct DueCallback {
  uint64_t id;      // the guest's number of the function; 0: nothing was due in time
  uint64_t ticket;  // to be returned as done_ticket; 0: the host does not wait for this function
  uint32_t status;  // the CUresult that a stream's callback is given
  uint32_t type;    // of a notification: CUasyncNotificationType
  uint64_t detail;  // of a notification: what it says
};
static_assert(sizeof(DueCallback) == 32);

// Op::cuLaunchHostFunc, cuStreamAddCallback.
struct HostFunctionBody {
  WireHandle stream;
  uint64_t id;
  uint32_t word;  // the index of its CallbackWords, or one of the two values below
  uint32_t reserved;
};
static_assert(sizeof(HostFunctionBody) == 24);
inline constexpr uint32_t kNoCallbackWord = ~uint32_t{0};  // the worker's function announces it
// The stream captures: the worker picks one of GraphWords.
inline constexpr uint32_t kGraphCallbackWord = kNoCallbackWord - 1;

// Op::cuDeviceRegisterAsyncNotification.
struct NotificationBody {
  WireHandle handle;  // the registration's
  uint64_t id;
  int32_t device;
  uint32_t reserved;
};
static_assert(sizeof(NotificationBody) == 24);

// Op::cuLogsDumpToMemory: the text comes back in the staging buffer. cuLogsRegisterCallback and
// cuLogsUnregisterCallback have no body: they say that the guest begins and ceases to want lines.
struct LogDumpBody {
  uint64_t bytes;  // the size of the program's buffer
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

// Op::kFetchOutput also brings lines of the driver's log: the number of their output is this plus the level.
inline constexpr uint32_t kLogStream = 16;

}  // namespace causeway
