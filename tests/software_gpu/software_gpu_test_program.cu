// SPDX-License-Identifier: Apache-2.0
// An ordinary runtime program that nvcc links with its static runtime, run directly on the software GPU.
#include <cstdio>
#include <vector>

__global__ void Add(const float* a, const float* b, float* c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

int main() {
  constexpr int kCount = 1000;
  std::vector<float> a(kCount), b(kCount), c(kCount);
  for (int i = 0; i < kCount; ++i) {
    a[i] = static_cast<float>(i);
    b[i] = 0.5f;
  }
  float *da = nullptr, *db = nullptr, *dc = nullptr;
  size_t bytes = kCount * sizeof(float);
  cudaMalloc(&da, bytes);
  cudaMalloc(&db, bytes);
  cudaMalloc(&dc, bytes);
  cudaMemcpy(da, a.data(), bytes, cudaMemcpyHostToDevice);
  cudaMemcpy(db, b.data(), bytes, cudaMemcpyHostToDevice);
  Add<<<(kCount + 127) / 128, 128>>>(da, db, dc, kCount);
  cudaMemcpy(c.data(), dc, bytes, cudaMemcpyDeviceToHost);
  cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) {
    std::printf("%s\n", cudaGetErrorString(error));
    return 1;
  }
  for (int i = 0; i < kCount; ++i) {
    if (c[i] != a[i] + b[i]) {
      std::printf("element %d is %f\n", i, c[i]);
      return 1;
    }
  }
  std::printf("all %d sums are right\n", kCount);
  return 0;
}
