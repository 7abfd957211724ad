// SPDX-License-Identifier: Apache-2.0
// The parameters of a kernel as a program gives them to a launch or a graph node. The memory stays the
// program's, and is read before the call returns.
#pragma once
#include <cstring>

#include "guest_lib/code/function.h"
#include "guest_lib/session/device_reach.h"

namespace causeway::guest {

// Where the parameters are: an array of pointers, one for each parameter, or one packed buffer.
struct KernelParameters {
  void** pointers = nullptr;
  const void* buffer = nullptr;
  size_t buffer_bytes = 0;

  // Takes the two arguments of a launch. CUDA_ERROR_INVALID_VALUE if both are given, or `extra` is malformed.
  CUresult Take(void** kernel_params, void** extra) {
    if (kernel_params != nullptr && extra != nullptr) return CUDA_ERROR_INVALID_VALUE;
    pointers = kernel_params;
    for (int i = 0; extra != nullptr && extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
      if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
        buffer = extra[i + 1];
      } else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE && extra[i + 1] != nullptr) {
        buffer_bytes = *static_cast<const size_t*>(extra[i + 1]);
      } else {
        return CUDA_ERROR_INVALID_VALUE;
      }
    }
    return CUDA_SUCCESS;
  }
  // How many bytes Pack writes for that function. CUDA_ERROR_INVALID_VALUE if a pointer is missing or the
  // buffer is larger than any kernel's parameters.
  CUresult SizeFor(const Function& function, uint32_t* bytes) const {
    if (buffer != nullptr) {
      if (buffer_bytes > kMaxLaunchParameterBytes) return CUDA_ERROR_INVALID_VALUE;
      *bytes = static_cast<uint32_t>(buffer_bytes);
      return CUDA_SUCCESS;
    }
    if (!function.layout.empty() && pointers == nullptr) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < function.layout.size(); ++i) {
      if (pointers[i] == nullptr) return CUDA_ERROR_INVALID_VALUE;
    }
    *bytes = function.parameter_bytes;
    return CUDA_SUCCESS;
  }
  // Lets the device reach the pinned memory that the parameters name. To be called once SizeFor has found nothing wrong; it sends
  // messages.
  void NameOnDevice(const Function& function) const {
    if (unreached_blocks.load(std::memory_order_relaxed) == 0) [[likely]]
      return;
    if (buffer != nullptr) return NameAllOnDevice(buffer, buffer_bytes);
    for (size_t i = 0; i < function.layout.size(); ++i)
      NameAllOnDevice(pointers[i], function.layout[i].bytes);
  }
  // Writes the parameters in the kernel's own layout. `bytes` is what SizeFor said.
  void Pack(const Function& function, std::byte* to, uint32_t bytes) const {
    if (buffer != nullptr) {
      std::memcpy(to, buffer, bytes);
      return;
    }
    std::memset(to, 0, bytes);  // gaps between parameters
    for (size_t i = 0; i < function.layout.size(); ++i) {
      std::memcpy(to + function.layout[i].offset, pointers[i], function.layout[i].bytes);
    }
  }
};

}  // namespace causeway::guest
