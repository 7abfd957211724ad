// SPDX-License-Identifier: Apache-2.0
// The probe's figures of other calls, in the order of their table.
#include <vector>

#include "tools/bench/probe/probe.h"

namespace causeway::bench {
namespace {

constexpr size_t kSetBytes = 4096;

// Device memory that lasts as long as this object.
class DeviceMemory {
 public:
  explicit DeviceMemory(const Bench& bench) : bench_(bench) {}
  ~DeviceMemory() {
    if (address_ != 0) bench_.api.cuMemFree_v2(address_);
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  CUresult Make(size_t bytes) { return bench_.api.cuMemAlloc_v2(&address_, bytes); }
  CUdeviceptr address() const { return address_; }

 private:
  const Bench& bench_;
  CUdeviceptr address_ = 0;
};

// h2d_async:BYTES, of pinned memory: how long the caller is held up.
CUresult CopyAsync(Bench& b, const Words& words, double* us) {
  const size_t bytes = Number(words, 1, 4);
  DeviceMemory device(b);
  void* host = nullptr;
  CUresult result = device.Make(bytes);
  if (result == CUDA_SUCCESS) result = b.api.cuMemHostAlloc(&host, bytes, 0);
  if (result != CUDA_SUCCESS) return result;
  const auto call = [&] { return b.api.cuMemcpyHtoDAsync_v2(device.address(), host, bytes, b.stream); };
  result = TimeCalls(
      b, {9, 200}, call, [&] { return b.api.cuStreamSynchronize(b.stream); }, us);
  b.api.cuMemFreeHost(host);
  return result;
}

void AddMemsets(std::map<std::string, Measure>* figures) {
  (*figures)["memset_async"] = [](Bench& b, const Words&, double* us) {
    DeviceMemory device(b);
    if (const CUresult result = device.Make(kSetBytes)) return result;
    const auto call = [&] { return b.api.cuMemsetD8Async(device.address(), 1, kSetBytes, b.stream); };
    return TimeCalls(
        b, {9, 200}, call, [&] { return b.api.cuStreamSynchronize(b.stream); }, us);
  };
  // The form without a stream need not wait for the device either.
  (*figures)["memset"] = [](Bench& b, const Words&, double* us) {
    DeviceMemory device(b);
    if (const CUresult result = device.Make(kSetBytes)) return result;
    return TimeCalls(
        b, {9, 200}, [&] { return b.api.cuMemsetD8_v2(device.address(), 1, kSetBytes); },
        [&] { return b.api.cuCtxSynchronize(); }, us);
  };
  (*figures)["memset_sync"] = [](Bench& b, const Words&, double* us) {
    DeviceMemory device(b);
    if (const CUresult result = device.Make(kSetBytes)) return result;
    const auto call = [&] {
      const CUresult set = b.api.cuMemsetD8Async(device.address(), 1, kSetBytes, b.stream);
      return set == CUDA_SUCCESS ? b.api.cuStreamSynchronize(b.stream) : set;
    };
    return TimeCalls(b, {9, 300}, call, nullptr, us);
  };
}

// Microseconds of each of many allocations that are there at once, its end included.
CUresult ManyAllocations(Bench& b, const Words&, double* us) {
  constexpr size_t kBytes = 1024;
  std::vector<CUdeviceptr> memory(b.quick ? 20 : 1000);
  const auto all = [&] {
    CUresult result = CUDA_SUCCESS;
    size_t made = 0;
    while (made < memory.size() && result == CUDA_SUCCESS) {
      result = b.api.cuMemAlloc_v2(&memory[made], kBytes);
      if (result == CUDA_SUCCESS) ++made;
    }
    for (size_t i = 0; i < made; ++i) {
      const CUresult freed = b.api.cuMemFree_v2(memory[i]);
      if (result == CUDA_SUCCESS) result = freed;
    }
    return result;
  };
  const CUresult result = TimeCalls(b, {9, 1}, all, nullptr, us);
  *us /= double(memory.size());
  return result;
}

// With nothing else in its pool and its stream: what has been freed goes back to the device at each synchronisation.
CUresult AllocationRound(Bench& b, const Words&, double* us) {
  const auto call = [&] {
    CUdeviceptr memory = 0;
    CUresult result = b.api.cuMemAllocAsync(&memory, kMib, b.stream);
    if (result == CUDA_SUCCESS) result = b.api.cuMemFreeAsync(memory, b.stream);
    return result == CUDA_SUCCESS ? b.api.cuStreamSynchronize(b.stream) : result;
  };
  return TimeCalls(b, {9, 50}, call, nullptr, us);
}

// Microseconds of each of some streams that are made and destroyed, one after the other, until the device has done so.
CUresult StreamsDrained(Bench& b, const Words&, double* us) {
  const int streams = b.quick ? 5 : 100;
  const auto all = [&] {
    CUresult result = CUDA_SUCCESS;
    for (int i = 0; i < streams && result == CUDA_SUCCESS; ++i) {
      CUstream stream = nullptr;
      result = b.api.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
      if (result == CUDA_SUCCESS) result = b.api.cuStreamDestroy_v2(stream);
    }
    return result == CUDA_SUCCESS ? b.api.cuCtxSynchronize() : result;
  };
  const CUresult result = TimeCalls(b, {9, 1}, all, nullptr, us);
  *us /= streams;
  return result;
}

void AddQueries(std::map<std::string, Measure>* figures) {
  (*figures)["memory_info"] = [](Bench& b, const Words&, double* us) {
    size_t free_bytes = 0, total_bytes = 0;
    return TimeCalls(
        b, {9, 200}, [&] { return b.api.cuMemGetInfo_v2(&free_bytes, &total_bytes); }, nullptr, us);
  };
  (*figures)["get_current"] = [](Bench& b, const Words&, double* us) {
    CUcontext context = nullptr;
    return TimeCalls(
        b, {9, 50'000}, [&] { return b.api.cuCtxGetCurrent(&context); }, nullptr, us);
  };
  (*figures)["device_attribute"] = [](Bench& b, const Words&, double* us) {
    int value = 0;
    const auto call = [&] {
      return b.api.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, b.device);
    };
    return TimeCalls(b, {9, 50'000}, call, nullptr, us);
  };
  (*figures)["pointer_attribute"] = [](Bench& b, const Words&, double* us) {
    CUmemorytype type{};
    const auto call = [&] {
      return b.api.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, b.word);
    };
    return TimeCalls(b, {9, 20'000}, call, nullptr, us);
  };
  (*figures)["occupancy"] = [](Bench& b, const Words&, double* us) {
    constexpr int kThreads = 256;
    int blocks = 0;
    const auto call = [&] {
      return b.api.cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, b.write_word, kThreads, 0);
    };
    return TimeCalls(b, {9, 20'000}, call, nullptr, us);
  };
}

}  // namespace

void AddOtherFigures(std::map<std::string, Measure>* figures) {
  AddQueries(figures);
  (*figures)["h2d_async"] = CopyAsync;
  AddMemsets(figures);
  (*figures)["streams_drained"] = StreamsDrained;
  (*figures)["many_allocs"] = ManyAllocations;
  (*figures)["alloc_round"] = AllocationRound;
}

}  // namespace causeway::bench
