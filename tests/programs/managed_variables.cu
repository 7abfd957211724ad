// SPDX-License-Identifier: Apache-2.0
// __managed__ variables: written by the host before a kernel, by the kernel, read after it, in turns.
#include "tests/programs/check.h"

__managed__ int counter = 3;
__managed__ int list[1000] = {5};
__managed__ double* pointer;
__device__ int ordinary = 4;

__global__ void Work(int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i == 0) counter += ordinary;
  if (i < n) list[i] += i;
  if (i == 1 && pointer != nullptr) *pointer = counter * 0.5;
}

int main() {
  printf("at first %d, %d\n", counter, list[0]);
  counter = 10;
  for (int i = 0; i < 1000; ++i) list[i] = 2 * i;
  CHECK(cudaMalloc(&pointer, sizeof *pointer));
  for (int round = 0; round < 3; ++round) {
    Work<<<4, 256>>>(1000);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    list[7] += 1000;  // beside what the next kernel changes
    printf("round %d: %d, %d, %d\n", round, counter, list[7], list[999]);
  }
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  list[8] = -1;
  Work<<<4, 256, 0, stream>>>(9);
  CHECK(cudaStreamSynchronize(stream));
  printf("on a stream: %d, %d, %d\n", counter, list[7], list[8]);
  int copied[3];
  list[0] = 77;
  CHECK(cudaMemcpy(copied, list, sizeof copied, cudaMemcpyDefault));
  printf("copied: %d, %d, %d\n", copied[0], copied[1], copied[2]);
  CHECK(cudaMemset(list, 0, 8));
  CHECK(cudaDeviceSynchronize());
  printf("after a fill: %d, %d, %d\n", list[0], list[1], list[2]);
  cudaPointerAttributes attributes;
  CHECK(cudaPointerGetAttributes(&attributes, list));
  printf("kind of memory: %d\n", static_cast<int>(attributes.type));
  CHECK(cudaFree(pointer));
  CHECK(cudaStreamDestroy(stream));
  return 0;
}
