// SPDX-License-Identifier: Apache-2.0
// The worker's rows that take and give memory, with a driver that keeps its own books: what is counted is
// what the driver holds, after many calls, and never more than the limit.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "host_backend/worker/accounting/managed_copies.h"
#include "tests/unit/accounting_books.h"

namespace causeway::host {
namespace {

// Of each thread: more of them where CAUSEWAY_TEST_CALLS says so.
uint64_t Calls(uint64_t usual) {
  const char* text = std::getenv("CAUSEWAY_TEST_CALLS");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : usual;
}

TEST_F(AccountingTest, CallsOfManyThreadsEndWithNothing) {
  page_->Begin(64 * kMib);
  std::atomic<uint64_t> refused{0};
  const uint64_t rounds = Calls(150'000);
  const auto work = [&](uint32_t seed) {
    std::minstd_rand random(seed);
    std::vector<CUdeviceptr> held;
    for (uint64_t i = 0; i < rounds; ++i) {
      CUdeviceptr address = 0;
      if (random() % 2 == 0 && held.size() < 200) {
        const CUresult result =
            TheDriver().cuMemAlloc_v2(&address, 1 + random() % (random() % 8 == 0 ? kMib : 9000));
        if (result == CUDA_SUCCESS) held.push_back(address);
        refused += result == CUDA_ERROR_OUT_OF_MEMORY;
      } else if (!held.empty()) {
        std::swap(held[random() % held.size()], held.back());
        ASSERT_EQ(TheDriver().cuMemFree_v2(held.back()), CUDA_SUCCESS);
        held.pop_back();
      }
      if (i % 100 == 0) {
        ASSERT_LE(Held(), 64 * kMib);
      }
    }
    for (const CUdeviceptr address : held) ASSERT_EQ(TheDriver().cuMemFree_v2(address), CUDA_SUCCESS);
  };
  std::vector<std::thread> threads;
  for (uint32_t i = 1; i <= 4; ++i) threads.emplace_back(work, i);
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(Held(), 0u);
  EXPECT_TRUE(books.linear.empty());
  EXPECT_EQ(page_->cell(3).refused.load(), refused.load());
}

// Linear memory, a pool's, and physical memory that is released before or after it is unmapped.
TEST_F(AccountingTest, CallsOfEveryKindEndWithNothing) {
  constexpr uint64_t kLimit = 256 * kMib;
  const uint64_t rounds = Calls(100'000);  // of each thread
  page_->Begin(kLimit);
  CUmemoryPool pool = nullptr;
  CUmemPoolProps pool_properties{};
  pool_properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  ASSERT_EQ(TheDriver().cuMemPoolCreate(&pool, &pool_properties), CUDA_SUCCESS);
  std::atomic<uint64_t> calls{0};
  const auto work = [&](uint32_t seed) {
    struct One {
      uint32_t kind;
      uint64_t id, bytes;
    };
    std::minstd_rand random(seed);
    std::vector<One> held;
    const auto give_back = [&](const One& one) {
      if (one.kind == 0) {
        ASSERT_EQ(TheDriver().cuMemFree_v2(one.id), CUDA_SUCCESS);
      } else if (one.kind == 1) {
        ASSERT_EQ(TheDriver().cuMemFreeAsync(one.id, nullptr), CUDA_SUCCESS);
      } else {
        ASSERT_EQ(TheDriver().cuMemUnmap(one.id << 20, one.bytes), CUDA_SUCCESS);
        if (one.kind == 3) {
          ASSERT_EQ(TheDriver().cuMemRelease(one.id), CUDA_SUCCESS);
        }
      }
    };
    CUmemAllocationProp properties{};
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    for (uint64_t i = 0; i < rounds; ++i) {
      if (random() % 2 == 0 && held.size() < 100) {
        One one{static_cast<uint32_t>(random() % 4), 0, 1 + random() % (random() % 8 == 0 ? 3 * kMib : 9000)};
        CUresult result = CUDA_SUCCESS;
        if (one.kind == 0) {
          CUdeviceptr address = 0;
          result = TheDriver().cuMemAlloc_v2(&address, one.bytes);
          one.id = address;
        } else if (one.kind == 1) {
          CUdeviceptr address = 0;
          result = TheDriver().cuMemAllocFromPoolAsync(&address, one.bytes, pool, nullptr);
          one.id = address;
        } else {
          CUmemGenericAllocationHandle memory = 0;
          one.bytes = 2 * kMib;
          result = TheDriver().cuMemCreate(&memory, one.bytes, &properties, 0);
          one.id = memory;
          if (result == CUDA_SUCCESS) {
            ASSERT_EQ(TheDriver().cuMemMap(one.id << 20, one.bytes, 0, memory, 0), CUDA_SUCCESS);
            if (one.kind == 2) {
              ASSERT_EQ(TheDriver().cuMemRelease(memory), CUDA_SUCCESS);
            }
            calls += 3;  // with its end
          }
        }
        ASSERT_TRUE(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY) << result;
        if (result == CUDA_SUCCESS) held.push_back(one);
      } else if (!held.empty()) {
        std::swap(held[random() % held.size()], held.back());
        give_back(held.back());
        held.pop_back();
      }
      if (i % 50 == 0) {
        ASSERT_LE(Held(), kLimit);
      }
    }
    calls += rounds;
    for (const One& one : held) give_back(one);
  };
  std::vector<std::thread> threads;
  for (uint32_t i = 1; i <= 6; ++i) threads.emplace_back(work, i);
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(TheDriver().cuMemPoolTrimTo(pool, 0), CUDA_SUCCESS);
  EXPECT_EQ(Held(), 0u) << "after " << calls.load() << " calls";
  EXPECT_GT(calls.load(), 5 * rounds);
  EXPECT_EQ(TheDriver().cuMemPoolDestroy(pool), CUDA_SUCCESS);
}

TEST_F(AccountingTest, WhatTheDriverRefusesStaysHeld) {
  CUdeviceptr address = 0;
  EXPECT_EQ(TheDriver().cuMemAlloc_v2(&address, 1000), CUDA_SUCCESS);
  EXPECT_EQ(Held(), 1024u);
  EXPECT_EQ(TheDriver().cuMemFree_v2(address + 1), CUDA_ERROR_INVALID_VALUE);
  const auto entry = books.linear.extract(address);
  EXPECT_EQ(TheDriver().cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Held(), 1024u);
  TheAccounting().PrimaryEnds(0);
  EXPECT_EQ(Held(), 0u) << "the context's end takes all";
}

TEST_F(AccountingTest, PoolsCountWhatTheyKeep) {
  page_->Begin(16 * kMib);
  books.pool_step = 4 * kMib;
  CUmemoryPool pool = nullptr;
  CUmemPoolProps properties{};
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  ASSERT_EQ(TheDriver().cuMemPoolCreate(&pool, &properties), CUDA_SUCCESS);
  CUdeviceptr first = 0, second = 0, third = 0;
  EXPECT_EQ(TheDriver().cuMemAllocAsync(&first, 5 * kMib, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(Held(), 8 * kMib) << "as much as it grew";
  EXPECT_EQ(TheDriver().cuMemAllocFromPoolAsync(&second, 2 * kMib, pool, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(Held(), 8 * kMib) << "from what it has";
  EXPECT_EQ(TheDriver().cuMemAllocAsync(&third, 10 * kMib, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(Held(), 8 * kMib);
  CUdeviceptr linear = 0;
  EXPECT_EQ(TheDriver().cuMemAlloc_v2(&linear, 6 * kMib), CUDA_SUCCESS);
  // 2 MiB fit, but the pool grows by 4: that is undone.
  EXPECT_EQ(TheDriver().cuMemAllocAsync(&third, 2 * kMib, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(books.pooled.size(), 2u);
  EXPECT_EQ(Held(), 14 * kMib);
  // What the pool keeps unused gives way to others.
  EXPECT_EQ(TheDriver().cuMemFreeAsync(first, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(TheDriver().cuMemAlloc_v2(&first, 6 * kMib), CUDA_SUCCESS);
  EXPECT_EQ(Held(), 16 * kMib);
  EXPECT_EQ(TheDriver().cuMemFree_v2(first), CUDA_SUCCESS);
  EXPECT_EQ(TheDriver().cuMemFree_v2(linear), CUDA_SUCCESS);
  // What lives in a destroyed pool is held until it is freed.
  EXPECT_EQ(TheDriver().cuMemPoolDestroy(pool), CUDA_SUCCESS);
  EXPECT_EQ(Held(), 2 * kMib);
  EXPECT_EQ(TheDriver().cuMemFreeAsync(second, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(Held(), 0u);
  PoolTrim(pool, 0);
}

TEST_F(AccountingTest, PhysicalMemoryLastsWhileItIsMapped) {
  page_->Begin(8 * kMib);
  CUmemAllocationProp properties{};
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemGenericAllocationHandle memory = 0, more = 0;
  ASSERT_EQ(TheDriver().cuMemCreate(&memory, 6 * kMib, &properties, 0), CUDA_SUCCESS);
  EXPECT_EQ(TheDriver().cuMemCreate(&more, 4 * kMib, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(TheDriver().cuMemMap(0x1000'0000, 3 * kMib, 0, memory, 0), CUDA_SUCCESS);
  ASSERT_EQ(TheDriver().cuMemMap(0x1030'0000, 3 * kMib, 0, memory, 0), CUDA_SUCCESS);
  ASSERT_EQ(TheDriver().cuMemRelease(memory), CUDA_SUCCESS);
  EXPECT_EQ(Held(), 6 * kMib);
  ASSERT_EQ(TheDriver().cuMemUnmap(0x1000'0000, 3 * kMib), CUDA_SUCCESS);
  EXPECT_EQ(Held(), 6 * kMib);
  ASSERT_EQ(TheDriver().cuMemUnmap(0x1030'0000, 3 * kMib), CUDA_SUCCESS);
  EXPECT_EQ(Held(), 0u);
}

TEST_F(AccountingTest, WhatIsMappedAgainAtOnceIsCounted) {
  page_->Begin(8 * kMib);
  CUmemAllocationProp properties{};
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemGenericAllocationHandle first = 0, second = 0;
  ASSERT_EQ(TheDriver().cuMemCreate(&first, 6 * kMib, &properties, 0), CUDA_SUCCESS);
  ASSERT_EQ(TheDriver().cuMemCreate(&second, 2 * kMib, &properties, 0), CUDA_SUCCESS);
  ASSERT_EQ(TheDriver().cuMemMap(0x1000'0000, 6 * kMib, 0, first, 0), CUDA_SUCCESS);
  ASSERT_EQ(TheDriver().cuMemRelease(first), CUDA_SUCCESS);
  books.once_unmapped = [&] {
    EXPECT_EQ(TheDriver().cuMemMap(0x1000'0000, 2 * kMib, 0, second, 0), CUDA_SUCCESS);
    EXPECT_EQ(TheDriver().cuMemRelease(second), CUDA_SUCCESS);
  };
  ASSERT_EQ(TheDriver().cuMemUnmap(0x1000'0000, 6 * kMib), CUDA_SUCCESS);
  EXPECT_EQ(Held(), 2 * kMib);
  ASSERT_EQ(TheDriver().cuMemUnmap(0x1000'0000, 2 * kMib), CUDA_SUCCESS);
  EXPECT_EQ(Held(), 0u);
}

TEST_F(AccountingTest, WhatAPoolsFreeRefusesOutlivesThePool) {
  page_->Begin(16 * kMib);
  CUmemoryPool pool = nullptr;
  CUmemPoolProps properties{};
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  ASSERT_EQ(TheDriver().cuMemPoolCreate(&pool, &properties), CUDA_SUCCESS);
  CUdeviceptr memory = 0;
  ASSERT_EQ(TheDriver().cuMemAllocFromPoolAsync(&memory, 2 * kMib, pool, nullptr), CUDA_SUCCESS);
  auto entry = books.pooled.extract(memory);
  ASSERT_EQ(TheDriver().cuMemFreeAsync(memory, nullptr), CUDA_ERROR_INVALID_VALUE);
  books.pooled.insert(std::move(entry));
  ASSERT_EQ(TheDriver().cuMemPoolDestroy(pool), CUDA_SUCCESS);
  EXPECT_EQ(Held(), 2 * kMib) << "it lives on";
  ASSERT_EQ(TheDriver().cuMemFreeAsync(memory, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(Held(), 0u);
  PoolTrim(pool, 0);
}

TEST_F(AccountingTest, GraphsAreLaunchedWithinTheLimit) {
  page_->Begin(12 * kMib);
  TheAccounting().KnowGraph(kExec, kGraph);
  CUdeviceptr memory = 0;
  ASSERT_EQ(TheDriver().cuMemAlloc_v2(&memory, 6 * kMib), CUDA_SUCCESS);
  EXPECT_EQ(TheDriver().cuGraphLaunch(kExec, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(books.launches, 0u);
  ASSERT_EQ(TheDriver().cuMemFree_v2(memory), CUDA_SUCCESS);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(TheDriver().cuGraphLaunch(kExec, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(Held(), kGraphBytes);
  ASSERT_EQ(TheDriver().cuMemAlloc_v2(&memory, 6 * kMib), CUDA_SUCCESS) << "what the graph keeps gives way";
  EXPECT_EQ(Held(), 6 * kMib);
  ASSERT_EQ(TheDriver().cuMemFree_v2(memory), CUDA_SUCCESS);
  EXPECT_EQ(Held(), 0u);
  TheAccounting().EndGraph(kExec, [] { return CUDA_SUCCESS; });
}

TEST_F(AccountingTest, TheProgramSeesADeviceOfTheLimit) {
  page_->Begin(30 * kMib);
  CUdeviceptr memory = 0;
  size_t free = 0, total = 0;
  ASSERT_EQ(TheDriver().cuMemAlloc_v2(&memory, 10 * kMib), CUDA_SUCCESS);
  ASSERT_EQ(TheDriver().cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS);
  EXPECT_EQ(free, 20 * kMib);
  EXPECT_EQ(total, 30 * kMib);
  page_->Begin(200 * kMib);
  ASSERT_EQ(TheDriver().cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS);
  EXPECT_EQ(free, 90 * kMib) << "no more than the GPU has";
  EXPECT_EQ(total, 100 * kMib);
  EXPECT_EQ(TheAccounting().TotalBytes(100 * kMib), 100 * kMib);
  ASSERT_EQ(TheDriver().cuMemFree_v2(memory), CUDA_SUCCESS);
}

// Of guests that share no memory; the other session is another worker's.
TEST_F(AccountingTest, PinnedMemoryOfAllSessionsIsBounded) {
  constexpr uint64_t kMost = 100 * kMib;
  page_->Open(1);
  page_->Add(1, MemoryKind::kPinned, kNoDevice, 60 * kMib);
  EXPECT_FALSE(TheAccounting().TakePinned(40 * kMib + 1, kMost));
  EXPECT_EQ(page_->OfKind(MemoryKind::kPinned), 60 * kMib);
  ASSERT_TRUE(TheAccounting().TakePinned(40 * kMib, kMost));
  EXPECT_FALSE(TheAccounting().TakePinned(1, kMost));
  page_->Close(1);
  EXPECT_TRUE(TheAccounting().TakePinned(60 * kMib, kMost));
  TheAccounting().Return(MemoryKind::kPinned, kNoDevice, kMost);
  EXPECT_EQ(page_->OfKind(MemoryKind::kPinned), 0u);
}

// The driver may give a block's address to a new block before the thread that freed it has told so.
TEST(ManagedCopiesTest, ACopyWaitsForTheFreeOfItsAddressAlone) {
  const ManagedPiece block[] = {{kMib, kMib}}, neighbour[] = {{2 * kMib, kMib}};
  for (int round = 0; round < 200; ++round) {
    std::atomic<bool> begun{false}, freed{false};
    std::optional<ManagedFree> free(std::in_place, kMib, kMib);
    std::thread copies([&] {
      begun = true;
      begun.notify_one();
      const ManagedCopy copy(block);
      EXPECT_TRUE(freed);
    });
    begun.wait(false);
    const ManagedCopy other(neighbour);
    freed = true;
    free.reset();
    copies.join();
  }
}

}  // namespace
}  // namespace causeway::host
