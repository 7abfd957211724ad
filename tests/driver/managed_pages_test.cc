// SPDX-License-Identifier: Apache-2.0
// Census category unified memory: what both processors see of each other, whoever touches a page first, while
// kernels run and between them.
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <vector>

#include "tests/driver/child_process.h"
#include "tests/driver/driver_test.h"
#include "tests/yield_until.h"

namespace causeway::driver_test {
namespace {

// answer(ask, reply, in, out, rounds): round by round, waits until *ask is the round's number, then writes
// in[i] + round to out[i], i < 8, and the number to *reply.
// fill(data, words): data[i] = i, by one thread.
constexpr char kText[] = R"(
.version 8.0
.target sm_80
.address_size 64
.visible .entry answer(.param .u64 ask, .param .u64 reply, .param .u64 in, .param .u64 out, .param .u32 rounds)
{
  .reg .pred %p<4>; .reg .b32 %r<8>; .reg .b64 %rd<12>;
  ld.param.u64 %rd1, [ask];
  ld.param.u64 %rd2, [reply];
  ld.param.u64 %rd3, [in];
  ld.param.u64 %rd4, [out];
  ld.param.u32 %r1, [rounds];
  mov.u32 %r2, 0;
ROUND:
  add.u32 %r2, %r2, 1;
WAIT:
  ld.volatile.global.u32 %r3, [%rd1];
  setp.ne.u32 %p1, %r3, %r2;
  @%p1 bra WAIT;
  membar.sys;
  mov.u32 %r4, 0;
WORD:
  mul.wide.u32 %rd5, %r4, 4;
  add.s64 %rd6, %rd3, %rd5;
  add.s64 %rd7, %rd4, %rd5;
  ld.volatile.global.u32 %r5, [%rd6];
  add.u32 %r6, %r5, %r2;
  st.volatile.global.u32 [%rd7], %r6;
  add.u32 %r4, %r4, 1;
  setp.lt.u32 %p2, %r4, 8;
  @%p2 bra WORD;
  membar.sys;
  st.volatile.global.u32 [%rd2], %r2;
  setp.lt.u32 %p3, %r2, %r1;
  @%p3 bra ROUND;
  ret;
}
.visible .entry fill(.param .u64 data, .param .u32 words)
{
  .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [data];
  ld.param.u32 %r1, [words];
  mov.u32 %r2, 0;
NEXT:
  mul.wide.u32 %rd2, %r2, 4;
  add.s64 %rd3, %rd1, %rd2;
  st.global.u32 [%rd3], %r2;
  add.u32 %r2, %r2, 1;
  setp.lt.u32 %p1, %r2, %r1;
  @%p1 bra NEXT;
  ret;
}
)";

constexpr size_t kSmall = 4096, kBytes = 1 << 20, kLarge = 24 << 20;

class ManagedPagesTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    OK(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    OK(cuModuleLoadData(&kernels_, kText));
    OK(cuModuleGetFunction(&answer_, kernels_, "answer"));
    OK(cuModuleGetFunction(&fill_, kernels_, "fill"));
  }
  uint32_t* Allocate(size_t bytes) {
    CUdeviceptr memory = 0;
    EXPECT_EQ(cuMemAllocManaged(&memory, bytes, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
    return reinterpret_cast<uint32_t*>(memory);
  }
  void Free(uint32_t* memory) { EXPECT_EQ(cuMemFree(Address(memory)), CUDA_SUCCESS); }
  static CUdeviceptr Address(const volatile uint32_t* memory) {
    return reinterpret_cast<CUdeviceptr>(memory);
  }
  void Add(uint32_t* memory, uint32_t count, uint32_t value) {
    CUdeviceptr data = Address(memory);
    void* parameters[] = {&data, &count, &value};
    EXPECT_EQ(
        cuLaunchKernel(Kernel("add"), (count + 255) / 256, 1, 1, 256, 1, 1, 0, stream_, parameters, nullptr),
        CUDA_SUCCESS);
  }
  void Fill(uint32_t* memory, uint32_t words) {
    CUdeviceptr data = Address(memory);
    void* parameters[] = {&data, &words};
    EXPECT_EQ(cuLaunchKernel(fill_, 1, 1, 1, 1, 1, 1, 0, stream_, parameters, nullptr), CUDA_SUCCESS);
  }
  void Synchronize() { EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS); }
  // Rounds of questions and answers with a kernel that runs all the while. The words lie wherever.
  void Converse(volatile uint32_t* ask, volatile uint32_t* reply, volatile uint32_t* in,
                volatile uint32_t* out, uint32_t rounds);

  CUstream stream_ = nullptr;
  CUmodule kernels_ = nullptr;
  CUfunction answer_ = nullptr, fill_ = nullptr;
};

void ManagedPagesTest::Converse(volatile uint32_t* ask, volatile uint32_t* reply, volatile uint32_t* in,
                                volatile uint32_t* out, uint32_t rounds) {
  CUdeviceptr at[] = {Address(ask), Address(reply), Address(in), Address(out)};
  *ask = 0;
  *reply = 0;
  void* parameters[] = {&at[0], &at[1], &at[2], &at[3], &rounds};
  ASSERT_EQ(cuLaunchKernel(answer_, 1, 1, 1, 1, 1, 1, 0, stream_, parameters, nullptr), CUDA_SUCCESS);
  for (uint32_t round = 1; round <= rounds; ++round) {
    for (uint32_t i = 0; i < 8; ++i) in[i] = 100 * round + i;
    std::atomic_thread_fence(std::memory_order_seq_cst);
    *ask = round;
    test::YieldUntil([&] { return *reply == round; });
    std::atomic_thread_fence(std::memory_order_seq_cst);
    for (uint32_t i = 0; i < 8; ++i) ASSERT_EQ(out[i], 100 * round + i + round) << "round " << round;
  }
  Synchronize();
}

bool IsConcurrent() {
  int concurrent = 0;
  cuDeviceGetAttribute(&concurrent, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 0);
  return concurrent != 0;
}
#define NEEDS_CONCURRENT_ACCESS() \
  if (!IsConcurrent()) GTEST_SKIP() << "no concurrent access"

TEST_F(ManagedPagesTest, ConversationInOnePage) {
  NEEDS_CONCURRENT_ACCESS();
  uint32_t* memory = Allocate(kSmall);
  Converse(memory, memory + 16, memory + 32, memory + 64, 30);
  Free(memory);
}

TEST_F(ManagedPagesTest, ConversationInSeveralAllocations) {
  NEEDS_CONCURRENT_ACCESS();
  uint32_t *ask = Allocate(64), *reply = Allocate(64), *in = Allocate(kBytes), *out = Allocate(kBytes);
  Converse(ask, reply, in + 5000, out + 200000, 30);
  Converse(in, out, ask, reply, 30);
  for (uint32_t* memory : {ask, reply, in, out}) Free(memory);
}

TEST_F(ManagedPagesTest, DeviceTouchesFirst) {
  uint32_t* memory = Allocate(kBytes);
  constexpr uint32_t kWords = 20000;
  Fill(memory, kWords);
  Synchronize();
  for (uint32_t i = 0; i < kWords; ++i) ASSERT_EQ(memory[i], i);
  OK(cuMemsetD32(Address(memory), 9, kBytes / 4));
  OK(cuCtxSynchronize());
  for (uint32_t i = 0; i < kBytes / 4; ++i) ASSERT_EQ(memory[i], 9u);
  Free(memory);
}

TEST_F(ManagedPagesTest, HostTouchesFirst) {
  uint32_t* memory = Allocate(kLarge);
  constexpr uint32_t kStep = 3001, kWords = kLarge / 4;
  for (uint32_t i = 0; i < kWords; i += kStep) memory[i] = i;
  std::vector<uint32_t> back(kWords);
  OK(cuMemcpyDtoH(back.data(), Address(memory), kLarge));
  for (uint32_t i = 0; i < kWords; i += kStep) ASSERT_EQ(back[i], i);
  Free(memory);
}

TEST_F(ManagedPagesTest, InTurns) {
  uint32_t* memory = Allocate(kBytes);
  std::memset(memory, 0, kBytes);
  constexpr uint32_t kWords = 30000;
  for (uint32_t round = 0; round < 20; ++round) {
    Add(memory, kWords, 1);
    if (round % 3 == 0) Add(memory, kWords, 1);
    Synchronize();
    const uint32_t base = round + round / 3 + 2;
    ASSERT_EQ(memory[0], base);
    ASSERT_EQ(memory[kWords - 1], base);
    ASSERT_EQ(memory[kWords], round * 5);
    memory[kWords] += 5;  // beside what the device changes
    memory[kWords / 2] = base;
  }
  Free(memory);
}

// Both write different bytes of a page while the kernel runs.
TEST_F(ManagedPagesTest, BesideARunningKernel) {
  NEEDS_CONCURRENT_ACCESS();
  uint32_t* memory = Allocate(kBytes);
  std::memset(memory, 0, kBytes);
  volatile uint32_t* flag = Allocate(64);
  *flag = 0;
  CUdeviceptr flag_address = Address(flag);
  void* parameters[] = {&flag_address};
  OK(cuLaunchKernel(Kernel("spin"), 1, 1, 1, 1, 1, 1, 0, stream_, parameters, nullptr));
  CUstream other;
  OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  for (uint32_t i = 0; i < 1000; ++i) {
    memory[2 * i] = i;
    if (i % 100 != 0) continue;
    OK(cuMemsetD32Async(Address(memory + 2 * i + 1), i + 7, 1, other));
  }
  OK(cuStreamSynchronize(other));
  for (uint32_t i = 0; i < 1000; ++i) {
    ASSERT_EQ(memory[2 * i], i);
    ASSERT_EQ(memory[2 * i + 1], i % 100 == 0 ? i + 7 : 0);
  }
  EXPECT_EQ(cuStreamQuery(stream_), CUDA_ERROR_NOT_READY);
  *flag = 1;
  Synchronize();
  OK(cuStreamDestroy(other));
  Free(memory);
}

// There may be more of it than is shared with the host.
TEST_F(ManagedPagesTest, ManyMegabytes) {
  constexpr size_t kEach = 40 << 20, kCount = 3, kStep = (1 << 20) / 4;
  uint32_t* memory[kCount] = {};
  for (uint32_t*& one : memory) one = Allocate(kEach);
  for (uint32_t* one : memory) {
    for (uint32_t i = 0; i < kEach / 4; i += kStep) one[i] = i;
    Add(one, 1000, 2);
  }
  Synchronize();
  for (uint32_t* one : memory) {
    for (uint32_t i = 0; i < kEach / 4; i += kStep) ASSERT_EQ(one[i], i == 0 ? 2 : i);
    Free(one);
  }
}

// What waits for other streams says nothing of a kernel that runs.
TEST_F(ManagedPagesTest, OthersAreWaitedForWhileAKernelRuns) {
  NEEDS_CONCURRENT_ACCESS();
  volatile uint32_t* flag = Allocate(64);
  uint32_t *memory = Allocate(kSmall), word = 0;
  CUstream other;
  OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  *flag = 0;
  memory[0] = 5;
  CUdeviceptr flag_address = Address(flag);
  void* parameters[] = {&flag_address};
  OK(cuLaunchKernel(Kernel("spin"), 1, 1, 1, 1, 1, 1, 0, stream_, parameters, nullptr));
  OK(cuMemcpyDtoH(&word, Address(memory), sizeof word));
  EXPECT_EQ(word, 5u);
  OK(cuStreamSynchronize(CU_STREAM_LEGACY));
  OK(cuStreamSynchronize(other));
  *flag = 1;
  test::YieldUntil([&] { return cuStreamQuery(stream_) != CUDA_ERROR_NOT_READY; });
  EXPECT_EQ(cuStreamQuery(stream_), CUDA_SUCCESS);
  OK(cuMemsetD32Async(Address(memory), 1, 1,
                      other));  // starts work: what was written is seen now at the latest
  Synchronize();
  OK(cuStreamDestroy(other));
  Free(memory);
  Free(const_cast<uint32_t*>(flag));
}

TEST_F(ManagedPagesTest, ManyThreadsTouchTheSamePages) {
  constexpr uint32_t kThreads = 8, kEach = 64;
  uint32_t* memory = Allocate(kBytes);
  std::memset(memory, 0, kBytes);
  for (uint32_t round = 1; round <= 5; ++round) {
    Add(memory, kBytes / 4, 1);
    Synchronize();
    std::atomic<uint32_t> ready{0}, wrong{0};
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        ready.fetch_add(1);
        test::YieldUntil([&] { return ready.load() == kThreads; });
        for (uint32_t i = 0; i < kEach; ++i) {
          uint32_t& word = memory[i * 4096 + t];
          if (word != 11 * round - 10) wrong.fetch_add(1);
          word += 10;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(wrong.load(), 0u) << "round " << round;
  }
  Free(memory);
}

TEST_F(ManagedPagesTest, SmallAllocationsSharePages) {
  std::vector<uint32_t*> all;
  for (uint32_t i = 0; i < 100; ++i) {
    all.push_back(Allocate(100));
    for (uint32_t k = 0; k < 25; ++k) all[i][k] = i * 100 + k;
  }
  for (uint32_t i = 0; i < 100; i += 2) Add(all[i], 25, 1);
  Synchronize();
  for (uint32_t i = 0; i < 100; i += 3) {
    Free(all[i]);
    all[i] = nullptr;
  }
  for (uint32_t i = 0; i < 100; ++i) {
    for (uint32_t k = 0; all[i] != nullptr && k < 25; ++k)
      ASSERT_EQ(all[i][k], i * 100 + k + (i % 2 == 0 ? 1 : 0));
  }
  for (uint32_t*& memory : all) {
    if (memory != nullptr) continue;
    memory = Allocate(100);
    memory[3] = 33;
    Add(memory, 25, 2);
  }
  Synchronize();
  for (uint32_t i = 0; i < 100; ++i)
    ASSERT_EQ(all[i][3], i % 3 == 0 ? 35 : i * 100 + 3 + (i % 2 == 0 ? 1 : 0));
  for (uint32_t* memory : all) Free(memory);
}

TEST_F(ManagedPagesTest, FreedAfterWriting) {
  for (uint32_t round = 0; round < 20; ++round) {
    uint32_t* memory = Allocate(kBytes);
    memory[round] = 1;
    if (round % 2 == 0) Add(memory, 100, 1);
    memory[200] = 2;
    Free(memory);
  }
}

// A kernel that waits for a word in memory that is being freed.
TEST_F(ManagedPagesTest, WrittenAndFreedWhileAKernelWaitsForIt) {
  NEEDS_CONCURRENT_ACCESS();
  uint32_t* flag = Allocate(64);
  *flag = 0;
  CUdeviceptr address = Address(flag);
  void* parameters[] = {&address};
  OK(cuLaunchKernel(Kernel("spin"), 1, 1, 1, 1, 1, 1, 0, stream_, parameters, nullptr));
  *static_cast<volatile uint32_t*>(flag) = 1;
  Free(flag);
}

// As the host's memory and as the device's, in copies of every kind.
TEST_F(ManagedPagesTest, Copies) {
  uint32_t *memory = Allocate(kBytes), *other = Allocate(kBytes);
  CUdeviceptr device = 0;
  OK(cuMemAlloc(&device, kBytes));
  for (uint32_t i = 0; i < kBytes / 4; ++i) memory[i] = i;
  OK(cuMemcpyHtoD(device, memory, kBytes));
  OK(cuMemcpyDtoH(other, device, kBytes));
  ASSERT_EQ(std::memcmp(memory, other, kBytes), 0);
  Add(memory, 1000, 3);
  OK(cuMemcpyHtoDAsync(device, memory, 8000, stream_));
  OK(cuMemcpyDtoHAsync(other, device, 8000, stream_));
  Synchronize();
  EXPECT_EQ(other[999], 1002u);
  EXPECT_EQ(other[1000], 1000u);
  OK(cuMemcpy(Address(other) + 40000, Address(memory), 4000));
  EXPECT_EQ(other[10005], 8u);
  uint32_t plain[25] = {};
  OK(cuMemcpy(reinterpret_cast<CUdeviceptr>(plain), Address(other), sizeof plain));
  EXPECT_EQ(plain[24], 27u);
  plain[0] = 4711;
  OK(cuMemcpy(Address(other), reinterpret_cast<CUdeviceptr>(plain), sizeof plain));
  EXPECT_EQ(other[0], 4711u);
  CUDA_MEMCPY2D box{};
  box.srcMemoryType = CU_MEMORYTYPE_HOST;
  box.srcHost = memory;
  box.srcPitch = 400;
  box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  box.dstDevice = device;
  box.dstPitch = 200;
  box.WidthInBytes = 200;
  box.Height = 10;
  OK(cuMemcpy2D(&box));
  box.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  box.srcDevice = device;
  box.srcPitch = 200;
  box.dstMemoryType = CU_MEMORYTYPE_HOST;
  box.dstHost = other;
  OK(cuMemcpy2D(&box));
  OK(cuCtxSynchronize());  // a copy between two memories that devices reach need not wait
  EXPECT_EQ(other[50], 103u);
  OK(cuMemFree(device));
  Free(memory);
  Free(other);
}

struct Seen {
  uint32_t* memory;
  uint32_t before;
};
void CUDA_CB LookAndWrite(void* data) {
  auto* seen = static_cast<Seen*>(data);
  seen->before = seen->memory[7];
  seen->memory[7] = 1000;
}

TEST_F(ManagedPagesTest, HostFunctionsBetweenKernels) {
  uint32_t* memory = Allocate(kBytes);
  std::memset(memory, 0, kBytes);
  for (uint32_t round = 0; round < 5; ++round) {
    Seen seen{memory, 0};
    Add(memory, 100, 1);
    OK(cuLaunchHostFunc(stream_, LookAndWrite, &seen));
    Add(memory, 100, 1);
    Synchronize();
    EXPECT_EQ(seen.before, round == 0 ? 1u : 1002u);
    EXPECT_EQ(memory[7], 1001u);
    EXPECT_EQ(memory[8], 2 * round + 2);
  }
  Free(memory);
}

TEST_F(ManagedPagesTest, EventsAndQueriesTellTheEnd) {
  uint32_t* memory = Allocate(kBytes);
  std::memset(memory, 0, kBytes);
  CUevent event;
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  for (uint32_t round = 1; round <= 10; ++round) {
    Add(memory, 1000, 1);
    OK(cuEventRecord(event, stream_));
    if (round % 2 == 0) {
      OK(cuEventSynchronize(event));
    } else {
      test::YieldUntil([&] { return cuStreamQuery(stream_) != CUDA_ERROR_NOT_READY; });
    }
    ASSERT_EQ(memory[999], round);
    memory[1000] = round;
  }
  OK(cuEventDestroy(event));
  Free(memory);
}

// The program's own handler gets the program's own faults, and pages still come back.
sigjmp_buf own_handler;
bool Faults(volatile char* address) {
  if (sigsetjmp(own_handler, 1) != 0) return true;
  *address = 1;
  return false;
}

TEST_F(ManagedPagesTest, ProgramsOwnFaultHandler) {
  uint32_t* memory = Allocate(kBytes);
  struct sigaction own {
  }, before{};
  own.sa_sigaction = [](int, siginfo_t*, void*) { siglongjmp(own_handler, 1); };
  own.sa_flags = SA_SIGINFO;
  ASSERT_EQ(sigaction(SIGSEGV, &own, &before), 0);
  void* read_only = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memory[0] = 0;
  for (uint32_t round = 1; round <= 3; ++round) {
    Add(memory, 100, 1);
    Synchronize();
    EXPECT_TRUE(Faults(static_cast<char*>(read_only)));
    EXPECT_EQ(memory[0], round);
  }
  munmap(read_only, 4096);
  sigaction(SIGSEGV, &before, nullptr);
  Free(memory);
}

TEST_F(ManagedPagesTest, TheParentOfAForkGoesOn) {
  uint32_t* memory = Allocate(kBytes);
  std::memset(memory, 0, kBytes);
  Add(memory, 1000, 1);
  Synchronize();
  memory[3] = 50;
  const pid_t child = fork();
  if (child == 0) _exit(7);
  Add(memory, 1000, 1);
  Synchronize();
  EXPECT_EQ(memory[3], 51u);
  EXPECT_EQ(memory[4], 2u);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  Free(memory);
}

// Killed with pages on both sides and a kernel that waits for it.
TEST_F(ManagedPagesTest, DISABLED_DiesInTheMiddle) {
  uint32_t *memory = Allocate(kBytes), *flag = Allocate(64);
  *flag = 0;
  Add(memory, 1000, 1);
  CUdeviceptr address = Address(flag);
  void* parameters[] = {&address};
  EXPECT_EQ(cuLaunchKernel(Kernel("spin"), 1, 1, 1, 1, 1, 1, 0, stream_, parameters, nullptr), CUDA_SUCCESS);
  std::thread writer([&] {
    for (uint32_t i = 0;; ++i) memory[i % (kBytes / 4)] = i;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  kill(getpid(), SIGKILL);
  writer.join();
}

TEST_F(ManagedPagesTest, OthersOutliveAKilledProcess) {
  NEEDS_CONCURRENT_ACCESS();
  EXPECT_EQ(RunChild("ManagedPagesTest.DISABLED_DiesInTheMiddle"), 128 + SIGKILL);
  uint32_t* memory = Allocate(kBytes);
  memory[0] = 1;
  Add(memory, 10, 1);
  Synchronize();
  EXPECT_EQ(memory[0], 2u);
  Free(memory);
}

TEST_F(ManagedPagesTest, PrefetchedBothWays) {
  auto* prefetch = SymbolAs<CUresult(CUdeviceptr, size_t, CUdevice, CUstream)>("cuMemPrefetchAsync");
  uint32_t* memory = Allocate(kLarge);
  for (uint32_t i = 0; i < kLarge / 4; i += 1000) memory[i] = i;
  OK(prefetch(Address(memory), kLarge, 0, stream_));
  Add(memory, 2000, 1);
  OK(prefetch(Address(memory), kLarge, CU_DEVICE_CPU, stream_));
  Synchronize();
  EXPECT_EQ(memory[1000], 1001u);
  EXPECT_EQ(memory[5000], 5000u);
  Free(memory);
}

}  // namespace
}  // namespace causeway::driver_test
