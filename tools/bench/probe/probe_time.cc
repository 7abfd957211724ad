// SPDX-License-Identifier: Apache-2.0
// How the probe takes times.
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>

#include "tools/bench/crew/statistics.h"
#include "tools/bench/probe/probe.h"

namespace causeway::bench {
namespace {

constexpr double kRoundUs = 20'000;  // a round lasts about this long at most, whatever the plan says
constexpr Plan kQuick{3, 20};

double SecondsToUs(const timespec& time) {
  return double(time.tv_sec) * 1e6 + double(time.tv_nsec) / 1e3;
}

double ClockUs(clockid_t clock) {
  timespec now{};
  return clock_gettime(clock, &now) == 0 ? SecondsToUs(now) : 0;
}

}  // namespace

double NowUs() {
  return ClockUs(CLOCK_MONOTONIC);
}

bool YieldUntil(const std::function<bool()>& condition) {
  constexpr double kMostUs = 30e6;
  for (const double begin = NowUs(); !condition(); sched_yield()) {
    if (NowUs() - begin > kMostUs) return false;
  }
  return true;
}

CUresult TimeCalls(const Bench& bench, Plan plan, const std::function<CUresult()>& call,
                   const std::function<CUresult()>& after, double* us) {
  if (bench.quick) plan = {std::min(plan.rounds, kQuick.rounds), std::min(plan.calls, kQuick.calls)};
  const double begin = NowUs();
  CUresult result = call();  // once ahead: first uses are not what is measured
  if (result == CUDA_SUCCESS && after) result = after();
  const double first = std::max(NowUs() - begin, 0.001);
  // The first one is slower than the others: half of the calls are no loss where it misleads.
  const int calls = std::clamp(int(std::min(kRoundUs / first * 2, 1e9)), 1, plan.calls);
  std::vector<double> rounds;
  for (int round = 0; round < plan.rounds && result == CUDA_SUCCESS; ++round) {
    const double start = NowUs();
    for (int i = 0; i < calls && result == CUDA_SUCCESS; ++i) result = call();
    rounds.push_back((NowUs() - start) / calls);
    if (after && result == CUDA_SUCCESS) result = after();
  }
  *us = Median(rounds);
  return result;
}

CUresult TimeSingle(const Bench& bench, int calls, const std::function<CUresult()>& before,
                    const std::function<CUresult()>& call, double* us) {
  if (bench.quick) calls = std::min(calls, kQuick.calls);
  std::vector<double> times;
  for (int i = 0; i <= calls; ++i) {
    if (const CUresult result = before()) return result;
    const double start = NowUs();
    if (const CUresult result = call()) return result;
    if (i > 0) times.push_back(NowUs() - start);
  }
  *us = Median(times);
  return CUDA_SUCCESS;
}

CUresult Launch(const Bench& bench, CUstream stream) {
  CUdeviceptr address = bench.word;
  uint32_t value = 0x5eed;
  void* parameters[] = {&address, &value};
  return bench.api.cuLaunchKernel(bench.write_word, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
}

CUresult RunWide(const Bench& bench, CUfunction function, void** parameters) {
  const unsigned blocks = bench.quick ? 4 : 1056, threads = bench.quick ? 32 : 256;
  const CUresult result =
      bench.api.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, bench.stream, parameters, nullptr);
  return result == CUDA_SUCCESS ? bench.api.cuStreamSynchronize(bench.stream) : result;
}

double CpuUs(const Bench& bench) {
  double us = ClockUs(CLOCK_PROCESS_CPUTIME_ID);
  clockid_t clock{};
  if (bench.worker > 0 && clock_getcpuclockid(pid_t(bench.worker), &clock) == 0) us += ClockUs(clock);
  return us;
}

uint64_t Number(const Words& words, size_t index, uint64_t otherwise) {
  return index < words.size() ? std::strtoull(words[index].c_str(), nullptr, 10) : otherwise;
}

}  // namespace causeway::bench
