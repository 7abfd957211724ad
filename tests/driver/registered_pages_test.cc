// SPDX-License-Identifier: Apache-2.0
// Census category host memory: what happens to large ordinary memory around a registration, page by page, and
// that it is ordinary memory afterwards.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/driver/driver_test.h"
#include "tests/yield_until.h"

namespace causeway::driver_test {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kBytes = 40 << 20;

char* MapPages(size_t bytes) {
  return static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

bool IsFilled(const char* memory, size_t bytes, char value) {
  return std::count(memory, memory + bytes, value) == static_cast<std::ptrdiff_t>(bytes);
}

class RegisteredPagesTest : public DriverTest {
 protected:
  // What the device wrote while it was registered is there afterwards.
  void RegisterAndFill(char* memory, size_t bytes, char value) {
    CUdeviceptr device = 0;
    OK(cuMemAlloc(&device, bytes));
    OK(cuMemHostRegister(memory, bytes, 0));
    OK(cuMemsetD8(device, static_cast<unsigned char>(value), bytes));
    OK(cuMemcpyDtoH(memory, device, bytes));
    OK(cuMemHostUnregister(memory));
    OK(cuMemFree(device));
    EXPECT_TRUE(IsFilled(memory, bytes, value));
  }
};

TEST_F(RegisteredPagesTest, AgainAndAgain) {
  char* memory = MapPages(kBytes + 2 * kPage);
  std::memset(memory, 'a', kBytes + 2 * kPage);
  for (const char value : {'b', 'c', 'd', 'e'}) {
    RegisterAndFill(memory + 100, kBytes, value);
    EXPECT_TRUE(IsFilled(memory, 100, 'a'));
    EXPECT_TRUE(IsFilled(memory + 100 + kBytes, 2 * kPage - 100, 'a'));
  }
  munmap(memory, kBytes + 2 * kPage);
}

// Ending a registration waits for what the device still does with the memory; with several contexts, too.
TEST_F(RegisteredPagesTest, EndWaitsForTheDevice) {
  char* memory = MapPages(kBytes);
  std::memset(memory, 'a', kBytes);
  CUdeviceptr device = 0;
  OK(cuMemAlloc(&device, kBytes));
  CUcontext second = nullptr;
  for (const char value : {'b', 'c', 'd', 'e'}) {
    CUstream stream = nullptr;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemHostRegister(memory, kBytes, 0));
    for (int i = 0; i < 8; ++i) {
      OK(cuMemsetD8Async(device, static_cast<unsigned char>(i < 7 ? 'x' : value), kBytes, stream));
      OK(cuMemcpyDtoHAsync(memory, device, kBytes, stream));
    }
    OK(cuMemHostUnregister(memory));
    EXPECT_TRUE(IsFilled(memory, kBytes, value));
    OK(cuStreamDestroy(stream));
    if (value != 'c') continue;
    OK(cuCtxCreate(&second, nullptr, 0, 0));
    OK(cuCtxPopCurrent(&second));
  }
  OK(cuCtxDestroy(second));
  OK(cuMemFree(device));
  munmap(memory, kBytes);
}

// A child has memory of its own, copied when either of the two writes.
TEST_F(RegisteredPagesTest, ForkAfterwards) {
  char* memory = MapPages(kBytes);
  std::memset(memory, 'a', kBytes);
  RegisterAndFill(memory, kBytes, 'b');
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    char go = 0;
    bool ok = read(ends[0], &go, 1) == 1 && IsFilled(memory, kBytes, 'b');
    std::memset(memory, 'x', kBytes);
    _exit(ok && munmap(memory, kBytes) == 0 ? 0 : 1);
  }
  std::memset(memory, 'c', kBytes);
  EXPECT_EQ(write(ends[1], "g", 1), 1);
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(IsFilled(memory, kBytes, 'c'));
  close(ends[0]);
  close(ends[1]);
  munmap(memory, kBytes);
}

