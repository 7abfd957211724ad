// SPDX-License-Identifier: Apache-2.0
// The smallest whole program: copy in, one kernel, copy out.
#include <vector>

#include "tests/programs/check.h"

__global__ void Add(const float* a, const float* b, float* sum, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) sum[i] = a[i] + b[i];
}

int main() {
  const int count = 65543;  // not a multiple of the block
  const size_t bytes = count * sizeof(float);
  std::vector<float> a(count), b(count), sum(count), expected(count);
  uint32_t seed = 1;
  for (int i = 0; i < count; ++i) {
    a[i] = float(check::Next(seed)) * 1e-6f;
    b[i] = float(check::Next(seed)) * 1e-6f;
    expected[i] = a[i] + b[i];
  }
  float *device_a, *device_b, *device_sum;
  CHECK(cudaMalloc(&device_a, bytes));
  CHECK(cudaMalloc(&device_b, bytes));
  CHECK(cudaMalloc(&device_sum, bytes));
  CHECK(cudaMemcpy(device_a, a.data(), bytes, cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(device_b, b.data(), bytes, cudaMemcpyHostToDevice));
  Add<<<(count + 255) / 256, 256>>>(device_a, device_b, device_sum, count);
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpy(sum.data(), device_sum, bytes, cudaMemcpyDeviceToHost));
  check::Equal(sum.data(), expected.data(), count, "sum");
  CHECK(cudaFree(device_a));
  CHECK(cudaFree(device_b));
  CHECK(cudaFree(device_sum));
  std::printf("vector_add: %d sums equal, checksum %016llx\n", count,
              (unsigned long long)check::Checksum(sum.data(), bytes));
  return 0;
}
