// SPDX-License-Identifier: Apache-2.0
// The figures: each is the median over several rounds of a loop that calls one thing.
#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>

#include "host_backend/bench_probe.h"

namespace causeway::bench {
namespace {

using Clock = std::chrono::steady_clock;

double MicrosecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

struct Plan {
  int rounds = 21;
  int calls = 1000;  // per round
};

class Collector {
 public:
  explicit Collector(const Bench& bench) : bench_(bench) {}

  // Microseconds of one `call`; `after` (not timed) runs behind each round.
  void Time(const std::string& name, Plan plan, const std::function<CUresult()>& call,
            const std::function<CUresult()>& after = nullptr) {
    if (bench_.quick) plan = {3, std::min(plan.calls, 20)};
    Figure figure{name, "us", 0, call()};  // once ahead: first uses are not what is measured
    std::vector<double> rounds;
    for (int round = 0; round < plan.rounds && figure.error == CUDA_SUCCESS; ++round) {
      const auto start = Clock::now();
      for (int i = 0; i < plan.calls && figure.error == CUDA_SUCCESS; ++i) figure.error = call();
      rounds.push_back(MicrosecondsSince(start) / plan.calls);
      if (after && figure.error == CUDA_SUCCESS) figure.error = after();
    }
    if (figure.error == CUDA_SUCCESS) figure.value = Median(rounds);
    figures_.push_back(figure);
  }

  // GB/s (10^9 bytes) of one copy of `bytes`.
  void Rate(const std::string& name, size_t bytes, const std::function<CUresult()>& copy) {
    const size_t wanted = (256u << 20) / bytes;
    const int rounds = bench_.quick ? 2 : int(std::clamp<size_t>(wanted, 9, 201));
    Figure figure{name, "GB/s", 0, copy()};
    std::vector<double> times;
    for (int round = 0; round < rounds && figure.error == CUDA_SUCCESS; ++round) {
      const auto start = Clock::now();
      figure.error = copy();
      times.push_back(MicrosecondsSince(start));
    }
    if (figure.error == CUDA_SUCCESS) figure.value = double(bytes) / Median(times) / 1000;
    figures_.push_back(figure);
  }

  void Fail(const std::string& name, const char* unit, CUresult error) {
    figures_.push_back({name, unit, 0, error});
  }
  std::vector<Figure> Take() { return std::move(figures_); }

