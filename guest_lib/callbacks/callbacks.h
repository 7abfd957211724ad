// SPDX-License-Identifier: Apache-2.0
// Functions of the program that the driver calls (docs/graphs_and_callbacks.md). Each gets a number that
// travels in its place. One thread of this library, started with the first function, asks the host which one
// is due and runs it. Another thread runs the functions that the GPU announces (callback_words.h). No two
// functions run at once. Both threads block the signals that were blocked in the thread that started them, as
// the driver's thread does, and do not keep the process alive.
//
// Inside such a function CUDA calls are not permitted: they answer CUDA_ERROR_NOT_PERMITTED, also those that
// need no host (InitialisedOrError). The context in which the function was enqueued is current there.
//
// Any thread may call what is declared here. Nothing here is to be called with a lock of this library's held.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace causeway::guest::callbacks {

// How many functions streams wait for. Those that launches of graphs run are not among them.
inline std::atomic<size_t> in_streams{0};

enum class Kind {
  kOnce,      // runs once and is then forgotten: destructors of user objects
  kInStream,  // the same for a function for which a stream waits; the GPU announces it if it can
  kEach,      // runs with every launch: host nodes. The same function and user data get the same number. Each
              // Register needs its Release, or the number stays for the life of the process
};

// Each of these returns the number to send. 0: the host cannot be asked; *error says why, unless it is null.
uint64_t Register(CUhostFn function, void* user_data, Kind kind, CUresult* error);
uint64_t RegisterStreamCallback(CUstreamCallback function, CUstream stream, void* user_data, CUresult* error);
uint64_t RegisterNotification(CUasyncCallback function, void* user_data, CUasyncCallbackHandle handle,
                              CUresult* error);

// Takes back one Register, after a call that failed or for an object that is gone. Ignores unknown numbers.
void Release(uint64_t id);

// The pair of words by which the GPU announces the function; kNoCallbackWord if it does not.
uint32_t WordOf(uint64_t id);

// Whether the GPU can announce host nodes of graphs.
bool AnnouncedInGraphs();

// What was registered under that number, for calls that ask a node what it runs. False: the number is
// unknown, or not of a CUhostFn.
bool Find(uint64_t id, CUhostFn* function, void** user_data);

// While an object of this class lives, the calling thread runs a function that has no number: the one that
// the program registered for the driver's log.
class Scope {
 public:
  Scope();
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
};

}  // namespace causeway::guest::callbacks
