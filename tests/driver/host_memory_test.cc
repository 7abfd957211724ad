// SPDX-License-Identifier: Apache-2.0
// Census category host memory: pinned allocations. Registered memory: host_register_test.cc.
#include <cstring>
#include <thread>
#include <vector>

#include "tests/driver/array_helpers.h"
#include "tests/driver/driver_test.h"
#include "tests/yield_until.h"

namespace causeway::driver_test {
namespace {

class HostMemoryTest : public DriverTest {};

TEST_F(HostMemoryTest, AllocationFlagsAndErrors) {
  void* memory = nullptr;
  EXPECT_EQ(cuMemHostAlloc(nullptr, 100, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemHostAlloc(&memory, 100, 8), CUDA_ERROR_INVALID_VALUE);
  Say("zero", cuMemHostAlloc(&memory, 0, 0));
  for (unsigned flags = 0; flags < 8; ++flags) {
    unsigned got = 0;
    OK(cuMemHostAlloc(&memory, 5000, flags));
    std::memset(memory, 1, 5000);
    OK(cuMemHostGetFlags(&got, memory));
    EXPECT_EQ(got, flags | CU_MEMHOSTALLOC_DEVICEMAP);
    unsigned inside = 99;
    Say("inside" + std::to_string(flags), cuMemHostGetFlags(&inside, static_cast<char*>(memory) + 4999));
    Say("flags inside" + std::to_string(flags), inside);
    OK(cuMemFreeHost(memory));
  }
  unsigned got = 0;
  EXPECT_EQ(cuMemHostGetFlags(&got, memory), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFreeHost(memory), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemAllocHost(&memory, 5000));
  EXPECT_EQ(cuMemFreeHost(static_cast<char*>(memory) + 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemHostGetFlags(nullptr, memory), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemFreeHost(memory));
  EXPECT_EQ(cuMemFreeHost(nullptr), CUDA_SUCCESS);
}

TEST_F(HostMemoryTest, DevicePointer) {
  void* memory = nullptr;
  CUdeviceptr device = 0;
  OK(cuMemHostAlloc(&memory, 4000, CU_MEMHOSTALLOC_DEVICEMAP));
  OK(cuMemHostGetDevicePointer(&device, static_cast<char*>(memory) + 16, 0));
  EXPECT_EQ(device, reinterpret_cast<CUdeviceptr>(memory) + 16);
  EXPECT_EQ(cuMemHostGetDevicePointer(&device, memory, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemHostGetDevicePointer(nullptr, memory, 0), CUDA_ERROR_INVALID_VALUE);
  auto* words = static_cast<uint32_t*>(memory);
  for (uint32_t i = 0; i < 1000; ++i) words[i] = i;
  uint32_t count = 1000, add = 7;
  void* parameters[] = {&memory, &count, &add};
  OK(cuLaunchKernel(Kernel("add"), 4, 1, 1, 256, 1, 1, 0, nullptr, parameters, nullptr));
  OK(cuCtxSynchronize());
  EXPECT_EQ(words[999], 1006u);
}

TEST_F(HostMemoryTest, ManySizes) {
  std::vector<std::pair<char*, size_t>> blocks;
  for (size_t i = 0; i < 200; ++i) {
    void* memory = nullptr;
    const size_t bytes = 1 + i * i * 37;
    OK(cuMemHostAlloc(&memory, bytes, 0));
    std::memset(memory, static_cast<int>(i), bytes);
    blocks.emplace_back(static_cast<char*>(memory), bytes);
    if (i % 3 != 2) continue;
    OK(cuMemFreeHost(blocks[i / 3].first));
    blocks.erase(blocks.begin() + static_cast<long>(i / 3));
  }
  for (auto [memory, bytes] : blocks) {
    for (size_t i = 1; i < bytes; i += 97) ASSERT_EQ(memory[i], memory[0]);
  }
}

// One copy over all of a block, wherever it lies: the driver refuses one that leaves what is registered as
// one.
TEST_F(HostMemoryTest, WholeBlocksAreCopied) {
  constexpr size_t kMost = 18 << 20, kAll = 120 << 20;
  CUdeviceptr device = 0;
  OK(cuMemAlloc(&device, kMost));
  std::vector<std::pair<char*, size_t>> blocks;
  size_t total = 0;
  for (size_t i = 0; total < kAll; ++i) {
    // Every size class, from small to those that have an arena of their own.
    const size_t bytes =
        i % 9 == 0 ? kMost - i * 4096 : 1000 + (i * 2654435761u) % (size_t{1} << (12 + i % 12));
    void* memory = nullptr;
    OK(cuMemHostAlloc(&memory, bytes, 0));
    blocks.emplace_back(static_cast<char*>(memory), bytes);
    total += bytes;
    if (i % 5 != 4) continue;
    OK(cuMemFreeHost(blocks[blocks.size() / 2].first));  // what comes next finds gaps
    total -= blocks[blocks.size() / 2].second;
    blocks.erase(blocks.begin() + static_cast<long>(blocks.size() / 2));
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto [memory, bytes] = blocks[i];
    OK(cuMemsetD8Async(device, static_cast<unsigned char>(i), bytes, nullptr));
    OK(cuMemcpyDtoHAsync(memory, device, bytes, nullptr));
  }
  OK(cuStreamSynchronize(nullptr));
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto [memory, bytes] = blocks[i];
    ASSERT_EQ(memory[0], static_cast<char>(i)) << i;
    ASSERT_EQ(std::memcmp(memory, memory + 1, bytes - 1), 0) << i << " of " << bytes;
    OK(cuMemcpyHtoD(device, memory, bytes));
    OK(cuMemFreeHost(memory));
  }
}

// Whatever it takes to have more of it.
TEST_F(HostMemoryTest, AllocationReturnsWhileAKernelRuns) {
  std::vector<void*> blocks;
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  {
    Spinner spinner(Kernel("spin"), stream);
    EXPECT_FALSE(Waits(
        spinner,
        [&] {
          for (const size_t bytes :
               {size_t{4096}, size_t{20} << 20, size_t{15} << 20, size_t{15} << 20, size_t{15} << 20}) {
            blocks.push_back(nullptr);
            EXPECT_EQ(cuMemHostAlloc(&blocks.back(), bytes, 0), CUDA_SUCCESS);
          }
        },
        false));
  }
  for (void* block : blocks) OK(cuMemFreeHost(block));
  OK(cuStreamDestroy(stream));
}

// Small blocks freed in any order leave room for a large one.
TEST_F(HostMemoryTest, GrowsAndShrinks) {
  constexpr size_t kBytes = 160 << 20;
  for (int round = 0; round < 2; ++round) {
    std::vector<char*> blocks;
    for (size_t total = 0, i = 0; total < kBytes; ++i) {
      void* memory = nullptr;
      const size_t bytes = 1000 + i * 7919 % 900'000;
      OK(cuMemHostAlloc(&memory, bytes, 0));
      blocks.push_back(static_cast<char*>(memory));
      blocks.back()[0] = blocks.back()[bytes - 1] = static_cast<char>(i);
      total += bytes;
    }
    for (size_t i = 0; i < blocks.size(); ++i) ASSERT_EQ(blocks[i][0], static_cast<char>(i));
    for (size_t i = 0; i < blocks.size(); i += 2) OK(cuMemFreeHost(blocks[i]));
    for (size_t i = 1; i < blocks.size(); i += 2) OK(cuMemFreeHost(blocks[i]));
    void* large = nullptr;
    OK(cuMemHostAlloc(&large, kBytes, 0));
    static_cast<char*>(large)[kBytes - 1] = 1;
    OK(cuMemFreeHost(large));
  }
}

TEST_F(HostMemoryTest, TooMuchIsOutOfMemoryAndNothingElseBreaks) {
  void *memory = nullptr, *small = nullptr;
  EXPECT_EQ(cuMemHostAlloc(&memory, size_t{1} << 47, 0), CUDA_ERROR_OUT_OF_MEMORY);
  OK(cuMemHostAlloc(&small, 100, 0));
  OK(cuMemFreeHost(small));
}

TEST_F(HostMemoryTest, AllocatedByManyThreadsAtOnce) {
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 6; ++t) {
    threads.emplace_back([this, t] {
      EXPECT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
      for (uint32_t i = 0; i < 40; ++i) {
        void* memory = nullptr;
        const size_t words = 1 + (i * 37 + t * 101) % 40 * 50'000;
        ASSERT_EQ(cuMemHostAlloc(&memory, words * 4, 0), CUDA_SUCCESS);
        auto* values = static_cast<uint32_t*>(memory);
        values[0] = values[words - 1] = t;
        ASSERT_EQ(values[0], t);
        ASSERT_EQ(values[words - 1], t);
        ASSERT_EQ(cuMemFreeHost(memory), CUDA_SUCCESS);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(HostMemoryTest, SystemScopeAtomics) {
  constexpr const char* kAtomics = R"(
.version 7.0
.target sm_75
.address_size 64
.visible .entry count(.param .u64 address)
{
  .reg .b32 %r<2>; .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [address];
  atom.global.sys.add.u32 %r1, [%rd1], 1;
  ret;
}
)";
  CUmodule module = nullptr;
  CUfunction count = nullptr;
  OK(cuModuleLoadData(&module, kAtomics));
  OK(cuModuleGetFunction(&count, module, "count"));
  for (const unsigned flags : {0u, unsigned{CU_MEMHOSTALLOC_WRITECOMBINED}}) {
    void* memory = nullptr;
    OK(cuMemHostAlloc(&memory, 4, flags));
    *static_cast<uint32_t*>(memory) = 1000;
    void* parameters[] = {&memory};
    OK(cuLaunchKernel(count, 8, 1, 1, 256, 1, 1, 0, nullptr, parameters, nullptr));
    OK(cuCtxSynchronize());
    EXPECT_EQ(*static_cast<uint32_t*>(memory), 1000u + 8 * 256);
    OK(cuMemFreeHost(memory));
  }
  OK(cuModuleUnload(module));
}

TEST_F(HostMemoryTest, FreeWaitsForTheWholeDevice) {
  void* memory = nullptr;
  CUstream stream = nullptr;
  OK(cuMemHostAlloc(&memory, 4000, 0));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  Spinner spinner(Kernel("spin"), stream);
  EXPECT_TRUE(Waits(spinner, [&] { EXPECT_EQ(cuMemFreeHost(memory), CUDA_SUCCESS); }));
}

// After the context that had it registered is gone.
TEST_F(HostMemoryTest, OutlivesAnotherContext) {
  CUcontext other = nullptr;
  void *theirs = nullptr, *ours = nullptr;
  OK(cuCtxCreate(&other, nullptr, 0, 0));
  OK(cuMemHostAlloc(&theirs, 64 << 20, 0));
  OK(cuCtxSetCurrent(context_));
  OK(cuMemHostAlloc(&ours, 4096, 0));
  OK(cuCtxDestroy(other));
  OK(cuCtxSetCurrent(context_));
  CUdeviceptr device = 0;
  OK(cuMemAlloc(&device, 4096));
  OK(cuMemsetD8(device, 4, 4096));
  OK(cuMemcpyDtoHAsync(ours, device, 4096, nullptr));
  OK(cuStreamSynchronize(nullptr));
  EXPECT_EQ(static_cast<char*>(ours)[4095], 4);
}

// The first kernel that is given a block, while another thread copies from and to other parts of it.
TEST_F(HostMemoryTest, GivenToAKernelWhileAnotherThreadCopies) {
  constexpr size_t kBytes = 32 << 20, kPart = 8 << 20;
  for (int round = 0; round < 3; ++round) {
    char* memory = nullptr;
    CUdeviceptr device = 0;
    OK(cuMemHostAlloc(reinterpret_cast<void**>(&memory), kBytes, 0));
    OK(cuMemAlloc(&device, kPart));
    std::memset(memory, 7, kBytes);
    std::atomic<bool> copied{false}, over{false};
    std::thread copies([&] {
      EXPECT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
      while (!over) {
        EXPECT_EQ(cuMemcpyHtoD(device, memory + kPart, kPart), CUDA_SUCCESS);
        EXPECT_EQ(cuMemcpyDtoH(memory + 2 * kPart, device, kPart), CUDA_SUCCESS);
        copied = true;
      }
    });
    test::YieldUntil([&] { return copied.load(); });
    auto* number = reinterpret_cast<uint32_t*>(memory);
    uint32_t n = 1, value = 5;
    *number = 1;
    void* parameters[] = {&number, &n, &value};
    OK(cuLaunchKernel(Kernel("add"), 1, 1, 1, 32, 1, 1, 0, nullptr, parameters, nullptr));
    OK(cuCtxSynchronize());
    EXPECT_EQ(*number, 6u);
    over = true;
    copies.join();
    EXPECT_EQ(memory[2 * kPart], 7);
    EXPECT_EQ(memory[3 * kPart - 1], 7);
    OK(cuMemFree(device));
    OK(cuMemFreeHost(memory));
  }
}

// Of the current context; the function takes some time and then notes what it has seen in its memory.
struct SeenByFunction {
  uint32_t* memory = nullptr;
  std::atomic<uint32_t> value{0};
};
void EnqueueKernelAndFunction(SeenByFunction* seen) {
  CUmodule module = nullptr;
  CUfunction add = nullptr;
  CUstream stream = nullptr;
  OK(cuModuleLoadData(&module, kKernels));
  OK(cuModuleGetFunction(&add, module, "add"));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuMemHostAlloc(reinterpret_cast<void**>(&seen->memory), 4096, 0));
  *seen->memory = 1;
  uint32_t n = 1, value = 5;
  void* parameters[] = {&seen->memory, &n, &value};
  OK(cuLaunchKernel(add, 1, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr));
  const auto look = [](void* user) {
    auto* ours = static_cast<SeenByFunction*>(user);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ours->value = *ours->memory;
  };
  OK(cuLaunchHostFunc(stream, look, seen));
}

// What is under way when a context ends uses what belongs to the context. Several times: the call must not come back earlier when the host
// is only just done with the call before it.
TEST_F(HostMemoryTest, AContextEndsBehindAFunctionThatUsesItsMemory) {
  if (OnNvidiaLibrary())
    GTEST_SKIP() << "NVIDIA's library (580.159.04) did not come back from one of these ends";
  for (int round = 0; round < 20; ++round) {
    CUcontext other = nullptr;
    SeenByFunction seen;
    OK(cuCtxCreate(&other, nullptr, 0, 0));
    EnqueueKernelAndFunction(&seen);
    OK(cuCtxDestroy(other));
    ASSERT_EQ(seen.value, 6u);
    OK(cuCtxSetCurrent(context_));
  }
}

}  // namespace
}  // namespace causeway::driver_test
