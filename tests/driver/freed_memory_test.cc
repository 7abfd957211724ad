// SPDX-License-Identifier: Apache-2.0
// Stream-ordered memory that is freed and allocated again, in one stream and across streams, pools, threads
// and contexts: whoever looks must find freed what was freed.
#include <set>
#include <thread>
#include <vector>

#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

class FreedMemoryTest : public DriverTest {
 protected:
  static constexpr size_t kBytes = 1u << 20;

  void SetUp() override {
    DriverTest::SetUp();
    OK(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&other_, CU_STREAM_NON_BLOCKING));
    CUmemPoolProps props{};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    OK(cuMemPoolCreate(&pool_, &props));
  }
  void TearDown() override {
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(cuMemPoolDestroy(pool_), CUDA_SUCCESS);
    DriverTest::TearDown();
  }
  cuuint64_t Get(CUmemPool_attribute attribute, CUmemoryPool pool) {
    cuuint64_t value = ~cuuint64_t{0};
    EXPECT_EQ(cuMemPoolGetAttribute(pool, attribute, &value), CUDA_SUCCESS);
    return value;
  }
  cuuint64_t Used(CUmemoryPool pool) { return Get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT, pool); }
  cuuint64_t Used() { return Used(pool_); }
  CUdeviceptr Allocate(CUstream stream, size_t bytes = kBytes) {
    CUdeviceptr address = 0;
    EXPECT_EQ(cuMemAllocFromPoolAsync(&address, bytes, pool_, stream), CUDA_SUCCESS);
    return address;
  }
  uint32_t Word(CUdeviceptr address, CUstream stream) {
    uint32_t word = 0;
    EXPECT_EQ(cuMemcpyDtoHAsync(&word, address, sizeof word, stream), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    return word;
  }

  CUstream stream_ = nullptr, other_ = nullptr;
  CUmemoryPool pool_ = nullptr;
};

TEST_F(FreedMemoryTest, AgainAndAgain) {
  for (CUstream stream : {stream_, static_cast<CUstream>(nullptr), CU_STREAM_PER_THREAD}) {
    CUdeviceptr first = Allocate(stream);
    OK(cuMemFreeAsync(first, stream));
    const uint64_t before = RepliesAwaited();
    CUdeviceptr address = 0;
    for (int i = 0; i < 100; ++i) {
      address = Allocate(stream);
      OK(cuMemsetD32Async(address, static_cast<unsigned>(i), 16, stream));
      OK(cuMemFreeAsync(address, stream));
    }
    EXPECT_EQ(RepliesAwaited(), before);  // nothing to wait for
    address = Allocate(stream);
    OK(cuMemsetD32Async(address, 99, 16, stream));
    EXPECT_EQ(Word(address, stream), 99u);
    EXPECT_GE(Used(), kBytes);
    OK(cuMemFreeAsync(address, stream));
    OK(cuStreamSynchronize(stream));
    EXPECT_EQ(Used(), 0u);
  }
}

TEST_F(FreedMemoryTest, ManySizesStayApart) {
  std::vector<CUdeviceptr> blocks;
  const auto size = [](size_t i) { return 4096 + 1000 * (i % 10); };
  for (int round = 0; round < 5; ++round) {
    blocks.clear();
    std::set<CUdeviceptr> seen;
    for (size_t i = 0; i < 100; ++i) {
      blocks.push_back(Allocate(stream_, size(i)));
      EXPECT_TRUE(seen.insert(blocks.back()).second);
      OK(cuMemsetD32Async(blocks.back(), static_cast<unsigned>(i), size(i) / 4, stream_));
    }
    for (size_t i = 0; i < 100; ++i) {
      EXPECT_EQ(Word(blocks[i] + size(i) / 4 * 4 - 4, stream_), i);
      size_t range = 0;
      OK(cuMemGetAddressRange(nullptr, &range, blocks[i]));
      EXPECT_EQ(range, size(i));
    }
    for (size_t i = 0; i < 100; ++i) OK(cuMemFreeAsync(blocks[(i * 7) % 100], stream_));
  }
  OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(Used(), 0u);
}

