// SPDX-License-Identifier: Apache-2.0
// A kernel whose assertion fails: cudaErrorAssert at every call afterwards, and the driver's line on stderr.
#undef NDEBUG
#include <cassert>

#include "tests/programs/sticky.h"

__global__ void Fail(int* value) {
  assert(threadIdx.x != 3 || value[0] == 1);
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
  int differing = sticky::Report(cudaErrorAssert, device, stream, event);
  std::printf("device_assert: %d answers differ\n", differing);
  return differing == 0 ? 0 : 1;
}
