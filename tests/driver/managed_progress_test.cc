// SPDX-License-Identifier: Apache-2.0
// Unified memory beside calls that have nothing to do with it: a process that has some waits for the host no
// more often than one without. (On any other library nothing is counted, and this is a list of calls that
// succeed.)
#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "tests/driver/driver_test.h"
#include "tests/yield_until.h"

namespace causeway::driver_test {
namespace {

constexpr size_t kBytes = 1 << 20;

constexpr char kVariable[] = R"(
.version 8.0
.target sm_80
.address_size 64
.visible .global .attribute(.managed) .align 4 .u32 shared = 3;
)";

bool IsConcurrent() {
  int concurrent = 0;
  cuDeviceGetAttribute(&concurrent, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 0);
  return concurrent != 0;
}

class ManagedProgressTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    OK(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING));
    OK(cuMemAlloc(&data_, kBytes));
    OK(cuMemHostAlloc(&pinned_, kBytes, 0));
    add_ = Kernel("add");
  }
  CUresult Add(CUdeviceptr data, uint32_t count, uint32_t value, CUstream stream) {
    void* parameters[] = {&data, &count, &value};
    return cuLaunchKernel(add_, (count + 255) / 256, 1, 1, 256, 1, 1, 0, stream, parameters, nullptr);
  }
  uint32_t* Allocate(size_t bytes) {
    CUdeviceptr memory = 0;
    EXPECT_EQ(cuMemAllocManaged(&memory, bytes, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
    return reinterpret_cast<uint32_t*>(memory);
  }
  static CUdeviceptr Address(const volatile uint32_t* memory) {
    return reinterpret_cast<CUdeviceptr>(memory);
  }
  void Free(uint32_t* memory) { EXPECT_EQ(cuMemFree(Address(memory)), CUDA_SUCCESS); }
  void UseOnce(uint32_t* memory) {
    memory[1] = 5;
    ASSERT_EQ(Add(Address(memory), 2, 1, stream_), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
    ASSERT_EQ(memory[1], 6u);
  }

  struct Awaited {
    const char* what;
    uint64_t replies;
    bool operator==(const Awaited& other) const {
      return std::strcmp(what, other.what) == 0 && replies == other.replies;
    }
  };
  friend void PrintTo(const Awaited& awaited, std::ostream* out) {
    *out << awaited.what << ": " << awaited.replies;
  }
  // Replies for each of the calls that have nothing to do with managed memory.
  std::vector<Awaited> AwaitedByOthers();

  CUstream stream_ = nullptr;
  CUevent event_ = nullptr;
  CUdeviceptr data_ = 0;
  void* pinned_ = nullptr;
  CUfunction add_ = nullptr;
};

// The least of many rounds: now and then the host is asked again, as it is when work takes long.
std::vector<ManagedProgressTest::Awaited> ManagedProgressTest::AwaitedByOthers() {
  constexpr int kRounds = 100;
  std::vector<uint32_t> words(1024);
  const auto idle = [this] {
    EXPECT_EQ(cuEventRecord(event_, stream_), CUDA_SUCCESS);
    EXPECT_EQ(cuEventSynchronize(event_), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  };
  const auto launch = [this] { EXPECT_EQ(Add(data_, 1, 1, stream_), CUDA_SUCCESS); };
  struct Call {
    const char* what;
    std::function<void()> before;
    std::function<CUresult()> call;
  };
  const Call calls[] = {
      {"idle cuStreamSynchronize", idle, [this] { return cuStreamSynchronize(stream_); }},
      {"idle cuStreamQuery", idle, [this] { return cuStreamQuery(stream_); }},
      {"idle cuEventSynchronize", idle, [this] { return cuEventSynchronize(event_); }},
      {"idle cuEventQuery", idle, [this] { return cuEventQuery(event_); }},
      {"idle cuCtxSynchronize", idle, [] { return cuCtxSynchronize(); }},
      {"launch and cuStreamSynchronize", launch, [this] { return cuStreamSynchronize(stream_); }},
      {"4 bytes to the host", idle, [&] { return cuMemcpyDtoH(words.data(), data_, 4); }},
      {"4 KiB to the host", idle, [&] { return cuMemcpyDtoH(words.data(), data_, 4096); }},
      {"4 KiB to the device", idle, [&] { return cuMemcpyHtoD(data_, words.data(), 4096); }},
      {"4 KiB to the device behind work", launch, [&] { return cuMemcpyHtoD(data_, words.data(), 4096); }},
      {"1 MiB of pinned memory to the device", idle, [this] { return cuMemcpyHtoD(data_, pinned_, kBytes); }},
      {"1 MiB to pinned memory", idle, [this] { return cuMemcpyDtoH(pinned_, data_, kBytes); }},
      {"memory allocated and freed", [] {},
       [] {
         CUdeviceptr memory = 0;
         const CUresult result = cuMemAlloc(&memory, 4096);
         return result == CUDA_SUCCESS ? cuMemFree(memory) : result;
       }},
  };
  std::vector<Awaited> all;
  for (const Call& call : calls) {
    uint64_t least = ~uint64_t{0};
    for (int round = 0; round < kRounds; ++round) {
      call.before();
      const uint64_t before = RepliesAwaited();
      EXPECT_EQ(call.call(), CUDA_SUCCESS) << call.what;
      least = std::min(least, RepliesAwaited() - before);
      if (least == 0) break;  // further rounds cannot change it
    }
    all.push_back({call.what, least});
  }
  return all;
}

// Used by the device and by the program, so that there are pages on either side.
TEST_F(ManagedProgressTest, BesideABlock) {
  const std::vector<Awaited> without = AwaitedByOthers();
  uint32_t *used = Allocate(kBytes), *fresh = Allocate(kBytes);
  UseOnce(used);
  fresh[3] = 4;
  EXPECT_EQ(AwaitedByOthers(), without);
  EXPECT_EQ(used[1], 6u);
  EXPECT_EQ(fresh[3], 4u);
  Free(used);
  Free(fresh);
}

TEST_F(ManagedProgressTest, AfterTheLastBlock) {
  const std::vector<Awaited> without = AwaitedByOthers();
  uint32_t *first = Allocate(kBytes), *last = Allocate(64);
  UseOnce(first);
  UseOnce(last);
  Free(first);
  UseOnce(last);
  Free(last);
  EXPECT_EQ(AwaitedByOthers(), without);
}

TEST_F(ManagedProgressTest, AfterTheLastVariable) {
  const std::vector<Awaited> without = AwaitedByOthers();
  CUmodule module = nullptr;
  CUlibrary library = nullptr;
  CUdeviceptr address = 0;
  OK(cuModuleLoadData(&module, kVariable));
  OK(cuModuleGetGlobal(&address, nullptr, module, "shared"));
  EXPECT_EQ(*reinterpret_cast<volatile uint32_t*>(address), 3u);
  OK(cuModuleUnload(module));
  OK(cuLibraryLoadData(&library, kVariable, nullptr, nullptr, 0, nullptr, nullptr, 0));
  OK(cuLibraryGetManaged(&address, nullptr, library, "shared"));
  EXPECT_EQ(*reinterpret_cast<volatile uint32_t*>(address), 3u);
  OK(cuLibraryUnload(library));
  EXPECT_EQ(AwaitedByOthers(), without);
}

// With blocks, and with modules that have variables.
TEST_F(ManagedProgressTest, AfterTheEndOfTheirContext) {
  const auto use_context = [this](bool managed) {
    CUcontext context = nullptr;
    CUmodule module = nullptr;
    CUdeviceptr address = 0;
    OK(cuCtxCreate(&context, nullptr, 0, 0));
    if (managed) {
      Allocate(kBytes)[5] = 1;
      OK(cuModuleLoadData(&module, kVariable));
      OK(cuModuleGetGlobal(&address, nullptr, module, "shared"));
      EXPECT_EQ(*reinterpret_cast<volatile uint32_t*>(address), 3u);
    }
    OK(cuCtxDestroy(context));
    OK(cuCtxSetCurrent(context_));
  };
  use_context(false);
  const std::vector<Awaited> without = AwaitedByOthers();
  use_context(true);
  EXPECT_EQ(AwaitedByOthers(), without);
}

// Whatever tells the program that what a stream had is done.
class ManagedEndTest : public ManagedProgressTest {
 protected:
  void SetUp() override {
    ManagedProgressTest::SetUp();
    OK(cuStreamCreate(&blocking_, CU_STREAM_DEFAULT));
    OK(cuEventCreate(&sleepy_, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC));
  }
  void TearDown() override {
    EXPECT_EQ(cuEventDestroy(sleepy_), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamDestroy(blocking_), CUDA_SUCCESS);
    ManagedProgressTest::TearDown();
  }
  using Call = std::function<CUresult()>;
  struct End {
    const char* what;
    CUstream stream;
    Call wait;
    bool of_all = false;  // of every stream there is
  };
  std::vector<End> Ends();
  static CUresult UntilReady(const Call& query) {
    CUresult result = CUDA_ERROR_NOT_READY;
    test::YieldUntil([&] { return (result = query()) != CUDA_ERROR_NOT_READY; });
    return result;
  }
  // Records the event in stream_ first.
  CUresult Behind(CUevent event, const Call& call) const {
    const CUresult result = cuEventRecord(event, stream_);
    return result == CUDA_SUCCESS ? call() : result;
  }
  void KernelsAndLooks(const End& end, uint32_t* memory, uint32_t* sum);

  static constexpr uint32_t kWords = 20'000;  // of `memory`
  CUstream blocking_ = nullptr;
  CUevent sleepy_ = nullptr;
  uint32_t word_ = 0;
  std::vector<std::byte> large_ = std::vector<std::byte>(kBytes);
};

std::vector<ManagedEndTest::End> ManagedEndTest::Ends() {
  const auto copy_back = [this] { return cuMemcpyDtoH(&word_, data_, 4); };
  return {
      {"cuStreamSynchronize", stream_, [this] { return cuStreamSynchronize(stream_); }},
      {"cuStreamSynchronize, of the legacy stream", nullptr, [] { return cuStreamSynchronize(nullptr); }},
      {"cuStreamQuery", stream_, [this] { return UntilReady([this] { return cuStreamQuery(stream_); }); }},
      {"cuEventSynchronize", stream_,
       [this] { return Behind(event_, [this] { return cuEventSynchronize(event_); }); }},
      {"cuEventSynchronize, asleep", stream_,
       [this] { return Behind(sleepy_, [this] { return cuEventSynchronize(sleepy_); }); }},
      {"cuEventQuery", stream_,
       [this] {
         return Behind(event_, [this] { return UntilReady([this] { return cuEventQuery(event_); }); });
       }},
      {"cuMemcpyDtoH", nullptr, copy_back},
      {"cuMemcpyDtoH behind a blocking stream", blocking_, copy_back},
      {"cuMemcpyDtoHAsync of ordinary memory", stream_,
       [this] { return cuMemcpyDtoHAsync(&word_, data_, 4, stream_); }},
      {"cuMemcpyDtoH, large", nullptr, [this] { return cuMemcpyDtoH(large_.data(), data_, kBytes); }},
      {"cuMemcpyDtoH, pinned", nullptr, [this] { return cuMemcpyDtoH(pinned_, data_, 4096); }},
      {"cuMemcpyHtoD, pinned", nullptr, [this] { return cuMemcpyHtoD(data_, pinned_, 4096); }},
      {"cuMemcpyHtoD, large", nullptr, [this] { return cuMemcpyHtoD(data_, large_.data(), kBytes); }},
      {"cuCtxSynchronize", stream_, [] { return cuCtxSynchronize(); }, true},
      {"cuMemFree", stream_,
       [] {
         CUdeviceptr memory = 0;
         const CUresult result = cuMemAlloc(&memory, 4096);
         return result != CUDA_SUCCESS ? result : cuMemFree(memory);
       },
       true},
  };
}

// What a kernel wrote is what the program sees next, and the next kernel sees what the program writes then.
void ManagedEndTest::KernelsAndLooks(const End& end, uint32_t* memory, uint32_t* sum) {
  constexpr uint32_t kStep = 997;
  const uint32_t rounds = OnSoftwareGpu() ? 2 : 5;  // the first, and one behind another
  const bool concurrent = IsConcurrent();
  for (uint32_t round = 0; round < rounds; ++round) {
    sum[0] = 100 * round;
    const uint32_t before = memory[0];
    OK(Add(Address(memory), kWords, 3, end.stream));
    OK(Add(Address(sum), 1, 7, end.stream));
    // Perhaps the kernel has come so far. Who looks now has the page while the kernel runs.
    const uint32_t early = concurrent ? static_cast<volatile uint32_t*>(sum)[0] : 100 * round;
    ASSERT_TRUE(early == 100 * round || early == 100 * round + 7);
    ASSERT_EQ(end.wait(), CUDA_SUCCESS) << end.what;
    ASSERT_EQ(sum[0], 100 * round + 7) << end.what << ", round " << round;
    for (uint32_t i = 0; i < kWords; i += kStep)
      ASSERT_EQ(memory[i], before + 3) << end.what << ", round " << round << ", word " << i;
  }
}

TEST_F(ManagedEndTest, IsSeenByTheProgram) {
  uint32_t *memory = Allocate(kWords * 4), *sum = Allocate(64);
  std::memset(memory, 0, kWords * 4);
  for (const End& end : Ends()) KernelsAndLooks(end, memory, sum);
  Free(memory);
  Free(sum);
}

TEST_F(ManagedEndTest, IsSeenWhileAnotherKernelRuns) {
  if (!IsConcurrent()) GTEST_SKIP() << "no concurrent access";
  uint32_t *memory = Allocate(kWords * 4), *sum = Allocate(64), *flag = Allocate(64);
  std::memset(memory, 0, kWords * 4);
  CUstream busy = nullptr;
  OK(cuStreamCreate(&busy, CU_STREAM_NON_BLOCKING));
  *static_cast<volatile uint32_t*>(flag) = 0;
  CUdeviceptr flag_address = Address(flag);
  void* parameters[] = {&flag_address};
  OK(cuLaunchKernel(Kernel("spin"), 1, 1, 1, 1, 1, 1, 0, busy, parameters, nullptr));
  for (const End& end : Ends()) {
    if (!end.of_all) KernelsAndLooks(end, memory, sum);
  }
  EXPECT_EQ(cuStreamQuery(busy), CUDA_ERROR_NOT_READY);
  *static_cast<volatile uint32_t*>(flag) = 1;
  OK(cuCtxSynchronize());
  OK(cuStreamDestroy(busy));
  for (uint32_t* one : {memory, sum, flag}) Free(one);
}

// What one thread was told is so for another that asks after it.
TEST_F(ManagedProgressTest, AnEndThatAnotherThreadHasSeen) {
  if (!IsConcurrent()) GTEST_SKIP() << "no concurrent access";
  constexpr uint32_t kRounds = 100;
  uint32_t* memory = Allocate(kBytes);
  std::memset(memory, 0, kBytes);
  std::atomic<uint32_t> asked{0}, wrong{0};
  std::atomic<bool> stop{false};
  // Waits for the same stream all the time, and looks whenever it knows of a kernel that was launched before.
  std::atomic<uint32_t> launched{0};
  std::thread other([&] {
    if (cuCtxSetCurrent(context_) != CUDA_SUCCESS) wrong.fetch_add(1);
    while (!stop.load()) {
      const uint32_t least = launched.load();
      if (cuStreamSynchronize(stream_) != CUDA_SUCCESS) wrong.fetch_add(1);
      if (static_cast<volatile uint32_t*>(memory)[9] < least) wrong.fetch_add(1);
      asked.fetch_add(1);
    }
  });
  for (uint32_t round = 1; round <= kRounds || asked.load() < 20; ++round) {
    ASSERT_EQ(Add(Address(memory), 10, 1, stream_), CUDA_SUCCESS);
    launched.store(round);
    ASSERT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
    EXPECT_EQ(static_cast<volatile uint32_t*>(memory)[9], round);
  }
  stop.store(true);
  other.join();
  EXPECT_EQ(wrong.load(), 0u);
  Free(memory);
}

// One thread has all the managed memory that there is, now and then; others send work and wait for it.
TEST_F(ManagedProgressTest, BlocksComeAndGoWhileOthersWork) {
  constexpr uint32_t kThreads = 2;
  const uint32_t blocks = OnSoftwareGpu() ? 20 : 60;
  std::atomic<bool> stop{false};
  std::atomic<uint32_t> wrong{0};
  std::vector<std::thread> others;
  for (uint32_t t = 0; t < kThreads; ++t) {
    others.emplace_back([&, t] {
      const CUdeviceptr own = data_ + 4096 * t;
      CUstream stream = nullptr;
      uint32_t seen = 0, value = 0;
      if (cuCtxSetCurrent(context_) != CUDA_SUCCESS || cuMemsetD32(own, 0, 1) != CUDA_SUCCESS ||
          cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS ||
          cuCtxSynchronize() != CUDA_SUCCESS)
        wrong.fetch_add(1);
      while (!stop.load() && wrong.load() == 0) {
        if (Add(own, 1, 1, stream) != CUDA_SUCCESS || cuStreamSynchronize(stream) != CUDA_SUCCESS ||
            cuMemcpyDtoH(&seen, own, sizeof seen) != CUDA_SUCCESS || seen != ++value)
          wrong.fetch_add(1);
      }
      cuStreamDestroy(stream);
    });
  }
  for (uint32_t i = 0; i < blocks && wrong.load() == 0; ++i) {
    uint32_t* memory = Allocate(kBytes);
    for (uint32_t round = 1; round <= 3; ++round) {
      memory[0] = i;
      memory[2000] = round;
      EXPECT_EQ(Add(Address(memory), 2001, round, stream_), CUDA_SUCCESS);
      EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
      EXPECT_EQ(memory[0], i + round);
      EXPECT_EQ(memory[2000], 2 * round);
    }
    Free(memory);
  }
  stop.store(true);
  for (std::thread& other : others) other.join();
  EXPECT_EQ(wrong.load(), 0u);
}

}  // namespace
}  // namespace causeway::driver_test
