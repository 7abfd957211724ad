// SPDX-License-Identifier: Apache-2.0
// Managed memory at work: an ordinary program on the driver API, for NVIDIA's library and Causeway's alike.
//   managed_bench [MIB]        1024 unless said otherwise
//   managed_bench MIB touch    the first touch of either processor alone, to count what it costs
// Run it natively, then as `causeway run -- managed_bench` with CAUSEWAY_MANAGED=coherent and =migrating.
#include <cuda.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

// add_one(data, vectors): every 32-bit word of so many vectors of four becomes one more.
constexpr char kText[] = R"(
.version 7.0
.target sm_75
.address_size 64
.visible .entry add_one(.param .u64 data, .param .u64 vectors)
{
  .reg .pred %p<2>; .reg .b32 %r<12>; .reg .b64 %rd<10>;
  ld.param.u64 %rd1, [data];
  ld.param.u64 %rd2, [vectors];
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mov.u32 %r4, %nctaid.x;
  mad.lo.s32 %r5, %r1, %r2, %r3;
  mul.lo.s32 %r6, %r4, %r2;
  cvt.u64.u32 %rd3, %r5;
  cvt.u64.u32 %rd4, %r6;
NEXT:
  setp.ge.u64 %p1, %rd3, %rd2;
  @%p1 bra DONE;
  shl.b64 %rd5, %rd3, 4;
  add.s64 %rd6, %rd1, %rd5;
  ld.global.v4.u32 {%r7, %r8, %r9, %r10}, [%rd6];
  add.u32 %r7, %r7, 1;
  add.u32 %r8, %r8, 1;
  add.u32 %r9, %r9, 1;
  add.u32 %r10, %r10, 1;
  st.global.v4.u32 [%rd6], {%r7, %r8, %r9, %r10};
  add.s64 %rd3, %rd3, %rd4;
  bra NEXT;
DONE:
  ret;
}
)";

void Check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "managed_bench: %s answered %d\n", what, static_cast<int>(result));
  std::exit(1);
}
#define CHECK(call) Check(call, #call)

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

CUfunction add_one = nullptr;
volatile uint64_t sink = 0;

void AddOne(CUdeviceptr data, uint64_t bytes) {
  uint64_t vectors = bytes / 16;
  void* parameters[] = {&data, &vectors};
  const unsigned blocks = vectors < 1024 * 256 ? static_cast<unsigned>((vectors + 255) / 256) : 1024;
  CHECK(cuLaunchKernel(add_one, blocks, 1, 1, 256, 1, 1, 0, nullptr, parameters, nullptr));
}

// Seconds that the best of some rounds takes.
template <class Work>
double Best(int rounds, Work work) {
  double best = 1e9;
  for (int i = 0; i < rounds; ++i) {
    const double start = Now();
    work();
    const double took = Now() - start;
    best = took < best ? took : best;
  }
  return best;
}

uint64_t Sum(const uint64_t* words, uint64_t bytes) {
  uint64_t sum = 0;
  for (uint64_t i = 0; i < bytes / 8; ++i) sum += words[i];
  return sum;
}

void Say(const char* what, double value, const char* unit) {
  std::printf("%-52s %10.2f %s\n", what, value, unit);
}

// The device's touch is a fill of the first page, before which all that the program wrote must be there.
void MeasureTouches(uint64_t bytes) {
  const double gigabytes = static_cast<double>(bytes) / 1e9;
  CUdeviceptr data = 0;
  CHECK(cuMemAllocManaged(&data, bytes, CU_MEM_ATTACH_GLOBAL));
  auto* words = reinterpret_cast<uint64_t*>(data);
  std::memset(words, 1, bytes);
  double start = Now();
  CHECK(cuMemsetD8(data, 2, 4096));
  CHECK(cuCtxSynchronize());
  Say("device's touch after the program wrote all", gigabytes / (Now() - start), "GB/s");
  start = Now();
  const uint64_t sum = Sum(words, bytes);
  Say("program reads all", gigabytes / (Now() - start), "GB/s");
  if (sum != 0x0101010101010101 * (bytes / 8 + 512)) {
    std::fprintf(stderr, "managed_bench: the sum is wrong\n");
    std::exit(1);
  }
  CHECK(cuMemFree(data));
}

