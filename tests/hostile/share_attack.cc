// SPDX-License-Identifier: Apache-2.0
// What a guest can do to have more of a GPU's time than its share, or to keep others from theirs; through the driver API alone.
// usage: share_attack KIND
//   modest N   launches and waits N times, prints how often and ends: the one beside which the others are
//   copies N   copies 8 MiB to the device and back N times, each of pinned and of ordinary memory, and compares
//   flood      launches empty kernels over and over from two threads into many streams
//   greedy     has always much queued, and never waits
//   endless    launches a kernel that never ends, and another one in a second stream
//   spin       launches a kernel that ends when a later launch has written a word; over and over
//   streams    makes ten thousand streams and launches into all of them, over and over
//   capture    captures launches for ever, and launches beside that
//   forks      64 processes of `greedy`
//   dies       processes one after the other that launch much and kill themselves in the middle
// Copies prints "done N" and then goes on doing nothing. The others print "going" once it does what it is for, and goes on until it is killed; spin and streams also how often they got
// through ("round N"). Exits 3 when the driver refused what it must give.
#include <cuda.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr char kPtx[] = R"(.version 7.0
.target sm_70
.address_size 64
.visible .entry empty() { ret; }
.visible .entry endless(.param .u64 word)
{
  .reg .pred %p; .reg .u32 %v; .reg .u64 %a;
  ld.param.u64 %a, [word];
again:
  ld.volatile.global.u32 %v, [%a];
  setp.eq.u32 %p, %v, 0;
  @%p bra again;
  ret;
}
.visible .entry set(.param .u64 word)
{
  .reg .u32 %v; .reg .u64 %a;
  ld.param.u64 %a, [word];
  mov.u32 %v, 1;
  st.volatile.global.u32 [%a], %v;
  ret;
}
)";

void Check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::printf("%s: error %d\n", what, static_cast<int>(result));
  std::exit(3);
}

CUcontext context = nullptr;
CUfunction empty = nullptr, endless = nullptr, set = nullptr;
CUdeviceptr word = 0;

void Begin() {
  CUdevice device = 0;
  CUmodule module = nullptr;
  Check(cuInit(0), "cuInit");
  Check(cuDeviceGet(&device, 0), "cuDeviceGet");
  Check(cuDevicePrimaryCtxRetain(&context, device), "no primary context");
  Check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
  Check(cuModuleLoadData(&module, kPtx), "no module");
  for (const auto& [name, function] : {std::pair{"empty", &empty}, {"endless", &endless}, {"set", &set}})
    Check(cuModuleGetFunction(function, module, name), name);
  Check(cuMemAlloc(&word, 4096), "cuMemAlloc");
  Check(cuMemsetD8(word, 0, 4096), "cuMemsetD8");
  Check(cuCtxSynchronize(), "cuCtxSynchronize");
}

CUstream NewStream() {
  CUstream stream = nullptr;
  Check(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  return stream;
}

void Launch(CUfunction function, CUstream stream, CUdeviceptr of_word = 0) {
  void* parameters[] = {&of_word};
  Check(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, of_word != 0 ? parameters : nullptr, nullptr),
        "cuLaunchKernel");
}

void Say(const char* what) {
  std::printf("%s\n", what);
  std::fflush(stdout);
}

void Modest(long times) {
  CUstream stream = NewStream();
  for (long i = 0; i < times; ++i) {
    Launch(empty, stream);
    Check(cuStreamSynchronize(stream), "cuStreamSynchronize");
  }
  std::printf("done %ld\n", times);
}

void Compare(const std::vector<uint32_t>& sent, const uint32_t* back, long round) {
  if (std::memcmp(sent.data(), back, sent.size() * sizeof sent[0]) == 0) return;
  std::printf("round %ld: wrong bytes\n", round);
  std::exit(3);
}

