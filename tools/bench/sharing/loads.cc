// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/sharing/loads.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "tools/bench/crew/statistics.h"

namespace causeway::bench::sharing {
namespace {

void Sleep(double us) {
  usleep(static_cast<useconds_t>(std::clamp(us, 1.0, 900'000.0)));
}

// A stream of its own, beside which other streams of the process go on.
class Worker {
 public:
  explicit Worker(const Gpu& gpu) : gpu_(gpu) {
    Check(driver(), driver().cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  }
  const Driver& driver() const { return gpu_.driver(); }
  CUstream stream() const { return stream_; }
  void Launch(uint32_t rounds) const {
    Check(driver(), gpu_.LaunchWork(rounds, true, stream_), "cuLaunchKernel");
  }
  void Wait() const { Check(driver(), driver().cuStreamSynchronize(stream_), "cuStreamSynchronize"); }
  // Microseconds of one kernel among several.
  double Took(uint32_t rounds, int kernels) const {
    Wait();
    const uint64_t begin = NowNs();
    for (int i = 0; i < kernels; ++i) Launch(rounds);
    Wait();
    return static_cast<double>(NowNs() - begin) / 1e3 / kernels;
  }
  void* PinnedMemory(size_t bytes) const {
    void* memory = nullptr;
    Check(driver(), driver().cuMemHostAlloc(&memory, bytes, 0), "cuMemHostAlloc");
    return memory;
  }
  CUdeviceptr DeviceMemory(size_t bytes) const {
    CUdeviceptr memory = 0;
    Check(driver(), driver().cuMemAlloc(&memory, bytes), "cuMemAlloc");
    return memory;
  }

 private:
  const Gpu& gpu_;
  CUstream stream_ = nullptr;
};

void Note(Stage& stage, Cell& cell, uint64_t begin, uint64_t units) {
  cell.Sample(NowNs() - begin);
  cell.Done(stage, units);
}

void WaitForEach(Stage& stage, Cell& cell, const Worker& worker, const LoadPlan& plan) {
  const auto gap = static_cast<uint64_t>(plan.load.gap_us * 1e3);
  uint64_t next = stage.begin_ns;
  do {
    while (gap != 0 && NowNs() < next) Sleep(20);
    next += gap;
    const uint64_t begin = NowNs();
    worker.Launch(plan.kernel.rounds);
    worker.Wait();
    Note(stage, cell, begin, 1);
  } while (!stage.Over());
}

// Events behind every two milliseconds of work; two of them may be outstanding.
void KeepFull(Stage& stage, Cell& cell, const Worker& worker, const LoadPlan& plan) {
  const Driver& driver = worker.driver();
  const auto batch = static_cast<uint64_t>(
      std::clamp(2000 / std::max(plan.kernel.us, 1.0), 1.0, static_cast<double>(plan.most_batch)));
  std::array<CUevent, 2> events{};
  for (CUevent& event : events)
    Check(driver, driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  uint64_t from = NowNs();
  for (size_t sent = 0; !stage.Over(); ++sent) {
    CUevent event = events[sent % 2];
    if (sent >= 2) {
      Check(driver, driver.cuEventSynchronize(event), "cuEventSynchronize");
      Note(stage, cell, from, batch);
      from = NowNs();
    }
    for (uint64_t i = 0; i < batch; ++i) worker.Launch(plan.kernel.rounds);
    Check(driver, driver.cuEventRecord(event, worker.stream()), "cuEventRecord");
  }
  worker.Wait();
}

void Copy(Stage& stage, Cell& cell, const Worker& worker, size_t bytes, const void* host,
          CUdeviceptr device) {
  do {
    const uint64_t begin = NowNs();
    Check(worker.driver(), worker.driver().cuMemcpyHtoDAsync(device, host, bytes, worker.stream()),
          "cuMemcpyHtoDAsync");
    worker.Wait();
    Note(stage, cell, begin, 1);
  } while (!stage.Over());
}

// A token's kernels depend on each other, and the next token's on what came out of them.
void Request(const Worker& worker, const Gpu& gpu, const LoadPlan& plan, void* word) {
  for (int token = 0; token < plan.tokens; ++token) {
    for (int i = 0; i < plan.token_kernels; ++i) worker.Launch(plan.kernel.rounds);
    Check(gpu.driver(), gpu.driver().cuMemcpyDtoHAsync(word, gpu.sink(), 4, worker.stream()),
          "cuMemcpyDtoHAsync");
    worker.Wait();
  }
}

// Requests come at random moments, whether the one before is done or not.
void Serve(Stage& stage, Cell& cell, const Worker& worker, const Gpu& gpu, const LoadPlan& plan, void* word) {
  std::mt19937_64 random(plan.seed);
  std::exponential_distribution<double> gap(1 / std::max(plan.request_gap_us, 1.0));
  for (double next = static_cast<double>(stage.begin_ns.load());;) {
    next += gap(random) * 1e3;
    const auto due = static_cast<uint64_t>(next);
    while (!stage.Over() && NowNs() < due) Sleep(std::min(20.0, static_cast<double>(due - NowNs()) / 1e3));
    if (stage.Over() && cell.count != 0) return;
    Request(worker, gpu, plan, word);
    Note(stage, cell, due, 1);
  }
}

void Train(Stage& stage, Cell& cell, const Worker& worker, const LoadPlan& plan) {
  do {
    const uint64_t begin = NowNs();
    for (int i = 0; i < plan.step_kernels; ++i) worker.Launch(plan.kernel.rounds);
    worker.Wait();
    Note(stage, cell, begin, 1);
    Sleep(plan.load.gap_us);
  } while (!stage.Over());
}

}  // namespace

Kernel Calibrate(const Gpu& gpu, double wanted_us) {
  constexpr uint32_t kFew = 1250, kMany = 3750;
  constexpr int kTries = 5;
  const Worker worker(gpu);
  const auto least = [&](uint32_t rounds, int kernels) {
    double took = worker.Took(rounds, kernels);
    for (int i = 1; i < kTries; ++i) took = std::min(took, worker.Took(rounds, kernels));
    return took;
  };
  const double each = std::max((least(kMany, 4) - least(kFew, 4)) / (kMany - kFew), 1e-7);
  const auto rounds = static_cast<uint32_t>(std::clamp(wanted_us / each, 1.0, 4e9));
  return {rounds, least(rounds, wanted_us < 1000 ? 50 : 4)};
}

double RequestMs(const Gpu& gpu, const LoadPlan& plan) {
  const Worker worker(gpu);
  void* const word = worker.PinnedMemory(64);
  std::vector<double> took;
  for (int i = 0; i < 15; ++i) {
    const uint64_t begin = NowNs();
    Request(worker, gpu, plan, word);
    took.push_back(static_cast<double>(NowNs() - begin) / 1e6);
  }
  return Median(took);
}

void Run(Stage& stage, Cell& cell, const LoadPlan& plan) {
  const Gpu gpu;
  const Worker worker(gpu);
  const bool copies = plan.load.work == Work::kCopy;
  const size_t bytes = copies ? plan.load.bytes : 64;
  void* const host = worker.PinnedMemory(bytes);
  const CUdeviceptr device = worker.DeviceMemory(bytes);
  stage.Ready(cell);
  switch (plan.load.work) {
    case Work::kWait:
      WaitForEach(stage, cell, worker, plan);
      break;
    case Work::kFull:
      KeepFull(stage, cell, worker, plan);
      break;
    case Work::kCopy:
      Copy(stage, cell, worker, bytes, host, device);
      break;
    case Work::kInference:
      Serve(stage, cell, worker, gpu, plan, host);
      break;
    case Work::kTraining:
      Train(stage, cell, worker, plan);
      break;
    case Work::kProgram:  // RunProgram does that
      break;
  }
  cell.state = State::kEnded;
  stage.AwaitStop();
}

void Idle(Stage& stage, Cell& cell) {
  const Gpu gpu;
  stage.Ready(cell);
  while (!stage.Over()) Sleep(900'000);
}

void CheckWords(Stage& stage, Cell& cell, uint64_t seed) {
  const Gpu gpu;
  const Worker worker(gpu);
  const Driver& driver = gpu.driver();
  constexpr unsigned kThreads = 32;
  const size_t words = size_t(gpu.blocks()) * kThreads, bytes = words * sizeof(uint32_t);
  auto* const sent = static_cast<uint32_t*>(worker.PinnedMemory(bytes));
  auto* const got = static_cast<uint32_t*>(worker.PinnedMemory(bytes));
  CUdeviceptr device = worker.DeviceMemory(bytes);
  CUfunction mix = gpu.Kernel("Mix");
  std::mt19937 random(static_cast<uint32_t>(seed));
  stage.Ready(cell);
  while (!stage.Over()) {
    uint32_t key = static_cast<uint32_t>(random());
    for (size_t i = 0; i < words; ++i) sent[i] = key * 2654435761u + static_cast<uint32_t>(i);
    std::memset(got, 0, bytes);
    void* parameters[] = {&device, &key};
    const uint64_t begin = NowNs();
    CUresult code = driver.cuMemcpyHtoDAsync(device, sent, bytes, worker.stream());
    if (code == CUDA_SUCCESS)
      code = driver.cuLaunchKernel(mix, static_cast<unsigned>(gpu.blocks()), 1, 1, kThreads, 1, 1, 0,
                                   worker.stream(), parameters, nullptr);
    if (code == CUDA_SUCCESS) code = driver.cuMemcpyDtoHAsync(got, device, bytes, worker.stream());
    if (code == CUDA_SUCCESS) code = driver.cuStreamSynchronize(worker.stream());
    const uint64_t took = NowNs() - begin;
    if (code != CUDA_SUCCESS) {
      cell.values[kErrorCode] = code;
      break;
    }
    auto& longest = cell.values[stage.word == 0 ? kLongestBeforeNs : kLongestNs];
    longest = std::max<uint64_t>(longest, took);
    for (size_t i = 0; i < words; ++i) {
      if (got[i] != ((sent[i] * 1664525u + 1013904223u) ^ key)) cell.values[kWrongBytes] += sizeof(uint32_t);
    }
    Note(stage, cell, begin, 1);
  }
  stage.AwaitStop();
}

void Misbehave(Stage& stage, Cell& cell, int fault) {
  constexpr const char* kNames[kFaults] = {"BadAddress", "Trap",           "Assert",
                                           "Misaligned", "SharedOverflow", "Stack"};
  const Gpu gpu;
  const Driver& driver = gpu.driver();
  CUfunction kernel = fault < kFaults ? gpu.Kernel(kNames[fault]) : nullptr;
  cell.values[kErrorCode] = 0;
  // What drivers print of a fault says nothing that is not known here.
  if (std::freopen("/dev/null", "w", stderr) == nullptr || std::freopen("/dev/null", "w", stdout) == nullptr)
    return;
  stage.Ready(cell);
  if (kernel == nullptr) {
    // Until it is killed: each of these ends by itself, after two seconds at most.
    while (!stage.Over() && gpu.LaunchWork(~0u) == CUDA_SUCCESS) driver.cuCtxSynchronize();
    return;
  }
  CUresult code = gpu.LaunchOn(kernel);
  if (code == CUDA_SUCCESS) code = driver.cuCtxSynchronize();
  cell.values[kErrorCode] = code;
}

void MeasureAlone(Stage& stage, Cell& cell, uint32_t turn, bool quick) {
  const Gpu gpu;
  const Worker worker(gpu);
  const Driver& driver = gpu.driver();
  const size_t bytes = quick ? size_t{1} << 20 : size_t{64} << 20;
  const int launches = quick ? 20 : 500, copies = quick ? 1 : 4;
  void* const host = worker.PinnedMemory(bytes);
  const CUdeviceptr device = worker.DeviceMemory(bytes);
  const auto per = [](uint64_t begin, int count) {
    return (NowNs() - begin) * 1000 / static_cast<uint64_t>(count);
  };
  const auto measure = [&] {
    uint64_t begin = NowNs();
    for (int i = 0; i < launches; ++i) worker.Launch(0);
    worker.Wait();
    cell.values[kLaunchDrained] = per(begin, launches);
    begin = NowNs();
    for (int i = 0; i < launches; ++i) worker.Launch(0), worker.Wait();
    cell.values[kLaunchAndWait] = per(begin, launches);
    begin = NowNs();
    for (int i = 0; i < copies; ++i)
      Check(driver, driver.cuMemcpyHtoDAsync(device, host, bytes, worker.stream()), "cuMemcpyHtoDAsync");
    worker.Wait();
    cell.values[kToDevice] = per(begin, copies);
    begin = NowNs();
    for (int i = 0; i < copies; ++i)
      Check(driver, driver.cuMemcpyDtoHAsync(host, device, bytes, worker.stream()), "cuMemcpyDtoHAsync");
    worker.Wait();
    cell.values[kToHost] = per(begin, copies);
  };
  measure();  // what is done once in a process is no part of it
  stage.Ready(cell);
  while (!stage.Over()) {
    if (stage.turn.load() != turn) {
      Sleep(50);
      continue;
    }
    measure();
    stage.turn = 0;
  }
}

}  // namespace causeway::bench::sharing
