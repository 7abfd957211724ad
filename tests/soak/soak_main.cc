// SPDX-License-Identifier: Apache-2.0
// Runs all groups in random order on several threads for a time, then gives everything back.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "tests/soak/soak.h"

namespace causeway::soak {

namespace {

struct Tally {
  uint64_t done = 0, unsupported = 0, failed = 0;
};

struct State {
  std::mutex mutex;
  std::map<std::string, Tally> tallies;
  std::atomic<uint64_t> cycles{0};
  std::atomic<bool> lost{false};  // the context answers errors alone, as after a restart of the host's daemon
};

void RunGroups(const std::vector<Group>& groups, State* state, CUcontext context, CUfunction add,
               uint64_t seed, std::chrono::steady_clock::time_point end) {
  Thread thread{std::mt19937_64(seed), add};
  cuCtxSetCurrent(context);
  while (std::chrono::steady_clock::now() < end && !state->lost) {
    const Group& group = groups[thread.Below(static_cast<uint32_t>(groups.size()))];
    Tally now;
    try {
      group.run(thread);
      now.done = 1;
    } catch (const Failure& failure) {
      (failure.unsupported ? now.unsupported : now.failed) = 1;
      if (!failure.unsupported) {
        std::fprintf(stderr, "%s: %s\n", group.name, failure.what());
        if (cuCtxSynchronize() != CUDA_SUCCESS) state->lost = true;
      }
    }
    const std::lock_guard lock(state->mutex);
    Tally& tally = state->tallies[group.name];
    tally.done += now.done;
    tally.unsupported += now.unsupported;
    tally.failed += now.failed;
    state->cycles.fetch_add(1);
  }
  cuCtxSetCurrent(nullptr);
}

int Report(const State& state, const std::vector<Group>& groups) {
  uint64_t failed = 0;
  std::printf("%-24s %10s %12s %8s\n", "group", "done", "unsupported", "failed");
  for (const Group& group : groups) {
    const auto found = state.tallies.find(group.name);
    const Tally tally = found == state.tallies.end() ? Tally{} : found->second;
    std::printf("%-24s %10llu %12llu %8llu\n", group.name, static_cast<unsigned long long>(tally.done),
                static_cast<unsigned long long>(tally.unsupported),
                static_cast<unsigned long long>(tally.failed));
    failed += tally.failed;
  }
  return failed == 0 ? 0 : 1;
}

int Run(int seconds, int thread_count, uint64_t seed, const char* only) {
  std::vector<Group> groups;
  for (const auto& part : {MemoryGroups(), WorkGroups(), GraphGroups()}) {
    for (const Group& group : part) {
      if (only == nullptr || std::strstr(group.name, only) != nullptr) groups.push_back(group);
    }
  }
  SOAK(cuInit(0));
  CUcontext context = nullptr;
  SOAK(cuDevicePrimaryCtxRetain(&context, 0));
  SOAK(cuCtxSetCurrent(context));
  Module module;
  CUfunction add = nullptr;
  SOAK(cuModuleLoadData(module.out(), kKernels));
  SOAK(cuModuleGetFunction(&add, module, "add"));
  State state;
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (int i = 0; i < thread_count; ++i) {
    threads.emplace_back(RunGroups, std::cref(groups), &state, context, add, seed + static_cast<uint64_t>(i),
                         start + std::chrono::seconds(seconds));
  }
  for (int second = 0; second < seconds && !state.lost; ++second) {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    if (second % 30 == 29) {
      std::printf("%d s: %llu lives\n", second + 1, static_cast<unsigned long long>(state.cycles.load()));
      std::fflush(stdout);
    }
  }
  for (std::thread& thread : threads) thread.join();
  SOAK(cuCtxSynchronize());
  module.Done();
  // Answered by the worker, after all that was sent before: a process that ends takes with it what is not executed, and
  // soak.sh would count that as left.
  size_t free_bytes = 0, total_bytes = 0;
  SOAK(cuMemGetInfo(&free_bytes, &total_bytes));
  SOAK(cuCtxSetCurrent(nullptr));
  SOAK(cuDevicePrimaryCtxRelease(0));
  return Report(state, groups);
}

}  // namespace
}  // namespace causeway::soak

int main(int count, char** arguments) {
  if (count < 2 || std::strcmp(arguments[1], "--help") == 0) {
    std::printf(
        "usage: soak SECONDS [THREADS [SEED [GROUP]]]\nMixes every group of the driver API; exits 1 when "
        "anything was wrong.\n");
    return count < 2 ? 2 : 0;
  }
  try {
    return causeway::soak::Run(std::atoi(arguments[1]), count > 2 ? std::atoi(arguments[2]) : 4,
                               count > 3 ? std::strtoull(arguments[3], nullptr, 10) : 1,
                               count > 4 ? arguments[4] : nullptr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "soak: %s\n", error.what());
    return 1;
  }
}
