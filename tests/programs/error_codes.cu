// SPDX-License-Identifier: Apache-2.0
// Which error appears at which call: launches, memory, handles, busy queries, and what GetLastError keeps or
// clears.
#include "tests/programs/check.h"

static int g_failures = 0;

// Prints what a call returned and what the runtime keeps as last error (cleared by reading it).
static void Expect(const char* what, cudaError_t got, cudaError_t wanted) {
  cudaError_t peeked = cudaPeekAtLastError();
  cudaError_t last = cudaGetLastError();
  cudaError_t cleared = cudaGetLastError();
  std::printf("%-34s %s (%d), peek %d, last %d, then %d\n", what, cudaGetErrorName(got), int(got),
              int(peeked), int(last), int(cleared));
  if (got == wanted && cleared == cudaSuccess) return;
  std::printf("  expected %s (%d)\n", cudaGetErrorName(wanted), int(wanted));
  ++g_failures;
}

__global__ void Nothing(int* value) {
  if (value != nullptr) *value = 1;
}

__global__ void Static48K(int* value) {
  __shared__ int data[48 * 256];
  data[threadIdx.x] = *value;
  __syncthreads();
  *value = data[blockDim.x - 1 - threadIdx.x];
}

// Keeps the GPU busy until the host writes the flag; the limit ends it should the host never do so.
__global__ void WaitForFlag(volatile int* flag, int limit) {
  for (int i = 0; i < limit && *flag == 0; ++i) {
  }
}

// Bad shapes are answered with one of two codes, depending on the versions of runtime and driver.
static void ExpectConfiguration(const char* what) {
  cudaError_t got = cudaPeekAtLastError();
  Expect(what, got, got == cudaErrorInvalidValue ? cudaErrorInvalidValue : cudaErrorInvalidConfiguration);
}

static void Launches(int* memory) {
  Nothing<<<1, 0>>>(memory);
  ExpectConfiguration("launch with block of 0");
  Nothing<<<0, 32>>>(memory);
  ExpectConfiguration("launch with grid of 0");
  Nothing<<<1, 2048>>>(memory);
  ExpectConfiguration("launch with block of 2048");
  Nothing<<<1, dim3(1, 1, 65)>>>(memory);
  ExpectConfiguration("launch with block depth of 65");
  Nothing<<<dim3(1, 65536, 1), 32>>>(memory);
  ExpectConfiguration("launch with grid height of 65536");
  Nothing<<<1, 32, 1 << 20>>>(memory);
  Expect("launch with 1 MiB of shared memory", cudaPeekAtLastError(), cudaErrorInvalidValue);
  Static48K<<<1, 32, 1024>>>(memory);
  Expect("launch with 49 KiB of shared memory", cudaPeekAtLastError(), cudaErrorInvalidValue);
  Nothing<<<1, 32>>>(memory);
  Expect("launch that is right", cudaPeekAtLastError(), cudaSuccess);
  void* arguments[] = {&memory};
  Expect("launch of no kernel", cudaLaunchKernel((const void*)nullptr, 1, 1, arguments, 0, 0),
         cudaErrorInvalidDeviceFunction);
}

