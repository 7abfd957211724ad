// SPDX-License-Identifier: Apache-2.0
// A guest process that uses what its worker's cgroup bounds: cgroup_client memory MIB | threads N | stay
// SECONDS. The software GPU's device memory is its process's own, so that touching it uses the host's.
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/yield_until.h"

namespace {

template <class... P>
int Call(const char* name, P... parameters) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  auto* function = library != nullptr ? reinterpret_cast<int (*)(P...)>(dlsym(library, name)) : nullptr;
  if (function == nullptr) {
    std::printf("%s is missing: %s\n", name, dlerror());
    std::exit(2);
  }
  return function(parameters...);
}

int Memory(size_t mib) {
  for (size_t held = 0; held < mib; held += 16) {
    unsigned long long address = 0;
    const int allocated = Call("cuMemAlloc_v2", &address, size_t{16} << 20);
    const int written =
        allocated == 0 ? Call("cuMemsetD8_v2", address, static_cast<unsigned char>(1), size_t{16} << 20) : 0;
    const int waited = Call("cuCtxSynchronize");
    if (allocated == 0 && written == 0 && waited == 0) continue;
    std::printf("ended at %zu MiB: %d %d %d\n", held, allocated, written, waited);
    return 1;
  }
  std::printf("%zu MiB are written\n", mib);
  return 0;
}

// Each thread has a channel of its own, for which the worker has a thread from its first message on. So each
// sends one that no thread of the guest can answer by itself (cuCtxSynchronize can, once the context is known
// to be idle), and keeps its channel until all have.
int Threads(int count, void* context) {
  std::atomic<int> failed{0}, done{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&] {
      unsigned long long address = 0;
      if (Call("cuCtxSetCurrent", context) != 0 || Call("cuMemAlloc_v2", &address, size_t{1} << 20) != 0)
        failed.fetch_add(1);
      done.fetch_add(1);
      causeway::test::SleepUntil([&] { return done.load() >= count; });
    });
  }
  for (auto& thread : threads) thread.join();
  std::printf("%d of %d threads failed\n", failed.load(), count);
  return failed.load() != 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) return 2;
  void* context = nullptr;
  int result = Call("cuInit", 0u);
  if (result == 0) result = Call("cuDevicePrimaryCtxRetain", &context, 0);
  if (result == 0) result = Call("cuCtxSetCurrent", context);
  if (result != 0) {
    std::printf("no session: %d\n", result);
    return 3;
  }
  const int number = std::atoi(arguments[2]);
  if (std::strcmp(arguments[1], "memory") == 0) return Memory(size_t(number));
  if (std::strcmp(arguments[1], "threads") == 0) return Threads(number, context);
  std::printf("begins\n");
  std::fflush(stdout);
  for (int i = 0; i < number * 10; ++i) {
    unsigned long long address = 0;
    if (Call("cuMemAlloc_v2", &address, size_t{4096}) != 0 || Call("cuMemFree_v2", address) != 0) return 1;
    usleep(100'000);
  }
  std::printf("unharmed\n");
  return 0;
}
