// SPDX-License-Identifier: Apache-2.0
// Starts threads of this library inside the program.
#pragma once

namespace causeway::guest {

// Starts a thread that runs until the process is gone; a forked child has none. The result is 0, or the errno
// that says why it could not be started. The thread blocks the program's signals, but for those that a thread
// causes itself (a fault in memory that the program watches). With `all_signals` it keeps those of the
// calling thread, for threads that run functions of the program.
int StartOwnThread(void* (*main)(void*), bool all_signals, void* argument = nullptr);

}  // namespace causeway::guest
