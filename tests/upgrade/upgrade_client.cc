// SPDX-License-Identifier: Apache-2.0
// A program at work for as long as its standard input is open: copies, a kernel and queries on two threads, and each byte
// checked. It prints what it has done: "rounds N wrong N longest_ms N", and fails at the first call that does.
#include <cuda.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "ivshmem_ring/messages/image_hash.h"

namespace {

constexpr uint32_t kWords = 16'384;
constexpr const char* kPtx = R"(
.version 7.0
.target sm_52
.address_size 64
.visible .entry add(.param .u64 data, .param .u32 count, .param .u32 value) {
  .reg .pred %p; .reg .b32 %r<7>; .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [data]; ld.param.u32 %r1, [count]; ld.param.u32 %r2, [value];
  mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mov.u32 %r5, %tid.x;
  mad.lo.s32 %r3, %r3, %r4, %r5;
  setp.ge.u32 %p, %r3, %r1;
  @%p bra done;
  cvta.to.global.u64 %rd1, %rd1;
  mul.wide.u32 %rd2, %r3, 4; add.s64 %rd3, %rd1, %rd2;
  ld.global.u32 %r6, [%rd3]; add.u32 %r6, %r6, %r2; st.global.u32 [%rd3], %r6;
done:
  ret;
})";

void Check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::printf("failed %s %d\n", what, int(result));
  std::fflush(stdout);
  _exit(1);
}
#define CHECK(call) Check(call, #call)

struct Work {
  uint64_t rounds = 0, wrong = 0;
  double longest_ms = 0;
};

void Run(CUcontext context, CUfunction add, uint32_t seed, const std::atomic<bool>& stop, Work& work) {
  CHECK(cuCtxSetCurrent(context));
  CUstream stream = nullptr;
  CUdeviceptr device = 0;
  CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CHECK(cuMemAlloc(&device, kWords * 4));
  std::vector<uint32_t> sent(kWords), got(kWords);
  auto before = std::chrono::steady_clock::now();
  while (!stop) {
    const uint32_t value = seed + uint32_t(work.rounds) * 2'654'435'761u;
    for (uint32_t at = 0; at < kWords; ++at) sent[at] = value ^ at * 40'503u;
    CHECK(cuMemcpyHtoDAsync(device, sent.data(), kWords * 4, stream));
    uint32_t count = kWords / 64, by = value;  // the interpreter is slow
    void* arguments[] = {&device, &count, &by};
    CHECK(cuLaunchKernel(add, count / 64, 1, 1, 64, 1, 1, 0, stream, arguments, nullptr));
    CHECK(cuMemcpyDtoHAsync(got.data(), device, kWords * 4, stream));
    CHECK(cuStreamSynchronize(stream));
    for (uint32_t at = 0; at < kWords; ++at)
      work.wrong += got[at] != sent[at] + (at < count ? by : 0) ? 1 : 0;
    // Comes and goes: what the host counts changes all the time.
    CUdeviceptr other = 0;
    CHECK(cuMemAlloc(&other, 4096));
    CHECK(cuMemFree(other));
    ++work.rounds;
    const auto now = std::chrono::steady_clock::now();
    work.longest_ms =
        std::max(work.longest_ms, std::chrono::duration<double, std::milli>(now - before).count());
    before = now;
  }
  CHECK(cuMemFree(device));
  CHECK(cuStreamDestroy(stream));
}

}  // namespace

int main(int argc, char** argv) {
  const auto seed = uint32_t(argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 1);
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUfunction add = nullptr;
  CHECK(cuInit(0));
  CHECK(cuDeviceGet(&device, 0));
  CHECK(cuDevicePrimaryCtxRetain(&context, device));
  CHECK(cuCtxSetCurrent(context));
  // As large as images of frameworks are: the daemon keeps it, and processes that come later find it there.
  const std::string image = kPtx + ("\n//" + std::string(causeway::kLeastKeptImageBytes, 'x')) + "\n";
  CHECK(cuModuleLoadData(&module, image.c_str()));
  CHECK(cuModuleGetFunction(&add, module, "add"));
  std::atomic<bool> stop{false};
  std::vector<Work> works(2);
  std::vector<std::thread> threads;
  for (uint32_t at = 0; at < works.size(); ++at)
    threads.emplace_back([&, at] { Run(context, add, seed + 1000 * at, stop, works[at]); });
  std::printf("working\n");
  std::fflush(stdout);
  char byte = 0;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
  stop = true;
  Work all;
  for (uint32_t at = 0; at < works.size(); ++at) {
    threads[at].join();
    all.rounds += works[at].rounds;
    all.wrong += works[at].wrong;
    all.longest_ms = std::max(all.longest_ms, works[at].longest_ms);
  }
  std::printf("rounds %llu wrong %llu longest_ms %.0f\n", static_cast<unsigned long long>(all.rounds),
              static_cast<unsigned long long>(all.wrong), all.longest_ms);
  return all.wrong == 0 ? 0 : 1;
}
