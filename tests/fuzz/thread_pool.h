// SPDX-License-Identifier: Apache-2.0
// Threads that are kept from one input to the next: starting and ending three of them took longer than most
// inputs do. Where thread_pool.cc is linked, every std::thread of the process, the software GPU's included,
// is one of these. Joining and detaching mean what they always do; thread_local objects outlive their
// std::thread.
#pragma once

namespace causeway::fuzz {

// Runs on a pooled thread before what a std::thread was made for: makes as new what a thread keeps. Null:
// nothing.
void SetThreadBegins(void (*begins)());

}  // namespace causeway::fuzz
