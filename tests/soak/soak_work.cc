// SPDX-License-Identifier: Apache-2.0
// Streams, events, callbacks, code, contexts, and calls that must fail without harm.
#include <atomic>
#include <cstring>

#include "tests/soak/soak.h"

namespace causeway::soak {
namespace {

void EventChain(Thread& thread) {
  Stream first, second;
  Event event, end;
  DeviceMemory memory;
  SOAK(cuStreamCreate(first.out(), CU_STREAM_NON_BLOCKING));
  SOAK(cuStreamCreateWithPriority(second.out(), CU_STREAM_NON_BLOCKING, 0));
  SOAK(cuEventCreate(event.out(), CU_EVENT_DEFAULT));
  SOAK(cuEventCreate(end.out(), CU_EVENT_DEFAULT));
  SOAK(cuMemAlloc(memory.out(), 4));
  SOAK(cuMemsetD32Async(memory, 0, 1, first));
  const uint32_t rounds = 1 + thread.Below(20);
  for (uint32_t i = 0; i < rounds; ++i) {
    thread.LaunchAdd(memory, 1, 1, first);
    SOAK(cuEventRecord(event, first));
    SOAK(cuStreamWaitEvent(second, event, 0));
    thread.LaunchAdd(memory, 1, 1, second);
    SOAK(cuEventRecord(end, second));
    SOAK(cuStreamWaitEvent(first, end, 0));
  }
  uint32_t value = 0;
  SOAK(cuMemcpyDtoHAsync(&value, memory, 4, first));
  SOAK(cuStreamSynchronize(first));
  SOAK_EXPECT(value == 2 * rounds);
  SOAK(cuEventSynchronize(end));
  SOAK(cuEventQuery(event));
  float milliseconds = -1;
  SOAK(cuEventElapsedTime(&milliseconds, event, end));
  SOAK_EXPECT(milliseconds >= 0);
}

void Callbacks(Thread& thread) {
  Stream stream;
  SOAK(cuStreamCreate(stream.out(), CU_STREAM_NON_BLOCKING));
  static thread_local std::atomic<uint32_t> calls;
  calls.store(0);
  const uint32_t count = 1 + thread.Below(5);
  for (uint32_t i = 0; i < count; ++i) {
    SOAK(cuLaunchHostFunc(
        stream, [](void* user) { static_cast<std::atomic<uint32_t>*>(user)->fetch_add(1); }, &calls));
  }
  SOAK(cuStreamAddCallback(
      stream,
      [](CUstream, CUresult status, void* user) {
        static_cast<std::atomic<uint32_t>*>(user)->fetch_add(status == CUDA_SUCCESS ? 100 : 1000);
      },
      &calls, 0));
  SOAK(cuStreamSynchronize(stream));
  SOAK_EXPECT(calls.load() == count + 100);
}

void ModuleLife(Thread& thread) {
  Module module;
  SOAK(cuModuleLoadData(module.out(), kKernels));
  CUfunction function = nullptr;
  SOAK(cuModuleGetFunction(&function, module, "add"));
  CUdeviceptr counter = 0;
  size_t bytes = 0;
  SOAK(cuModuleGetGlobal(&counter, &bytes, module, "counter"));
  SOAK_EXPECT(bytes == 4);
  const uint32_t value = thread.Below(1000);
  uint32_t count = 1, got = 0;
  void* parameters[] = {&counter, &count, const_cast<uint32_t*>(&value)};
  SOAK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, nullptr, parameters, nullptr));
  SOAK(cuMemcpyDtoH(&got, counter, 4));
  SOAK_EXPECT(got == 5 + value);
  int blocks = 0, threads = 0;
  SOAK(cuFuncGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function));
  SOAK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 128, 0));
  SOAK_EXPECT(blocks > 0 && threads > 0);
  module.Done();
}

