// SPDX-License-Identifier: Apache-2.0
// What each of the processes that share processors does (tools/bench/crowd.h).
#include <time.h>

#include "tools/bench/probe/probe.h"

namespace causeway::bench {
namespace {

double ThreadUs() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return double(now.tv_sec) * 1e6 + double(now.tv_nsec) / 1e3;
}

// Takes processor time, however long that lasts.
void Work(double us) {
  for (const double end = ThreadUs() + us; ThreadUs() < end;) continue;
}

CUresult LaunchAndWait(const Bench& b) {
  const CUresult result = Launch(b, b.stream);
  return result != CUDA_SUCCESS ? result : b.api.cuStreamSynchronize(b.stream);
}

// As a training step does: many launches with work of the program's own before each, then a result.
CUresult ManyLaunches(const Bench& b) {
  constexpr int kLaunches = 400;
  constexpr double kOwnWorkUs = 12;
  uint32_t value = 0;
  for (int i = 0; i < kLaunches; ++i) {
    Work(kOwnWorkUs);
    if (const CUresult result = Launch(b, b.stream)) return result;
  }
  const CUresult result = b.api.cuMemcpyDtoHAsync_v2(&value, b.word, sizeof value, b.stream);
  return result != CUDA_SUCCESS ? result : b.api.cuStreamSynchronize(b.stream);
}

// crowd_wait:BEGIN:MS, crowd_step:BEGIN:MS -> steps that were made meanwhile, the last one in part.
template <CUresult (*step)(const Bench&)>
CUresult Crowded(Bench& b, const Words& words, double* steps) {
  const double begin = double(Number(words, 1)), end = begin + 1000 * double(Number(words, 2));
  for (double now = NowUs(); now < end;) {
    const double start = now;
    if (const CUresult result = step(b)) return result;
    now = NowUs();
    if (start >= begin) *steps += now <= end ? 1 : (end - start) / (now - start);
  }
  return CUDA_SUCCESS;
}

}  // namespace

void AddCrowdFigures(std::map<std::string, Measure>* figures) {
  (*figures)["crowd_wait"] = Crowded<LaunchAndWait>;
  (*figures)["crowd_step"] = Crowded<ManyLaunches>;
}

}  // namespace causeway::bench
