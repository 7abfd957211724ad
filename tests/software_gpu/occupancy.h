// SPDX-License-Identifier: Apache-2.0
// How many blocks of a kernel fit on the device, for the occupancy calls and cooperative launches.
#pragma once

#include "tests/software_gpu/module.h"

namespace causeway::software_gpu {

inline constexpr int kMultiprocessors = 132;
inline constexpr int kMaxThreadsPerBlock = 1024;

// Blocks of `block_threads` threads that one multiprocessor holds; 0 when not even one fits.
int BlocksPerMultiprocessor(const Function& function, int block_threads, size_t dynamic_shared_bytes);

}  // namespace causeway::software_gpu