[[noreturn]] void Copies(long times) {
  constexpr size_t kBytes = 8 << 20;
  std::vector<uint32_t> sent(kBytes / 4), received(kBytes / 4);
  CUstream stream = NewStream();
  CUdeviceptr device = 0;
  void *to = nullptr, *from = nullptr;
  Check(cuMemAlloc(&device, kBytes), "cuMemAlloc");
  Check(cuMemAllocHost(&to, kBytes), "cuMemAllocHost");
  Check(cuMemAllocHost(&from, kBytes), "cuMemAllocHost");
  for (long round = 0; round < times; ++round) {
    for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<uint32_t>(i * 2654435761u + round);
    std::memcpy(to, sent.data(), kBytes);
    Check(cuMemcpyHtoDAsync(device, to, kBytes, stream), "cuMemcpyHtoDAsync");
    Check(cuMemcpyDtoHAsync(from, device, kBytes, stream), "cuMemcpyDtoHAsync");
    Check(cuStreamSynchronize(stream), "cuStreamSynchronize");
    Compare(sent, static_cast<const uint32_t*>(from), round);
    for (uint32_t& each : sent) ++each;
    Check(cuMemcpyHtoD(device, sent.data(), kBytes), "cuMemcpyHtoD");
    Check(cuMemcpyDtoH(received.data(), device, kBytes), "cuMemcpyDtoH");
    Compare(sent, received.data(), round);
  }
  std::printf("done %ld\n", times);
  std::fflush(stdout);
  for (;;) pause();
}

[[noreturn]] void Flood() {
  const auto one = [] {
    Check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    std::vector<CUstream> streams;
    for (int i = 0; i < 16; ++i) streams.push_back(NewStream());
    for (size_t i = 0;; ++i) Launch(empty, streams[i % streams.size()]);
  };
  std::thread second(one);
  Say("going");
  one();
  std::exit(1);
}

[[noreturn]] void Greedy(bool says) {
  CUstream stream = NewStream();
  if (says) Say("going");
  for (;;) Launch(empty, stream);
}

[[noreturn]] void Endless() {
  for (int i = 0; i < 2; ++i) {
    Launch(endless, NewStream(), word);
    if (i == 0) Say("going");
  }
  for (;;) pause();
}

[[noreturn]] void Spin() {
  CUstream waits = NewStream(), writes = NewStream();
  Say("going");
  for (int round = 1;; ++round) {
    Launch(endless, waits, word);
    Launch(set, writes, word);
    Check(cuMemsetD8Async(word, 0, 4, waits), "cuMemsetD8Async");
    Check(cuStreamSynchronize(waits), "cuStreamSynchronize");
    std::printf("round %d\n", round);
    std::fflush(stdout);
  }
}

[[noreturn]] void Streams() {
  constexpr size_t kStreams = 10'000;
  Say("going");
  std::vector<CUstream> streams;
  for (int round = 1;; ++round) {
    while (streams.size() < kStreams) streams.push_back(NewStream());
    for (CUstream stream : streams) Launch(empty, stream);
    Check(cuCtxSynchronize(), "cuCtxSynchronize");
    std::printf("round %d\n", round);
    std::fflush(stdout);
  }
}

[[noreturn]] void Capture() {
  CUstream captured = NewStream(), beside = NewStream();
  Check(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED), "cuStreamBeginCapture");
  Say("going");
  for (uint64_t i = 0;; ++i) {
    if (i < 100'000) Launch(empty, captured);
    Launch(empty, beside);
  }
}

[[noreturn]] void Forks(const char* program) {
  for (int i = 0; i < 64; ++i) {
    if (fork() != 0) continue;
    execl(program, program, "greedy", static_cast<char*>(nullptr));
    _exit(1);
  }
  Say("going");
  for (;;) pause();
}

[[noreturn]] void Dies(const char* program) {
  for (bool first = true;; first = false) {
    const pid_t child = fork();
    if (child == 0) {
      execl(program, program, "once", static_cast<char*>(nullptr));
      _exit(1);
    }
    if (first) Say("going");
    waitpid(child, nullptr, 0);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view kind = argc > 1 ? argv[1] : "";
  if (kind == "forks") Forks(argv[0]);
  if (kind == "dies") Dies(argv[0]);
  Begin();
  if (kind == "modest") Modest(argc > 2 ? std::atol(argv[2]) : 100);
  if (kind == "copies") Copies(argc > 2 ? std::atol(argv[2]) : 1);
  if (kind == "flood") Flood();
  if (kind == "greedy") Greedy(true);
  if (kind == "endless") Endless();
  if (kind == "spin") Spin();
  if (kind == "streams") Streams();
  if (kind == "capture") Capture();
  if (kind == "once") {
    CUstream stream = NewStream();
    for (int i = 0; i < 500; ++i) Launch(empty, stream);
    raise(SIGKILL);
  }
  return kind == "modest" ? 0 : 2;
}
