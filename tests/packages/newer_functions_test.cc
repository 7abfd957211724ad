// SPDX-License-Identifier: Apache-2.0
// The guest library's own forms of what old systems lack (guest_lib/old_glibc/newer_functions.cc), with this system's C
// library, with one that has none of them, and on a kernel without the system calls. The program has a C++ runtime of its
// own, as the guest's libraries have, which therefore takes these functions too.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>

#include "guest_lib/old_glibc/look_up.h"

extern "C" uint32_t arc4random(void) noexcept;
extern "C" int getentropy(void* buffer, size_t bytes);

namespace {

using namespace std::chrono_literals;

// The tests run once with each; a function is looked up at its first use only.
bool IsOldSystem() {
  return getenv("CAUSEWAY_TEST_OLD_SYSTEM") != nullptr;
}

}  // namespace

namespace causeway::guest {

void* LookUpInLibc(const char* name) {
  return IsOldSystem() ? nullptr : dlsym(RTLD_NEXT, name);
}

}  // namespace causeway::guest

namespace {

[[gnu::noinline]] int Throw(int value) {
  if (value > 0) throw std::runtime_error(std::to_string(value));
  return value;
}

TEST(NewerFunctions, ExceptionsAreCaughtAcrossFrames) {
  int caught = 0;
  for (int i = 1; i <= 100; ++i) {
    try {
      Throw(i);
    } catch (const std::runtime_error& error) {
      caught += std::stoi(error.what());
    }
  }
  EXPECT_EQ(caught, 5050);
}

TEST(NewerFunctions, AnAddressOfNoLibraryHasNoTables) {
#ifdef DLFO_STRUCT_HAS_EH_DBASE
  dl_find_object found{};
  EXPECT_EQ(_dl_find_object(reinterpret_cast<void*>(&Throw), &found), 0);
  EXPECT_LE(found.dlfo_map_start, reinterpret_cast<void*>(&Throw));
  EXPECT_GT(found.dlfo_map_end, reinterpret_cast<void*>(&Throw));
  EXPECT_NE(found.dlfo_eh_frame, nullptr);
  int local = 0;
  EXPECT_EQ(_dl_find_object(&local, &found), -1);
#else
  GTEST_SKIP() << "this C library has no such function";
#endif
}

TEST(NewerFunctions, ATimedWaitEndsWhenItsTimeIsUpAndNotBefore) {
  std::mutex mutex;
  std::condition_variable condition;
  std::unique_lock lock(mutex);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(condition.wait_until(lock, begin + 30ms, [] { return false; }));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 30ms);
}

TEST(NewerFunctions, AWaitLongerThanAPieceIsWokenAndEndsAsTimedOutAfterItsTime) {
  std::mutex mutex;
  std::condition_variable condition;
  bool set = false;
  std::unique_lock lock(mutex);
  std::jthread setter([&] {
    std::this_thread::sleep_for(1200ms);
    const std::lock_guard guard(mutex);
    set = true;
    condition.notify_one();
  });
  EXPECT_TRUE(condition.wait_for(lock, 600s, [&] { return set; }));
}

TEST(NewerFunctions, AWaitByAnotherClockKeepsItsRules) {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
  pthread_mutex_lock(&mutex);
  const timespec past{1, 0};
  EXPECT_EQ(pthread_cond_clockwait(&condition, &mutex, CLOCK_REALTIME, &past), ETIMEDOUT);
  EXPECT_EQ(pthread_cond_clockwait(&condition, &mutex, CLOCK_MONOTONIC, &past), ETIMEDOUT);
  EXPECT_EQ(pthread_cond_clockwait(&condition, &mutex, CLOCK_PROCESS_CPUTIME_ID, &past), EINVAL);
  pthread_mutex_unlock(&mutex);
}

TEST(NewerFunctions, StatusOfFilesIsTheSystems) {
  struct stat of_path {
  }, of_file{};
  ASSERT_EQ(fstatat(AT_FDCWD, "/proc/self/exe", &of_path, 0), 0);
  const int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(fstat(file, &of_file), 0);
  close(file);
  EXPECT_TRUE(S_ISREG(of_file.st_mode));
  EXPECT_GT(of_file.st_size, 4096);
  EXPECT_EQ(of_file.st_ino, of_path.st_ino);
  EXPECT_EQ(of_file.st_size, of_path.st_size);
  EXPECT_EQ(fstat(file, &of_file), -1);
  EXPECT_EQ(errno, EBADF);
  unsigned cpu = ~0u, node = ~0u;
  EXPECT_EQ(getcpu(&cpu, &node), 0);
  EXPECT_NE(cpu, ~0u);
  EXPECT_NE(node, ~0u);
}

// A file of memory that can be grown, mapped twice and is gone with its last user.
void CheckMemoryFile() {
  const int file = memfd_create("causeway-test", MFD_CLOEXEC);
  ASSERT_GE(file, 0) << errno;
  EXPECT_EQ(fcntl(file, F_GETFD), FD_CLOEXEC);
  ASSERT_EQ(ftruncate(file, 8192), 0);
  auto* one = static_cast<char*>(mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  auto* two = static_cast<char*>(mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  ASSERT_NE(one, MAP_FAILED);
  ASSERT_NE(two, MAP_FAILED);
  one[5000] = 7;
  EXPECT_EQ(two[5000], 7);
  struct stat status {};
  EXPECT_EQ(fstat(file, &status), 0);
  EXPECT_EQ(status.st_nlink, 0u);
  munmap(one, 8192);
  munmap(two, 8192);
  close(file);
}

void CheckRandomness() {
  std::array<unsigned char, 64> first{}, second{};
  EXPECT_EQ(getentropy(first.data(), first.size()), 0);
  EXPECT_EQ(getentropy(second.data(), second.size()), 0);
  EXPECT_NE(first, second);
  EXPECT_NE((uint64_t{arc4random()} << 32 | arc4random()), (uint64_t{arc4random()} << 32 | arc4random()));
  std::array<unsigned char, 257> many{};
  EXPECT_EQ(getentropy(many.data(), many.size()), -1);
  EXPECT_EQ(errno, EIO);
}

TEST(NewerFunctions, MemoryFilesAndRandomness) {
  CheckMemoryFile();
  CheckRandomness();
}

// In a process of its own, which can never take the filter off.
TEST(NewerFunctions, MemoryFilesAndRandomnessWhereTheKernelHasNoSuchCalls) {
  const auto without_calls = [] {
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
    for (const int call : {SCMP_SYS(memfd_create), SCMP_SYS(getrandom)})
      seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), call, 0);
    if (seccomp_load(filter) != 0) exit(2);
    // The filter works.
    if (syscall(SYS_memfd_create, "none", 0) != -1 || errno != ENOSYS) exit(3);
    CheckMemoryFile();
    CheckRandomness();
    exit(testing::Test::HasFailure() ? 1 : 0);
  };
  EXPECT_EXIT(without_calls(), testing::ExitedWithCode(0), "");
}

}  // namespace
