// SPDX-License-Identifier: Apache-2.0
// printf in kernels: every kind of argument, many lines, order among launches, and host lines in between.
#include <vector>

#include "tests/programs/check.h"

__global__ void Formats(const char* text) {
  printf("int %d %5d %-5d| %05d %+d %u %x %#x %o\n", -42, 7, 7, 42, 42, 3000000000u, 255, 255, 8);
  printf("long %lld %llu %llx\n", -1234567890123ll, 12345678901234ull, 0xfeedface12345678ull);
  printf("real %f %.3f %e %.2e %g %g\n", 1.5, 3.14159265, 12345.678, 0.00012345, 1e-7, 1e20);
  printf("text %s|%8s|%-8s|%c%%\n", text, "right", "left", 'z');
  printf("no arguments\n");
  printf("many %d %d %d %d %d %d %d %d %d %d\n", 0, 1, 2, 3, 4, 5, 6, 7, 8, 9);
}

__global__ void Lines(int launch, int count) {
  for (int line = 0; line < count; ++line) printf("launch %d line %d half %.1f\n", launch, line, 0.5 * line);
}

// One thread of each warp prints in turn, so the order does not depend on the device.
__global__ void Ordered(int* result) {
  for (int turn = 0; turn < (int)blockDim.x; turn += 32) {
    if ((int)threadIdx.x == turn)
      result[turn / 32] = printf("thread %d of %d\n", (int)threadIdx.x, (int)blockDim.x);
    __syncthreads();
  }
}

int main() {
  char* text;
  CHECK(cudaMalloc(&text, 16));
  CHECK(cudaMemcpy(text, "from memory", 12, cudaMemcpyHostToDevice));
  std::printf("host before\n");
  Formats<<<1, 1>>>(text);
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
  std::printf("host between\n");
  for (int launch = 0; launch < 3; ++launch) Lines<<<1, 1>>>(launch, 15);
  CHECK(cudaDeviceSynchronize());
  int* device_result;
  int result[3];
  CHECK(cudaMalloc(&device_result, sizeof(result)));
  Ordered<<<1, 96>>>(device_result);
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaMemcpy(result, device_result, sizeof(result), cudaMemcpyDeviceToHost));
  // Device printf returns the number of arguments, unlike the host's.
  for (int value : result) REQUIRE(value == 2);
  size_t fifo_bytes = 0;
  CHECK(cudaDeviceGetLimit(&fifo_bytes, cudaLimitPrintfFifoSize));
  REQUIRE(fifo_bytes >= 64 * 1024);
  // A blocking copy brings it too, also one that is made in many pieces.
  std::vector<char> large(5 << 20, 1);
  char* device_large;
  CHECK(cudaMalloc(&device_large, large.size()));
  Lines<<<1, 1>>>(3, 200);
  CHECK(cudaMemcpy(device_large, large.data(), large.size(), cudaMemcpyHostToDevice));
  std::printf("host after a copy to the device\n");
  Lines<<<1, 1>>>(4, 200);
  CHECK(cudaMemcpy(large.data(), device_large, large.size(), cudaMemcpyDeviceToHost));
  std::printf("host after a copy to the host\n");
  CHECK(cudaFree(device_large));
  CHECK(cudaFree(text));
  CHECK(cudaFree(device_result));
  std::printf("device_printf: done\n");
  return 0;
}
