// SPDX-License-Identifier: Apache-2.0
// Byte histogram: atomics in shared memory, then one global atomic for each bin and block.
#include <vector>

#include "tests/programs/check.h"

constexpr int kBins = 256;

__global__ void Histogram(const unsigned char* data, int count, unsigned int* bins) {
  __shared__ unsigned int local[kBins];
  for (int bin = threadIdx.x; bin < kBins; bin += blockDim.x) local[bin] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    atomicAdd(&local[data[i]], 1u);
  }
  __syncthreads();
  for (int bin = threadIdx.x; bin < kBins; bin += blockDim.x) {
    if (local[bin] != 0) atomicAdd(&bins[bin], local[bin]);
  }
}

int main() {
  const int count = 131077;
  std::vector<unsigned char> data(count);
  std::vector<unsigned int> bins(kBins), expected(kBins);
  uint32_t seed = 4;
  for (unsigned char& byte : data) {
    uint32_t number = check::Next(seed);
    byte = (unsigned char)((number & 255) & (number >> 8));  // skewed, so that atomics collide
    ++expected[byte];
  }
  unsigned char* device_data;
  unsigned int* device_bins;
  CHECK(cudaMalloc(&device_data, count));
  CHECK(cudaMalloc(&device_bins, kBins * sizeof(unsigned int)));
  CHECK(cudaMemcpy(device_data, data.data(), count, cudaMemcpyHostToDevice));
  CHECK(cudaMemset(device_bins, 0, kBins * sizeof(unsigned int)));
  Histogram<<<12, 192>>>(device_data, count, device_bins);
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpy(bins.data(), device_bins, kBins * sizeof(unsigned int), cudaMemcpyDeviceToHost));
  check::Equal(bins.data(), expected.data(), kBins, "bin");
  CHECK(cudaFree(device_data));
  CHECK(cudaFree(device_bins));
  std::printf("histogram: %d bins equal, bin 0 has %u, bin 255 has %u\n", kBins, bins[0], bins[255]);
  return 0;
}
