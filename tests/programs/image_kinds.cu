// SPDX-License-Identifier: Apache-2.0
// One program, built into every kind of image that nvcc makes: PTX or SASS alone, stored or compressed, of
// one file or of two that are linked on the device (-DTWO_FILES with image_kinds_part.cu), by this toolkit
// and by older ones. Whatever is inside, it prints the same. C++14, for the oldest of them.
#include <cstdio>
#include <cstdlib>

__constant__ int offset = 3;
__device__ unsigned blocks_run;
__device__ int table[4] = {1, 10, 100, 1000};

#ifdef TWO_FILES
extern __device__ int Scaled(int value);  // image_kinds_part.cu
extern __device__ int scale;
#else
__device__ int scale = 2;
__device__ int Scaled(int value) {
  return value * scale;
}
#endif

struct Point {
  int x, y;
};

template <int kFactor>
__global__ void Fill(int* to, int count, Point point) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (threadIdx.x == 0) atomicAdd(&blocks_run, 1u);
  if (i < count) to[i] = Scaled(i) * kFactor + offset + table[i % 4] + point.x - point.y;
}

#define CHECK(call)                                                                          \
  do {                                                                                       \
    const cudaError_t result = call;                                                         \
    if (result != cudaSuccess) {                                                             \
      std::printf("%s: %d %s\n", #call, static_cast<int>(result), cudaGetErrorName(result)); \
      std::exit(1);                                                                          \
    }                                                                                        \
  } while (0)

int main() {
  constexpr int kCount = 1000;
  static int host[kCount];
  int* device = nullptr;
  CHECK(cudaMalloc(&device, sizeof host));
  const int new_offset = 5, new_scale = 4;
  CHECK(cudaMemcpyToSymbol(offset, &new_offset, sizeof new_offset));
  CHECK(cudaMemcpyToSymbol(scale, &new_scale, sizeof new_scale));
  Fill<7><<<8, 128>>>(device, kCount, {9, 2});
  CHECK(cudaGetLastError());
  Fill<7><<<8, 128>>>(device, kCount, {9, 2});
  CHECK(cudaMemcpy(host, device, sizeof host, cudaMemcpyDeviceToHost));
  const int powers[] = {1, 10, 100, 1000};
  long sum = 0;
  for (int i = 0; i < kCount; ++i) {
    const int expected = i * 4 * 7 + 5 + powers[i % 4] + 7;
    if (host[i] != expected) {
      std::printf("%d: %d instead of %d\n", i, host[i], expected);
      return 1;
    }
    sum += host[i];
  }
  unsigned blocks = 0;
  CHECK(cudaMemcpyFromSymbol(&blocks, blocks_run, sizeof blocks));
  void* address = nullptr;
  size_t bytes = 0;
  CHECK(cudaGetSymbolAddress(&address, table));
  CHECK(cudaGetSymbolSize(&bytes, table));
  cudaFuncAttributes attributes;
  CHECK(cudaFuncGetAttributes(&attributes, Fill<7>));
  Fill<7><<<1, 2048>>>(device, kCount, {9, 2});
  const cudaError_t refused = cudaGetLastError();
  CHECK(cudaDeviceSynchronize());
  std::printf("sum %ld, %u blocks, table of %zu bytes %s, %d threads at most, 2048 threads: %d\n", sum,
              blocks, bytes, address != nullptr ? "found" : "lost", attributes.maxThreadsPerBlock,
              static_cast<int>(refused));
  CHECK(cudaFree(device));
  return 0;
}
