// SPDX-License-Identifier: Apache-2.0
// Kernels that launch kernels: built with -rdc=true and NVIDIA's device runtime.
#include "tests/programs/check.h"

__global__ void Leaf(unsigned* sum, unsigned value) {
  atomicAdd(sum, value + threadIdx.x);
}

__global__ void Middle(unsigned* sum, unsigned value) {
  if (threadIdx.x == 0) Leaf<<<1, 4>>>(sum, value);
}

__global__ void Root(unsigned* sum) {
  Middle<<<1, 32>>>(sum, 100 * (threadIdx.x + 1));
}

int main() {
  unsigned* sum = nullptr;
  CHECK(cudaMalloc(&sum, sizeof *sum));
  CHECK(cudaMemset(sum, 0, sizeof *sum));
  Root<<<1, 3>>>(sum);
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
  unsigned value = 0;
  CHECK(cudaMemcpy(&value, sum, sizeof value, cudaMemcpyDeviceToHost));
  printf("three generations of kernels added up to %u\n", value);  // 4 * 600 + 3 * 6
  return value == 2418 ? 0 : 1;
}
