// SPDX-License-Identifier: Apache-2.0
// A kernel that executes trap: cudaErrorLaunchFailure at every call afterwards.
#include "tests/programs/sticky.h"

__global__ void Fail(int* value) {
  if (threadIdx.x == 3 && value[0] == 0) asm volatile("trap;");
}

int main() {
  int* device;
  cudaStream_t stream;
  cudaEvent_t event;
  CHECK(cudaMalloc(&device, 4096));
  CHECK(cudaMemset(device, 0, 4096));
  CHECK(cudaStreamCreate(&stream));
  CHECK(cudaEventCreate(&event));
  CHECK(cudaDeviceSynchronize());
  Fail<<<1, 32, 0, stream>>>(device);
  CHECK(cudaGetLastError());  // the launch itself is right; the kernel fails later
  int differing = sticky::Report(cudaErrorLaunchFailure, device, stream, event);
  std::printf("device_trap: %d answers differ\n", differing);
  return differing == 0 ? 0 : 1;
}
