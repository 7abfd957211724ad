// SPDX-License-Identifier: Apache-2.0
// Divides system calls on much memory, which cost the kernel time for each page, among several threads. None
// of them may fault in that memory, because the thread that serves such faults may be one of them.
#pragma once
#include <algorithm>
#include <cstdint>

#include "guest_lib/process/copy_threads.h"

namespace causeway::guest {

// As long as is worth a thread where the kernel changes pages' entries.
inline constexpr uint64_t kPartBytes = 512u << 10;

// Calls work(at, bytes) for parts of [0, bytes), `part_bytes` long but for the last, in this thread and in so
// few others that the program keeps processors. It returns when all parts are done.
template <class Work>
void InParts(uint64_t bytes, uint64_t part_bytes, const Work& work) {
  if (bytes <= part_bytes) return work(0, bytes);
  struct Job {
    uint64_t bytes, part_bytes;
    const Work& work;
  } job{bytes, part_bytes, work};
  const auto one = [](void* argument, uint32_t index) {
    const Job& all = *static_cast<Job*>(argument);
    const uint64_t at = index * all.part_bytes;
    all.work(at, std::min(all.part_bytes, all.bytes - at));
  };
  RunInParallel(static_cast<uint32_t>((bytes + part_bytes - 1) / part_bytes), one, &job,
                PipelineThreadCount() - 1);
}

}  // namespace causeway::guest
