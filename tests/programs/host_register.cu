// SPDX-License-Identifier: Apache-2.0
// Ordinary memory registered in place: copies from and to it, its neighbours, and what comes back afterwards.
#include <vector>

#include "tests/programs/check.h"

__global__ void AddOne(int* values, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) values[i] += 1;
}

// Memory that malloc gave becomes pinned in place, and ordinary again; neighbours keep their bytes.
static void Registered(cudaStream_t stream, int* device) {
  const int count = 50000, guard = 100;
  std::vector<int> host(count + 2 * guard);
  for (size_t i = 0; i < host.size(); ++i) host[i] = int(i);
  CHECK(cudaHostRegister(host.data() + guard, count * sizeof(int), cudaHostRegisterDefault));
  for (size_t i = 0; i < host.size(); ++i) REQUIRE(host[i] == int(i));
  CHECK(cudaMemcpyAsync(device, host.data() + guard, count * sizeof(int), cudaMemcpyHostToDevice, stream));
  AddOne<<<(count + 255) / 256, 256, 0, stream>>>(device, count);
  CHECK(cudaMemcpyAsync(host.data() + guard, device, count * sizeof(int), cudaMemcpyDeviceToHost, stream));
  host[0] = -1;
  host[host.size() - 1] = -2;
  CHECK(cudaStreamSynchronize(stream));
  for (int i = 0; i < count; ++i) REQUIRE(host[guard + i] == guard + i + 1);
  REQUIRE(host[0] == -1 && host[host.size() - 1] == -2 && host[guard - 1] == guard - 1);
  cudaError_t again = cudaHostRegister(host.data() + guard, count * sizeof(int), cudaHostRegisterDefault);
  REQUIRE(again == cudaErrorHostMemoryAlreadyRegistered && cudaGetLastError() == again);
  CHECK(cudaHostUnregister(host.data() + guard));
  for (int i = 0; i < count; ++i) REQUIRE(host[guard + i] == guard + i + 1);
  std::printf("host_register: registered twice: %s\n", cudaGetErrorName(again));
}

int main() {
  int* device;
  cudaStream_t stream;
  CHECK(cudaMalloc(&device, (1 << 16) * sizeof(int)));
  CHECK(cudaStreamCreate(&stream));
  Registered(stream, device);
  CHECK(cudaStreamDestroy(stream));
  CHECK(cudaFree(device));
  return 0;
}
