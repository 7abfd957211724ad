// SPDX-License-Identifier: Apache-2.0
// Kernels of sharing_facts. Each ends by itself: a loop that is meant to take time also looks at the clock of the GPU, so that
// no mistake of the program around it can leave the GPU busy.
#include <cassert>
#include <cstdint>

namespace {

__device__ uint64_t Nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__device__ __noinline__ int Descend(int depth, volatile int* sink) {
  int frame[64];
  for (int i = 0; i < 64; ++i) frame[i] = depth + i + sink[0];
  if (depth > 1000000) return frame[depth & 63];
  return Descend(depth + 1, sink) + frame[(depth * 7) & 63];
}

}  // namespace

// A fixed amount of arithmetic, so that its duration is time on the GPU and not time on the clock: a context that is switched
// away in the middle takes longer by the clock and does no more. Ends early after `bound_ns` by the clock.
extern "C" __global__ void Work(uint32_t rounds, uint64_t bound_ns, uint32_t* sink) {
  const uint64_t begin = Nanoseconds();
  uint32_t value = threadIdx.x + 1;
  for (uint32_t round = 0; round < rounds; ++round) {
#pragma unroll 1
    for (int i = 0; i < 64; ++i) value = value * 1664525u + 1013904223u;
    if (Nanoseconds() - begin > bound_ns) break;
  }
  if (value == 0) *sink = value;
}

extern "C" __global__ void Count(uint32_t* counter) {
  if (threadIdx.x == 0 && blockIdx.x == 0) atomicAdd(counter, 1u);
}

// The six ways to end a context that a guest has. Each takes a nonsense value from memory, so that no compiler sees through it.
extern "C" __global__ void BadAddress(uint32_t* sink) {
  *reinterpret_cast<uint32_t*>(uintptr_t{sink[0]} + 16) = 1;
}
extern "C" __global__ void Trap(uint32_t*) {
  asm volatile("trap;");
}
extern "C" __global__ void Assert(uint32_t* sink) {
  assert(sink[0] == 0x7fffffff);
}
extern "C" __global__ void Misaligned(uint32_t* sink) {
  *reinterpret_cast<volatile uint32_t*>(reinterpret_cast<uintptr_t>(sink) + 1 + sink[0]) = 1;
}
extern "C" __global__ void SharedOverflow(uint32_t* sink) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(0x00f00000u + sink[0]), "r"(1u) : "memory");
}
extern "C" __global__ void Stack(uint32_t* sink) {
  sink[1] = Descend(static_cast<int>(sink[0]), reinterpret_cast<volatile int*>(sink));
}
