// SPDX-License-Identifier: Apache-2.0
// Sixteen threads with streams of their own and events that they share. Every result is exact: a copy, fill
// or launch that is lost or out of order changes it, and so does an event record that reaches the driver
// after the wait of another thread that was made later. CAUSEWAY_TEST_CALLS says how many driver calls
// (8,000 if unset).
#include <array>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "tests/driver/driver_test.h"
#include "tests/yield_until.h"

namespace causeway::driver_test {
namespace {

constexpr int kThreads = 16;
constexpr int kWords = 64;  // of each thread

// chain(cell, number, rounds): wastes time, then *cell = *cell * 3 + number.
constexpr char kChain[] = R"(
.version 8.0
.target sm_80
.address_size 64
.visible .entry chain(.param .u64 cell, .param .u32 number, .param .u32 rounds)
{
  .reg .pred %p<2>; .reg .b32 %r<6>; .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [cell];
  ld.param.u32 %r1, [number];
  ld.param.u32 %r2, [rounds];
AGAIN:
  setp.eq.u32 %p1, %r2, 0;
  @%p1 bra DONE;
  ld.volatile.global.u32 %r3, [%rd1];
  sub.u32 %r2, %r2, 1;
  bra AGAIN;
DONE:
  ld.volatile.global.u32 %r4, [%rd1];
  mad.lo.u32 %r5, %r4, 3, %r1;
  st.volatile.global.u32 [%rd1], %r5;
  ret;
}
)";

uint64_t WantedCalls() {
  const char* text = std::getenv("CAUSEWAY_TEST_CALLS");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 8'000;
}

class ThreadsTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    add_ = Kernel("add");
    CUmodule module = nullptr;
    OK(cuModuleLoadData(&module, kChain));
    OK(cuModuleGetFunction(&chain_, module, "chain"));
    OK(cuMemAlloc(&cell_, 4));
    OK(cuMemsetD32(cell_, 1, 1));
    for (CUevent& event : events_) OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuCtxSynchronize());
  }

  // What one thread has on the device, and what it must find there.
  struct Own {
    CUstream stream = nullptr;
    CUdeviceptr words = 0;
    uint32_t* pinned = nullptr;
    std::array<uint32_t, kWords> expected{};
    std::mt19937 random;
    uint64_t calls = 0;
  };

  void Run(int thread, uint64_t wanted);
  CUresult Start(int thread, Own* own);
  CUresult Step(Own& own);
  CUresult Temporary(Own& own, uint32_t index, uint32_t value);
  CUresult Turn(int thread, Own& own, uint64_t turn);
  CUresult Compare(Own& own);
  CUresult End(Own& own);

  CUfunction add_ = nullptr, chain_ = nullptr;
  CUdeviceptr cell_ = 0;
  CUevent events_[kThreads] = {};
  std::atomic<uint64_t> turn_{0};
  std::atomic<uint64_t> calls_{0};
  std::atomic<int> differences_{0};
  std::atomic<bool> failed_{false};
};

#define TRY(call)                                               \
  do {                                                          \
    if (const CUresult tried = (call); tried != CUDA_SUCCESS) { \
      ADD_FAILURE() << #call << " = " << tried;                 \
      return tried;                                             \
    }                                                           \
    ++own.calls;                                                \
  } while (false)

CUresult ThreadsTest::Start(int thread, Own* out) {
  Own& own = *out;
  own.random.seed(static_cast<uint32_t>(thread));
  TRY(cuCtxSetCurrent(context_));
  TRY(cuStreamCreate(&own.stream, thread % 2 == 0 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT));
  TRY(cuMemAlloc(&own.words, kWords * 4));
  TRY(cuMemAllocHost(reinterpret_cast<void**>(&own.pinned), kWords * 4));
  TRY(cuMemsetD32Async(own.words, 0, kWords, own.stream));
  return CUDA_SUCCESS;
}