static void Memory(char* memory, size_t bytes) {
  char host[64] = {};
  void* pointer = nullptr;
  Expect("malloc of far too much", cudaMalloc(&pointer, size_t(1) << 46), cudaErrorMemoryAllocation);
  Expect("malloc to null", cudaMalloc((void**)nullptr, 16), cudaErrorInvalidValue);
  Expect("malloc of 0 bytes", cudaMalloc(&pointer, 0), cudaSuccess);
  Expect("free of null", cudaFree(nullptr), cudaSuccess);
  Expect("malloc", cudaMalloc(&pointer, 4096), cudaSuccess);
  Expect("free", cudaFree(pointer), cudaSuccess);
  Expect("free again", cudaFree(pointer), cudaErrorInvalidValue);
  Expect("free of a host address", cudaFree(host), cudaErrorInvalidValue);
  Expect("free of the middle", cudaFree(memory + 256), cudaErrorInvalidValue);
  Expect("host free of a host array", cudaFreeHost(host), cudaErrorInvalidValue);
  Expect("copy in direction 77", cudaMemcpy(memory, host, 64, cudaMemcpyKind(77)),
         cudaErrorInvalidMemcpyDirection);
  Expect("copy to null", cudaMemcpy(nullptr, host, 64, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  Expect("copy of 0 bytes", cudaMemcpy(memory, host, 0, cudaMemcpyHostToDevice), cudaSuccess);
  Expect("copy past the end", cudaMemcpy(memory + bytes - 8, host, 64, cudaMemcpyHostToDevice),
         cudaErrorInvalidValue);
  Expect("device copy from the host", cudaMemcpy(host, host + 32, 8, cudaMemcpyDeviceToHost),
         cudaErrorInvalidValue);
  Expect("memset of a host address", cudaMemset(host, 0, 64), cudaErrorInvalidValue);
  Expect("memset past the end", cudaMemset(memory, 0, bytes + 1), cudaErrorInvalidValue);
  Expect("2D copy with a narrow pitch", cudaMemcpy2D(memory, 4, host, 16, 16, 2, cudaMemcpyHostToDevice),
         cudaErrorInvalidPitchValue);
  Expect("device address of a host array", cudaHostGetDevicePointer(&pointer, host, 0),
         cudaErrorInvalidValue);
  Expect("unregister of nothing", cudaHostUnregister(host), cudaErrorHostMemoryNotRegistered);
}

static void Handles() {
  cudaDeviceProp properties;
  int value = 0;
  cudaEvent_t first, second;
  float milliseconds = 0;
  Expect("set device 9999", cudaSetDevice(9999), cudaErrorInvalidDevice);
  Expect("set device -1", cudaSetDevice(-1), cudaErrorInvalidDevice);
  Expect("properties of device 9999", cudaGetDeviceProperties(&properties, 9999), cudaErrorInvalidDevice);
  Expect("attribute 9999", cudaDeviceGetAttribute(&value, cudaDeviceAttr(9999), 0), cudaErrorInvalidValue);
  CHECK(cudaEventCreate(&first));
  CHECK(cudaEventCreate(&second));
  Expect("elapsed time, never recorded", cudaEventElapsedTime(&milliseconds, first, second),
         cudaErrorInvalidResourceHandle);
  Expect("query of an event never recorded", cudaEventQuery(first), cudaSuccess);
  Expect("synchronise of the same", cudaEventSynchronize(first), cudaSuccess);
  Expect("query of a null event", cudaEventQuery(nullptr), cudaErrorInvalidResourceHandle);
  Expect("destroy of a null event", cudaEventDestroy(nullptr), cudaErrorInvalidResourceHandle);
  Expect("destroy of a null stream", cudaStreamDestroy(nullptr), cudaErrorInvalidResourceHandle);
  Expect("stream with unknown flags", cudaStreamCreateWithFlags((cudaStream_t*)&first, 0x80),
         cudaErrorInvalidValue);
  Expect("instantiate of no graph", cudaGraphInstantiate(nullptr, nullptr, 0), cudaErrorInvalidValue);
  CHECK(cudaEventDestroy(second));
}

static void Busy() {
  int *flag, *device_flag;
  cudaStream_t stream;
  cudaEvent_t event, timed[2];
  float milliseconds = 0;
  CHECK(cudaHostAlloc(&flag, sizeof(int), cudaHostAllocMapped));
  CHECK(cudaHostGetDevicePointer(&device_flag, flag, 0));
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  CHECK(cudaEventCreate(&timed[0]));
  CHECK(cudaEventCreate(&timed[1]));
  *(volatile int*)flag = 0;
  CHECK(cudaEventRecord(timed[0], stream));
  WaitForFlag<<<1, 1, 0, stream>>>(device_flag, 100000000);
  CHECK(cudaEventRecord(event, stream));
  CHECK(cudaEventRecord(timed[1], stream));
  Expect("stream query, kernel running", cudaStreamQuery(stream), cudaErrorNotReady);
  Expect("event query, kernel running", cudaEventQuery(event), cudaErrorNotReady);
  Expect("elapsed time, kernel running", cudaEventElapsedTime(&milliseconds, timed[0], timed[1]),
         cudaErrorNotReady);
  *(volatile int*)flag = 1;
  Expect("stream synchronise", cudaStreamSynchronize(stream), cudaSuccess);
  Expect("stream query, kernel done", cudaStreamQuery(stream), cudaSuccess);
  Expect("event query, kernel done", cudaEventQuery(event), cudaSuccess);
  CHECK(cudaStreamDestroy(stream));
  CHECK(cudaFreeHost(flag));
}

static void LastError() {
  cudaError_t set = cudaSetDevice(9999);
  cudaError_t peeked = cudaPeekAtLastError();
  cudaError_t after_success = cudaDeviceSynchronize();
  cudaError_t still = cudaPeekAtLastError();
  cudaError_t taken = cudaGetLastError();
  cudaError_t gone = cudaPeekAtLastError();
  std::printf("last error: set %d, peek %d, good call %d, still %d, taken %d, gone %d\n", int(set),
              int(peeked), int(after_success), int(still), int(taken), int(gone));
  REQUIRE(peeked == set && after_success == cudaSuccess && still == set && taken == set &&
          gone == cudaSuccess);
  std::printf("%s: %s\n", cudaGetErrorName(cudaErrorInvalidConfiguration),
              cudaGetErrorString(cudaErrorInvalidConfiguration));
  std::printf("%s: %s\n", cudaGetErrorName(cudaError_t(12345)), cudaGetErrorString(cudaError_t(12345)));
}

int main() {
  int* memory;
  const size_t bytes = 4 << 20;
  CHECK(cudaMalloc(&memory, bytes));
  CHECK(cudaMemset(memory, 0, bytes));
  Launches(memory);
  Memory((char*)memory, bytes);
  Handles();
  Busy();
  LastError();
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaFree(memory));
  std::printf("error_codes: %d unexpected\n", g_failures);
  return g_failures == 0 ? 0 : 1;
}
