// SPDX-License-Identifier: Apache-2.0
// How long the first call after idle time takes, in a VM: first_call LIBCUDA ROUNDS IDLE_MS. Prints the median and the
// longest time of a call that the host answers, in microseconds.
#include <dlfcn.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

double NowUs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return double(now.tv_sec) * 1e6 + double(now.tv_nsec) / 1e3;
}

template <class Function>
Function Find(void* library, const char* name) {
  auto* found = reinterpret_cast<Function>(dlsym(library, name));
  if (found == nullptr) std::exit(2);
  return found;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 4) return 2;
  void* library = dlopen(arguments[1], RTLD_NOW);
  if (library == nullptr) return 2;
  const auto get_info = Find<int (*)(size_t*, size_t*)>(library, "cuMemGetInfo_v2");
  void* context = nullptr;
  int device = 0;
  if (Find<int (*)(unsigned)>(library, "cuInit")(0) != 0 ||
      Find<int (*)(int*, int)>(library, "cuDeviceGet")(&device, 0) != 0 ||
      Find<int (*)(void**, int)>(library, "cuDevicePrimaryCtxRetain")(&context, device) != 0 ||
      Find<int (*)(void*)>(library, "cuCtxSetCurrent")(context) != 0)
    return 3;
  const int rounds = std::atoi(arguments[2]), idle_ms = std::atoi(arguments[3]);
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) {
    const timespec idle{idle_ms / 1000, idle_ms % 1000 * 1'000'000L};
    nanosleep(&idle, nullptr);
    size_t free_bytes = 0, total = 0;
    const double begin = NowUs();
    if (get_info(&free_bytes, &total) != 0) return 4;
    times.push_back(NowUs() - begin);
  }
  std::sort(times.begin(), times.end());
  std::printf("idle %d ms: median %.0f us, longest %.0f us of %d calls\n", idle_ms, times[times.size() / 2],
              times.back(), rounds);
}
