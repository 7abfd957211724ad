// SPDX-License-Identifier: Apache-2.0
// Dynamic shared memory: sizes chosen at launch, and more than 48 KiB after opting in.
#include <vector>

#include "tests/programs/check.h"

__global__ void Reverse(const int* from, int* to, int count) {
  extern __shared__ int buffer[];
  for (int i = threadIdx.x; i < count; i += blockDim.x) buffer[i] = from[i];
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += blockDim.x) to[i] = buffer[count - 1 - i];
}

__global__ void SharedSize(unsigned int* sizes) {
  unsigned int dynamic_bytes, total_bytes;
  asm volatile("mov.u32 %0, %%dynamic_smem_size;" : "=r"(dynamic_bytes));
  asm volatile("mov.u32 %0, %%total_smem_size;" : "=r"(total_bytes));
  sizes[0] = dynamic_bytes;
  sizes[1] = total_bytes >= dynamic_bytes;
}

int main() {
  const int largest = 15 * 1024;  // 60 KiB of ints
  std::vector<int> values(largest), result(largest);
  for (int i = 0; i < largest; ++i) values[i] = i * 7 + 1;
  int *from, *to;
  unsigned int *device_sizes, sizes[2];
  CHECK(cudaMalloc(&from, largest * sizeof(int)));
  CHECK(cudaMalloc(&to, largest * sizeof(int)));
  CHECK(cudaMalloc(&device_sizes, sizeof(sizes)));
  CHECK(cudaMemcpy(from, values.data(), largest * sizeof(int), cudaMemcpyHostToDevice));
  Reverse<<<1, 256, largest * sizeof(int)>>>(from, to, largest);
  cudaError_t refused = cudaGetLastError();
  REQUIRE(refused == cudaErrorInvalidValue);
  CHECK(cudaFuncSetAttribute(Reverse, cudaFuncAttributeMaxDynamicSharedMemorySize, largest * sizeof(int)));
  cudaFuncAttributes attributes;
  CHECK(cudaFuncGetAttributes(&attributes, Reverse));
  REQUIRE(attributes.maxDynamicSharedSizeBytes == int(largest * sizeof(int)));
  const int counts[] = {1, 333, 12 * 1024, largest};
  for (int count : counts) {
    CHECK(cudaMemset(to, 0, largest * sizeof(int)));
    Reverse<<<1, 256, count * sizeof(int)>>>(from, to, count);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(result.data(), to, largest * sizeof(int), cudaMemcpyDeviceToHost));
    for (int i = 0; i < largest; ++i) REQUIRE(result[i] == (i < count ? values[count - 1 - i] : 0));
  }
  SharedSize<<<1, 1, 4096>>>(device_sizes);
  CHECK(cudaMemcpy(sizes, device_sizes, sizeof(sizes), cudaMemcpyDeviceToHost));
  REQUIRE(sizes[0] == 4096 && sizes[1] == 1);
  cudaError_t beyond = cudaFuncSetAttribute(Reverse, cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 24);
  REQUIRE(cudaGetLastError() == beyond && beyond == cudaErrorInvalidValue);
  CHECK(cudaFree(from));
  CHECK(cudaFree(to));
  CHECK(cudaFree(device_sizes));
  std::printf("dynamic_shared: without opting in %s, 16 MiB %s, first of the largest %d\n",
              cudaGetErrorName(refused), cudaGetErrorName(beyond), result[0]);
  return 0;
}