// cuMemAlloc and cuMemFree: natively cheap, and nothing to wait for once all work is done.
TEST_F(FreedMemoryTest, BlocksAgainAndAgain) {
  for (const size_t bytes : {size_t{1000}, kBytes, 8 * kBytes}) {
    CUdeviceptr address = 0;
    OK(cuMemAlloc(&address, bytes));
    OK(cuMemFree(address));
    bool unasked = false;  // but now and then
    for (int i = 0; i < 100; ++i) {
      const uint64_t before = RepliesAwaited();
      OK(cuMemAlloc(&address, bytes));
      OK(cuMemFree(address));
      unasked = unasked || RepliesAwaited() == before;
    }
    EXPECT_TRUE(unasked);
    bool returned = false;  // other programs may allocate in between
    for (int i = 0; i < 50 && !returned; ++i) {
      size_t free = 0, freer = 0, total = 0;
      OK(cuMemAlloc(&address, bytes));
      OK(cuMemGetInfo(&free, &total));
      OK(cuMemFree(address));
      OK(cuMemGetInfo(&freer, &total));
      returned = freer >= free;
    }
    EXPECT_TRUE(returned);
    EXPECT_NE(cuMemFree(address), CUDA_SUCCESS);
  }
}

TEST_F(FreedMemoryTest, BlocksHaveTheirOwnIdsAndRanges) {
  CUdeviceptr first = 0, second = 0;
  unsigned long long first_id = 0, second_id = 0;
  OK(cuMemAlloc(&first, kBytes));
  OK(cuPointerGetAttribute(&first_id, CU_POINTER_ATTRIBUTE_BUFFER_ID, first));
  OK(cuMemFree(first));
  OK(cuMemAlloc(&second, kBytes));
  OK(cuPointerGetAttribute(&second_id, CU_POINTER_ATTRIBUTE_BUFFER_ID, second));
  EXPECT_NE(first_id, second_id);
  CUdeviceptr base = 0;
  size_t range = 0;
  OK(cuMemGetAddressRange(&base, &range, second + kBytes - 1));
  EXPECT_EQ(base, second);
  EXPECT_EQ(range, kBytes);
  OK(cuMemFree(second));
}

// What is sent between a free and an allocation sees the memory freed: the free may not come after it and
// wait.
TEST_F(FreedMemoryTest, ABlockIsFreedBeforeWhatIsLaunchedNext) {
  const CUfunction spin = Kernel("spin");
  CUdeviceptr address = 0, next = 0;
  OK(cuMemAlloc(&address, kBytes));
  OK(cuCtxSynchronize());
  OK(cuMemFree(address));
  {
    Spinner spinner(spin, stream_);
    OK(cuMemsetD32Async(Allocate(other_), 1, 16, other_));
    OK(cuStreamSynchronize(other_));  // it does not wait for the kernel
    OK(cuMemAlloc(&next, kBytes));
  }
  OK(cuMemFree(next));
}

