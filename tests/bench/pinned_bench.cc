// SPDX-License-Identifier: Apache-2.0
// Pinned memory: what allocating, registering and their ends cost. An ordinary CUDA program, to be run
// natively and through Causeway and compared line by line:
//   pinned_bench [MIB]        MIB: the largest registration, 1024 unless given
// The last column is the processor time of this process for both, all its threads together: it tells
// something where the machine is busy, too.
#include <cuda.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

namespace {

constexpr size_t kMiB = 1 << 20;

void Check(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  cuGetErrorName(result, &name);
  std::fprintf(stderr, "%s: %s\n", call, name != nullptr ? name : "?");
  std::exit(1);
}
#define CHECK(call) Check(call, #call)

double Microseconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The time of one call of each, the median of `rounds`; `first` happens outside the median.
template <class Begin, class End>
void Time(const char* name, int rounds, Begin begin, End end) {
  std::vector<double> begins, ends, both, busy;
  for (int i = -1; i < rounds; ++i) {
    const std::clock_t busy_before = std::clock();
    const auto start = std::chrono::steady_clock::now();
    begin();
    const auto middle = std::chrono::steady_clock::now();
    end();
    const auto stop = std::chrono::steady_clock::now();
    if (i < 0) {
      std::printf("%-42s first %11.1f + %11.1f us\n", name, Microseconds(middle - start),
                  Microseconds(stop - middle));
      continue;
    }
    begins.push_back(Microseconds(middle - start));
    ends.push_back(Microseconds(stop - middle));
    both.push_back(Microseconds(stop - start));
    busy.push_back(static_cast<double>(std::clock() - busy_before) * 1e6 / CLOCKS_PER_SEC);
  }
  std::printf("%-42s       %11.1f + %11.1f = %11.1f us, busy %11.1f us\n", name, Median(begins), Median(ends),
              Median(both), Median(busy));
  std::fflush(stdout);
}

void TimeAllocation(const char* name, size_t bytes, int rounds) {
  void* memory = nullptr;
  Time(
      name, rounds, [&] { CHECK(cuMemHostAlloc(&memory, bytes, 0)); }, [&] { CHECK(cuMemFreeHost(memory)); });
}

enum class Pages { kTouched, kHuge, kUntouched };

void TimeRegistration(const char* name, size_t bytes, Pages pages, int rounds) {
  void* memory = nullptr;
  auto map = [&] {
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) Check(CUDA_ERROR_OUT_OF_MEMORY, "mmap");
    madvise(memory, bytes, pages == Pages::kHuge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    if (pages != Pages::kUntouched) std::memset(memory, 1, bytes);
  };
  if (pages != Pages::kUntouched) map();
  Time(
      name, rounds,
      [&] {
        if (pages == Pages::kUntouched) map();
        CHECK(cuMemHostRegister(memory, bytes, 0));
      },
      [&] {
        CHECK(cuMemHostUnregister(memory));
        if (pages == Pages::kUntouched) munmap(memory, bytes);
      });
  if (pages != Pages::kUntouched) munmap(memory, bytes);
}

}  // namespace

int main(int argc, char** argv) {
  const size_t largest = (argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 1024) * kMiB;
  CUdevice device = 0;
  CUcontext context = nullptr;
  CHECK(cuInit(0));
  CHECK(cuDeviceGet(&device, 0));
  CHECK(cuDevicePrimaryCtxRetain(&context, device));
  CHECK(cuCtxSetCurrent(context));
  std::printf("call to begin + call to end = both, medians\n");
  TimeAllocation("cuMemHostAlloc + Free, 4 KiB", 4096, 200);
  TimeAllocation("cuMemHostAlloc + Free, 1 MiB", kMiB, 200);
  TimeAllocation("cuMemHostAlloc + Free, 64 MiB", 64 * kMiB, 20);
  TimeRegistration("cuMemHostRegister + Unregister, 64 KiB", 64 << 10, Pages::kTouched, 100);
  TimeRegistration("cuMemHostRegister + Unregister, 64 MiB", std::min(largest, 64 * kMiB), Pages::kTouched,
                   10);
  TimeRegistration("the same, huge pages", std::min(largest, 64 * kMiB), Pages::kHuge, 10);
  TimeRegistration("the same, mapped anew, never touched", std::min(largest, 64 * kMiB), Pages::kUntouched,
                   10);
  TimeRegistration("cuMemHostRegister + Unregister, largest", largest, Pages::kTouched, 5);
  TimeRegistration("the same, huge pages", largest, Pages::kHuge, 5);
  TimeRegistration("the same, mapped anew, never touched", largest, Pages::kUntouched, 5);
  return 0;
}
