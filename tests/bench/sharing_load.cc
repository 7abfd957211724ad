// SPDX-License-Identifier: Apache-2.0
// One of the processes that share a GPU in sharing.py. It prints "ready", waits for a line with the number of seconds,
// works, and prints one line of JSON.
//
//   sharing_load calibrate KERNEL_US                how many rounds a kernel of that length has, and how long it takes
//   sharing_load wait ROUNDS KERNEL_US              launches a kernel and waits for it, over and over
//   sharing_load sometimes ROUNDS KERNEL_US GAP_US  the same, and so much time between the beginnings
//   sharing_load full ROUNDS KERNEL_US              has always some milliseconds of kernels queued
//   sharing_load copy GIGABYTES                     copies so much pinned memory to the device, over and over
//
// A kernel is a fixed amount of arithmetic in so many blocks that they fill the GPU, so that its duration is time on the GPU:
// a context that is switched away in the middle takes longer by the clock and does no more.
#include <cuda.h>
#include <poll.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

namespace {

constexpr char kPtx[] = R"(.version 7.0
.target sm_70
.address_size 64
.visible .entry work(.param .u32 rounds, .param .u64 sink)
{
  .reg .pred %p;
  .reg .u32 %n, %v;
  .reg .u64 %a;
  ld.param.u32 %n, [rounds];
  mov.u32 %v, %tid.x;
again:
  mad.lo.u32 %v, %v, 1664525, 1013904223;
  mad.lo.u32 %v, %v, 1664525, 1013904223;
  mad.lo.u32 %v, %v, 1664525, 1013904223;
  mad.lo.u32 %v, %v, 1664525, 1013904223;
  sub.u32 %n, %n, 1;
  setp.ne.u32 %p, %n, 0;
  @%p bra again;
  setp.ne.u32 %p, %v, 0;
  @%p bra done;
  ld.param.u64 %a, [sink];
  cvta.to.global.u64 %a, %a;
  st.global.u32 [%a], %v;
done:
  ret;
}
)";

constexpr uint64_t kWindowNs = 100'000'000;
constexpr size_t kMostSamples = size_t{1} << 21;

void Check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "sharing_load: %s: error %d\n", what, static_cast<int>(result));
  std::exit(1);
}

uint64_t Now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

struct Load {
  CUstream stream = nullptr;
  CUfunction function = nullptr;
  CUdeviceptr sink = 0;
  unsigned blocks = 1;
  uint32_t rounds = 1;
  double kernel_us = 0;  // as it was measured
  uint64_t begin = 0, end = 0, count = 0;
  std::vector<uint32_t> samples;  // ns
  std::vector<uint64_t> windows;  // units that ended in each

  void Prepare() {
    CUdevice device = 0;
    CUcontext context = nullptr;
    CUmodule module = nullptr;
    int processors = 0;
    Check(cuInit(0), "cuInit");
    Check(cuDeviceGet(&device, 0), "cuDeviceGet");
    Check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    Check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    Check(cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device), "attribute");
    Check(cuModuleLoadData(&module, kPtx), "cuModuleLoadData");
    Check(cuModuleGetFunction(&function, module, "work"), "cuModuleGetFunction");
    Check(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    Check(cuMemAlloc(&sink, 256), "cuMemAlloc");
    blocks = static_cast<unsigned>(2 * processors);
    samples.reserve(kMostSamples);
  }

  void Launch(uint32_t of_rounds) {
    void* parameters[] = {&of_rounds, &sink};
    Check(cuLaunchKernel(function, blocks, 1, 1, 256, 1, 1, 0, stream, parameters, nullptr),
          "cuLaunchKernel");
  }
  void Synchronize() { Check(cuStreamSynchronize(stream), "cuStreamSynchronize"); }

  // The time of one kernel among several, the least of some tries.
  double Took(uint32_t of_rounds, int kernels) {
    double least = 1e18;
    for (int tries = 0; tries < 5; ++tries) {
      Synchronize();
      const uint64_t from = Now();
      for (int i = 0; i < kernels; ++i) Launch(of_rounds);
      Synchronize();
      least = std::min(least, static_cast<double>(Now() - from) / 1e3 / kernels);
    }
    return least;
  }
  void Calibrate(double wanted_us) {
    if (wanted_us <= 0) return;
    constexpr uint32_t kFew = 20'000, kMany = 60'000;
    const double each = (Took(kMany, 4) - Took(kFew, 4)) / (kMany - kFew);
    rounds = static_cast<uint32_t>(std::clamp(wanted_us / std::max(each, 1e-7), 1.0, 4e9));
    kernel_us = Took(rounds, wanted_us < 1000 ? 50 : 4);
  }

