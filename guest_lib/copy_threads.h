// SPDX-License-Identifier: Apache-2.0
// Threads that share the work of moving much memory: as many as this process has processors, eight at most,
// the caller included. They start at the first use, sleep between jobs, and take parts of all jobs under way
// in turns, so that no copy waits for another. A forked child starts its own.
//
// They block all signals but those of faults: memory may be protected to see who touches it.
#pragma once
#include <cstddef>
#include <cstdint>

namespace causeway::guest {

// How many threads work on one job, the caller included.
uint32_t CopyThreadCount();

// Runs work(argument, index) for every index below `count`, in the calling thread and the others; returns
// when all are done. `work` must not wait for another job.
void RunInParallel(uint32_t count, void (*work)(void* argument, uint32_t index), void* argument);

// memcpy, in parallel where that pays.
void CopyInParallel(void* to, const void* from, uint64_t bytes);

}  // namespace causeway::guest
