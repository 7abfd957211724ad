// SPDX-License-Identifier: Apache-2.0
// Runs work that exchanges the pages of a stack while nobody uses that stack.
#pragma once
#include <cstdint>

namespace causeway::guest {

// Runs `work` to its end on a stack outside of [begin, end). If the caller's stack lies inside, that is the
// stack of a helper thread, and from the work's begin to its end the caller writes neither to its own stack
// nor to its thread-local variables, and takes no signals. False: no thread could be made, and nothing was
// done. One call at a time: callers hold Lock::kRegistrations.
bool AwayFrom(uint64_t begin, uint64_t end, void (*work)(void*), void* argument);

}  // namespace causeway::guest