void LibraryLife(Thread&) {
  Library library;
  SOAK(cuLibraryLoadData(library.out(), kKernels, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUkernel kernel = nullptr;
  SOAK(cuLibraryGetKernel(&kernel, library, "add"));
  CUfunction function = nullptr;
  SOAK(cuKernelGetFunction(&function, kernel));
  const char* name = nullptr;
  SOAK(cuKernelGetName(&name, kernel));
  SOAK_EXPECT(std::strcmp(name, "add") == 0);
  unsigned count = 0;
  SOAK(cuLibraryGetKernelCount(&count, library));
  SOAK_EXPECT(count >= 1);
  library.Done();
}

void Linker(Thread&) {
  CUlinkState state = nullptr;
  SOAK(cuLinkCreate(0, nullptr, nullptr, &state));
  void* image = nullptr;
  size_t bytes = 0;
  CUresult result = cuLinkAddData(state, CU_JIT_INPUT_PTX, const_cast<char*>(kKernels),
                                  std::strlen(kKernels) + 1, "soak", 0, nullptr, nullptr);
  if (result == CUDA_SUCCESS) result = cuLinkComplete(state, &image, &bytes);
  Module module;
  if (result == CUDA_SUCCESS) result = cuModuleLoadData(module.out(), image);
  SOAK(cuLinkDestroy(state));
  SOAK(result);
}

void SecondContext(Thread& thread) {
  CUcontext before = nullptr, context = nullptr;
  SOAK(cuCtxGetCurrent(&before));
  SOAK(cuCtxCreate(&context, nullptr, 0, 0));
  CUdeviceptr memory = 0;
  CUresult result = cuMemAlloc(&memory, 1 + thread.Below(4096));
  if (result == CUDA_SUCCESS) result = cuMemFree(memory);
  CUcontext popped = nullptr;
  SOAK(cuCtxPopCurrent(&popped));
  SOAK_EXPECT(popped == context);
  SOAK(cuCtxDestroy(context));
  SOAK(result);
  SOAK(cuCtxGetCurrent(&context));
  SOAK_EXPECT(context == before);
}

void PlannedErrors(Thread& thread) {
  DeviceMemory memory;
  SOAK(cuMemAlloc(memory.out(), 256));
  uint32_t word = 0;
  SOAK_EXPECT(cuMemcpyDtoH(&word, memory + 255, 4) == CUDA_ERROR_INVALID_VALUE);
  SOAK_EXPECT(cuMemFree(memory + 16) != CUDA_SUCCESS);
  uint32_t count = 1, value = 0;
  CUdeviceptr data = memory;
  void* parameters[] = {&data, &count, &value};
  SOAK_EXPECT(cuLaunchKernel(thread.add, 1, 1, 1, 5000, 1, 1, 0, nullptr, parameters, nullptr) !=
              CUDA_SUCCESS);
  Event event;
  SOAK(cuEventCreate(event.out(), CU_EVENT_DISABLE_TIMING));
  float milliseconds = 0;
  SOAK_EXPECT(cuEventElapsedTime(&milliseconds, event, event) == CUDA_ERROR_INVALID_HANDLE);
  CUmodule module = nullptr;
  SOAK_EXPECT(cuModuleLoadData(&module, "no image at all") != CUDA_SUCCESS);
}

void DeviceQueries(Thread&) {
  int count = 0, value = 0;
  char name[128];
  size_t bytes = 0;
  SOAK(cuDeviceGetCount(&count));
  SOAK(cuDeviceGetName(name, sizeof name, 0));
  SOAK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0));
  SOAK(cuDeviceTotalMem(&bytes, 0));
  SOAK_EXPECT(count > 0 && value == 32 && bytes > 0 && name[0] != '\0');
  size_t stack = 0;
  SOAK(cuCtxGetLimit(&stack, CU_LIMIT_STACK_SIZE));
  int least = 0, greatest = 0;
  SOAK(cuCtxGetStreamPriorityRange(&least, &greatest));
  SOAK_EXPECT(least >= greatest);
}

}  // namespace

std::vector<Group> WorkGroups() {
  return {{"event chain", EventChain}, {"callbacks", Callbacks},
          {"modules", ModuleLife},     {"libraries", LibraryLife},
          {"linker", Linker},          {"second context", SecondContext},
          {"errors", PlannedErrors},   {"device queries", DeviceQueries}};
}

}  // namespace causeway::soak
