// SPDX-License-Identifier: Apache-2.0
// Guards for the launches of before CUDA 4 (cuFuncSetBlockShape, cuParamSetv, cuLaunch and the like), which
// keep a launch's shape and parameters in the function. NVIDIA's driver checks neither the function nor the
// offset of a parameter, so a hostile guest could write into the worker's own memory.
#pragma once
#include "host_backend/worker/driver/driver.h"

namespace causeway::host {

// Puts a check before each of these rows that the library has. A null function is answered with
// CUDA_ERROR_INVALID_HANDLE, and a parameter that does not lie within the function's with
// CUDA_ERROR_INVALID_VALUE; only what passes reaches the driver. GuardDriver calls this once in a process,
// before other threads use the driver. Any thread may call the checked rows.
void GuardLegacyLaunches(Driver& driver);

}  // namespace causeway::host
