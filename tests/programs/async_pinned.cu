// SPDX-License-Identifier: Apache-2.0
// Asynchronous copies and fills between pinned and device memory, and kernels that work on pinned memory in
// place.
#include "tests/programs/check.h"

__global__ void AddOne(int* values, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) values[i] += 1;
}

static void RoundTrips(cudaStream_t stream, int* in, int* out, int* device, int count) {
  const size_t bytes = count * sizeof(int);
  for (int round = 0; round < 5; ++round) {
    for (int i = 0; i < count; ++i) in[i] = i * 3 + round;
    CHECK(cudaMemcpyAsync(device, in, bytes, cudaMemcpyHostToDevice, stream));
    AddOne<<<(count + 255) / 256, 256, 0, stream>>>(device, count);
    CHECK(cudaGetLastError());
    // The last quarter is filled with bytes 0x11 behind the kernel.
    CHECK(cudaMemsetAsync(device + count / 4 * 3, 0x11, bytes / 4, stream));
    CHECK(cudaMemcpyAsync(out, device, bytes, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    for (int i = 0; i < count; ++i) REQUIRE(out[i] == (i < count / 4 * 3 ? in[i] + 1 : 0x11111111));
  }
}

// Zero copy: the kernel reads and writes the host's memory.
static void InPlace(cudaStream_t stream, int count) {
  int *host, *device;
  CHECK(cudaHostAlloc(&host, count * sizeof(int), cudaHostAllocMapped | cudaHostAllocPortable));
  CHECK(cudaHostGetDevicePointer(&device, host, 0));
  for (int i = 0; i < count; ++i) host[i] = -i;
  for (int round = 0; round < 3; ++round) AddOne<<<(count + 127) / 128, 128, 0, stream>>>(device, count);
  CHECK(cudaGetLastError());
  CHECK(cudaStreamSynchronize(stream));
  for (int i = 0; i < count; ++i) REQUIRE(host[i] == 3 - i);
  unsigned int flags = 0;
  CHECK(cudaHostGetFlags(&flags, host));
  REQUIRE((flags & cudaHostAllocMapped) != 0);
  CHECK(cudaFreeHost(host));
}

int main() {
  const int count = 1 << 16;
  int *in, *out, *device;
  cudaStream_t stream;
  CHECK(cudaMallocHost(&in, count * sizeof(int)));
  CHECK(cudaHostAlloc(&out, count * sizeof(int), cudaHostAllocDefault));
  CHECK(cudaMalloc(&device, count * sizeof(int)));
  CHECK(cudaStreamCreate(&stream));
  RoundTrips(stream, in, out, device, count);
  InPlace(stream, 10000);
  CHECK(cudaStreamDestroy(stream));
  std::printf("async_pinned: checksum %016llx\n",
              (unsigned long long)check::Checksum(out, count * sizeof(int)));
  CHECK(cudaFree(device));
  CHECK(cudaFreeHost(in));
  CHECK(cudaFreeHost(out));
  return 0;
}
