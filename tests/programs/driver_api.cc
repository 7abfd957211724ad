// SPDX-License-Identifier: Apache-2.0
// The plain driver API by dlopen, without the CUDA runtime: primary context, PTX text, launches, and error
// codes.
#include <cuda.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

const char kPtx[] = R"(
.version 6.3
.target sm_75
.address_size 64
.global .align 4 .u32 counter = 5;
.visible .entry scale(.param .u64 data, .param .u32 count, .param .u32 factor)
{
  .reg .pred %p<2>; .reg .b32 %r<8>; .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [data];
  ld.param.u32 %r1, [count]; ld.param.u32 %r2, [factor];
  mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mov.u32 %r5, %tid.x;
  mad.lo.s32 %r6, %r3, %r4, %r5;
  setp.ge.u32 %p1, %r6, %r1;
  @%p1 bra done;
  cvta.to.global.u64 %rd1, %rd1;
  mul.wide.u32 %rd2, %r6, 4;
  add.s64 %rd3, %rd1, %rd2;
  ld.global.u32 %r7, [%rd3];
  mul.lo.u32 %r7, %r7, %r2;
  st.global.u32 [%rd3], %r7;
done:
  ret;
}
)";

int g_failures = 0;
void* g_library = nullptr;

template <typename Function>
Function* Find(Function*, const char* name) {
  void* address = dlsym(g_library, name);
  if (address == nullptr) {
    std::printf("%s is missing in libcuda.so.1\n", name);
    std::exit(1);
  }
  return reinterpret_cast<Function*>(address);
}
#define TEXT_OF(name) #name
// The versioned name that cuda.h gives the function, e.g. cuMemAlloc_v2.
#define DRIVER(name) Find(static_cast<decltype(&name)>(nullptr), TEXT_OF(name))

// For answers that no documentation fixes: printed, and compared between the ways of running alone.
constexpr CUresult kAnyError = CUDA_ERROR_UNKNOWN;

void Expect(const char* what, CUresult got, CUresult wanted) {
  std::printf("%-36s %d\n", what, int(got));
  if (got == wanted || (wanted == kAnyError && got != CUDA_SUCCESS)) return;
  std::printf("  expected %d\n", int(wanted));
  ++g_failures;
}

void Need(const char* what, CUresult got) {
  if (got == CUDA_SUCCESS) return;
  std::printf("%s failed: %d\n", what, int(got));
  std::exit(1);
}

void BeforeInit() {
  int count = 0, version = 0;
  CUcontext context = nullptr;
  const char* name = nullptr;
  Expect("device count before cuInit", DRIVER(cuDeviceGetCount)(&count), CUDA_ERROR_NOT_INITIALIZED);
  Expect("current context before cuInit", DRIVER(cuCtxGetCurrent)(&context), CUDA_ERROR_NOT_INITIALIZED);
  Expect("driver version before cuInit", DRIVER(cuDriverGetVersion)(&version), CUDA_SUCCESS);
  Expect("error name", DRIVER(cuGetErrorName)(CUDA_ERROR_ILLEGAL_ADDRESS, &name), CUDA_SUCCESS);
  std::printf("%s\n", name);
  Expect("error name of 12345", DRIVER(cuGetErrorName)(static_cast<CUresult>(12345), &name),
         CUDA_ERROR_INVALID_VALUE);
  Expect("cuInit with flags", DRIVER(cuInit)(1), CUDA_ERROR_INVALID_VALUE);
  Need("cuInit", DRIVER(cuInit)(0));
  if (version < 13000) ++g_failures;
}

