// SPDX-License-Identifier: Apache-2.0
// Variables of the device: written, read and located by symbol; constants; initial values; device functions
// by pointer.
#include "tests/programs/check.h"

struct Pair {
  int first;
  double second;
};

__device__ int g_counters[64];
__device__ Pair g_pair = {7, 2.5};
__device__ float g_initialised[4] = {1.0f, 2.0f, 3.0f, 4.0f};
__constant__ float c_weights[8];
__constant__ int c_table[3] = {10, 20, 30};

__device__ int Twice(int value) {
  return value * 2;
}
__device__ int Square(int value) {
  return value * value;
}
typedef int (*Operation)(int);
__device__ Operation g_operations[2] = {Twice, Square};

__global__ void Use(float* weighted, int* results) {
  int i = threadIdx.x;
  g_counters[i] += i * c_table[i % 3];
  if (i < 8) weighted[i] = c_weights[i] * g_initialised[i % 4];
  results[i] = g_operations[i % 2](i);
  if (i == 0) g_pair.second += g_pair.first;
}

int main() {
  float weights[8], weighted[8];
  int counters[64], results[64];
  for (int i = 0; i < 8; ++i) weights[i] = 0.5f * float(i + 1);
  for (int i = 0; i < 64; ++i) counters[i] = 1000 + i;
  CHECK(cudaMemcpyToSymbol(c_weights, weights, 4 * sizeof(float)));
  CHECK(cudaMemcpyToSymbol(c_weights, weights + 4, 4 * sizeof(float), 4 * sizeof(float)));
  CHECK(cudaMemcpyToSymbolAsync(g_counters, counters, sizeof(counters), 0, cudaMemcpyHostToDevice, 0));

  void* address = nullptr;
  size_t size = 0;
  CHECK(cudaGetSymbolSize(&size, g_counters));
  REQUIRE(size == sizeof(counters));
  CHECK(cudaGetSymbolSize(&size, c_weights));
  REQUIRE(size == sizeof(weights));
  CHECK(cudaGetSymbolAddress(&address, g_pair));
  REQUIRE(address != nullptr);
  Pair pair = {};
  CHECK(cudaMemcpy(&pair, address, sizeof(pair), cudaMemcpyDeviceToHost));
  REQUIRE(pair.first == 7 && pair.second == 2.5);
  pair.first = 40;
  CHECK(cudaMemcpy(address, &pair, sizeof(pair), cudaMemcpyHostToDevice));

  float* device_weighted;
  int* device_results;
  CHECK(cudaMalloc(&device_weighted, sizeof(weighted)));
  CHECK(cudaMalloc(&device_results, sizeof(results)));
  Use<<<1, 64>>>(device_weighted, device_results);
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpy(weighted, device_weighted, sizeof(weighted), cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpy(results, device_results, sizeof(results), cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpyFromSymbol(counters, g_counters, sizeof(counters)));
  CHECK(cudaMemcpyFromSymbol(&pair, g_pair, sizeof(pair)));
  const int table[3] = {10, 20, 30};
  for (int i = 0; i < 64; ++i) {
    REQUIRE(counters[i] == 1000 + i + i * table[i % 3]);
    REQUIRE(results[i] == (i % 2 == 0 ? i * 2 : i * i));
  }
  for (int i = 0; i < 8; ++i) REQUIRE(weighted[i] == weights[i] * float(i % 4 + 1));
  REQUIRE(pair.first == 40 && pair.second == 42.5);
  float tail[2];
  CHECK(cudaMemcpyFromSymbol(tail, c_weights, sizeof(tail), 6 * sizeof(float)));
  REQUIRE(tail[0] == 3.5f && tail[1] == 4.0f);
  cudaError_t past_end = cudaMemcpyToSymbol(c_weights, weights, sizeof(weights), 4);
  cudaError_t unknown = cudaGetSymbolAddress(&address, (const void*)&size);
  std::printf("symbols: past the end %s, unknown symbol %s\n", cudaGetErrorName(past_end),
              cudaGetErrorName(unknown));
  REQUIRE(past_end == cudaErrorInvalidValue && unknown == cudaErrorInvalidSymbol);
  CHECK(cudaFree(device_weighted));
  CHECK(cudaFree(device_results));
  std::printf("symbols: counter 63 is %d, weighted 7 is %.2f, pair is %d %.1f\n", counters[63], weighted[7],
              pair.first, pair.second);
  return 0;
}
