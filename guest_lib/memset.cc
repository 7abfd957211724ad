// SPDX-License-Identifier: Apache-2.0
// Memsets: checked here against what this process allocated, then posted. The synchronous forms do not wait
// for the device natively either.
#include "guest_lib/address_windows.h"
#include "guest_lib/memory.h"
#include "guest_lib/region_memory.h"
#include "guest_lib/remote.h"

namespace causeway::guest {
namespace {

// The error that the driver gives at once: an address that is no device memory, or a range that leaves it.
CUresult CheckRange(CUdeviceptr to, uint64_t bytes) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (CurrentContextObject() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  DeviceAllocation allocation;
  uint64_t start = 0, size = 0;
  if (FindAllocation(to, &allocation)) {
    start = allocation.address;
    size = allocation.bytes;
  } else if (!Session::Get()->memory().Find(to, &start, &size)) {
    // Variables of modules and mapped memory are the host's to judge.
    return IsDeviceAddress(to) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  return bytes <= size - (to - start) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CheckRows(CUdeviceptr to, uint64_t pitch, uint64_t row_bytes, uint64_t rows) {
  if (rows > 1 && pitch < row_bytes) return CUDA_ERROR_INVALID_VALUE;
  return CheckRange(to, rows == 0 || row_bytes == 0 ? 0 : (rows - 1) * pitch + row_bytes);
}

}  // namespace
}  // namespace causeway::guest

using namespace causeway;
using namespace causeway::guest;

#define LINEAR(fn, T, size)                                                    \
  CUresult fn(CUdeviceptr to, T value, size_t count) {                         \
    if (const CUresult result = CheckRange(to, count * (size))) return result; \
    return Post<Op::fn>(to, value, count);                                     \
  }
#define LINEAR_ASYNC(fn, T, size)                                              \
  CUresult fn(CUdeviceptr to, T value, size_t count, CUstream stream) {        \
    if (const CUresult result = CheckRange(to, count * (size))) return result; \
    return Post<Op::fn>(to, value, count, stream);                             \
  }
#define ROWS(fn, T, size)                                                                    \
  CUresult fn(CUdeviceptr to, size_t pitch, T value, size_t width, size_t height) {          \
    if (const CUresult result = CheckRows(to, pitch, width * (size), height)) return result; \
    return Post<Op::fn>(to, pitch, value, width, height);                                    \
  }
#define ROWS_ASYNC(fn, T, size)                                                                      \
  CUresult fn(CUdeviceptr to, size_t pitch, T value, size_t width, size_t height, CUstream stream) { \
    if (const CUresult result = CheckRows(to, pitch, width * (size), height)) return result;         \
    return Post<Op::fn>(to, pitch, value, width, height, stream);                                    \
  }

extern "C" {
LINEAR(cuMemsetD8_v2, unsigned char, 1)
LINEAR(cuMemsetD16_v2, unsigned short, 2)
LINEAR(cuMemsetD32_v2, unsigned int, 4)
LINEAR_ASYNC(cuMemsetD8Async, unsigned char, 1)
LINEAR_ASYNC(cuMemsetD16Async, unsigned short, 2)
LINEAR_ASYNC(cuMemsetD32Async, unsigned int, 4)
ROWS(cuMemsetD2D8_v2, unsigned char, 1)
ROWS(cuMemsetD2D16_v2, unsigned short, 2)
ROWS(cuMemsetD2D32_v2, unsigned int, 4)
ROWS_ASYNC(cuMemsetD2D8Async, unsigned char, 1)
ROWS_ASYNC(cuMemsetD2D16Async, unsigned short, 2)
ROWS_ASYNC(cuMemsetD2D32Async, unsigned int, 4)
}
