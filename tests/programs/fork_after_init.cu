// SPDX-License-Identifier: Apache-2.0
// A process that forks after it has used CUDA: the child is refused, the parent goes on unharmed.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/programs/check.h"

__global__ void Store(int* to, int value) {
  *to = value;
}

static void StoreAndRead(int value) {
  int *device, result = 0;
  CHECK(cudaMalloc(&device, sizeof(int)));
  Store<<<1, 1>>>(device, value);
  CHECK(cudaMemcpy(&result, device, sizeof(int), cudaMemcpyDeviceToHost));
  CHECK(cudaFree(device));
  REQUIRE(result == value);
}

// Runs in the child of a process that had initialised CUDA; returns its exit code.
static int RefusedChild() {
  void* pointer = nullptr;
  cudaError_t malloc_error = cudaMalloc(&pointer, 64);
  cudaError_t synchronise_error = cudaDeviceSynchronize();
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  REQUIRE(library != nullptr);
  auto get_count = (int (*)(int*))dlsym(library, "cuDeviceGetCount");
  REQUIRE(get_count != nullptr);
  int count = 0, driver_error = get_count(&count);
  std::printf("child: malloc %s (%d), synchronise %d, driver %d\n", cudaGetErrorName(malloc_error),
              int(malloc_error), int(synchronise_error), driver_error);
  std::fflush(stdout);
  return malloc_error == cudaErrorInitializationError && driver_error == 3 ? 0 : 1;
}

static int ForkAndWait(int (*child)()) {
  std::fflush(stdout);
  pid_t process = fork();
  REQUIRE(process >= 0);
  if (process == 0) _exit(child());
  int status = 0;
  REQUIRE(waitpid(process, &status, 0) == process);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

// Runs in a child made before the parent touches CUDA: such a child may use it.
static int EarlyChild() {
  StoreAndRead(11);
  std::printf("early child: worked\n");
  std::fflush(stdout);
  return 0;
}

int main() {
  int early = ForkAndWait(EarlyChild);
  REQUIRE(early == 0);
  StoreAndRead(22);
  int refused = ForkAndWait(RefusedChild);
  REQUIRE(refused == 0);
  StoreAndRead(33);
  std::printf("fork_after_init: parent still works\n");
  return 0;
}
