// SPDX-License-Identifier: Apache-2.0
// Which environment variables of a guest process its driver on the host sees. The daemon and the launcher
// read the same list: what is not on it reaches no worker. Several others name files or libraries
// (CUDA_CACHE_PATH, CUDA_INJECTION64_PATH), which neither a guest nor a daemon that was taken over may
// choose.
#pragma once
#include <string_view>

namespace causeway {

inline constexpr std::string_view kVisibleDevices = "CUDA_VISIBLE_DEVICES";
inline constexpr std::string_view kDriverVariables[] = {
    "CUDA_AUTO_BOOST",
    "CUDA_CACHE_DISABLE",
    "CUDA_CACHE_MAXSIZE",
    "CUDA_DEVICE_DEFAULT_PERSISTING_L2_CACHE_PERCENTAGE_LIMIT",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DEVICE_MAX_COPY_CONNECTIONS",
    "CUDA_DEVICE_ORDER",
    "CUDA_DISABLE_JIT",
    "CUDA_DISABLE_PTX_JIT",
    "CUDA_FORCE_JIT",
    "CUDA_FORCE_PTX_JIT",
    "CUDA_GRAPHS_USE_NODE_PRIORITY",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MANAGED_FORCE_DEVICE_ALLOC",
    "CUDA_MODULE_DATA_LOADING",
    "CUDA_MODULE_LOADING",
    "CUDA_SCALE_LAUNCH_QUEUES",
    kVisibleDevices,
};

inline constexpr bool MayReachDriver(std::string_view name) {
  for (const std::string_view known : kDriverVariables) {
    if (name == known) return true;
  }
  return false;
}

}  // namespace causeway
