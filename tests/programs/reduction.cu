// SPDX-License-Identifier: Apache-2.0
// Sum, maximum and vote over many numbers: warp shuffles, shared memory, global atomics of several types.
#include <algorithm>
#include <vector>

#include "tests/programs/check.h"

struct Totals {
  unsigned long long sum;
  int maximum;
  unsigned int odd_count;
  double real_sum;
  float xor_shuffle_sum;
  int pad;
};

__global__ void Reduce(const int* values, int count, Totals* totals) {
  __shared__ long long warp_sums[32];
  long long sum = 0;
  int maximum = -2147483647 - 1;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    sum += values[i];
    maximum = max(maximum, values[i]);
    unsigned votes = __ballot_sync(__activemask(), values[i] & 1);
    // The lowest voter of a group that runs together adds the group's votes once.
    if ((votes & ((1u << (threadIdx.x & 31)) - 1)) == 0 && (values[i] & 1)) {
      atomicAdd(&totals->odd_count, __popc(votes));
    }
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    sum += __shfl_down_sync(0xffffffffu, sum, distance);
    maximum = max(maximum, __shfl_xor_sync(0xffffffffu, maximum, distance));
  }
  int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  if (lane == 0) {
    warp_sums[warp] = sum;
    atomicMax(&totals->maximum, maximum);
  }
  __syncthreads();
  if (warp == 0) {
    sum = lane < (int)blockDim.x / 32 ? warp_sums[lane] : 0;
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_down_sync(0xffffffffu, sum, distance);
    if (lane == 0) {
      atomicAdd(&totals->sum, (unsigned long long)sum);
      atomicAdd(&totals->real_sum, (double)sum);
      atomicAdd(&totals->xor_shuffle_sum, 1.0f);
    }
  }
}

int main() {
  const int count = 100003, blocks = 24, threads = 128;
  std::vector<int> values(count);
  uint32_t seed = 3;
  Totals expected = {0, INT32_MIN, 0, 0.0, float(blocks), 0};
  long long sum = 0;
  for (int& value : values) {
    value = int(check::Next(seed) % 2000001) - 1000000;
    sum += value;
    expected.maximum = std::max(expected.maximum, value);
    expected.odd_count += value & 1;
  }
  expected.sum = (unsigned long long)sum;
  expected.real_sum = double(sum);
  int* device_values;
  Totals* device_totals;
  Totals totals = {0, INT32_MIN, 0, 0.0, 0.0f, 0};
  CHECK(cudaMalloc(&device_values, count * sizeof(int)));
  CHECK(cudaMalloc(&device_totals, sizeof(Totals)));
  CHECK(cudaMemcpy(device_values, values.data(), count * sizeof(int), cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(device_totals, &totals, sizeof(totals), cudaMemcpyHostToDevice));
  Reduce<<<blocks, threads>>>(device_values, count, device_totals);
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpy(&totals, device_totals, sizeof(totals), cudaMemcpyDeviceToHost));
  REQUIRE(totals.sum == expected.sum);
  REQUIRE(totals.maximum == expected.maximum);
  REQUIRE(totals.odd_count == expected.odd_count);
  REQUIRE(totals.real_sum == expected.real_sum);
  REQUIRE(totals.xor_shuffle_sum == expected.xor_shuffle_sum);
  CHECK(cudaFree(device_values));
  CHECK(cudaFree(device_totals));
  std::printf("reduction: sum %lld, maximum %d, odd %u, blocks %.0f\n", (long long)totals.sum, totals.maximum,
              totals.odd_count, totals.xor_shuffle_sum);
  return 0;
}
