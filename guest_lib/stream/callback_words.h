// SPDX-License-Identifier: Apache-2.0
// Functions of the program that the GPU announces by itself: it writes a function's number into a word of the
// session's slot and waits until the number is in another (ivshmem_ring/transport/layout.h, CallbackWords).
// One thread watches the words as long as any function is to come. Host nodes of graphs have pairs that the
// worker gives them, and are announced with every launch. CAUSEWAY_CALLBACKS=host turns this off: the host's
// driver then runs a function for each, as where no memory is shared.
#pragma once
#include <cstdint>

namespace causeway::guest::callback_words {

// A pair of words for the function of this number, which grows from call to call; kNoCallbackWord where the
// GPU cannot wait, or none is free. `run` is called in the watching thread once the GPU has announced it.
uint32_t Take(uint64_t id, void (*run)(uint64_t id));
// The function has returned, or will never run: the GPU goes on, and the pair is free.
void Release(uint32_t word, uint64_t id);

// Whether host nodes may be announced so, from now on.
bool WatchesGraphs(void (*run)(uint64_t id));
// Before a launch that will announce so many, and after one that will not.
void Expect(int64_t in_graphs);

}  // namespace causeway::guest::callback_words
