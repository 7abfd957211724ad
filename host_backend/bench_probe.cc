// SPDX-License-Identifier: Apache-2.0
// causeway-bench-probe LIBRARY [--quick | --startup]: measures one CUDA driver library, NVIDIA's or
// Causeway's. Prints the figures as JSON; with --startup only "ready" once a first kernel's result has been
// read back.
#include "host_backend/bench_probe.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstring>

#include "host_backend/json_writer.h"

namespace causeway::bench {
namespace {

constexpr char kPtx[] = R"(.version 7.0
.target sm_75
.address_size 64
.visible .entry write_word(.param .u64 address, .param .u32 value)
{
  .reg .b64 %rd<3>;
  .reg .b32 %r<2>;
  ld.param.u64 %rd1, [address];
  ld.param.u32 %r1, [value];
  cvta.to.global.u64 %rd2, %rd1;
  st.global.u32 [%rd2], %r1;
  ret;
}
)";

template <typename Function>
bool Load(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) std::fprintf(stderr, "causeway-bench-probe: the library has no %s\n", name);
  return function != nullptr;
}

bool LoadApi(const char* path, Api& api) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "causeway-bench-probe: %s\n", dlerror());
    return false;
  }
  return Load(library, "cuInit", api.init) && Load(library, "cuDeviceGet", api.device_get) &&
         Load(library, "cuDeviceGetAttribute", api.device_get_attribute) &&
         Load(library, "cuDevicePrimaryCtxRetain", api.primary_retain) &&
         Load(library, "cuCtxSetCurrent", api.set_current) &&
         Load(library, "cuCtxGetCurrent", api.get_current) &&
         Load(library, "cuCtxSynchronize", api.context_synchronize) &&
         Load(library, "cuModuleLoadData", api.module_load) &&
         Load(library, "cuModuleGetFunction", api.get_function) &&
         Load(library, "cuLaunchKernel", api.launch) && Load(library, "cuStreamCreate", api.stream_create) &&
         Load(library, "cuStreamSynchronize", api.stream_synchronize) &&
         Load(library, "cuStreamQuery", api.stream_query) &&
         Load(library, "cuEventCreate", api.event_create) &&
         Load(library, "cuEventRecord", api.event_record) && Load(library, "cuEventQuery", api.event_query) &&
         Load(library, "cuCtxGetCacheConfig", api.get_cache_config) &&
         Load(library, "cuMemGetInfo_v2", api.memory_info) &&
         Load(library, "cuMemAlloc_v2", api.memory_alloc) && Load(library, "cuMemFree_v2", api.memory_free) &&
         Load(library, "cuMemAllocAsync", api.alloc_async) &&
         Load(library, "cuMemFreeAsync", api.free_async) && Load(library, "cuMemHostAlloc", api.host_alloc) &&
         Load(library, "cuMemFreeHost", api.host_free) && Load(library, "cuMemcpyHtoD_v2", api.to_device) &&
         Load(library, "cuMemcpyDtoH_v2", api.to_host) &&
         Load(library, "cuPointerGetAttribute", api.pointer_attribute);
}

bool Good(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS)
    std::fprintf(stderr, "causeway-bench-probe: %s failed with error %d\n", what, int(result));
  return result == CUDA_SUCCESS;
}

// Up to the first kernel's result on the host.
bool Prepare(Bench& bench) {
  const Api& api = bench.api;
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  constexpr uint32_t kWritten = 0x5eed;
  uint32_t read = 0;
  if (!Good(api.init(0), "cuInit") || !Good(api.device_get(&bench.device, 0), "cuDeviceGet") ||
      !Good(api.primary_retain(&context, bench.device), "cuDevicePrimaryCtxRetain") ||
      !Good(api.set_current(context), "cuCtxSetCurrent") ||
      !Good(api.module_load(&module, kPtx), "cuModuleLoadData") ||
      !Good(api.get_function(&bench.kernel, module, "write_word"), "cuModuleGetFunction") ||
      !Good(api.stream_create(&bench.stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate") ||
      !Good(api.memory_alloc(&bench.word, sizeof(uint32_t)), "cuMemAlloc") ||
      !Good(Launch(bench, kWritten), "cuLaunchKernel") ||
      !Good(api.stream_synchronize(bench.stream), "cuStreamSynchronize") ||
      !Good(api.to_host(&read, bench.word, sizeof(read)), "cuMemcpyDtoH")) {
    return false;
  }
  if (read != kWritten)
    std::fprintf(stderr, "causeway-bench-probe: the kernel wrote 0x%x instead of 0x%x\n", read, kWritten);
  return read == kWritten;
}

void Print(const std::vector<Figure>& figures) {
  JsonWriter json;
  json.Open('{').Key("figures").Open('[');
  for (const Figure& figure : figures) {
    json.Open('{').Key("name").String(figure.name).Key("unit").String(figure.unit);
    json.Key("value").Real(figure.value).Key("error").Signed(figure.error).Close('}');
  }
  json.Close(']').Close('}');
  std::printf("%s\n", json.text().c_str());
}

int Main(int argc, char** argv) {
  const char* option = argc == 3 ? argv[2] : "";
  const bool startup = std::strcmp(option, "--startup") == 0;
  Bench bench;
  bench.quick = std::strcmp(option, "--quick") == 0;
  bench.calls_only = std::strcmp(option, "--calls") == 0;
  if (argc < 2 || argc > 3 || (argc == 3 && !startup && !bench.quick && !bench.calls_only)) {
    std::fprintf(stderr, "usage: causeway-bench-probe LIBRARY [--quick | --startup | --calls]\n");
    return 2;
  }
  if (!LoadApi(argv[1], bench.api) || !Prepare(bench)) return 1;
  if (startup) {
    std::printf("ready\n");
  } else {
    Print(Measure(bench));
  }
  return 0;
}

}  // namespace
}  // namespace causeway::bench

int main(int argc, char** argv) {
  return causeway::bench::Main(argc, argv);
}
