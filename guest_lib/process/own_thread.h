// SPDX-License-Identifier: Apache-2.0
// Threads of this library inside the program.
#pragma once

namespace causeway::guest {

// Starts a thread that runs until the process is gone; a forked child has none. 0, or why it could not be
// started (errno). The program's signals go to its own threads, but for what a thread does to itself (a fault
// in memory that the program watches): `all_signals` is for threads that run functions of the program.
int StartOwnThread(void* (*main)(void*), bool all_signals, void* argument = nullptr);

}  // namespace causeway::guest