// Its child keeps what is registered as it is, and can end, use and free it.
TEST_F(RegisteredPagesTest, ForkMeanwhile) {
  char* memory = MapPages(kBytes);
  std::memset(memory, 'a', kBytes);
  OK(cuMemHostRegister(memory, kBytes, 0));
  const pid_t child = fork();
  if (child == 0) {
    bool ok = IsFilled(memory, kBytes, 'a');
    std::memset(memory, 'x', kBytes);
    ok = ok && munmap(memory, kBytes) == 0;
    _exit(ok ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  memory[kBytes / 2] = 'b';
  OK(cuMemHostUnregister(memory));
  EXPECT_EQ(memory[kBytes / 2], 'b');
  EXPECT_EQ(std::count(memory, memory + kBytes, 'a'), static_cast<std::ptrdiff_t>(kBytes - 1));
  munmap(memory, kBytes);
}

// As an allocator does: anonymous memory that is given back reads as zeros, and grows by zeros.
TEST_F(RegisteredPagesTest, GivenBackAndGrownAfterwards) {
  char* memory = MapPages(kBytes);
  std::memset(memory, 'a', kBytes);
  RegisterAndFill(memory, kBytes, 'b');
  ASSERT_EQ(madvise(memory + kBytes / 2, kBytes / 4, MADV_DONTNEED), 0);
  EXPECT_TRUE(IsFilled(memory, kBytes / 2, 'b'));
  EXPECT_TRUE(IsFilled(memory + kBytes / 2, kBytes / 4, 0));
  EXPECT_TRUE(IsFilled(memory + kBytes / 4 * 3, kBytes / 4, 'b'));
  // The last page may be a mapping of its own, which is the one that grows.
  char* last = memory + kBytes - kPage;
  auto* grown = static_cast<char*>(mremap(last, kPage, 3 * kPage, MREMAP_MAYMOVE));
  ASSERT_NE(grown, MAP_FAILED);
  EXPECT_TRUE(IsFilled(grown, kPage, 'b'));
  EXPECT_TRUE(IsFilled(grown + kPage, 2 * kPage, 0));
  munmap(grown, 3 * kPage);
  munmap(memory, kBytes);
}

TEST_F(RegisteredPagesTest, ChangedMeanwhile) {
  constexpr size_t kPart = kBytes / 8;
  char* memory = MapPages(kBytes);
  std::memset(memory, 'a', kBytes);
  OK(cuMemHostRegister(memory, kBytes, 0));
  munmap(memory + kPart, kPart);
  ASSERT_EQ(mprotect(memory + 3 * kPart, kPart, PROT_READ), 0);
  char* other = memory + 5 * kPart;
  ASSERT_EQ(mmap(other, kPart, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
            other);
  std::memset(other, 'n', kPart);
  memory[4 * kPart] = 'b';
  cuMemHostUnregister(memory);
  EXPECT_TRUE(IsFilled(memory, kPart, 'a'));
  EXPECT_EQ(msync(memory + kPart, kPage, MS_ASYNC), -1);  // unmapped still
  EXPECT_TRUE(IsFilled(memory + 2 * kPart, 2 * kPart, 'a'));
  EXPECT_EQ(memory[4 * kPart], 'b');
  EXPECT_TRUE(IsFilled(memory + 4 * kPart + 1, kPart - 1, 'a'));
  EXPECT_TRUE(IsFilled(other, kPart, 'n'));
  EXPECT_TRUE(IsFilled(memory + 6 * kPart, 2 * kPart, 'a'));
  ASSERT_EQ(mprotect(memory + 3 * kPart, kPart, PROT_READ | PROT_WRITE), 0);
  std::memset(memory + 2 * kPart, 'c', 6 * kPart);
  munmap(memory, kBytes);
}

// Whoever only reads never sees anything but the bytes, and is never disturbed.
TEST_F(RegisteredPagesTest, ConcurrentReaders) {
  char* memory = MapPages(kBytes);
  std::memset(memory, 'r', kBytes);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> wrong{0}, rounds{0};
  std::vector<std::thread> readers;
  for (size_t first = 0; first < 2; ++first) {
    readers.emplace_back([&, first] {
      const volatile char* bytes = memory;
      do {
        for (size_t at = first; at < kBytes; at += 3 * kPage + 17) wrong += bytes[at] != 'r' ? 1 : 0;
        ++rounds;
      } while (!stop.load());
    });
  }
  test::YieldUntil([&] { return rounds.load() != 0; });
  for (int i = 0; i < 6; ++i) {
    ASSERT_EQ(cuMemHostRegister(memory, kBytes, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuMemHostUnregister(memory), CUDA_SUCCESS);
  }
  stop.store(true);
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong.load(), 0u);
  munmap(memory, kBytes);
}

// Memory that the program will not have swapped.
TEST_F(RegisteredPagesTest, Locked) {
  constexpr size_t kLocked = 4 << 20;
  char* memory = MapPages(kLocked);
  std::memset(memory, 'a', kLocked);
  if (mlock(memory, kLocked) != 0) GTEST_SKIP() << "not so much may be locked here";
  RegisterAndFill(memory, kLocked, 'b');
  EXPECT_EQ(munlock(memory, kLocked), 0);
  munmap(memory, kLocked);
}

// Most of the main stack, also beyond what the caller uses.
TEST_F(RegisteredPagesTest, LargePartOfAStack) {
  char here[3 << 20];
  std::memset(here, 's', sizeof here);
  RegisterAndFill(here + 1000, sizeof here - 2000, 't');
  EXPECT_TRUE(IsFilled(here, 1000, 's'));
  EXPECT_TRUE(IsFilled(here + sizeof here - 1000, 1000, 's'));
}

}  // namespace
}  // namespace causeway::driver_test
