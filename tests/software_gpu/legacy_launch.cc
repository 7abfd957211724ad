// SPDX-License-Identifier: Apache-2.0
// Launches as before CUDA 4: the shape and the parameters are kept with the function.
#include <algorithm>
#include <climits>
#include <cstring>
#include <map>

#include "tests/software_gpu/module.h"

namespace causeway::software_gpu {
namespace {

struct Pending {
  unsigned block[3] = {1, 1, 1};
  unsigned shared_bytes = 0;
  std::vector<std::byte> parameters;
};

constexpr size_t kMaxParameterBytes = 4096;

// By function; entries of ended functions are never asked for again.
std::mutex mutex;
std::map<CUfunction, Pending>& AllPending() {
  static auto* all = new std::map<CUfunction, Pending>;
  return *all;
}

template <typename Change>
CUresult ChangePending(const char* name, CUfunction function, const Change& change) {
  return InContext(name, [&](const ContextRef& context) -> CUresult {
    FunctionRef found;
    if (CUresult result = ResolveFunction(context, function, &found); result != CUDA_SUCCESS) return result;
    const std::lock_guard lock(mutex);
    return change(AllPending()[function]);
  });
}

CUresult SetBytes(const char* name, CUfunction function, int offset, const void* from, size_t bytes) {
  return ChangePending(name, function, [&](Pending& pending) -> CUresult {
    if (offset < 0 || from == nullptr) return CUDA_ERROR_INVALID_VALUE;  // also of no bytes, on an H200
    const size_t begin = static_cast<size_t>(offset);
    if (begin > kMaxParameterBytes || bytes > kMaxParameterBytes - begin) return CUDA_ERROR_INVALID_VALUE;
    if (pending.parameters.size() < begin + bytes) pending.parameters.resize(begin + bytes);
    std::memcpy(pending.parameters.data() + begin, from, bytes);
    return CUDA_SUCCESS;
  });
}

CUresult LaunchPending(CUfunction function, int width, int height, CUstream stream) {
  Pending pending;
  if (width <= 0 || height <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = ChangePending("cuLaunch", function,
                                      [&](Pending& kept) {
                                        pending = kept;
                                        return CUDA_SUCCESS;
                                      });
      result != CUDA_SUCCESS) {
    return result;
  }
  // A function has room for all of its parameters from the beginning, whatever of it was set.
  size_t at = 0, size = 0;
  for (size_t i = 0; cuFuncGetParamInfo(function, i, &at, &size) == CUDA_SUCCESS; ++i) {
    if (pending.parameters.size() < at + size) pending.parameters.resize(at + size);
  }
  size_t bytes = pending.parameters.size();
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, pending.parameters.data(), CU_LAUNCH_PARAM_BUFFER_SIZE,
                   &bytes, CU_LAUNCH_PARAM_END};
  return cuLaunchKernel(function, static_cast<unsigned>(width), static_cast<unsigned>(height), 1,
                        pending.block[0], pending.block[1], pending.block[2], pending.shared_bytes, stream,
                        nullptr, bytes != 0 ? extra : nullptr);
}

}  // namespace
}  // namespace causeway::software_gpu

using namespace causeway::software_gpu;

extern "C" {

CUresult cuFuncSetBlockShape(CUfunction hfunc, int x, int y, int z) {
  return ChangePending(__func__, hfunc, [&](Pending& pending) -> CUresult {
    if (x <= 0 || y <= 0 || z <= 0) return CUDA_ERROR_INVALID_VALUE;
    pending.block[0] = static_cast<unsigned>(x);
    pending.block[1] = static_cast<unsigned>(y);
    pending.block[2] = static_cast<unsigned>(z);
    return CUDA_SUCCESS;
  });
}

CUresult cuFuncSetSharedSize(CUfunction hfunc, unsigned int bytes) {
  return ChangePending(__func__, hfunc, [&](Pending& pending) {
    pending.shared_bytes = bytes;
    return CUDA_SUCCESS;
  });
}

CUresult cuParamSetSize(CUfunction hfunc, unsigned int numbytes) {
  return ChangePending(__func__, hfunc, [&](Pending& pending) -> CUresult {
    constexpr unsigned kMost = 32'764;  // of today's launches
    if (numbytes > kMost) return CUDA_ERROR_INVALID_VALUE;
    pending.parameters.resize(std::min<size_t>(numbytes, kMaxParameterBytes));
    return CUDA_SUCCESS;
  });
}

CUresult cuParamSeti(CUfunction hfunc, int offset, unsigned int value) {
  return SetBytes(__func__, hfunc, offset, &value, sizeof value);
}
CUresult cuParamSetf(CUfunction hfunc, int offset, float value) {
  return SetBytes(__func__, hfunc, offset, &value, sizeof value);
}
CUresult cuParamSetv(CUfunction hfunc, int offset, void* ptr, unsigned int numbytes) {
  return SetBytes(__func__, hfunc, offset, ptr, numbytes);
}

CUresult cuLaunch(CUfunction f) {
  return LaunchPending(f, 1, 1, nullptr);
}
CUresult cuLaunchGrid(CUfunction f, int grid_width, int grid_height) {
  return LaunchPending(f, grid_width, grid_height, nullptr);
}
CUresult cuLaunchGridAsync(CUfunction f, int grid_width, int grid_height, CUstream hStream) {
  return LaunchPending(f, grid_width, grid_height, hStream);
}

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS* list, unsigned int count,
                                              unsigned int flags) {
  constexpr unsigned kFlags = CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC |
                              CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC;
  if (list == nullptr || count != 1 || (flags & ~kFlags) != 0)  // there is one device
    return CUDA_ERROR_INVALID_VALUE;
  if (list->function == nullptr || list->hStream == nullptr || list->hStream == CU_STREAM_LEGACY ||
      list->hStream == CU_STREAM_PER_THREAD)
    return CUDA_ERROR_INVALID_HANDLE;
  return cuLaunchCooperativeKernel(list->function, list->gridDimX, list->gridDimY, list->gridDimZ,
                                   list->blockDimX, list->blockDimY, list->blockDimZ, list->sharedMemBytes,
                                   list->hStream, list->kernelParams);
}

CUresult cuFuncSetSharedMemConfig(CUfunction hfunc, CUsharedconfig config) {
  return ChangePending(__func__, hfunc, [&](Pending&) -> CUresult {
    return config < CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE ||
                   config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE
               ? CUDA_ERROR_INVALID_VALUE
               : CUDA_SUCCESS;
  });
}

}  // extern "C"