  void Note(uint64_t units, uint64_t took_ns) {
    count += units;
    if (samples.size() < kMostSamples)
      samples.push_back(static_cast<uint32_t>(std::min<uint64_t>(took_ns, ~uint32_t{0})));
    const size_t window = (Now() - begin) / kWindowNs;
    if (windows.size() <= window) windows.resize(window + 1);
    windows[window] += units;
  }

  void Wait(uint64_t gap_ns) {
    for (uint64_t next = begin; Now() < end;) {
      while (gap_ns != 0 && Now() < next) usleep(20);
      next += gap_ns;
      const uint64_t from = Now();
      Launch(rounds);
      Synchronize();
      Note(1, Now() - from);
    }
  }
  // Events behind every two milliseconds of work; two of them may be outstanding.
  void Full() {
    const auto batch = static_cast<uint64_t>(std::clamp(2000 / std::max(kernel_us, 1.0), 1.0, 400.0));
    CUevent events[2];
    for (CUevent& event : events) Check(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    uint64_t sent = 0, from = Now();
    for (; Now() < end; ++sent) {
      CUevent event = events[sent % 2];
      if (sent >= 2) {
        Check(cuEventSynchronize(event), "cuEventSynchronize");
        Note(batch, Now() - from);
        from = Now();
      }
      for (uint64_t i = 0; i < batch; ++i) Launch(rounds);
      Check(cuEventRecord(event, stream), "cuEventRecord");
    }
    Synchronize();
  }
  void Copy(double gigabytes) {
    const auto bytes = static_cast<size_t>(gigabytes * (1 << 30));
    void* host = nullptr;
    CUdeviceptr device = 0;
    Check(cuMemAllocHost(&host, bytes), "cuMemAllocHost");
    Check(cuMemAlloc(&device, bytes), "cuMemAlloc");
    while (Now() < end) {
      const uint64_t from = Now();
      Check(cuMemcpyHtoDAsync(device, host, bytes, stream), "cuMemcpyHtoDAsync");
      Synchronize();
      Note(1, Now() - from);
    }
  }

  double Part(double part) {
    if (samples.empty()) return -1;
    const auto at =
        std::min(samples.size() - 1, static_cast<size_t>(part * static_cast<double>(samples.size())));
    std::nth_element(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(at), samples.end());
    return samples[at] / 1e3;
  }
  void Print() {
    std::printf(
        "{\"count\": %llu, \"kernel_us\": %.3f, \"p50\": %.2f, \"p99\": %.2f, \"p999\": %.2f, \"max\": %.2f, "
        "\"windows\": [",
        static_cast<unsigned long long>(count), kernel_us, Part(0.5), Part(0.99), Part(0.999), Part(1));
    for (size_t i = 0; i < windows.size(); ++i)
      std::printf("%s%llu", i == 0 ? "" : ", ", static_cast<unsigned long long>(windows[i]));
    std::printf("]}\n");
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const std::string_view mode = argv[1];
  const double size = std::atof(argv[2]);
  Load load;
  load.Prepare();
  if (mode == "calibrate") {
    load.Calibrate(size);
    std::printf("%u %.3f\n", load.rounds, load.kernel_us);
    return 0;
  }
  load.rounds = std::max(1u, static_cast<uint32_t>(size));
  if (argc > 3) load.kernel_us = std::atof(argv[3]);
  std::printf("ready\n");
  std::fflush(stdout);
  double seconds = 0;
  if (std::scanf("%lf", &seconds) != 1) return 1;
  load.begin = Now();
  load.end = load.begin + static_cast<uint64_t>(seconds * 1e9);
  if (mode == "wait") load.Wait(0);
  if (mode == "sometimes" && argc > 4) load.Wait(static_cast<uint64_t>(std::atof(argv[4]) * 1e3));
  if (mode == "full") load.Full();
  if (mode == "copy") load.Copy(size);
  load.Print();
  return 0;
}
