// SPDX-License-Identifier: Apache-2.0
// The names of NVML that tests/software_gpu/nvml.cc does not implement: they exist and are not supported.
#include <cstdint>

#define NVML_REST(fn, ...)                                                \
  extern "C" __attribute__((visibility("default"), weak)) uint32_t fn() { \
    return 3;                                                             \
  }
#define NVML_CALL NVML_REST
#define NVML_GUEST NVML_REST
#define NVML_LOCAL NVML_REST
#define NVML_DENY NVML_REST
#define NVML_LACK NVML_REST
#include "ivshmem_ring/nvml_calls.def"
