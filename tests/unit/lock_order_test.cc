// SPDX-License-Identifier: Apache-2.0
// A thread that takes locks in another order than lock_order.h's ends its process, in builds that check it.
#include "guest_lib/process/lock_order.h"

#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <shared_mutex>
#include <thread>

namespace causeway::guest {
namespace {

Mutex<Lock::kContexts> contexts;
Mutex<Lock::kMarks> marks;
SharedMutex<Lock::kAllocations> allocations;
Mutex<Lock::kHandles> handles;

TEST(LockOrder, FromTheFirstToTheLast) {
  for (int i = 0; i < 2; ++i) {  // nothing is left of what was given back
    const std::lock_guard first(contexts);
    const std::unique_lock second(marks);
    const std::shared_lock third(allocations);
    const std::lock_guard fourth(handles);
  }
}

TEST(LockOrder, GivenBackInAnyOrder) {
  std::unique_lock first(contexts);
  const std::unique_lock second(marks);
  first.unlock();
  const std::shared_lock third(allocations);
}

TEST(LockOrder, EachThreadHasItsOwn) {
  const std::lock_guard last(handles);
  std::thread([] { const std::lock_guard first(contexts); }).join();
}

TEST(LockOrder, AConditionGivesTheLockBack) {
  std::unique_lock lock(marks);
  ConditionVariable never;
  never.wait_for(lock, std::chrono::milliseconds(1));
  lock.unlock();
  const std::lock_guard first(contexts);
}

TEST(LockOrderDeathTest, TheOtherWayRound) {
  const std::lock_guard second(marks);
  EXPECT_DEATH(contexts.lock(), "a thread that holds lock kMarks takes kContexts, which .* has before it");
}

TEST(LockOrderDeathTest, ASharedLockCounts) {
  const std::shared_lock third(allocations);
  EXPECT_DEATH(marks.lock(), "holds lock kAllocations takes kMarks");
  EXPECT_DEATH(allocations.lock_shared(), "holds lock kAllocations takes kAllocations");
}

TEST(LockOrderDeathTest, ANotedLockCounts) {
  NotedLock<Lock::kMain> main;
  main.Take();
  EXPECT_DEATH(marks.lock(), "holds lock kMain takes kMarks");
  main.Drop();
  const std::lock_guard second(marks);
}

}  // namespace
}  // namespace causeway::guest
