// SPDX-License-Identifier: Apache-2.0
// Threads that work together: shuffles, votes, barriers, atomics, locks, cooperative groups, grid sync.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>

#include <cstdint>

namespace cg = cooperative_groups;

extern "C" {

__global__ void Shuffles(const int* in, int* out) {
  const int lane = threadIdx.x, x = in[lane];
  int k = 0;
  out[k++ * 32 + lane] = __shfl_sync(~0u, x, (lane * 7) & 31);
  out[k++ * 32 + lane] = __shfl_up_sync(~0u, x, 3);
  out[k++ * 32 + lane] = __shfl_down_sync(~0u, x, 5);
  out[k++ * 32 + lane] = __shfl_xor_sync(~0u, x, 9);
  out[k++ * 32 + lane] = __shfl_up_sync(~0u, x, 1, 8);
  out[k++ * 32 + lane] = __shfl_down_sync(~0u, x, 2, 4);
  out[k++ * 32 + lane] = __shfl_sync(~0u, x, 2, 16);
  out[k++ * 32 + lane] = int(__shfl_xor_sync(~0u, (long long)x << 33, 16) >> 33);
  if (lane % 2 == 0) {  // half a warp, in a branch
    out[k * 32 + lane] = __shfl_sync(0x55555555u, x, 30);
  } else {
    out[k * 32 + lane] = __shfl_sync(0xaaaaaaaau, x, 1);
  }
}

__global__ void Votes(const int* in, uint32_t* out) {
  const int lane = threadIdx.x, x = in[lane];
  int k = 0;
  out[k++ * 32 + lane] = __ballot_sync(~0u, x & 1);
  out[k++ * 32 + lane] = __any_sync(~0u, x == 5);
  out[k++ * 32 + lane] = __all_sync(~0u, x >= 0);
  out[k++ * 32 + lane] = __match_any_sync(~0u, x % 4);
  int all = 0;
  out[k++ * 32 + lane] = __match_all_sync(~0u, x / 1000, &all) + all;
  if (lane < 11) {
    out[k * 32 + lane] = __activemask();
  } else {
    out[k * 32 + lane] = __ballot_sync(~0u << 11, x & 2);
  }
  ++k;
  out[k++ * 32 + lane] = __syncthreads_count(x & 1);
  out[k++ * 32 + lane] = __syncthreads_and(x >= 0);
  out[k++ * 32 + lane] = __syncthreads_or(x == -1);
}

__global__ void WarpReduction(const int* in, int* out, int n) {
  __shared__ int sums[32];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  int x = i < n ? in[i] : 0;
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_down_sync(~0u, x, offset);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
  __syncthreads();
  if (threadIdx.x < 32) {
    x = threadIdx.x < blockDim.x / 32 ? sums[threadIdx.x] : 0;
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
    if (threadIdx.x == 0) atomicAdd(out, x);
  }
}

// A warp of fewer than 32 threads, and lanes that have exited.
__global__ void PartialWarp(int* out) {
  if (threadIdx.x == 3) return;
  int sum = 0;
  for (int bit = 0; bit < 5; ++bit) sum += __popc(__ballot_sync(~0u, threadIdx.x >> bit & 1)) << bit;
  out[threadIdx.x] = sum;
}

__global__ void Atomics(uint32_t* u, int* s, unsigned long long* l, float* f, double* d) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(u + 0, i);
  atomicSub(u + 1, 2);
  atomicMin(u + 2, i * 7919 % 1000);
  atomicMax(u + 3, i * 7919 % 1000);
  atomicAnd(u + 4, ~(1u << i % 32));
  atomicOr(u + 5, 1u << i % 32);
  atomicXor(u + 6, i);
  atomicInc(u + 7, 9);
  atomicDec(u + 8, 9);
  u[16 + i] = atomicExch(u + 9, i);
  atomicMin(s + 0, int(i) - 100);
  atomicMax(s + 1, 50 - int(i));
  atomicAdd(l + 0, 0x100000001ull * i);
  atomicMax(l + 1, 0x100000001ull * i);
  atomicCAS(l + 2, 0ull, i + 1ull);
  atomicAdd(f, 0.5f);
  atomicAdd(d, 0.25);
  __shared__ int histogram[8];
  if (threadIdx.x < 8) histogram[threadIdx.x] = 0;
  __syncthreads();
  atomicAdd(histogram + i % 8, 1);
  __syncthreads();
  if (threadIdx.x < 8) atomicAdd(s + 8 + threadIdx.x, histogram[threadIdx.x]);
}

// A spin lock that every thread takes: the holder must run while others of its warp spin.
__global__ void SpinLock(int* lock, int* counter) {
  bool done = false;
  while (!done) {
    if (atomicCAS(lock, 0, 1) == 0) {
      *(volatile int*)counter = *(volatile int*)counter + 1;
      __threadfence();
      atomicExch(lock, 0);
      done = true;
    }
  }
}

// Producer and consumer warps with named barriers.
__global__ void NamedBarriers(int* out) {
  __shared__ int slots[32];
  for (int round = 0; round < 5; ++round) {
    if (threadIdx.x < 32) {
      slots[threadIdx.x] = round * 100 + threadIdx.x;
      asm volatile("bar.arrive 1, 64;" ::: "memory");
      asm volatile("bar.sync 2, 64;" ::: "memory");
    } else {
      asm volatile("bar.sync 1, 64;" ::: "memory");
      out[round * 32 + threadIdx.x - 32] = slots[63 - threadIdx.x];
      asm volatile("bar.sync 2, 64;" ::: "memory");
    }
  }
}

__global__ void Groups(const int* in, int* out) {
  const auto block = cg::this_thread_block();
  const auto tile = cg::tiled_partition<8>(block);
  const int x = in[block.thread_rank()];
  out[block.thread_rank()] = cg::reduce(tile, x, cg::plus<int>());
  if (x % 3 == 0) {
    const auto active = cg::coalesced_threads();
    out[256 + block.thread_rank()] = active.size() * 100 + active.thread_rank();
  }
  block.sync();
  out[512 + block.thread_rank()] = tile.shfl(x, 3) + tile.meta_group_rank();
}

// Each round needs what every block wrote in the round before.
__global__ void GridSync(int* values, int rounds) {
  const auto grid = cg::this_grid();
  const unsigned int n = grid.size(), i = grid.thread_rank();
  for (int round = 0; round < rounds; ++round) {
    const int next = values[(i + 1) % n] + 1;
    grid.sync();
    values[i] = next;
    grid.sync();
  }
}

__global__ void OneWaits(int* out) {
  if (threadIdx.x < 40) __syncthreads();
  if (threadIdx.x == 50) asm volatile("bar.sync 3;");
  out[threadIdx.x] = 1;
}

}  // extern "C"
