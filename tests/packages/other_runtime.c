// SPDX-License-Identifier: Apache-2.0
// A program that has a C++ runtime of its own, of which every function that the guest's libraries might take by mistake ends
// it: memory of C++, exceptions, type information, guards, threads' and containers' helpers. It exports them (-rdynamic), so
// that the dynamic loader finds them before any library's. Then it uses both libraries.
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Taking one is the failure that the test looks for.
#define FOREIGN(name)                                               \
  void name(void) {                                                 \
    fprintf(stderr, "the library took " #name " of the program\n"); \
    abort();                                                        \
  }
FOREIGN(_Znwm)
FOREIGN(_Znam)
FOREIGN(_ZnwmSt11align_val_t)
FOREIGN(_ZdlPv)
FOREIGN(_ZdlPvm)
FOREIGN(_ZdaPv)
FOREIGN(_ZdlPvSt11align_val_t)
FOREIGN(_ZdlPvmSt11align_val_t)
FOREIGN(__cxa_throw)
FOREIGN(__cxa_allocate_exception)
FOREIGN(__cxa_begin_catch)
FOREIGN(__cxa_end_catch)
FOREIGN(__cxa_guard_acquire)
FOREIGN(__cxa_guard_release)
FOREIGN(__gxx_personality_v0)
FOREIGN(_Unwind_RaiseException)
FOREIGN(_Unwind_Resume)
FOREIGN(_ZSt9terminatev)
FOREIGN(_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEE9_M_createERmm)
FOREIGN(_ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE)
FOREIGN(_ZNSt18condition_variable10notify_allEv)
FOREIGN(_ZSt18_Rb_tree_incrementPSt18_Rb_tree_node_base)

static int fail(const char* what, int result) {
  fprintf(stderr, "%s: %d\n", what, result);
  return 1;
}

int main(void) {
  static const char kImage[] =
      ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry nothing() { ret; }\n";
  CUdevice device;
  CUcontext context;
  CUmodule module;
  CUfunction function;
  CUdeviceptr memory;
  char there[1000], back[1000];
  CUresult result = cuInit(0);
  if (result == CUDA_SUCCESS) result = cuDeviceGet(&device, 0);
  if (result == CUDA_SUCCESS) result = cuDevicePrimaryCtxRetain(&context, device);
  if (result == CUDA_SUCCESS) result = cuCtxSetCurrent(context);
  if (result == CUDA_SUCCESS) result = cuMemAlloc(&memory, sizeof there);
  memset(there, 42, sizeof there);
  if (result == CUDA_SUCCESS) result = cuMemcpyHtoDAsync(memory, there, sizeof there, NULL);
  if (result == CUDA_SUCCESS) result = cuModuleLoadData(&module, kImage);
  if (result == CUDA_SUCCESS) result = cuModuleGetFunction(&function, module, "nothing");
  if (result == CUDA_SUCCESS) result = cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
  if (result == CUDA_SUCCESS) result = cuMemcpyDtoH(back, memory, sizeof back);
  if (result != CUDA_SUCCESS) return fail("a driver call failed", result);
  if (memcmp(there, back, sizeof there) != 0) return fail("the copied bytes differ", 0);
  // An image that is none, and a free that is none: errors take other ways than success.
  result = cuModuleLoadData(&module, "no image");
  if (result == CUDA_SUCCESS || cuMemFree(memory + (1ull << 40)) == CUDA_SUCCESS)
    return fail("nonsense was accepted", result);
  void* nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  if (nvml == NULL) return fail(dlerror(), 0);
  int (*init)(void) = (int (*)(void))dlsym(nvml, "nvmlInit_v2");
  result = init == NULL ? -1 : init();
  if (result != 0) return fail("nvmlInit_v2", result);
  puts("both libraries kept to themselves");
  return 0;
}