// Memory from the stream's pool, used and given back in stream order.
CUresult ThreadsTest::Temporary(Own& own, uint32_t index, uint32_t value) {
  CUdeviceptr temporary = 0;
  TRY(cuMemAllocAsync(&temporary, 4096, own.stream));
  TRY(cuMemsetD32Async(temporary, value, 1024, own.stream));
  TRY(cuMemcpyDtoDAsync(own.words + 4 * index, temporary + 4092, 4, own.stream));
  TRY(cuMemFreeAsync(temporary, own.stream));
  own.expected[index] = value;
  return CUDA_SUCCESS;
}

CUresult ThreadsTest::Step(Own& own) {
  const uint32_t kind = own.random() % 16, index = own.random() % kWords, from = own.random() % kWords;
  uint32_t value = static_cast<uint32_t>(own.random());
  if (kind < 8) {
    const uint32_t n = kWords;
    CUdeviceptr words = own.words;
    void* parameters[] = {&words, const_cast<uint32_t*>(&n), &value};
    TRY(cuLaunchKernel(add_, 1, 1, 1, kWords, 1, 1, 0, own.stream, parameters, nullptr));
    for (uint32_t& word : own.expected) word += value;
  } else if (kind < 10) {
    TRY(cuMemsetD32Async(own.words + 4 * index, value, 1, own.stream));
    own.expected[index] = value;
  } else if (kind < 12) {
    TRY(cuMemcpyHtoDAsync(own.words + 4 * index, &value, 4, own.stream));
    value = 0;  // the source may be used again at once
    TRY(cuStreamSynchronize(own.stream));
    TRY(cuMemcpyDtoH(&own.expected[index], own.words + 4 * index, 4));
  } else if (kind < 14) {
    if (index == from) return CUDA_SUCCESS;
    TRY(cuMemcpyDtoDAsync(own.words + 4 * index, own.words + 4 * from, 4, own.stream));
    own.expected[index] = own.expected[from];
  } else if (kind < 15) {
    return Temporary(own, index, value);
  } else {
    const CUresult result = cuStreamQuery(own.stream);
    ++own.calls;
    return result == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : result;
  }
  return CUDA_SUCCESS;
}

// The chain goes from thread to thread: each waits for the event that the one before it has recorded.
CUresult ThreadsTest::Turn(int thread, Own& own, uint64_t turn) {
  uint32_t number = static_cast<uint32_t>(turn), rounds = 64;
  void* parameters[] = {&cell_, &number, &rounds};
  if (turn != 0) TRY(cuStreamWaitEvent(own.stream, events_[(thread + kThreads - 1) % kThreads], 0));
  TRY(cuLaunchKernel(chain_, 1, 1, 1, 1, 1, 1, 0, own.stream, parameters, nullptr));
  TRY(cuEventRecord(events_[thread], own.stream));
  return CUDA_SUCCESS;
}

CUresult ThreadsTest::Compare(Own& own) {
  TRY(cuMemcpyDtoHAsync(own.pinned, own.words, kWords * 4, own.stream));
  TRY(cuStreamSynchronize(own.stream));
  if (std::memcmp(own.pinned, own.expected.data(), kWords * 4) != 0) differences_.fetch_add(1);
  return CUDA_SUCCESS;
}

CUresult ThreadsTest::End(Own& own) {
  if (const CUresult result = Compare(own)) return result;
  TRY(cuMemFree(own.words));
  TRY(cuMemFreeHost(own.pinned));
  TRY(cuStreamDestroy(own.stream));
  return CUDA_SUCCESS;
}

void ThreadsTest::Run(int thread, uint64_t wanted) {
  Own own;
  CUresult result = Start(thread, &own);
  // However the threads are scheduled, each has its turn before the last of them ends.
  const auto enough = [&] {
    return failed_.load() || (calls_.load(std::memory_order_relaxed) >= wanted && turn_.load() > kThreads);
  };
  for (uint64_t step = 1; result == CUDA_SUCCESS && !enough(); ++step) {
    const uint64_t before = own.calls;
    result = step % 97 == 0 ? Compare(own) : Step(own);
    // Only the thread whose turn it is changes the number.
    const uint64_t turn = turn_.load(std::memory_order_acquire);
    if (result == CUDA_SUCCESS && turn % kThreads == static_cast<uint64_t>(thread)) {
      result = Turn(thread, own, turn);
      turn_.store(turn + 1, std::memory_order_release);
    }
    calls_.fetch_add(own.calls - before, std::memory_order_relaxed);
  }
  if (result == CUDA_SUCCESS) result = End(own);
  if (result != CUDA_SUCCESS) failed_.store(true);  // the others need not go on
  EXPECT_EQ(result, CUDA_SUCCESS) << "in thread " << thread;
}

