// SPDX-License-Identifier: Apache-2.0
// One of the processes that share processors in crowded.py. It prints "ready", waits for a line, works for so many
// seconds, prints how many steps it made, and ends with its input.
//
//   crowded_load wait SECONDS   a step is a launch and a wait for it
//   crowded_load step SECONDS   a step is 400 launches with 12 us of the program's own work before each, then 4 bytes
//                               from the device, and a wait for them
//   With the word `told` behind these it also says after each second how many steps it has made.
#include <cuda.h>
#include <time.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace {

// Adds one to the number at p.
constexpr char kPtx[] = R"(.version 7.0
.target sm_70
.address_size 64
.visible .entry add_one(.param .u64 p)
{
  .reg .u64 %a;
  .reg .u32 %v;
  ld.param.u64 %a, [p];
  cvta.to.global.u64 %a, %a;
  ld.global.u32 %v, [%a];
  add.u32 %v, %v, 1;
  st.global.u32 [%a], %v;
  ret;
}
)";

void Check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "crowded_load: %s: error %d\n", what, static_cast<int>(result));
  std::exit(1);
}

double Seconds(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Takes processor time, however long that lasts.
void Work(double seconds) {
  const double end = Seconds(CLOCK_THREAD_CPUTIME_ID) + seconds;
  while (Seconds(CLOCK_THREAD_CPUTIME_ID) < end) continue;
}

struct Load {
  CUstream stream = nullptr;
  CUfunction function = nullptr;
  CUdeviceptr number = 0;
  uint32_t launches = 0;

  void Prepare() {
    CUdevice device = 0;
    CUcontext context = nullptr;
    CUmodule module = nullptr;
    Check(cuInit(0), "cuInit");
    Check(cuDeviceGet(&device, 0), "cuDeviceGet");
    Check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    Check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    Check(cuModuleLoadData(&module, kPtx), "cuModuleLoadData");
    Check(cuModuleGetFunction(&function, module, "add_one"), "cuModuleGetFunction");
    Check(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    Check(cuMemAlloc(&number, sizeof launches), "cuMemAlloc");
    Check(cuMemsetD32(number, 0, 1), "cuMemsetD32");
    Check(cuCtxSynchronize(), "cuCtxSynchronize");
  }

  void Launch() {
    void* arguments[] = {&number};
    Check(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr), "cuLaunchKernel");
    ++launches;
  }

  void LaunchAndWait() {
    Launch();
    Check(cuStreamSynchronize(stream), "cuStreamSynchronize");
  }

  void Step() {
    constexpr int kLaunches = 400;
    constexpr double kOwnWork = 12e-6;
    for (int i = 0; i < kLaunches; ++i) {
      Work(kOwnWork);
      Launch();
    }
    uint32_t seen = 0;
    Check(cuMemcpyDtoHAsync(&seen, number, sizeof seen, stream), "cuMemcpyDtoHAsync");
    Check(cuStreamSynchronize(stream), "cuStreamSynchronize");
    if (seen == launches) return;
    std::fprintf(stderr, "crowded_load: %u instead of %u\n", seen, launches);
    std::exit(1);
  }
};

}  // namespace

int main(int count, char** words) {
  const bool told = count == 4 && std::string_view(words[3]) == "told";
  const std::string_view kind = count == 3 || told ? words[1] : "";
  if (kind != "wait" && kind != "step") {
    std::fputs("usage: crowded_load wait|step SECONDS [told]\n", stderr);
    return 2;
  }
  Load load;
  load.Prepare();
  const auto once = kind == "wait" ? &Load::LaunchAndWait : &Load::Step;
  for (int i = 0; i < 3; ++i) (load.*once)();  // what is made at the first use
  std::puts("ready");
  std::fflush(stdout);
  char line[8];
  if (std::fgets(line, sizeof line, stdin) == nullptr) return 1;
  long steps = 0;
  double now = Seconds(CLOCK_MONOTONIC), next_told = now + 1;
  for (const double end = now + std::atof(words[2]); now < end; now = Seconds(CLOCK_MONOTONIC)) {
    (load.*once)();
    ++steps;
    if (!told || now < next_told) continue;
    next_told = now + 1;
    std::printf("so far %ld\n", steps);
    std::fflush(stdout);
  }
  std::printf("%ld\n", steps);
  std::fflush(stdout);
  (void)std::fgetc(stdin);  // until its processor time was read
}
