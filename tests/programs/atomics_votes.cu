// SPDX-License-Identifier: Apache-2.0
// Every kind of atomic on 32 and 64 bits, locks by compare-and-swap, votes and matches inside warps,
// recursion.
#include <vector>

#include "tests/programs/check.h"

constexpr int kThreads = 256, kBlocks = 4, kTotal = kThreads * kBlocks;

struct Words {
  unsigned int add, sub, low, high, all_and, all_or, all_xor, increments, decrements, swaps, lock, guarded;
  unsigned long long add64, max64, or64, swapped_sum;
  int signed_min;
  float guarded_sum;
};

__global__ void Atomics(Words* words) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(&words->add, i);
  atomicSub(&words->sub, 1);
  atomicMin(&words->low, 5000 - i);
  atomicMax(&words->high, i * 3);
  atomicAnd(&words->all_and, ~(1u << (i % 20)));
  atomicOr(&words->all_or, 1u << (i % 24));
  atomicXor(&words->all_xor, i * 2654435761u);
  atomicInc(&words->increments, 100);
  atomicDec(&words->decrements, 100);
  atomicMin(&words->signed_min, 10 - int(i));
  atomicAdd(&words->add64, 0x100000000ull + i);
  atomicMax(&words->max64, (unsigned long long)i << 33);
  atomicOr(&words->or64, 1ull << (i % 64));
  // What is swapped out, and what stays, together hold every number once.
  atomicAdd(&words->swapped_sum, (unsigned long long)atomicExch(&words->swaps, i + 1));
  // One thread of each warp takes a lock, so no thread waits for one of its own warp.
  if (threadIdx.x % 32 == 0) {
    while (atomicCAS(&words->lock, 0u, 1u) != 0) {
    }
    __threadfence();
    words->guarded += 1;
    *(volatile float*)&words->guarded_sum += 0.5f;
    __threadfence();
    atomicExch(&words->lock, 0u);
  }
}

__device__ __noinline__ unsigned Fibonacci(unsigned n) {
  return n < 2 ? n : Fibonacci(n - 1) + Fibonacci(n - 2);
}

__global__ void Votes(unsigned* out) {
  unsigned lane = threadIdx.x;
  unsigned ballot = __ballot_sync(0xffffffffu, lane % 3 == 0);
  unsigned any = __any_sync(0xffffffffu, lane == 31), all = __all_sync(0xffffffffu, lane < 32);
  unsigned matched = __match_any_sync(0xffffffffu, lane / 5);
  int same = 0;
  __match_all_sync(0xffffffffu, 7, &same);
  unsigned rotated = __shfl_sync(0xffffffffu, lane * 10, (lane + 1) % 32);
  unsigned upward = __shfl_up_sync(0xffffffffu, lane, 3, 8);
  unsigned both = __syncthreads_count(lane % 2), either = __syncthreads_or(lane == 9);
  if (lane % 2 == 0) rotated += __ballot_sync(0x55555555u, lane > 15);
  out[lane * 4] = ballot ^ matched;
  out[lane * 4 + 1] = any + 2 * all + 4 * same + 8 * both + 512 * (either != 0);
  out[lane * 4 + 2] = rotated;
  out[lane * 4 + 3] = upward + 1000 * Fibonacci(lane % 9);
}

static void CompareAtomics(const Words& words) {
  unsigned sum = 0, all_xor = 0;
  for (unsigned i = 0; i < kTotal; ++i) {
    sum += i;
    all_xor ^= i * 2654435761u;
  }
  REQUIRE(words.add == sum && words.sub == 0u - kTotal);
  REQUIRE(words.low == 5000 - (kTotal - 1) && words.high == (kTotal - 1) * 3);
  REQUIRE(words.all_and == 0xfff00000u && words.all_or == 0x00ffffffu && words.all_xor == all_xor);
  REQUIRE(words.increments == kTotal % 101 && words.decrements == (101 - kTotal % 101) % 101);
  REQUIRE(words.signed_min == 10 - (kTotal - 1));
  REQUIRE(words.add64 == 0x100000000ull * kTotal + sum && words.max64 == (unsigned long long)(kTotal - 1)
                                                                             << 33);
  REQUIRE(words.or64 == ~0ull && words.swapped_sum + words.swaps == sum + kTotal);
  REQUIRE(words.lock == 0 && words.guarded == kTotal / 32 && words.guarded_sum == 0.5f * kTotal / 32);
}

static void CompareVotes(const unsigned* out) {
  const unsigned fibonacci[9] = {0, 1, 1, 2, 3, 5, 8, 13, 21};
  for (unsigned lane = 0; lane < 32; ++lane) {
    unsigned ballot = 0, matched = 0, even_high = 0;
    for (unsigned other = 0; other < 32; ++other) {
      ballot |= unsigned(other % 3 == 0) << other;
      matched |= unsigned(other / 5 == lane / 5) << other;
      even_high |= unsigned(other % 2 == 0 && other > 15) << other;
    }
    REQUIRE(out[lane * 4] == (ballot ^ matched));
    REQUIRE(out[lane * 4 + 1] == 1 + 2 + 4 + 8 * 16 + 512);
    REQUIRE(out[lane * 4 + 2] == (lane + 1) % 32 * 10 + (lane % 2 == 0 ? even_high : 0));
    REQUIRE(out[lane * 4 + 3] == (lane % 8 < 3 ? lane : lane - 3) + 1000 * fibonacci[lane % 9]);
  }
}

int main() {
  Words words = {}, *device_words;
  words.low = 0xffffffffu;
  words.all_and = 0xffffffffu;
  words.signed_min = 0x7fffffff;
  unsigned out[128], *device_out;
  CHECK(cudaMalloc(&device_words, sizeof(words)));
  CHECK(cudaMalloc(&device_out, sizeof(out)));
  CHECK(cudaMemcpy(device_words, &words, sizeof(words), cudaMemcpyHostToDevice));
  Atomics<<<kBlocks, kThreads>>>(device_words);
  Votes<<<1, 32>>>(device_out);
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpy(&words, device_words, sizeof(words), cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpy(out, device_out, sizeof(out), cudaMemcpyDeviceToHost));
  CompareAtomics(words);
  CompareVotes(out);
  CHECK(cudaFree(device_words));
  CHECK(cudaFree(device_out));
  std::printf("atomics_votes: equal, xor %08x, guarded %u\n", words.all_xor, words.guarded);
  return 0;
}
