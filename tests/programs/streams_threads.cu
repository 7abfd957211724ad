// SPDX-License-Identifier: Apache-2.0
// Several host threads at once, each with its own stream, memory and module use, and work handed between
// threads.
#include <thread>
#include <vector>

#include "tests/programs/check.h"

constexpr int kThreads = 4, kRounds = 12, kCount = 4096;

__global__ void Scale(int* values, int count, int factor, int offset) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) values[i] = values[i] * factor + offset;
}

static void Work(int thread, unsigned long long* checksum) {
  cudaStream_t stream;
  int *device, *pinned;
  CHECK(cudaSetDevice(0));
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK(cudaMalloc(&device, kCount * sizeof(int)));
  CHECK(cudaMallocHost(&pinned, kCount * sizeof(int)));
  std::vector<int> expected(kCount);
  for (int i = 0; i < kCount; ++i) expected[i] = pinned[i] = i + thread * 1000;
  for (int round = 0; round < kRounds; ++round) {
    CHECK(cudaMemcpyAsync(device, pinned, kCount * sizeof(int), cudaMemcpyHostToDevice, stream));
    Scale<<<kCount / 256, 256, 0, stream>>>(device, kCount, 3, thread);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpyAsync(pinned, device, kCount * sizeof(int), cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    for (int& value : expected) value = int(unsigned(value) * 3u + unsigned(thread));
    check::Equal(pinned, expected.data(), kCount, "values of a thread");
  }
  // The last error belongs to one thread alone.
  if (thread == 0) REQUIRE(cudaSetDevice(9999) == cudaErrorInvalidDevice);
  if (thread != 0) REQUIRE(cudaPeekAtLastError() == cudaSuccess);
  *checksum = check::Checksum(pinned, kCount * sizeof(int));
  CHECK(cudaStreamDestroy(stream));
  CHECK(cudaFree(device));
  CHECK(cudaFreeHost(pinned));
}

// One thread posts work, another waits for it: a call that returned in the first is ordered before those of
// the second.
static void HandOver() {
  cudaStream_t first, second;
  cudaEvent_t event;
  int* device;
  CHECK(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
  CHECK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
  CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  CHECK(cudaMalloc(&device, kCount * sizeof(int)));
  for (int round = 0; round < 20; ++round) {
    std::thread producer([&] {
      CHECK(cudaMemsetAsync(device, 0, kCount * sizeof(int), first));
      for (int i = 0; i < 3; ++i) Scale<<<kCount / 256, 256, 0, first>>>(device, kCount, 2, 1);
      CHECK(cudaEventRecord(event, first));
    });
    producer.join();
    std::vector<int> result(kCount);
    std::thread consumer([&] {
      CHECK(cudaStreamWaitEvent(second, event, 0));
      Scale<<<kCount / 256, 256, 0, second>>>(device, kCount, 1, round);
      CHECK(cudaMemcpyAsync(result.data(), device, kCount * sizeof(int), cudaMemcpyDeviceToHost, second));
      CHECK(cudaStreamSynchronize(second));
    });
    consumer.join();
    for (int value : result) REQUIRE(value == 7 + round);
  }
  CHECK(cudaFree(device));
  CHECK(cudaEventDestroy(event));
  CHECK(cudaStreamDestroy(first));
  CHECK(cudaStreamDestroy(second));
}

int main() {
  unsigned long long checksums[kThreads] = {};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) threads.emplace_back(Work, thread, &checksums[thread]);
  for (std::thread& thread : threads) thread.join();
  HandOver();
  for (int thread = 0; thread < kThreads; ++thread) {
    std::printf("streams_threads: thread %d checksum %016llx\n", thread, checksums[thread]);
  }
  return 0;
}
