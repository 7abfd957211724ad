// SPDX-License-Identifier: Apache-2.0
// Context-local storage: answers, order of destructors, and readers beside writers.
#include "guest_lib/device/context_storage.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/fake_guest_state.h"
#include "tests/yield_until.h"

namespace causeway::guest {
namespace {

using test::Guest;
using test::PrimaryOf;

void* Pointer(uintptr_t value) {
  return reinterpret_cast<void*>(value);
}

std::string destroyed;

void Record(CUcontext context, void* key, void* value) {
  EXPECT_EQ(CurrentContext(), context);
  destroyed += std::to_string(reinterpret_cast<uintptr_t>(key)) + "=" +
               std::to_string(reinterpret_cast<uintptr_t>(value)) + " ";
}

class ContextStorage : public testing::Test {
 protected:
  void SetUp() override {
    test::ResetGuest();
    Guest().initialised = true;
    destroyed.clear();
  }
  void TearDown() override {
    Guest().initialised = true;
    for (const int device : {0, 1}) ContextStorageDestroy(PrimaryOf(device));
  }
};

TEST_F(ContextStorage, BeforeInitialisation) {
  Guest().initialised = false;
  void* value = Pointer(7);
  EXPECT_EQ(ContextStorageGet(&value, nullptr, Pointer(1)), CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_EQ(ContextStoragePut(PrimaryOf(0), Pointer(1), value, nullptr), CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_EQ(ContextStorageDelete(PrimaryOf(0), Pointer(1)), CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_EQ(value, Pointer(7));
}

TEST_F(ContextStorage, NoCurrentContext) {
  void* value = Pointer(7);
  EXPECT_EQ(ContextStorageGet(&value, nullptr, Pointer(1)), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(ContextStoragePut(nullptr, Pointer(1), value, nullptr), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(ContextStorageDelete(nullptr, Pointer(1)), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(ContextStoragePut(reinterpret_cast<CUcontext>(0x5), Pointer(1), value, nullptr),
            CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(value, Pointer(7));
}

TEST_F(ContextStorage, PutGetDelete) {
  SwapCurrentContext(PrimaryOf(0));
  void* value = Pointer(7);
  EXPECT_EQ(ContextStorageGet(&value, nullptr, Pointer(1)), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(value, Pointer(7));
  EXPECT_EQ(ContextStorageDelete(nullptr, Pointer(1)), CUDA_ERROR_INVALID_HANDLE);

  EXPECT_EQ(ContextStoragePut(nullptr, Pointer(1), Pointer(10), Record), CUDA_SUCCESS);
  EXPECT_EQ(ContextStoragePut(PrimaryOf(0), Pointer(1), Pointer(11), Record), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(ContextStoragePut(PrimaryOf(1), Pointer(1), Pointer(20), Record), CUDA_SUCCESS);
  for (int repeat = 0; repeat < 3; ++repeat) {
    EXPECT_EQ(ContextStorageGet(&value, nullptr, Pointer(1)), CUDA_SUCCESS);
    EXPECT_EQ(value, Pointer(10));
    EXPECT_EQ(ContextStorageGet(&value, PrimaryOf(1), Pointer(1)), CUDA_SUCCESS);
    EXPECT_EQ(value, Pointer(20));
  }

  EXPECT_EQ(ContextStorageDelete(nullptr, Pointer(1)), CUDA_SUCCESS);
  EXPECT_EQ(ContextStorageGet(&value, nullptr, Pointer(1)), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(ContextStorageGet(&value, PrimaryOf(1), Pointer(1)), CUDA_SUCCESS);
  EXPECT_EQ(destroyed, "");
}

TEST_F(ContextStorage, DestroyRunsNewestFirstInThatContext) {
  SwapCurrentContext(PrimaryOf(1));
  for (uintptr_t key = 1; key <= 4; ++key) {
    ASSERT_EQ(ContextStoragePut(PrimaryOf(0), Pointer(key), Pointer(10 * key), key == 3 ? nullptr : Record),
              CUDA_SUCCESS);
  }
  ASSERT_EQ(ContextStoragePut(PrimaryOf(1), Pointer(1), Pointer(9), Record), CUDA_SUCCESS);
  ContextStorageDestroy(PrimaryOf(0));
  EXPECT_EQ(destroyed, "4=40 2=20 1=10 ");
  EXPECT_EQ(CurrentContext(), PrimaryOf(1));
  void* value = nullptr;
  EXPECT_EQ(ContextStorageGet(&value, PrimaryOf(0), Pointer(1)), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(ContextStorageGet(&value, nullptr, Pointer(1)), CUDA_SUCCESS);

  // The handle of a primary context lives on: it can be used again.
  EXPECT_EQ(ContextStoragePut(PrimaryOf(0), Pointer(1), Pointer(30), nullptr), CUDA_SUCCESS);
  EXPECT_EQ(ContextStorageGet(&value, PrimaryOf(0), Pointer(1)), CUDA_SUCCESS);
  EXPECT_EQ(value, Pointer(30));
}

TEST_F(ContextStorage, DestructorsCanCallBackButNotRefill) {
  const auto call_back = [](CUcontext context, void* key, void*) {
    void* other = nullptr;
    EXPECT_EQ(ContextStorageGet(&other, nullptr, key), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(ContextStorageGet(&other, nullptr, Pointer(1)), CUDA_SUCCESS);
    EXPECT_EQ(ContextStoragePut(context, Pointer(3), nullptr, nullptr), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(ContextStorageDelete(nullptr, Pointer(1)), CUDA_SUCCESS);
    destroyed += "called back";
  };
  ASSERT_EQ(ContextStoragePut(PrimaryOf(0), Pointer(1), Pointer(10), Record), CUDA_SUCCESS);
  ASSERT_EQ(ContextStoragePut(PrimaryOf(0), Pointer(2), Pointer(20), call_back), CUDA_SUCCESS);
  ContextStorageDestroy(PrimaryOf(0));
  EXPECT_EQ(destroyed, "called back");
  EXPECT_EQ(CurrentContext(), nullptr);
}

// A reader that has been told of a round must see that round's value, whatever its cache holds.
TEST_F(ContextStorage, ReadersNeverSeeRemovedValues) {
  constexpr uintptr_t kRounds = 3000;
  std::atomic<uintptr_t> round{0};
  std::atomic<unsigned> ready{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      for (uintptr_t seen = 1; seen <= kRounds; ++seen) {
        causeway::test::YieldUntil([&] { return round.load(std::memory_order_acquire) >= seen; });
        void* value = nullptr;
        EXPECT_EQ(ContextStorageGet(&value, PrimaryOf(0), Pointer(1)), CUDA_SUCCESS);
        EXPECT_EQ(value, Pointer(seen));
        ready.fetch_add(1);
      }
    });
  }
  for (uintptr_t next = 1; next <= kRounds; ++next) {
    ASSERT_EQ(ContextStoragePut(PrimaryOf(0), Pointer(1), Pointer(next), nullptr), CUDA_SUCCESS);
    round.store(next, std::memory_order_release);
    causeway::test::YieldUntil([&] { return ready.load() == 3 * next; });
    ASSERT_EQ(ContextStorageDelete(PrimaryOf(0), Pointer(1)), CUDA_SUCCESS);
  }
  for (std::thread& reader : readers) reader.join();
}

}  // namespace
}  // namespace causeway::guest
