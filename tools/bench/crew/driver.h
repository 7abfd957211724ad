// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "cuda.h"
#include "host_backend/common/monotonic.h"

namespace causeway::bench {

// A call of the driver that failed, or a driver that is not there; what() is one sentence.
class Failure : public std::runtime_error {
 public:
  explicit Failure(const std::string& sentence) : runtime_error(sentence) {}
};

// The driver's functions that the parts use, from the library of this path (see SetDriverPath).
struct Driver {
// clang-format off
#define CREW_FUNCTIONS(F) \
  F(cuInit) \
  F(cuDriverGetVersion) \
  F(cuDeviceGet) \
  F(cuDeviceGetName) \
  F(cuDeviceGetAttribute) \
  F(cuDevicePrimaryCtxRetain) \
  F(cuCtxSetCurrent) \
  F(cuCtxSynchronize) \
  F(cuModuleLoadData) \
  F(cuModuleGetFunction) \
  F(cuMemAlloc) \
  F(cuMemFree) \
  F(cuMemGetInfo) \
  F(cuMemHostAlloc) \
  F(cuMemcpyHtoD) \
  F(cuMemcpyHtoDAsync) \
  F(cuMemcpyDtoHAsync) \
  F(cuMemcpyDtoH) \
  F(cuMemsetD32) \
  F(cuLaunchKernel) \
  F(cuStreamCreate) \
  F(cuStreamSynchronize) \
  F(cuEventCreate) \
  F(cuEventRecord) \
  F(cuEventSynchronize) \
  F(cuGetErrorName) \
  F(cuCheckpointProcessLock) \
  F(cuCheckpointProcessCheckpoint) \
  F(cuCheckpointProcessRestore) \
  F(cuCheckpointProcessUnlock)
// clang-format on
#define CREW_POINTER(name) decltype(&::name) name = nullptr;
  CREW_FUNCTIONS(CREW_POINTER)
#undef CREW_POINTER
};

// Which library the driver is: "libcuda.so.1" unless said otherwise. Before the first Gpu.
void SetDriverPath(const std::string& path);
// The same, and opens it, so that a Gpu finds it also where this process can no longer read the file. Throws Failure.
void OpenDriver(const std::string& path);
// How many blocks kernels have that are to fill the GPU (0: two for each multiprocessor), and of how many threads. For
// stand-ins that are slow.
void SetBlocks(int blocks, int threads = 256);
// Throws Failure for any code but success; `what` names the call.
void Check(const Driver& driver, CUresult code, const char* what);

// The driver with a context on device 0 and the kernels loaded. Made in a child process alone: the process that forks the
// children never touches the driver, since a child of a process that has started it cannot use it. One thread.
class Gpu {
 public:
  Gpu();  // throws Failure

  const Driver& driver() const { return driver_; }
  int blocks() const { return blocks_; }      // a grid that fills the GPU
  CUdeviceptr sink() const { return sink_; }  // 8 words of zeros
  CUfunction Kernel(const char* name) const;  // throws Failure
  // Launches what takes `rounds` (see RoundsFor; 0: nothing but the launch) on the whole GPU, or one block of it. Returns
  // the driver's code.
  CUresult LaunchWork(std::uint32_t rounds, bool whole = true, CUstream stream = nullptr) const;
  CUresult LaunchCount() const;                // adds 1 to the first word of `sink`
  CUresult LaunchOn(CUfunction kernel) const;  // one thread, with `sink` as the only parameter
  // How many rounds take `microseconds` on the whole GPU when nobody else uses it. Takes ~20 ms to find out.
  std::uint32_t RoundsFor(double microseconds) const;

 private:
  Driver driver_;
  CUmodule module_ = nullptr;
  CUfunction work_ = nullptr, count_ = nullptr;
  CUdeviceptr sink_ = 0;
  int blocks_ = 1;
};

inline std::uint64_t NowNs() {
  return MonotonicNs();
}

}  // namespace causeway::bench
