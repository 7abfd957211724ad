// SPDX-License-Identifier: Apache-2.0
// What a program sees after a kernel has failed: the same error from every later call, until the process
// ends.
#pragma once

#include "tests/programs/check.h"

namespace sticky {

// Prints what each call answers and counts the answers that differ from `wanted`.
inline int Report(cudaError_t wanted, int* device, cudaStream_t stream, cudaEvent_t event) {
  int host = 0, differing = 0;
  void* memory = nullptr;
  auto show = [&](const char* call, cudaError_t got) {
    std::printf("%-22s %s (%d)\n", call, cudaGetErrorName(got), int(got));
    if (got != wanted) ++differing;
  };
  show("stream synchronise", cudaStreamSynchronize(stream));
  show("device synchronise", cudaDeviceSynchronize());
  show("last error", cudaGetLastError());
  show("stream query", cudaStreamQuery(stream));
  show("event query", cudaEventQuery(event));
  show("event record", cudaEventRecord(event, stream));
  show("malloc", cudaMalloc(&memory, 1024));
  show("host malloc", cudaMallocHost(&memory, 1024));
  show("copy to the device", cudaMemcpy(device, &host, sizeof(host), cudaMemcpyHostToDevice));
  show("copy to the host", cudaMemcpy(&host, device, sizeof(host), cudaMemcpyDeviceToHost));
  show("memset", cudaMemset(device, 0, sizeof(int)));
  show("free", cudaFree(device));
  show("stream create", cudaStreamCreate(&stream));
  show("peek", cudaPeekAtLastError());
  // Answers of the runtime alone: printed, but whether they repeat the error is its own affair.
  std::printf("%-22s %d\n", "last error, repeated", int(cudaGetLastError()));
  int device_number = -1;
  cudaError_t untouched = cudaGetDevice(&device_number);
  std::printf("%-22s %s (%d)\n", "get device", cudaGetErrorName(untouched), int(untouched));
  return differing;
}

}  // namespace sticky