void WithoutContext() {
  CUdeviceptr memory = 0;
  CUdevice device = 0;
  CUmodule module = nullptr;
  int value = 0;
  Expect("allocation without a context", DRIVER(cuMemAlloc)(&memory, 16), CUDA_ERROR_INVALID_CONTEXT);
  Expect("module load without a context", DRIVER(cuModuleLoadData)(&module, kPtx),
         CUDA_ERROR_INVALID_CONTEXT);
  Expect("device 9999", DRIVER(cuDeviceGet)(&device, 9999), CUDA_ERROR_INVALID_DEVICE);
  Expect("device to null", DRIVER(cuDeviceGet)(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  Expect("attribute 9999", DRIVER(cuDeviceGetAttribute)(&value, static_cast<CUdevice_attribute>(9999), 0),
         CUDA_ERROR_INVALID_VALUE);
}

void Kernels(CUdeviceptr memory, CUmodule module) {
  const unsigned int count = 1000;
  unsigned int host[1024], factor = 3, wrong = 0;
  for (unsigned int i = 0; i < 1024; ++i) host[i] = i;
  CUfunction function = nullptr;
  Need("function", DRIVER(cuModuleGetFunction)(&function, module, "scale"));
  Need("copy in", DRIVER(cuMemcpyHtoD)(memory, host, sizeof(host)));
  void* parameters[] = {&memory, const_cast<unsigned int*>(&count), &factor};
  Need("launch", DRIVER(cuLaunchKernel)(function, 8, 1, 1, 128, 1, 1, 0, nullptr, parameters, nullptr));
  Need("synchronise", DRIVER(cuCtxSynchronize)());
  // The same launch with its parameters in one packed buffer.
  struct {
    CUdeviceptr data;
    unsigned int count, factor;
  } packed = {memory, 500, 7};
  size_t packed_bytes = sizeof(packed);
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &packed_bytes,
                   CU_LAUNCH_PARAM_END};
  Need("packed launch", DRIVER(cuLaunchKernel)(function, 8, 1, 1, 128, 1, 1, 0, nullptr, nullptr, extra));
  Need("copy out", DRIVER(cuMemcpyDtoH)(host, memory, sizeof(host)));
  for (unsigned int i = 0; i < 1024; ++i) wrong += host[i] != i * (i < 500 ? 21 : i < 1000 ? 3 : 1);
  std::printf("launches: %u wrong\n", wrong);
  g_failures += wrong != 0;
  Expect("launch with a block of 0",
         DRIVER(cuLaunchKernel)(function, 1, 1, 1, 0, 1, 1, 0, nullptr, parameters, nullptr),
         CUDA_ERROR_INVALID_VALUE);
  Expect("launch of a null function",
         DRIVER(cuLaunchKernel)(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr),
         CUDA_ERROR_INVALID_HANDLE);
  size_t offset = 0, bytes = 0;
  Expect("parameter 2", DRIVER(cuFuncGetParamInfo)(function, 2, &offset, &bytes), CUDA_SUCCESS);
  std::printf("offset %zu, size %zu\n", offset, bytes);
  Expect("parameter 3", DRIVER(cuFuncGetParamInfo)(function, 3, &offset, &bytes), CUDA_ERROR_INVALID_VALUE);
}

void Modules(CUdeviceptr memory) {
  CUmodule module = nullptr, broken = nullptr;
  CUfunction function = nullptr;
  CUdeviceptr counter = 0;
  size_t bytes = 0;
  unsigned int value = 0;
  Need("module", DRIVER(cuModuleLoadData)(&module, kPtx));
  Expect("module from no PTX", DRIVER(cuModuleLoadData)(&broken, "this is no PTX"), CUDA_ERROR_INVALID_IMAGE);
  const char* nonsense = ".version 6.3\n.target sm_75\n.address_size 64\n.visible .entry f() { nonsense; }\n";
  Expect("module from broken PTX", DRIVER(cuModuleLoadData)(&broken, nonsense), CUDA_ERROR_INVALID_PTX);
  Expect("module from null", DRIVER(cuModuleLoadData)(&broken, nullptr), CUDA_ERROR_INVALID_VALUE);
  Expect("unknown function", DRIVER(cuModuleGetFunction)(&function, module, "nobody"), CUDA_ERROR_NOT_FOUND);
  Expect("unknown global", DRIVER(cuModuleGetGlobal)(&counter, &bytes, module, "nobody"),
         CUDA_ERROR_NOT_FOUND);
  Expect("global", DRIVER(cuModuleGetGlobal)(&counter, &bytes, module, "counter"), CUDA_SUCCESS);
  Need("copy of the global", DRIVER(cuMemcpyDtoH)(&value, counter, sizeof(value)));
  std::printf("counter: %zu bytes, %u\n", bytes, value);
  Kernels(memory, module);
  Expect("unload", DRIVER(cuModuleUnload)(module), CUDA_SUCCESS);
}

void Handles(CUdeviceptr memory) {
  CUcontext context = nullptr;
  Expect("free of an unknown address", DRIVER(cuMemFree)(memory + 64), CUDA_ERROR_INVALID_VALUE);
  std::printf("host free of null %d\n", int(DRIVER(cuMemFreeHost)(nullptr)));
  Expect("unload of null", DRIVER(cuModuleUnload)(nullptr), kAnyError);
  Expect("destroy of a null event", DRIVER(cuEventDestroy)(nullptr), CUDA_ERROR_INVALID_HANDLE);
  Expect("destroy of the null stream", DRIVER(cuStreamDestroy)(nullptr), CUDA_ERROR_INVALID_HANDLE);
  Expect("query of the null stream", DRIVER(cuStreamQuery)(nullptr), CUDA_SUCCESS);
  Expect("push of a null context", DRIVER(cuCtxPushCurrent)(nullptr), kAnyError);
  Expect("pop", DRIVER(cuCtxPopCurrent)(&context), CUDA_SUCCESS);
  Expect("pop of an empty stack", DRIVER(cuCtxPopCurrent)(nullptr), CUDA_ERROR_INVALID_CONTEXT);
  Expect("push", DRIVER(cuCtxPushCurrent)(context), CUDA_SUCCESS);
}

}  // namespace

int main() {
  g_library = dlopen("libcuda.so.1", RTLD_NOW);
  if (g_library == nullptr) {
    std::printf("libcuda.so.1 cannot be opened\n");
    return 1;
  }
  CUdevice device = 0;
  CUcontext context = nullptr, current = nullptr;
  CUdeviceptr memory = 0;
  unsigned int flags = 0;
  int active = 0;
  BeforeInit();
  WithoutContext();
  Need("device", DRIVER(cuDeviceGet)(&device, 0));
  Need("retain", DRIVER(cuDevicePrimaryCtxRetain)(&context, device));
  Need("set current", DRIVER(cuCtxSetCurrent)(context));
  Need("get current", DRIVER(cuCtxGetCurrent)(&current));
  Need("state", DRIVER(cuDevicePrimaryCtxGetState)(device, &flags, &active));
  std::printf("primary context: current %d, active %d\n", current == context, active);
  Need("allocation", DRIVER(cuMemAlloc)(&memory, 4096));
  Modules(memory);
  Handles(memory);
  Need("free", DRIVER(cuMemFree)(memory));
  Expect("release", DRIVER(cuDevicePrimaryCtxRelease)(device), CUDA_SUCCESS);
  Need("state", DRIVER(cuDevicePrimaryCtxGetState)(device, &flags, &active));
  std::printf("after release: active %d\n", active);
  std::printf("driver_api: %d unexpected\n", g_failures);
  return g_failures == 0 ? 0 : 1;
}