TEST_F(ThreadsTest, MixedCallsOfSixteenThreads) {
  const uint64_t wanted = WantedCalls();
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back([this, i, wanted] { Run(i, wanted); });
  for (std::thread& thread : threads) thread.join();
  OK(cuCtxSynchronize());
  EXPECT_EQ(differences_.load(), 0);
  EXPECT_GE(calls_.load(), wanted);
  uint32_t expected = 1, cell = 0;
  const uint64_t turns = turn_.load();
  for (uint64_t turn = 0; turn < turns; ++turn) expected = expected * 3 + static_cast<uint32_t>(turn);
  OK(cuMemcpyDtoH(&cell, cell_, 4));
  EXPECT_EQ(cell, expected) << "after " << turns << " turns";
  EXPECT_GT(turns, static_cast<uint64_t>(kThreads));
}

// Threads that come and go, each with its own default stream.
TEST_F(ThreadsTest, ManyShortThreads) {
  constexpr int kRounds = 12, kAtOnce = 8;
  std::atomic<int> wrong{0};
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::thread> threads;
    for (int i = 0; i < kAtOnce; ++i) {
      threads.emplace_back([&] {
        CUdeviceptr data = 0;
        uint32_t n = 1, value = 5, read = 0;
        void* parameters[] = {&data, &n, &value};
        if (cuCtxSetCurrent(context_) != CUDA_SUCCESS || cuMemAlloc(&data, 4) != CUDA_SUCCESS) ++wrong;
        wrong += cuMemsetD32Async(data, 1, 1, CU_STREAM_PER_THREAD) != CUDA_SUCCESS;
        wrong += cuLaunchKernel(add_, 1, 1, 1, 1, 1, 1, 0, CU_STREAM_PER_THREAD, parameters, nullptr) !=
                 CUDA_SUCCESS;
        wrong += cuStreamSynchronize(CU_STREAM_PER_THREAD) != CUDA_SUCCESS;
        wrong += cuMemcpyDtoH(&read, data, 4) != CUDA_SUCCESS;
        wrong += read != 6;
        wrong += cuMemFree(data) != CUDA_SUCCESS;
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(wrong.load(), 0);
}

// More threads than the transport has channels of their own for.
TEST_F(ThreadsTest, AHundredThreadsAtOnce) {
  constexpr int kMany = 100;
  std::atomic<int> wrong{0}, ready{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kMany; ++i) {
    threads.emplace_back([&, i] {
      CUdeviceptr data = 0;
      CUstream stream = nullptr;
      uint32_t read = 0;
      if (cuCtxSetCurrent(context_) != CUDA_SUCCESS ||
          cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
        ++wrong;
      wrong += cuMemAlloc(&data, 4) != CUDA_SUCCESS;
      ready.fetch_add(1);
      test::YieldUntil([&] { return ready.load() == kMany; });
      for (uint32_t round = 0; round < 5; ++round) {
        wrong += cuMemsetD32Async(data, round * 1000 + static_cast<uint32_t>(i), 1, stream) != CUDA_SUCCESS;
        wrong += cuStreamSynchronize(stream) != CUDA_SUCCESS;
        wrong += cuMemcpyDtoH(&read, data, 4) != CUDA_SUCCESS;
        wrong += read != round * 1000 + static_cast<uint32_t>(i);
      }
      wrong += cuStreamDestroy(stream) != CUDA_SUCCESS;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

}  // namespace
}  // namespace causeway::driver_test
