// SPDX-License-Identifier: Apache-2.0
// Starts threads of this library inside the program.
#pragma once

namespace causeway::guest {

// Keeps this library loaded until the process ends, also when the program closes it (dlclose). A thread of the library needs that, because
// it goes on running the library's code.
void StayLoaded();

// Starts a detached thread that runs main(argument); a forked child has none of these threads. The result is
// 0, or the errno that says why it could not be started. The thread blocks all signals but those that it
// causes itself, such as a fault in memory that the program watches. With `all_signals` it blocks what the
// calling thread blocks, because it will run functions of the program.
int StartOwnThread(void* (*main)(void*), bool all_signals, void* argument = nullptr);

}  // namespace causeway::guest
