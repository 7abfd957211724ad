// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/crew/driver.h"

#include <dlfcn.h>

#include <algorithm>

#include "tools/bench/crew/kernels.h"

namespace causeway::bench {
namespace {

constexpr std::uint64_t kBoundNs = 2'000'000'000;  // no kernel of ours runs longer by the clock

std::string& DriverPath() {
  static std::string path = "libcuda.so.1";
  return path;
}

struct Shape {
  int blocks = 0, threads = 256;
};
Shape& WantedShape() {
  static Shape shape;
  return shape;
}

// cuda.h names the newest form of a function by a macro (cuMemAlloc is cuMemAlloc_v2): the name that is looked up is the one
// that the macro stands for.
#define CREW_TEXT(name) #name
#define CREW_NAME(name) CREW_TEXT(name)

void* OpenLibrary() {
  static void* library = nullptr;
  if (library == nullptr) library = dlopen(DriverPath().c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw Failure(std::string("no driver: ") + dlerror());
  return library;
}

Driver Open() {
  void* library = OpenLibrary();
  Driver driver;
#define CREW_FIND(name) \
  driver.name = reinterpret_cast<decltype(driver.name)>(dlsym(library, CREW_NAME(name)));
  CREW_FUNCTIONS(CREW_FIND)
#undef CREW_FIND
  if (driver.cuLaunchKernel == nullptr) throw Failure(DriverPath() + " lacks cuLaunchKernel.");
  return driver;
}

}  // namespace

void SetDriverPath(const std::string& path) {
  DriverPath() = path;
}
void OpenDriver(const std::string& path) {
  SetDriverPath(path);
  OpenLibrary();
}
void SetBlocks(int blocks, int threads) {
  WantedShape() = {blocks, threads};
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
  blocks_ = WantedShape().blocks > 0 ? WantedShape().blocks : 2 * multiprocessors;
  Check(driver_, driver_.cuModuleLoadData(&module_, kKernels), "cuModuleLoadData");
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

CUresult Gpu::LaunchWork(std::uint32_t rounds, bool whole, CUstream stream) const {
  std::uint64_t bound = kBoundNs;
  CUdeviceptr sink = sink_;
  void* parameters[] = {&rounds, &bound, &sink};
  return driver_.cuLaunchKernel(work_, static_cast<unsigned>(whole ? blocks_ : 1), 1, 1,
                                static_cast<unsigned>(WantedShape().threads), 1, 1, 0, stream, parameters,
                                nullptr);
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

}  // namespace causeway::bench