void Measure(uint64_t bytes) {
  const double gigabytes = static_cast<double>(bytes) / 1e9;
  CUdeviceptr data = 0, plain = 0;
  CHECK(cuMemAllocManaged(&data, bytes, CU_MEM_ATTACH_GLOBAL));
  auto* words = reinterpret_cast<uint64_t*>(data);

  double start = Now();
  std::memset(words, 1, bytes);
  Say("program writes fresh memory", gigabytes / (Now() - start), "GB/s");
  start = Now();
  AddOne(data, bytes);
  CHECK(cuCtxSynchronize());
  Say("first kernel after the program wrote all", gigabytes / (Now() - start), "GB/s");
  Say("kernel on memory that is on the device",
      2 * gigabytes /
          Best(5,
               [&] {
                 for (int i = 0; i < 4; ++i) AddOne(data, bytes);
                 CHECK(cuCtxSynchronize());
               }) *
          4,
      "GB/s");
  start = Now();
  const uint64_t sum = Sum(words, bytes);
  Say("program reads all after a kernel", gigabytes / (Now() - start), "GB/s");
  const uint64_t word = 0x0101010101010101 + 21 * 0x0000000100000001;
  if (sum != word * (bytes / 8)) {
    std::fprintf(stderr, "managed_bench: the sum is wrong\n");
    std::exit(1);
  }
  start = Now();
  for (uint64_t i = 0; i < bytes / 8; ++i) words[i] += 1;
  Say("program changes all, which it has read", gigabytes / (Now() - start), "GB/s");
  AddOne(data, bytes);
  CHECK(cuCtxSynchronize());

  constexpr int kRounds = 200;
  start = Now();
  for (int i = 0; i < kRounds; ++i) {
    AddOne(data, 4096);
    CHECK(cuCtxSynchronize());
    words[0] += 1;
  }
  Say("launch, synchronise, change one word", (Now() - start) / kRounds * 1e6, "us");
  start = Now();
  for (int i = 0; i < kRounds; ++i) {
    AddOne(data, 4096);
    CHECK(cuCtxSynchronize());
  }
  Say("launch, synchronise", (Now() - start) / kRounds * 1e6, "us");

  CUmemLocation device{}, host{};
  device.type = CU_MEM_LOCATION_TYPE_DEVICE;
  host.type = CU_MEM_LOCATION_TYPE_HOST;
  sink = Sum(words, bytes);
  for (const CUmemLocation& to : {device, host}) {
    start = Now();
    CHECK(cuMemPrefetchAsync(data, bytes, to, 0, nullptr));
    CHECK(cuCtxSynchronize());
    Say(to.type == device.type ? "prefetch to the device" : "prefetch to the host",
        gigabytes / (Now() - start), "GB/s");
  }
  CHECK(cuMemFree(data));
  CHECK(cuMemAlloc(&plain, bytes));
  AddOne(plain, bytes);
  CHECK(cuCtxSynchronize());
  Say("kernel on device memory, for comparison",
      2 * gigabytes /
          Best(5,
               [&] {
                 for (int i = 0; i < 4; ++i) AddOne(plain, bytes);
                 CHECK(cuCtxSynchronize());
               }) *
          4,
      "GB/s");
  CHECK(cuMemFree(plain));
}

}  // namespace

int main(int count, char** arguments) {
  const uint64_t mebibytes = count > 1 ? std::strtoull(arguments[1], nullptr, 10) : 1024;
  if (mebibytes == 0 || mebibytes > 1u << 20) {
    std::fprintf(stderr, "usage: managed_bench [MIB [touch]]\n");
    return 2;
  }
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CHECK(cuInit(0));
  CHECK(cuDevicePrimaryCtxRetain(&context, 0));
  CHECK(cuCtxSetCurrent(context));
  CHECK(cuModuleLoadData(&module, kText));
  CHECK(cuModuleGetFunction(&add_one, module, "add_one"));
  count > 2 && std::strcmp(arguments[2], "touch") == 0 ? MeasureTouches(mebibytes << 20)
                                                       : Measure(mebibytes << 20);
  return 0;
}
