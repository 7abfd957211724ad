// SPDX-License-Identifier: Apache-2.0
// What the environment asks of the software GPU: its size, and how it shall misbehave. README.md documents
// it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/software_gpu/driver.h"

namespace causeway::software_gpu {

// One item of SOFTWARE_GPU_FAIL: call number `call` (from 1) of `function` answers `error`.
struct FailureRule {
  std::string function;
  uint64_t call = 0;
  int error = 0;
  std::atomic<uint64_t> calls_seen{0};
};

struct Config {
  int device_count = 1;
  std::vector<int> devices;  // which of the machine's they are
  size_t device_memory_bytes = size_t{8} << 30;
  size_t host_memory_bytes = 0;  // pinned and managed, all of it; 0 = no limit
  std::vector<std::unique_ptr<FailureRule>> failures;
  uint64_t lose_device_after_launches = 0;  // 0 = never
  uint64_t abort_at_launch = 0;             // 0 = never
  uint64_t call_delay_us = 0;
  uint64_t launch_delay_us = 0;
  uint64_t launch_turns = 0;         // 0 = no limit
  uint64_t start_ms = 0;             // of the first cuInit
  bool start_turns = false;          // processes start one after the other
  uint64_t checkpoint_delay_ms = 0;  // before each answer to another process
  uint64_t word_wait_ms = 0;         // of a stream for a word; 0 = no limit
  uint64_t link_mb_per_s = 0;        // 0 = as fast as memory is copied
  uint64_t map_at_gib = 0;           // 0 = nowhere
  uint64_t memory_at_gib = 0;        // 0 = anywhere
  bool outline_cubins = false;
  bool event_thread = false;
  bool strict_handles = false;
  bool work_in_calls = false;
  int misuse_file = -1;        // stderr
  std::string context_places;  // a file; empty = no limit
};

// Of the machine's device with that number.
CUuuid UuidOf(int device);

// Read once from the environment, at the first call.
const Config& GetConfig();

// The error that SOFTWARE_GPU_FAIL wants from this call of `function`, or 0.
int InjectedFailure(const char* function);

}  // namespace causeway::software_gpu
