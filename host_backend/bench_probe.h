// SPDX-License-Identifier: Apache-2.0
// The driver functions that the benchmark's probe calls, looked up in whichever library it was given.
#pragma once
#include <cuda.h>

#include <cstdint>
#include <string>
#include <vector>

namespace causeway::bench {

struct Api {
  decltype(&::cuInit) init;
  decltype(&::cuDeviceGet) device_get;
  decltype(&::cuDeviceGetAttribute) device_get_attribute;
  decltype(&::cuDevicePrimaryCtxRetain) primary_retain;
  decltype(&::cuCtxSetCurrent) set_current;
  decltype(&::cuCtxGetCurrent) get_current;
  decltype(&::cuCtxSynchronize) context_synchronize;
  decltype(&::cuModuleLoadData) module_load;
  decltype(&::cuModuleGetFunction) get_function;
  decltype(&::cuLaunchKernel) launch;
  decltype(&::cuStreamCreate) stream_create;
  decltype(&::cuStreamSynchronize) stream_synchronize;
  decltype(&::cuStreamQuery) stream_query;
  decltype(&::cuEventCreate) event_create;
  decltype(&::cuEventRecord) event_record;
  decltype(&::cuEventQuery) event_query;
  decltype(&::cuCtxGetCacheConfig) get_cache_config;
  decltype(&::cuMemGetInfo_v2) memory_info;
  decltype(&::cuMemAlloc_v2) memory_alloc;
  decltype(&::cuMemFree_v2) memory_free;
  decltype(&::cuMemAllocAsync) alloc_async;
  decltype(&::cuMemFreeAsync) free_async;
  decltype(&::cuMemHostAlloc) host_alloc;
  decltype(&::cuMemFreeHost) host_free;
  decltype(&::cuMemcpyHtoD_v2) to_device;
  decltype(&::cuMemcpyDtoH_v2) to_host;
  decltype(&::cuPointerGetAttribute) pointer_attribute;
};

// One measured value. A call that failed leaves its error instead.
struct Figure {
  std::string name;
  const char* unit = "us";  // "us": less is better; "GB/s": more is better
  double value = 0;
  CUresult error = CUDA_SUCCESS;
};

// What every figure needs, made once.
struct Bench {
  Api api{};
  CUdevice device = 0;
  CUfunction kernel = nullptr;
  CUstream stream = nullptr;
  CUdeviceptr word = 0;
  bool quick = false;       // few repetitions
  bool calls_only = false;  // no copies of many megabytes: for small VMs
};

// Every figure but the start-up, in the order of the table.
std::vector<Figure> Measure(const Bench& bench);

// One launch of the kernel: *bench.word = value.
CUresult Launch(const Bench& bench, uint32_t value);

}  // namespace causeway::bench
