// SPDX-License-Identifier: Apache-2.0
// How long the first call after idle time takes, in a VM: first_call LIBCUDA ROUNDS IDLE_MS [BARE_DEVICE]. Prints the median and
// the longest time of a call that the host answers, in microseconds. BARE_DEVICE is a second device, whose host answers each ring by
// an interrupt (doorbell_echo.cc): beside each call, after the same idle time, a ring is answered through it, by turns first and second.
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "kernel_module/causeway_uapi.h"

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

void Print(const char* what, int idle_ms, std::vector<double>& times) {
  std::sort(times.begin(), times.end());
  std::printf("idle %d ms: %s: median %.0f us, longest %.0f us of %zu\n", idle_ms, what,
              times[times.size() / 2], times.back(), times.size());
}

// Sleeps for the idle time, then measures; ends the program where that fails.
void Measure(int idle_ms, const std::function<bool()>& call, std::vector<double>& times) {
  const timespec idle{idle_ms / 1000, idle_ms % 1000 * 1'000'000L};
  nanosleep(&idle, nullptr);
  const double begin = NowUs();
  if (!call()) std::exit(4);
  times.push_back(NowUs() - begin);
}

// A ring, and the interrupt that answers it.
bool RoundTrip(int device) {
  constexpr int kLimitMs = 10'000;
  uint64_t interrupts = 0;
  pollfd asked{device, POLLIN, 0};
  return ioctl(device, CAUSEWAY_IOC_RING, CAUSEWAY_RING_WORK) == 0 && poll(&asked, 1, kLimitMs) == 1 &&
         read(device, &interrupts, sizeof interrupts) > 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 4 && count != 5) return 2;
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
  const int bare_device = count == 5 ? open(arguments[4], O_RDWR | O_CLOEXEC) : -1;
  if (count == 5 && bare_device < 0) return 5;
  const auto call = [&] {
    size_t free_bytes = 0, total = 0;
    return get_info(&free_bytes, &total) == 0;
  };
  std::vector<double> calls, trips;
  for (int i = 0; i < rounds; ++i) {
    const bool bare_first = bare_device >= 0 && i % 2 == 0;
    if (bare_first)
      Measure(
          idle_ms, [&] { return RoundTrip(bare_device); }, trips);
    Measure(idle_ms, call, calls);
    if (bare_device >= 0 && !bare_first)
      Measure(
          idle_ms, [&] { return RoundTrip(bare_device); }, trips);
  }
  Print("call", idle_ms, calls);
  if (!trips.empty()) Print("bare round trip", idle_ms, trips);
}
