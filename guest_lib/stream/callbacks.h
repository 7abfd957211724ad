// SPDX-License-Identifier: Apache-2.0
// Functions of the program that the driver calls. Each gets a number that travels in its place; one thread of
// this library, started with the first of them, asks the host which is due and runs it. Another one runs
// those of streams that the GPU announces (callback_words.h); no two run at once. They block the signals that
// the thread blocks which starts them, as the driver's does, and do not keep the process alive.
//
// Within such a function CUDA calls are not permitted: they answer CUDA_ERROR_NOT_PERMITTED, also where no
// host is needed (InitialisedOrError). The context in which it was enqueued is current there.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <cstdint>

namespace causeway::guest::callbacks {

enum class Kind {
  kOnce,      // destructors of user objects: forgotten when it runs
  kInStream,  // the same for what a stream waits for: the GPU announces it, if it can
  kEach,      // host nodes: runs with every launch. The same function and user data get the same number; each
              // Register wants its Release, and without one the number stays for the life of the process
};

// The number to send; 0 if the host cannot be asked for callbacks (*error says why; it may be null).
uint64_t Register(CUhostFn function, void* user_data, Kind kind, CUresult* error);
uint64_t RegisterStreamCallback(CUstreamCallback function, CUstream stream, void* user_data, CUresult* error);
uint64_t RegisterNotification(CUasyncCallback function, void* user_data, CUasyncCallbackHandle handle,
                              CUresult* error);

// Takes back one Register: of a call that failed, or of an object that is gone. Unknown numbers do no harm.
void Release(uint64_t id);

// The pair of words by which the GPU announces it; kNoCallbackWord if it does not.
uint32_t WordOf(uint64_t id);

// Whether the GPU can announce host nodes of graphs.
bool AnnouncedInGraphs();

// What was registered, for calls that ask a node what it runs. False: unknown, or of another kind.
bool Find(uint64_t id, CUhostFn* function, void** user_data);

// While one lives, a function without a number runs in this thread: it gets the driver's log.
class Scope {
 public:
  Scope();
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
};

}  // namespace causeway::guest::callbacks
