// SPDX-License-Identifier: Apache-2.0
// The worker's rows that count, where threads of a guest give back what others are just getting: the driver may
// give the address, handle or pool to somebody else before the thread that had it has been told.
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>

#include "host_backend/worker/accounting/managed_copies.h"
#include "tests/unit/accounting_books.h"
#include "tests/yield_until.h"

namespace causeway::host {
namespace {

// A guest's threads free a block before the thread that allocated it has the answer, and another one gets the address.
TEST_F(AccountingTest, ABlockCountsThoughAnEarlierOwnerOfItsAddressIsLate) {
  page_->Begin(8 * kMib);
  books.once_allocated = [](CUdeviceptr address) {
    EXPECT_EQ(TheDriver().cuMemFree_v2(address), CUDA_SUCCESS);
    books.given_again = address;
    CUdeviceptr large = 0;
    EXPECT_EQ(TheDriver().cuMemAlloc_v2(&large, 6 * kMib), CUDA_SUCCESS);
    EXPECT_EQ(large, address);
  };
  CUdeviceptr address = 0, more = 0;
  ASSERT_EQ(TheDriver().cuMemAlloc_v2(&address, 512), CUDA_SUCCESS);
  EXPECT_EQ(Held(), 6 * kMib + 512);
  EXPECT_EQ(TheDriver().cuMemAlloc_v2(&more, 4 * kMib), CUDA_ERROR_OUT_OF_MEMORY) << "the limit holds";
  ASSERT_EQ(TheDriver().cuMemFree_v2(address), CUDA_SUCCESS);
  EXPECT_EQ(Held(), 0u);
}

// The same where the later owner is the later one to say so.
TEST_F(AccountingTest, ABlockCountsThoughItIsLateItself) {
  page_->Begin(8 * kMib);
  std::atomic<bool> has_got{false}, may_go_on{false};
  std::thread other;
  books.once_allocated = [&](CUdeviceptr address) {
    EXPECT_EQ(TheDriver().cuMemFree_v2(address), CUDA_SUCCESS);
    books.given_again = address;
    books.once_allocated = [&](CUdeviceptr) {
      has_got = true;
      test::SleepUntil([&] { return may_go_on.load(); });
    };
    other = std::thread([] {
      CUdeviceptr large = 0;
      EXPECT_EQ(TheDriver().cuMemAlloc_v2(&large, 6 * kMib), CUDA_SUCCESS);
    });
    test::SleepUntil([&] { return has_got.load(); });
  };
  CUdeviceptr address = 0;
  ASSERT_EQ(TheDriver().cuMemAlloc_v2(&address, 512), CUDA_SUCCESS);
  may_go_on = true;
  other.join();
  EXPECT_EQ(Held(), 6 * kMib + 512);
  // What the driver refuses stays held, all of it.
  const auto entry = books.linear.extract(address);
  EXPECT_EQ(TheDriver().cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Held(), 6 * kMib + 512);
  TheAccounting().PrimaryEnds(0);
  EXPECT_EQ(Held(), 0u);
}

TEST_F(AccountingTest, AMappingCountsThoughAnEarlierOneIsLate) {
  page_->Begin(8 * kMib);
  CUmemAllocationProp properties{};
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemGenericAllocationHandle small = 0, large = 0;
  ASSERT_EQ(TheDriver().cuMemCreate(&small, 2 * kMib, &properties, 0), CUDA_SUCCESS);
  ASSERT_EQ(TheDriver().cuMemCreate(&large, 6 * kMib, &properties, 0), CUDA_SUCCESS);
  books.once_mapped = [&] {
    EXPECT_EQ(TheDriver().cuMemUnmap(0x1000'0000, 2 * kMib), CUDA_SUCCESS);
    EXPECT_EQ(TheDriver().cuMemMap(0x1000'0000, 6 * kMib, 0, large, 0), CUDA_SUCCESS);
  };
  ASSERT_EQ(TheDriver().cuMemMap(0x1000'0000, 2 * kMib, 0, small, 0), CUDA_SUCCESS);
  ASSERT_EQ(TheDriver().cuMemRelease(large), CUDA_SUCCESS);
  ASSERT_EQ(TheDriver().cuMemRelease(small), CUDA_SUCCESS);
  EXPECT_EQ(Held(), 8 * kMib);
  // A handle that is asked for by the address counts as the mapping does.
  CUmemGenericAllocationHandle again = 0;
  ASSERT_EQ(TheDriver().cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(0x1050'0000)),
            CUDA_SUCCESS);
  ASSERT_EQ(TheDriver().cuMemUnmap(0x1000'0000, 6 * kMib), CUDA_SUCCESS);
  EXPECT_EQ(Held(), 8 * kMib);
  ASSERT_EQ(TheDriver().cuMemRelease(again), CUDA_SUCCESS);
  EXPECT_EQ(Held(), 0u);
}

// What a context has ended is another's memory before the end is told.
TEST_F(AccountingTest, WhatIsHeldForAKeyEndsWithItsOwnContext) {
  const auto current = [](CUcontext context) {
    static CUcontext now;
    now = context;
    DriverToFill().cuCtxGetCurrent = [](CUcontext* got) { return *got = now, CUDA_SUCCESS; };
  };
  const auto first = reinterpret_cast<CUcontext>(0x56), second = reinterpret_cast<CUcontext>(0x57);
  for (const CUcontext ends : {first, second}) {
    TheAccounting().ContextBegins(first);
    TheAccounting().ContextBegins(second);
    CUdeviceptr address = 0;
    current(first);
    ASSERT_EQ(TheDriver().cuMemAlloc_v2(&address, kMib / 2), CUDA_SUCCESS);
    books.given_again = address;
    current(second);
    ASSERT_EQ(TheDriver().cuMemAlloc_v2(&address, 2 * kMib), CUDA_SUCCESS);
    TheAccounting().ContextEnds(ends);
    EXPECT_EQ(Held(), ends == first ? 2 * kMib : kMib / 2);
    ASSERT_EQ(TheDriver().cuMemFree_v2(address), CUDA_SUCCESS);
    EXPECT_EQ(Held(), 0u);
    TheAccounting().ContextEnds(ends == first ? second : first);
  }
  current(kContext);
}

// Pools that the driver names may be ones that another thread ends.
TEST_F(AccountingTest, APoolThatEndsWhileItIsNamedIsForgotten) {
  CUmemoryPool pool = nullptr;
  CUmemPoolProps properties{};
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  ASSERT_EQ(TheDriver().cuMemPoolCreate(&pool, &properties), CUDA_SUCCESS);
  books.pool_named = false;
  std::thread other;
  books.once_destroying = [&] {
    other = std::thread([] {
      CUmemoryPool named = nullptr;
      CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, {0}};
      EXPECT_EQ(TheDriver().cuMemGetMemPool(&named, &location, CU_MEM_ALLOCATION_TYPE_PINNED), CUDA_SUCCESS);
      EXPECT_EQ(named, kDefaultPool);
    });
    int turns = 0;  // long enough for a thread that nothing holds
    test::SleepUntil([&] { return books.pool_named || ++turns == 100; });
  };
  ASSERT_EQ(TheDriver().cuMemPoolDestroy(pool), CUDA_SUCCESS);
  other.join();
  books.asked_when_ended = false;
  TheAccounting().Refresh();
  EXPECT_FALSE(books.asked_when_ended);
}

// A pool with one allocation, whose free is what another thread ends the pool in.
class AccountingOfPoolsTest : public AccountingTest {
 protected:
  AccountingOfPoolsTest() {
    page_->Begin(16 * kMib);
    books.pool_step = 2 * kMib;
    CUmemPoolProps properties{};
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    EXPECT_EQ(TheDriver().cuMemPoolCreate(&pool_, &properties), CUDA_SUCCESS);
    EXPECT_EQ(FromPool(&first_, 6 * kMib), CUDA_SUCCESS);
  }
  ~AccountingOfPoolsTest() override {
    EXPECT_EQ(Held(), 0u);
    PoolTrim(pool_, 0);
  }
  CUresult FromPool(CUdeviceptr* address, size_t bytes) {
    return TheDriver().cuMemAllocFromPoolAsync(address, bytes, pool_, nullptr);
  }
  void End() { EXPECT_EQ(TheDriver().cuMemPoolDestroy(pool_), CUDA_SUCCESS); }

  CUmemoryPool pool_ = nullptr;
  CUdeviceptr first_ = 0;
};

TEST_F(AccountingOfPoolsTest, WhatAFreeRefusesCountsThoughItsPoolEndsMeanwhile) {
  books.refuses_frees = true;
  books.once_freeing = [&] { End(); };
  EXPECT_EQ(TheDriver().cuMemFreeAsync(first_, nullptr), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(Held(), 6 * kMib) << "it lives on";
  EXPECT_EQ(TheDriver().cuMemFreeAsync(first_, nullptr), CUDA_SUCCESS);
}

TEST_F(AccountingOfPoolsTest, WhatIsFreedCountsNoMoreThoughItsPoolEndsMeanwhile) {
  books.once_freeing = [&] { End(); };
  EXPECT_EQ(TheDriver().cuMemFreeAsync(first_, nullptr), CUDA_SUCCESS);
}

// The free drops what was held for the block that it freed, and not what is the new owner's.
TEST_F(AccountingOfPoolsTest, AnAddressThatIsGivenAgainBeforeTheFreeIsToldStaysItsOwners) {
  books.once_freed = [&] {
    End();
    books.pool_reserved = 0;
    books.given_again = first_;
    CUdeviceptr linear = 0;
    EXPECT_EQ(TheDriver().cuMemAlloc_v2(&linear, 2 * kMib), CUDA_SUCCESS);
    EXPECT_EQ(linear, first_);
  };
  EXPECT_EQ(TheDriver().cuMemFreeAsync(first_, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(Held(), 2 * kMib);
  EXPECT_EQ(TheDriver().cuMemFree_v2(first_), CUDA_SUCCESS);
}

// The same where the next owner's memory is of that pool too.
TEST_F(AccountingOfPoolsTest, AnAddressThatThePoolGivesAgainStaysItsOwners) {
  books.once_freed = [&] {
    books.given_again = first_;
    CUdeviceptr second = 0;
    EXPECT_EQ(FromPool(&second, 4 * kMib), CUDA_SUCCESS);
    EXPECT_EQ(second, first_);
  };
  EXPECT_EQ(TheDriver().cuMemFreeAsync(first_, nullptr), CUDA_SUCCESS);
  End();
  EXPECT_EQ(Held(), 4 * kMib);
  EXPECT_EQ(TheDriver().cuMemFreeAsync(first_, nullptr), CUDA_SUCCESS);
}

// The pool gives the bytes of the freed block to another one, at a higher address, and ends before the free is told.
TEST_F(AccountingOfPoolsTest, WhatLivesWhereSomethingWasFreedCountsInFull) {
  CUdeviceptr second = 0;
  books.once_freed = [&] {
    EXPECT_EQ(FromPool(&second, 6 * kMib), CUDA_SUCCESS);
    EXPECT_EQ(Held(), 6 * kMib);
    End();
  };
  EXPECT_EQ(TheDriver().cuMemFreeAsync(first_, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(Held(), 6 * kMib);
  EXPECT_EQ(TheDriver().cuMemFreeAsync(second, nullptr), CUDA_SUCCESS);
}

// Others free the block while a free of it waits for its copies, and a larger one gets the address.
TEST_F(AccountingTest, AFreeWaitsForTheCopiesOfTheBlockThatItEnds) {
  CUdeviceptr address = 0;
  ASSERT_EQ(TheDriver().cuMemAllocManaged(&address, 2 * kMib, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  const ManagedPiece block[] = {{address, 2 * kMib}}, beyond[] = {{address + 2 * kMib, kMib}};
  std::optional<ManagedCopy> copy(std::in_place, block);
  std::thread frees([&] { EXPECT_EQ(TheDriver().cuMemFree_v2(address), CUDA_SUCCESS); });
  const auto give_way = [] {
    int turns = 0;
    test::SleepUntil([&] { return ++turns == 50; });
  };
  give_way();  // it waits for the copy
  EXPECT_EQ(TheDriver().cuMemFreeAsync(address, nullptr), CUDA_SUCCESS);
  books.given_again = address;
  ASSERT_EQ(TheDriver().cuMemAllocManaged(&address, 4 * kMib, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  std::optional<ManagedCopy> next(std::in_place, beyond);
  copy.reset();
  give_way();
  {
    const std::lock_guard lock(books.mutex);
    EXPECT_EQ(books.linear.count(address), 1u) << "it was freed while it was copied";
  }
  next.reset();
  frees.join();
  EXPECT_EQ(books.linear.count(address), 0u);
  EXPECT_EQ(Held(), 0u);
}

}  // namespace
}  // namespace causeway::host
