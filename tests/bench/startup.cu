// SPDX-License-Identifier: Apache-2.0
// The smallest program with a result from a kernel, for tests/bench/startup.py. It prints the nanoseconds
// from STARTUP_BEGIN (CLOCK_MONOTONIC, when it was spawned) to its main function and to the result, how many
// replies of the host its thread has waited for (Causeway's own figure, 0 with any other library), and the
// nanoseconds to the driver's first answer and to the first memory, which takes a context.
#include <cuda.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>

__global__ void Answer(int* value) {
  *value = 42;
}

static int64_t Now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

static uint64_t RepliesAwaited() {
  using GetTable = CUresult (*)(const void**, const CUuuid*);
  using Count = CUresult (*)(uint64_t*);
  const CUuuid figures{{'C', 'a', 'u', 's', 'e', 'w', 'a', 'y', ' ', 'f', 'i', 'g', 'u', 'r', 'e', 's'}};
  void* library = dlopen("libcuda.so.1", RTLD_NOW);  // the runtime's, which has it open
  const auto get = library != nullptr ? GetTable(dlsym(library, "cuGetExportTable")) : nullptr;
  const void* table = nullptr;
  uint64_t replies = 0;
  if (get != nullptr && get(&table, &figures) == CUDA_SUCCESS)
    Count(static_cast<void* const*>(table)[1])(&replies);
  return replies;
}

int main() {
  const int64_t entered = Now();
  const char* begin = std::getenv("STARTUP_BEGIN");
  const int64_t spawned = begin != nullptr ? std::atoll(begin) : entered;
  int *device = nullptr, value = 0, count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  const int64_t answered = Now();
  if (error == cudaSuccess) error = cudaMalloc(&device, sizeof value);
  const int64_t allocated = Now();
  Answer<<<1, 1>>>(device);
  if (error == cudaSuccess) error = cudaGetLastError();
  if (error == cudaSuccess) error = cudaMemcpy(&value, device, sizeof value, cudaMemcpyDeviceToHost);
  const int64_t finished = Now();
  if (error != cudaSuccess || value != 42) {
    std::fprintf(stderr, "startup: %s, the result is %d\n", cudaGetErrorString(error), value);
    return 1;
  }
  std::printf("%lld %lld %llu %lld %lld\n", static_cast<long long>(entered - spawned),
              static_cast<long long>(finished - spawned), static_cast<unsigned long long>(RepliesAwaited()),
              static_cast<long long>(answered - spawned), static_cast<long long>(allocated - spawned));
  return 0;
}
