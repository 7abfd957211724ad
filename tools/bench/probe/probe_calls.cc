// SPDX-License-Identifier: Apache-2.0
// The probe's figures of single calls, in the order of their table.
#include <algorithm>
#include <atomic>
#include <thread>

#include "tools/bench/crew/statistics.h"
#include "tools/bench/probe/probe.h"

namespace causeway::bench {
namespace {

constexpr int kBurst = 1000;

CUresult LaunchDrained(Bench& bench, const Words&, double* us) {
  const int launches = bench.quick ? 20 : 20'000;
  std::vector<double> rounds;
  for (int round = 0; round < 3; ++round) {
    const double start = NowUs();
    for (int i = 0; i < launches; ++i) {
      if (const CUresult result = Launch(bench, bench.stream)) return result;
    }
    if (const CUresult result = bench.api.cuStreamSynchronize(bench.stream)) return result;
    rounds.push_back((NowUs() - start) / launches);
  }
  *us = Median(rounds);
  return CUDA_SUCCESS;
}

void AddLaunches(std::map<std::string, Measure>* figures) {
  (*figures)["launch_enqueue"] = [](Bench& b, const Words&, double* us) {
    return TimeCalls(
        b, {9, kBurst}, [&] { return Launch(b, b.stream); },
        [&] { return b.api.cuStreamSynchronize(b.stream); }, us);
  };
  (*figures)["launch_drained"] = LaunchDrained;
  (*figures)["launch_sync"] = [](Bench& b, const Words&, double* us) {
    const auto call = [&] {
      const CUresult result = Launch(b, b.stream);
      return result == CUDA_SUCCESS ? b.api.cuStreamSynchronize(b.stream) : result;
    };
    return TimeCalls(b, {9, 300}, call, nullptr, us);
  };
}

void AddIdleCalls(std::map<std::string, Measure>* figures) {
  // The driver answers this one from memory: through Causeway it is a bare round trip.
  (*figures)["empty_call"] = [](Bench& b, const Words&, double* us) {
    CUfunc_cache config = CU_FUNC_CACHE_PREFER_NONE;
    return TimeCalls(
        b, {}, [&] { return b.api.cuCtxGetCacheConfig(&config); }, nullptr, us);
  };
  (*figures)["stream_sync_idle"] = [](Bench& b, const Words&, double* us) {
    return TimeCalls(
        b, {}, [&] { return b.api.cuStreamSynchronize(b.stream); }, nullptr, us);
  };
  (*figures)["context_sync_idle"] = [](Bench& b, const Words&, double* us) {
    return TimeCalls(
        b, {}, [&] { return b.api.cuCtxSynchronize(); }, nullptr, us);
  };
  (*figures)["stream_query_done"] = [](Bench& b, const Words&, double* us) {
    return TimeCalls(
        b, {}, [&] { return b.api.cuStreamQuery(b.stream); }, nullptr, us);
  };
}

// With an event of its own, recorded and done.
CUresult WithEvent(Bench& b, const std::function<CUresult(CUevent)>& measure) {
  CUevent event = nullptr;
  CUresult result = b.api.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
  if (result != CUDA_SUCCESS) return result;
  result = b.api.cuEventRecord(event, b.stream);
  if (result == CUDA_SUCCESS) result = b.api.cuEventSynchronize(event);
  if (result == CUDA_SUCCESS) result = measure(event);
  b.api.cuEventDestroy_v2(event);
  return result;
}

void AddEvents(std::map<std::string, Measure>* figures) {
  (*figures)["event_query_done"] = [](Bench& b, const Words&, double* us) {
    return WithEvent(b, [&](CUevent event) {
      return TimeCalls(
          b, {}, [&] { return b.api.cuEventQuery(event); }, nullptr, us);
    });
  };
  (*figures)["event_record"] = [](Bench& b, const Words&, double* us) {
    return WithEvent(b, [&](CUevent event) {
      return TimeCalls(
          b, {}, [&] { return b.api.cuEventRecord(event, b.stream); },
          [&] { return b.api.cuStreamSynchronize(b.stream); }, us);
    });
  };
}

void AddSmallCopies(std::map<std::string, Measure>* figures) {
  (*figures)["h2d_free"] = [](Bench& b, const Words& words, double* us) {
    const std::vector<char> host(Number(words, 1, 4), 'f');
    CUdeviceptr device = 0;
    CUresult result = b.api.cuMemAlloc_v2(&device, host.size());
    if (result != CUDA_SUCCESS) return result;
    result = TimeSingle(
        b, 300, [&] { return b.api.cuCtxSynchronize(); },
        [&] { return b.api.cuMemcpyHtoD_v2(device, host.data(), host.size()); }, us);
    b.api.cuMemFree_v2(device);
    return result;
  };
  (*figures)["h2d_waits"] = [](Bench& b, const Words&, double* us) {
    uint32_t value = 1;
    const auto call = [&] {
      const CUresult result = Launch(b, nullptr);
      return result == CUDA_SUCCESS ? b.api.cuMemcpyHtoD_v2(b.word, &value, sizeof(value)) : result;
    };
    return TimeCalls(
        b, {9, 300}, call, [&] { return b.api.cuCtxSynchronize(); }, us);
  };
  (*figures)["d2h_small"] = [](Bench& b, const Words&, double* us) {
    uint32_t value = 0;
    return TimeCalls(
        b, {9, 300}, [&] { return b.api.cuMemcpyDtoH_v2(&value, b.word, sizeof(value)); }, nullptr, us);
  };
}

CUresult GraphLaunch(Bench& b, const Words&, double* us) {
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  CUresult result = b.api.cuStreamBeginCapture_v2(b.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  const int nodes = b.quick ? 20 : 1000;
  for (int i = 0; i < nodes && result == CUDA_SUCCESS; ++i) result = Launch(b, b.stream);
  const CUresult ended = b.api.cuStreamEndCapture(b.stream, &graph);
  if (result == CUDA_SUCCESS) result = ended;
  if (result == CUDA_SUCCESS) result = b.api.cuGraphInstantiateWithFlags(&exec, graph, 0);
  if (result == CUDA_SUCCESS) {
    const auto call = [&] {
      const CUresult launched = b.api.cuGraphLaunch(exec, b.stream);
      return launched == CUDA_SUCCESS ? b.api.cuStreamSynchronize(b.stream) : launched;
    };
    result = TimeCalls(b, {9, 10}, call, nullptr, us);
  }
  if (exec != nullptr) b.api.cuGraphExecDestroy(exec);
  if (graph != nullptr) b.api.cuGraphDestroy(graph);
  return result;
}

// Millions of launches a second of all threads together, each on a stream of its own, drained.
CUresult Threads(Bench& b, const Words& words, double* rate) {
  const auto count = std::clamp<uint64_t>(Number(words, 1, 1), 1, 64);
  const int launches = b.quick ? 20 : 4000;
  std::atomic<uint64_t> ready{0};
  std::atomic<bool> go{false};
  std::atomic<int> failure{CUDA_SUCCESS};
  const auto work = [&] {
    CUstream stream = nullptr;
    CUresult result = b.api.cuCtxSetCurrent(b.context);
    if (result == CUDA_SUCCESS) result = b.api.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    if (result == CUDA_SUCCESS) result = Launch(b, stream);
    if (result == CUDA_SUCCESS) result = b.api.cuStreamSynchronize(stream);
    ready.fetch_add(1);
    if (!YieldUntil([&] { return go.load(std::memory_order_acquire); })) result = CUDA_ERROR_TIMEOUT;
    for (int i = 0; i < launches && result == CUDA_SUCCESS; ++i) result = Launch(b, stream);
    if (result == CUDA_SUCCESS) result = b.api.cuStreamSynchronize(stream);
    if (stream != nullptr) b.api.cuStreamDestroy_v2(stream);
    if (result != CUDA_SUCCESS) failure.store(result);
  };
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < count; ++i) threads.emplace_back(work);
  if (!YieldUntil([&] { return ready.load() == count; })) failure.store(CUDA_ERROR_TIMEOUT);
  const double start = NowUs();
  go.store(true, std::memory_order_release);
  for (std::thread& thread : threads) thread.join();
  *rate = double(launches) * double(count) / (NowUs() - start);
  return CUresult(failure.load());
}

void AddAllocations(std::map<std::string, Measure>* figures) {
  (*figures)["alloc_free"] = [](Bench& b, const Words&, double* us) {
    const auto call = [&] {
      CUdeviceptr memory = 0;
      const CUresult result = b.api.cuMemAlloc_v2(&memory, kMib);
      return result == CUDA_SUCCESS ? b.api.cuMemFree_v2(memory) : result;
    };
    return TimeCalls(b, {9, 50}, call, nullptr, us);
  };
  (*figures)["alloc_async"] = [](Bench& b, const Words&, double* us) {
    const auto call = [&] {
      CUdeviceptr memory = 0;
      const CUresult result = b.api.cuMemAllocAsync(&memory, kMib, b.stream);
      return result == CUDA_SUCCESS ? b.api.cuMemFreeAsync(memory, b.stream) : result;
    };
    return TimeCalls(
        b, {9, 200}, call, [&] { return b.api.cuStreamSynchronize(b.stream); }, us);
  };
}

}  // namespace

void AddCallFigures(std::map<std::string, Measure>* figures) {
  AddIdleCalls(figures);
  AddEvents(figures);
  AddLaunches(figures);
  AddSmallCopies(figures);
  AddAllocations(figures);
  (*figures)["graph_launch"] = GraphLaunch;
  (*figures)["threads"] = Threads;
}

}  // namespace causeway::bench
