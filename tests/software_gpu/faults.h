// SPDX-License-Identifier: Apache-2.0
// Device faults (sticky, process-wide), device output, and what counts launches for the misbehaviour on
// request.
#pragma once

#include <string_view>

#include "tests/software_gpu/driver.h"

namespace causeway::software_gpu {

// The first device fault of this process, or CUDA_SUCCESS.
CUresult StickyError();

// Records a device fault; the first one wins. The message goes to stderr.
void RaiseFault(CUresult error, std::string_view message);

// Device printf text is held back until the next synchronisation point; assert text goes to stderr at once.
void PrintFromDevice(bool is_stderr, std::string_view text);
void FlushDeviceOutput();

// Called for each accepted launch, on the caller's thread: delays, aborts or loses the device as configured.
void CountLaunch();

// While one lives, the calling thread runs a host function for the driver and may not call the driver.
class ScopedHostFunction {
 public:
  ScopedHostFunction();
  ~ScopedHostFunction();
  ScopedHostFunction(const ScopedHostFunction&) = delete;
  ScopedHostFunction& operator=(const ScopedHostFunction&) = delete;
};

// cuInit's part of the gate.
bool IsForkedChild();
void MarkInitialised();
bool IsInitialised();

}  // namespace causeway::software_gpu