TEST_F(FreedMemoryTest, BlocksOfManyThreads) {
  std::vector<std::thread> threads;
  for (uint32_t number = 0; number < 4; ++number) {
    threads.emplace_back([this, number] {
      EXPECT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
      CUdeviceptr blocks[3] = {};
      for (uint32_t round = 0; round < 60; ++round) {
        CUdeviceptr& block = blocks[round % 3];
        if (block != 0) {
          uint32_t word = 0;
          EXPECT_EQ(cuMemcpyDtoH(&word, block + 8, sizeof word), CUDA_SUCCESS);
          EXPECT_EQ(word, number);
          EXPECT_EQ(cuMemFree(block), CUDA_SUCCESS);
        }
        EXPECT_EQ(cuMemAlloc(&block, 4096 * (1 + round % 2)), CUDA_SUCCESS);
        EXPECT_EQ(cuMemsetD32(block, number, 16), CUDA_SUCCESS);
      }
      for (const CUdeviceptr block : blocks) EXPECT_EQ(cuMemFree(block), CUDA_SUCCESS);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(FreedMemoryTest, ABlockOfAContextThatEnds) {
  CUcontext brief = nullptr;
  CUdeviceptr address = 0, other = 0;
  OK(cuMemAlloc(&other, kBytes));
  OK(cuMemFree(other));
  OK(cuCtxCreate(&brief, nullptr, 0, 0));
  OK(cuMemAlloc(&address, kBytes));
  OK(cuMemFree(address));
  OK(cuCtxDestroy(brief));
  OK(cuCtxSetCurrent(context_));
  OK(cuMemAlloc(&other, kBytes));
  OK(cuMemsetD8(other, 1, kBytes));
  OK(cuMemFree(other));
}

// Another stream may not have what this one still works on.
TEST_F(FreedMemoryTest, OtherStreamsDoNotGetItTooEarly) {
  const CUfunction spin = Kernel("spin");
  CUdeviceptr ours = Allocate(stream_), theirs = 0;
  OK(cuStreamSynchronize(stream_));
  {
    Spinner spinner(spin, stream_);
    OK(cuMemsetD32Async(ours, 1, kBytes / 4, stream_));
    OK(cuMemFreeAsync(ours, stream_));
    theirs = Allocate(other_);
    OK(cuMemsetD32Async(theirs, 2, kBytes / 4, other_));
  }
  OK(cuCtxSynchronize());
  EXPECT_EQ(Word(theirs, other_), 2u);
  OK(cuMemFreeAsync(theirs, other_));
}

TEST_F(FreedMemoryTest, WhatIsFreedIsNotInUse) {
  CUdeviceptr address = Allocate(stream_);
  OK(cuStreamSynchronize(stream_));
  const cuuint64_t one = Used();
  EXPECT_GE(one, kBytes);
  OK(cuMemFreeAsync(address, stream_));
  OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(Used(), 0u);
  // Nor is it when more is wanted: the most that was ever in use is what was in use at once.
  address = Allocate(stream_, 2 * kBytes);
  EXPECT_EQ(Get(CU_MEMPOOL_ATTR_USED_MEM_HIGH, pool_), Used());
  OK(cuMemFreeAsync(address, stream_));
  cuuint64_t used = ~cuuint64_t{0};
  std::thread([&] {
    EXPECT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    used = Used();
  }).join();
  EXPECT_EQ(used, 0u);
  OK(cuMemPoolTrimTo(pool_, 0));
  EXPECT_EQ(Get(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, pool_), 0u);
}

TEST_F(FreedMemoryTest, ThenTheStreamIsDestroyed) {
  CUstream brief = nullptr;
  OK(cuStreamCreate(&brief, CU_STREAM_NON_BLOCKING));
  const CUdeviceptr address = Allocate(brief);
  OK(cuMemFreeAsync(address, brief));
  OK(cuStreamDestroy(brief));
  OK(cuCtxSynchronize());
  EXPECT_EQ(Used(), 0u);
}

TEST_F(FreedMemoryTest, OfAThreadThatEnds) {
  std::thread([&] {
    EXPECT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFreeAsync(Allocate(CU_STREAM_PER_THREAD), CU_STREAM_PER_THREAD), CUDA_SUCCESS);
  }).join();
  OK(cuCtxSynchronize());
  EXPECT_EQ(Used(), 0u);
}

TEST_F(FreedMemoryTest, ThenTheContextEnds) {
  CUcontext brief = nullptr;
  OK(cuCtxCreate(&brief, nullptr, 0, 0));
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const CUdeviceptr address = Allocate(stream);
  OK(cuMemFreeAsync(address, stream));
  OK(cuCtxDestroy(brief));
  OK(cuCtxSetCurrent(context_));
  OK(cuCtxSynchronize());
  EXPECT_EQ(Used(), 0u);
}

// Memory comes from the pool that is current when it is allocated.
TEST_F(FreedMemoryTest, CurrentPools) {
  CUmemoryPool standard = nullptr;
  OK(cuDeviceGetDefaultMemPool(&standard, 0));
  CUdeviceptr early = 0, late = 0, mine = 0;
  OK(cuMemAllocAsync(&early, kBytes, stream_));
  OK(cuMemAllocAsync(&late, kBytes, stream_));
  OK(cuMemFreeAsync(early, stream_));
  OK(cuDeviceSetMemPool(0, pool_));
  OK(cuMemFreeAsync(late, stream_));
  OK(cuMemAllocAsync(&mine, kBytes, stream_));
  EXPECT_GE(Used(), kBytes);
  CUmemoryPool found = nullptr;
  OK(cuPointerGetAttribute(&found, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, mine));
  EXPECT_EQ(found, pool_);
  OK(cuDeviceSetMemPool(0, standard));
  OK(cuMemFreeAsync(mine, stream_));
  OK(cuMemAllocAsync(&late, kBytes, stream_));
  OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(Used(), 0u);
  OK(cuMemFreeAsync(late, stream_));
}

TEST_F(FreedMemoryTest, NamedAndCurrentPoolsAreTwoSources) {
  CUdeviceptr named = Allocate(stream_), current = 0;
  OK(cuMemFreeAsync(named, stream_));
  OK(cuMemAllocAsync(&current, kBytes, stream_));
  OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(Used(), 0u);
  OK(cuMemFreeAsync(current, stream_));
  named = Allocate(stream_);
  EXPECT_GE(Used(), kBytes);
  OK(cuMemFreeAsync(named, stream_));
}

TEST_F(FreedMemoryTest, FreedInAnotherStreamThanAllocated) {
  const CUfunction spin = Kernel("spin");
  CUdeviceptr address = Allocate(stream_), again = 0;
  OK(cuStreamSynchronize(stream_));
  CUevent event = nullptr;
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  {
    Spinner spinner(spin, other_);
    OK(cuMemsetD32Async(address, 1, kBytes / 4, other_));
    OK(cuMemFreeAsync(address, other_));
    again = Allocate(other_);
    OK(cuMemsetD32Async(again, 3, kBytes / 4, other_));
    OK(cuEventRecord(event, other_));
    OK(cuStreamWaitEvent(stream_, event, 0));
  }
  EXPECT_EQ(Word(again, stream_), 3u);
  OK(cuMemFreeAsync(again, stream_));
}

TEST_F(FreedMemoryTest, Captured) {
  CUdeviceptr address = Allocate(stream_), node = 0;
  OK(cuMemFreeAsync(address, stream_));
  CUgraph graph = nullptr;
  OK(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuMemAllocAsync(&node, kBytes, stream_));
  OK(cuMemsetD32Async(node, 1, 16, stream_));
  OK(cuMemFreeAsync(node, stream_));
  OK(cuStreamEndCapture(stream_, &graph));
  size_t nodes = 0;
  OK(cuGraphGetNodes(graph, nullptr, &nodes));
  EXPECT_EQ(nodes, 3u);
  OK(cuGraphDestroy(graph));
  OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(Used(), 0u);
}

TEST_F(FreedMemoryTest, WrongFrees) {
  const CUdeviceptr address = Allocate(stream_);
  OK(cuMemFreeAsync(address, stream_));
  if (OnSoftwareGpu()) {  // NVIDIA's driver need not recognise it
    EXPECT_EQ(cuMemFreeAsync(address, stream_), CUDA_ERROR_INVALID_VALUE);
  }
  CUdeviceptr none = 0;
  OK(cuMemAllocAsync(&none, 0, stream_));  // unlike cuMemAlloc
  Say("nothing lies at null", none == 0);
  EXPECT_EQ(cuMemAllocAsync(nullptr, kBytes, stream_), CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace causeway::driver_test