 private:
  const Bench& bench_;
  std::vector<Figure> figures_;
};

void MeasureLaunches(const Bench& bench, Collector& collect) {
  const Api& api = bench.api;
  const auto drain = [&] { return api.stream_synchronize(bench.stream); };
  collect.Time(
      "launch, enqueue (bursts of 1000)", {21, 1000}, [&] { return Launch(bench, 1); }, drain);
  const int drained = bench.quick ? 20 : 20'000;
  collect.Time("launch, drained", {5, drained}, [&, count = 0]() mutable {
    const CUresult result = Launch(bench, 1);
    // The last of a round waits for all: the first call, ahead of the rounds, counts as none.
    if (result != CUDA_SUCCESS || count++ % drained != 0) return result;
    return drain();
  });
  collect.Time("launch + synchronise", {21, 200}, [&] {
    const CUresult result = Launch(bench, 1);
    return result == CUDA_SUCCESS ? drain() : result;
  });
}

void MeasureStreams(const Bench& bench, Collector& collect) {
  const Api& api = bench.api;
  const auto drain = [&] { return api.stream_synchronize(bench.stream); };
  collect.Time("cuStreamSynchronize, idle", {}, drain);
  collect.Time("cuStreamQuery, idle", {}, [&] { return api.stream_query(bench.stream); });
  CUevent event = nullptr;
  const CUresult created = api.event_create(&event, CU_EVENT_DISABLE_TIMING);
  if (created != CUDA_SUCCESS) {
    collect.Fail("cuEventRecord", "us", created);
    collect.Fail("cuEventQuery", "us", created);
    return;
  }
  collect.Time(
      "cuEventRecord", {}, [&] { return api.event_record(event, bench.stream); }, drain);
  collect.Time("cuEventQuery", {}, [&] { return api.event_query(event); });
}

void MeasureMemory(const Bench& bench, Collector& collect) {
  const Api& api = bench.api;
  constexpr size_t kMib = 1u << 20;
  collect.Time("cuMemAlloc + cuMemFree, 1 MiB", {11, 50}, [&] {
    CUdeviceptr memory = 0;
    const CUresult result = api.memory_alloc(&memory, kMib);
    return result == CUDA_SUCCESS ? api.memory_free(memory) : result;
  });
  collect.Time("cuMemAllocAsync + cuMemFreeAsync", {21, 200}, [&] {
    CUdeviceptr memory = 0;
    const CUresult result = api.alloc_async(&memory, kMib, bench.stream);
    return result == CUDA_SUCCESS ? api.free_async(memory, bench.stream) : result;
  });
  collect.Time("cuCtxGetCurrent", {21, 100'000}, [&] {
    CUcontext context = nullptr;
    return api.get_current(&context);
  });
  collect.Time("cuDeviceGetAttribute", {21, 100'000}, [&] {
    int value = 0;
    return api.device_get_attribute(&value, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, bench.device);
  });
  collect.Time("cuPointerGetAttribute", {21, 20'000}, [&] {
    CUmemorytype type{};
    return api.pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, bench.word);
  });
}

std::string SizeName(size_t bytes) {
  return bytes >= 1u << 20 ? std::to_string(bytes >> 20) + " MiB" : std::to_string(bytes >> 10) + " KiB";
}

void MeasureCopiesOf(const Bench& bench, Collector& collect, const char* kind, void* host, CUdeviceptr device,
                     size_t most) {
  const Api& api = bench.api;
  for (size_t bytes : {size_t{64} << 10, size_t{1} << 20, size_t{16} << 20, size_t{256} << 20}) {
    if (bytes > most) continue;
    const std::string suffix = std::string(kind) + ", " + SizeName(bytes);
    collect.Rate("H2D " + suffix, bytes, [&] { return api.to_device(device, host, bytes); });
    collect.Rate("D2H " + suffix, bytes, [&] { return api.to_host(host, device, bytes); });
  }
}

void MeasureCopies(const Bench& bench, Collector& collect) {
  const Api& api = bench.api;
  uint32_t small = 1;
  collect.Time("cuMemcpyHtoD, 4 B", {21, 200},
               [&] { return api.to_device(bench.word, &small, sizeof(small)); });
  collect.Time("cuMemcpyDtoH, 4 B", {21, 200},
               [&] { return api.to_host(&small, bench.word, sizeof(small)); });
  const size_t most = bench.quick ? 1u << 20 : 256u << 20;
  CUdeviceptr device = 0;
  if (const CUresult result = api.memory_alloc(&device, most); result != CUDA_SUCCESS) {
    collect.Fail("copies", "GB/s", result);
    return;
  }
  void* pinned = nullptr;
  if (const CUresult result = api.host_alloc(&pinned, most, 0); result == CUDA_SUCCESS) {
    std::fill_n(static_cast<char*>(pinned), most, 'p');
    MeasureCopiesOf(bench, collect, "pinned", pinned, device, most);
    api.host_free(pinned);
  } else {
    collect.Fail("pinned copies", "GB/s", result);
  }
  // Touched once: what is measured is copying, not the kernel's first-touch zeroing.
  const auto pageable = std::make_unique<std::vector<char>>(most, 'h');
  MeasureCopiesOf(bench, collect, "pageable", pageable->data(), device, most);
  api.memory_free(device);
}

}  // namespace

CUresult Launch(const Bench& bench, uint32_t value) {
  CUdeviceptr address = bench.word;
  void* parameters[] = {&address, &value};
  return bench.api.launch(bench.kernel, 1, 1, 1, 1, 1, 1, 0, bench.stream, parameters, nullptr);
}

std::vector<Figure> Measure(const Bench& bench) {
  Collector collect(bench);
  collect.Time("cuMemGetInfo", {21, 200}, [&] {
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    return bench.api.memory_info(&free_bytes, &total_bytes);
  });
  // The driver answers this one from memory: through the guest library it is the bare round trip of a waiting
  // call.
  collect.Time("cuCtxGetCacheConfig (bare round trip)", {21, 500}, [&] {
    CUfunc_cache config = CU_FUNC_CACHE_PREFER_NONE;
    return bench.api.get_cache_config(&config);
  });
  MeasureLaunches(bench, collect);
  MeasureStreams(bench, collect);
  MeasureMemory(bench, collect);
  if (!bench.calls_only) MeasureCopies(bench, collect);
  return collect.Take();
}

}  // namespace causeway::bench
