// SPDX-License-Identifier: Apache-2.0
// The functions that generated programs give to the driver: each counts up a counter, whose last value is an answer.
#pragma once
#include <atomic>
#include <cstdint>

#include "ivshmem_ring/protocol/driver_api.h"

namespace causeway::differential {

inline constexpr uint32_t kCounters = 4;
inline std::atomic<uint64_t> counters[kCounters];

inline void* CounterAddress(uint32_t number) {
  return &counters[number % kCounters];
}
// Null and foreign pointers are not counted: a program that passes one must not crash by it.
inline void CUDA_CB CountUp(void* counter) {
  for (auto& one : counters) {
    if (&one == counter) one.fetch_add(1);
  }
}
inline void CUDA_CB CountStream(CUstream, CUresult status, void* counter) {
  if (status == CUDA_SUCCESS) CountUp(counter);
}
// Destructors run at a time that nobody knows.
inline void CUDA_CB CountNothing(void*) {}
inline size_t CUDA_CB SharedBytes(int block) {
  return static_cast<size_t>(block) * 4;
}

}  // namespace causeway::differential
