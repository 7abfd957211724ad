// SPDX-License-Identifier: Apache-2.0
// Functions of the program that the GPU announces by itself: it writes a function's number into a word of the
// session's slot, and waits until the number is in another word (ivshmem_ring/transport/layout.h,
// CallbackWords). One thread of this library polls the words as long as any function is to come. Host nodes
// of graphs have pairs of words that the worker gives them, and are announced with every launch.
// CAUSEWAY_CALLBACKS=host turns this off: functions then come by messages (callbacks.h), as over TCP.
//
// Any thread may call these functions; no message is sent with the lock inside held.
#pragma once
#include <cstdint>

namespace causeway::guest::callback_words {

// Takes a pair of words for the function with that number, which grows from call to call, and returns the
// pair's index. The polling thread calls `run` when the GPU has announced the function. kNoCallbackWord: the
// GPU cannot wait, or no pair is free.
uint32_t Take(uint64_t id, void (*run)(uint64_t id));
// To be called when the function has returned or will never run: the GPU goes on, and the pair is free.
void Release(uint32_t word, uint64_t id);

// Whether the GPU may announce host nodes of graphs. If so, the polling thread calls `run` for them from now.
bool WatchesGraphs(void (*run)(uint64_t id));
// To be called before a launch that will announce `in_graphs` functions; with the negative number after a
// launch that failed, so that it will not.
void Expect(int64_t in_graphs);

}  // namespace causeway::guest::callback_words
