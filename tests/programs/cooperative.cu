// SPDX-License-Identifier: Apache-2.0
// Cooperative launch: all blocks meet at grid barriers; groups of threads by tiles.
#include <cooperative_groups.h>

#include <vector>

#include "tests/programs/check.h"

namespace groups = cooperative_groups;

// Prefix sums by doubling: each pass reads what every other block wrote in the pass before.
__global__ void PrefixSum(int* from, int* to, int count) {
  groups::grid_group grid = groups::this_grid();
  int i = int(grid.thread_rank());
  for (int distance = 1; distance < count; distance *= 2) {
    if (i < count) to[i] = from[i] + (i >= distance ? from[i - distance] : 0);
    grid.sync();
    int* swapped = from;
    from = to;
    to = swapped;
  }
}

__global__ void TileSums(const int* values, int* sums) {
  groups::thread_block block = groups::this_thread_block();
  groups::thread_block_tile<8> tile = groups::tiled_partition<8>(block);
  int i = block.group_index().x * block.num_threads() + block.thread_rank();
  int sum = values[i];
  for (int distance = 4; distance > 0; distance /= 2) sum += tile.shfl_down(sum, distance);
  if (tile.thread_rank() == 0) sums[i / 8] = sum;
}

int main() {
  int supported = 0;
  CHECK(cudaDeviceGetAttribute(&supported, cudaDevAttrCooperativeLaunch, 0));
  REQUIRE(supported == 1);
  const int threads = 128, blocks = 4, count = threads * blocks;
  std::vector<int> values(count), result(count), sums(count / 8);
  uint32_t seed = 6;
  for (int& value : values) value = int(check::Next(seed) % 100);
  int *from, *to, *device_sums;
  CHECK(cudaMalloc(&from, count * sizeof(int)));
  CHECK(cudaMalloc(&to, count * sizeof(int)));
  CHECK(cudaMalloc(&device_sums, count / 8 * sizeof(int)));
  CHECK(cudaMemcpy(from, values.data(), count * sizeof(int), cudaMemcpyHostToDevice));
  TileSums<<<blocks, threads>>>(from, device_sums);
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpy(sums.data(), device_sums, count / 8 * sizeof(int), cudaMemcpyDeviceToHost));
  int size = count;
  void* arguments[] = {&from, &to, &size};
  CHECK(cudaLaunchCooperativeKernel(PrefixSum, dim3(blocks), dim3(threads), arguments, 0, nullptr));
  CHECK(cudaDeviceSynchronize());
  // Nine passes (512 = 2^9): the last one wrote to the second array.
  CHECK(cudaMemcpy(result.data(), to, count * sizeof(int), cudaMemcpyDeviceToHost));
  int running = 0;
  for (int i = 0; i < count; ++i) {
    running += values[i];
    REQUIRE(result[i] == running);
  }
  for (int tile = 0; tile < count / 8; ++tile) {
    int sum = 0;
    for (int i = 0; i < 8; ++i) sum += values[tile * 8 + i];
    REQUIRE(sums[tile] == sum);
  }
  cudaError_t too_large =
      cudaLaunchCooperativeKernel(PrefixSum, dim3(1000000), dim3(1024), arguments, 0, nullptr);
  REQUIRE(cudaGetLastError() == too_large && too_large == cudaErrorCooperativeLaunchTooLarge);
  CHECK(cudaFree(from));
  CHECK(cudaFree(to));
  CHECK(cudaFree(device_sums));
  std::printf("cooperative: last prefix %d, too large answers %s\n", running, cudaGetErrorName(too_large));
  return 0;
}
