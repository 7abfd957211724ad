// SPDX-License-Identifier: Apache-2.0
// Compiled with --default-stream per-thread: the default stream of each host thread is its own and does not
// wait for the others, except through the legacy stream.
#include <atomic>
#include <thread>
#include <vector>

#include "tests/programs/check.h"

constexpr int kCount = 1024;

__global__ void Fill(int* values, int value) {
  values[blockIdx.x * blockDim.x + threadIdx.x] = value;
}

// Keeps its stream busy until the host writes the flag; the limit ends it should the host never do so.
__global__ void WaitForFlag(volatile int* flag, int limit) {
  for (int i = 0; i < limit && *flag == 0; ++i) {
  }
}

static void Work(int thread, int* sum) {
  int* device;
  std::vector<int> host(kCount);
  CHECK(cudaMalloc(&device, kCount * sizeof(int)));
  for (int round = 0; round < 10; ++round) {
    Fill<<<kCount / 256, 256>>>(device, thread * 100 + round);
    CHECK(cudaMemcpyAsync(host.data(), device, kCount * sizeof(int), cudaMemcpyDeviceToHost));
    CHECK(cudaStreamSynchronize(0));
    for (int value : host) REQUIRE(value == thread * 100 + round);
    *sum += host[kCount - 1];
  }
  CHECK(cudaFree(device));
}

int main() {
  int *flag, *device_flag;
  CHECK(cudaHostAlloc(&flag, sizeof(int), cudaHostAllocMapped));
  CHECK(cudaHostGetDevicePointer(&device_flag, flag, 0));
  *(volatile int*)flag = 0;
  int* device;
  CHECK(cudaMalloc(&device, kCount * sizeof(int)));
  // Loading a kernel at its first launch waits for the whole device, so that comes before the waiting one.
  Fill<<<kCount / 256, 256>>>(device, 1);
  CHECK(cudaStreamSynchronize(0));
  WaitForFlag<<<1, 1>>>(device_flag, 100000000);  // seconds, also where the device is quick
  REQUIRE(cudaStreamQuery(cudaStreamPerThread) == cudaErrorNotReady);
  REQUIRE(cudaStreamQuery(0) == cudaErrorNotReady);
  bool other_was_free = false;
  std::thread other([&] {
    Fill<<<kCount / 256, 256>>>(device, 9);
    CHECK(cudaStreamSynchronize(0));
    other_was_free = cudaStreamQuery(0) == cudaSuccess;
  });
  other.join();
  REQUIRE(other_was_free);
  // The other thread's stream has finished while this one still waits.
  REQUIRE(cudaStreamQuery(0) == cudaErrorNotReady);
  *(volatile int*)flag = 1;
  CHECK(cudaStreamSynchronize(0));
  int sums[3] = {};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) threads.emplace_back(Work, thread, &sums[thread]);
  for (std::thread& thread : threads) thread.join();
  CHECK(cudaFree(device));
  CHECK(cudaFreeHost(flag));
  std::printf("per_thread_stream: sums %d %d %d\n", sums[0], sums[1], sums[2]);
  return 0;
}
