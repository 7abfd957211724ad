// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/sharing_facts/driver.h"

#include <dlfcn.h>

#include <algorithm>
#include <ctime>

// The kernels as PTX, which the driver compiles for the GPU at hand.
asm(".section .rodata\n"
    ".global sharing_facts_kernels\n"
    "sharing_facts_kernels:\n"
    ".incbin \"" SHARING_FACTS_PTX
    "\"\n"
    ".byte 0\n"
    ".previous\n");
extern "C" const char sharing_facts_kernels[];

namespace sharing_facts {
namespace {

constexpr std::uint64_t kBoundNs = 2'000'000'000;  // no kernel of ours runs longer by the clock

std::string& DriverPath() {
  static std::string path = "libcuda.so.1";
  return path;
}

int& WantedBlocks() {
  static int blocks = 0;
  return blocks;
}

// cuda.h names the newest form of a function by a macro (cuMemAlloc is cuMemAlloc_v2): the name that is looked up is the one
// that the macro stands for.
#define SHARING_FACTS_TEXT(name) #name
#define SHARING_FACTS_NAME(name) SHARING_FACTS_TEXT(name)

Driver Open() {
  void* library = dlopen(DriverPath().c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw Failure(std::string("no driver: ") + dlerror());
  Driver driver;
#define SHARING_FACTS_FIND(name) \
  driver.name = reinterpret_cast<decltype(driver.name)>(dlsym(library, SHARING_FACTS_NAME(name)));
  SHARING_FACTS_FUNCTIONS(SHARING_FACTS_FIND)
#undef SHARING_FACTS_FIND
  if (driver.cuLaunchKernel == nullptr) throw Failure(DriverPath() + " lacks cuLaunchKernel.");
  return driver;
}

}  // namespace

void SetDriverPath(const std::string& path) {
  DriverPath() = path;
}
void SetBlocks(int blocks) {
  WantedBlocks() = blocks;
}

void Check(const Driver& driver, CUresult code, const char* what) {
  if (code == CUDA_SUCCESS) return;
  const char* name = nullptr;
  if (driver.cuGetErrorName == nullptr || driver.cuGetErrorName(code, &name) != CUDA_SUCCESS)
    name = "unknown";
  throw Failure(std::string(what) + " answered " + std::to_string(code) + " (" + name + ")");
}

Gpu::Gpu() : driver_(Open()) {
  Check(driver_, driver_.cuInit(0), "cuInit");
  CUdevice device = 0;
  Check(driver_, driver_.cuDeviceGet(&device, 0), "cuDeviceGet");
  CUcontext context = nullptr;
  Check(driver_, driver_.cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  Check(driver_, driver_.cuCtxSetCurrent(context), "cuCtxSetCurrent");
  int multiprocessors = 1;
  Check(driver_,
        driver_.cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device),
        "cuDeviceGetAttribute");
  blocks_ = WantedBlocks() > 0 ? WantedBlocks() : 2 * multiprocessors;
  Check(driver_, driver_.cuModuleLoadData(&module_, sharing_facts_kernels), "cuModuleLoadData");
  work_ = Kernel("Work");
  count_ = Kernel("Count");
  Check(driver_, driver_.cuMemAlloc(&sink_, 8 * sizeof(std::uint32_t)), "cuMemAlloc");
  Check(driver_, driver_.cuMemsetD32(sink_, 0, 8), "cuMemsetD32");
  Check(driver_, LaunchWork(1), "cuLaunchKernel");
  Check(driver_, driver_.cuCtxSynchronize(), "cuCtxSynchronize");
}

CUfunction Gpu::Kernel(const char* name) const {
  CUfunction kernel = nullptr;
  Check(driver_, driver_.cuModuleGetFunction(&kernel, module_, name), "cuModuleGetFunction");
  return kernel;
}

CUresult Gpu::LaunchWork(std::uint32_t rounds, bool whole) const {
  std::uint64_t bound = kBoundNs;
  CUdeviceptr sink = sink_;
  void* parameters[] = {&rounds, &bound, &sink};
  return driver_.cuLaunchKernel(work_, static_cast<unsigned>(whole ? blocks_ : 1), 1, 1, 256, 1, 1, 0,
                                nullptr, parameters, nullptr);
}

CUresult Gpu::LaunchCount() const {
  return LaunchOn(count_);
}

CUresult Gpu::LaunchOn(CUfunction kernel) const {
  CUdeviceptr sink = sink_;
  void* parameters[] = {&sink};
  return driver_.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr);
}

std::uint32_t Gpu::RoundsFor(double microseconds) const {
  // The shortest of five: whoever else uses the GPU can only make one longer. The difference of two sizes leaves out what a
  // launch and a wait cost.
  auto shortest = [this](std::uint32_t rounds) {
    std::uint64_t best = ~std::uint64_t{0};
    for (int i = 0; i < 5; ++i) {
      const std::uint64_t begin = NowNs();
      Check(driver_, LaunchWork(rounds), "cuLaunchKernel");
      Check(driver_, driver_.cuCtxSynchronize(), "cuCtxSynchronize");
      best = std::min(best, NowNs() - begin);
    }
    return static_cast<double>(best);
  };
  const double few = shortest(100), many = shortest(1100);
  const double round_ns = std::max(1.0, (many - few) / 1000);
  return static_cast<std::uint32_t>(std::max(1.0, microseconds * 1000 / round_ns));
}

std::uint64_t NowNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(now.tv_nsec);
}

}  // namespace sharing_facts
