// SPDX-License-Identifier: Apache-2.0
// The probe's figures of memory that both processors use: mapped, registered, managed.
#include <sys/mman.h>

#include <cstring>

#include "tools/bench/crew/statistics.h"
#include "tools/bench/probe/probe.h"

namespace causeway::bench {
namespace {

double Rate(uint64_t bytes, double us) {
  return us > 0 ? double(bytes) / us / 1000 : 0;
}

// A kernel over `bytes` at `address`; GB/s of its second run (or of the only one).
CUresult TimeKernel(Bench& b, CUfunction kernel, CUdeviceptr address, size_t bytes, int runs, double* rate) {
  uint64_t words = bytes / sizeof(uint32_t);
  uint64_t last = kernel == b.fill ? 7 : b.word;  // value, or where
  void* parameters[] = {&address, &words, &last};
  std::vector<double> times;
  for (int run = 0; run < runs; ++run) {
    const double start = NowUs();
    if (const CUresult result = RunWide(b, kernel, parameters)) return result;
    if (run > 0 || runs == 1) times.push_back(NowUs() - start);
  }
  *rate = Rate(bytes, Median(times));
  return CUDA_SUCCESS;
}

CUresult Mapped(Bench& b, CUfunction kernel, double* rate) {
  const size_t bytes = b.quick ? kMib / 16 : 256 * kMib;
  void* host = nullptr;
  CUresult result = b.api.cuMemHostAlloc(&host, bytes, CU_MEMHOSTALLOC_DEVICEMAP);
  if (result != CUDA_SUCCESS) return result;
  std::memset(host, 1, bytes);
  CUdeviceptr device = 0;
  result = b.api.cuMemHostGetDevicePointer_v2(&device, host, 0);
  if (result == CUDA_SUCCESS) result = TimeKernel(b, kernel, device, bytes, b.quick ? 2 : 6, rate);
  b.api.cuMemFreeHost(host);
  return result;
}

// Milliseconds for registering and unregistering ordinary memory that has been used.
CUresult Register(Bench& b, const Words&, double* ms) {
  const size_t bytes = (b.quick ? 16 : 1024) * kMib;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  std::memset(memory, 'r', bytes);
  std::vector<double> times;
  CUresult result = CUDA_SUCCESS;
  for (int i = 0; i < 2 && result == CUDA_SUCCESS; ++i) {
    const double start = NowUs();
    result = b.api.cuMemHostRegister_v2(memory, bytes, 0);
    if (result == CUDA_SUCCESS) result = b.api.cuMemHostUnregister(memory);
    times.push_back((NowUs() - start) / 1000);
  }
  munmap(memory, bytes);
  *ms = Median(times);
  return result;
}

CUresult HostAlloc(Bench& b, const Words&, double* us) {
  const auto call = [&] {
    void* memory = nullptr;
    const CUresult result = b.api.cuMemHostAlloc(&memory, kMib, 0);
    return result == CUDA_SUCCESS ? b.api.cuMemFreeHost(memory) : result;
  };
  return TimeCalls(b, {9, 50}, call, nullptr, us);
}

enum class Touch { kResident, kToDevice, kToHost };

// Managed memory that the CPU has written: the kernel's first run moves it, later ones find it there;
// afterwards the CPU's reading moves it back.
CUresult Managed(Bench& b, Touch touch, double* rate) {
  const size_t bytes = b.quick ? kMib / 4 : 1024 * kMib;
  CUdeviceptr memory = 0;
  CUresult result = b.api.cuMemAllocManaged(&memory, bytes, CU_MEM_ATTACH_GLOBAL);
  if (result != CUDA_SUCCESS) return result;
  auto* host = reinterpret_cast<volatile uint64_t*>(memory);
  std::memset(reinterpret_cast<void*>(memory), 1, bytes);
  result = TimeKernel(b, b.add_one, memory, bytes, touch == Touch::kResident ? 4 : 1, rate);
  if (result == CUDA_SUCCESS && touch == Touch::kToHost) {
    const double start = NowUs();
    uint64_t sum = 0;
    for (size_t i = 0; i < bytes / sizeof(uint64_t); ++i) sum += host[i];
    *rate = Rate(bytes, NowUs() - start);
    if (sum != 0x0101010201010102 * (bytes / sizeof(uint64_t))) result = CUDA_ERROR_ILLEGAL_STATE;
  }
  const CUresult freed = b.api.cuMemFree_v2(memory);
  return result == CUDA_SUCCESS ? freed : result;
}

}  // namespace

void AddMemoryFigures(std::map<std::string, Measure>* figures) {
  (*figures)["mapped_read"] = [](Bench& b, const Words&, double* rate) { return Mapped(b, b.sum, rate); };
  (*figures)["mapped_write"] = [](Bench& b, const Words&, double* rate) { return Mapped(b, b.fill, rate); };
  (*figures)["register"] = Register;
  (*figures)["host_alloc"] = HostAlloc;
  (*figures)["managed_resident"] = [](Bench& b, const Words&, double* rate) {
    return Managed(b, Touch::kResident, rate);
  };
  (*figures)["managed_to_device"] = [](Bench& b, const Words&, double* rate) {
    return Managed(b, Touch::kToDevice, rate);
  };
  (*figures)["managed_to_host"] = [](Bench& b, const Words&, double* rate) {
    return Managed(b, Touch::kToHost, rate);
  };
}

}  // namespace causeway::bench
