// SPDX-License-Identifier: Apache-2.0
// Census category host memory: what kinds of memory are registered, alone and side by side in one range, and
// what the memory is afterwards.
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

constexpr size_t kPage = 4096, kHuge = 2 << 20;
constexpr int kReadWrite = PROT_READ | PROT_WRITE;

char* Map(size_t bytes, int flags = MAP_PRIVATE | MAP_ANONYMOUS, int file = -1, void* at = nullptr) {
  void* mapped = mmap(at, bytes, kReadWrite, flags | (at != nullptr ? MAP_FIXED : 0), file, 0);
  return mapped != MAP_FAILED ? static_cast<char*>(mapped) : nullptr;
}

bool IsFilled(const char* memory, size_t bytes, char value) {
  return std::count(memory, memory + bytes, value) == static_cast<std::ptrdiff_t>(bytes);
}

bool IsLocked(char* page) {
  return msync(page, kPage, MS_INVALIDATE) != 0 && errno == EBUSY;
}

class RegisteredKindsTest : public DriverTest {
 protected:
  // The device takes what is there and leaves `value`, in place.
  void UseFromDevice(char* memory, size_t bytes, char value) {
    CUdeviceptr device = 0;
    std::string before(bytes, '\0');
    OK(cuMemAlloc(&device, bytes));
    OK(cuMemcpyHtoDAsync(device, memory, bytes, nullptr));
    OK(cuMemcpyDtoH(before.data(), device, bytes));
    EXPECT_EQ(std::memcmp(before.data(), memory, bytes), 0);
    OK(cuMemsetD8Async(device, static_cast<unsigned char>(value), bytes, nullptr));
    OK(cuMemcpyDtoHAsync(memory, device, bytes, nullptr));
    OK(cuStreamSynchronize(nullptr));
    OK(cuMemFree(device));
    EXPECT_TRUE(IsFilled(memory, bytes, value));
  }
  void RegisterAndUse(char* memory, size_t bytes, char value) {
    OK(cuMemHostRegister(memory, bytes, 0));
    UseFromDevice(memory, bytes, value);
    OK(cuMemHostUnregister(memory));
    EXPECT_TRUE(IsFilled(memory, bytes, value));
  }
};

// Shared with a child again as soon as it is not registered any more.
TEST_F(RegisteredKindsTest, SharedAnonymousMemory) {
  constexpr size_t kBytes = 40 * kPage;
  char* memory = Map(kBytes, MAP_SHARED | MAP_ANONYMOUS);
  ASSERT_NE(memory, nullptr);
  std::memset(memory, 'a', kBytes);
  RegisterAndUse(memory + 10, kBytes - 20, 'b');
  EXPECT_EQ(memory[9], 'a');
  EXPECT_EQ(memory[kBytes - 10], 'a');
  const pid_t child = fork();
  if (child == 0) {
    const bool ok = memory[9] == 'a' && IsFilled(memory + 10, kBytes - 20, 'b');
    memory[100] = 'c';
    _exit(ok ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(memory[100], 'c');
  munmap(memory, kBytes);
}

TEST_F(RegisteredKindsTest, SeveralMappingsInOneRange) {
  constexpr size_t kPart = 5 * kPage, kParts = 4;
  char name[] = "/tmp/registered_kinds_XXXXXX";
  const int file = mkstemp(name), shared = memfd_create("registered_kinds", 0);
  unlink(name);
  const std::string content(kPart, 'f');
  ASSERT_EQ(write(file, content.data(), kPart), static_cast<ssize_t>(kPart));
  ASSERT_EQ(ftruncate(shared, kPart), 0);
  char* memory = Map(kParts * kPart);
  ASSERT_NE(Map(kPart, MAP_PRIVATE, file, memory + kPart), nullptr);
  ASSERT_NE(Map(kPart, MAP_SHARED, shared, memory + 2 * kPart), nullptr);
  std::memset(memory, 'a', kPart);
  std::memset(memory + 2 * kPart, 's', kPart);
  std::memset(memory + 3 * kPart, 'z', kPart);
  char* at = memory + 700;
  constexpr size_t kBytes = kParts * kPart - 1500;
  RegisterAndUse(at, kBytes, 'd');
  EXPECT_TRUE(IsFilled(memory, 700, 'a'));
  EXPECT_TRUE(IsFilled(at + kBytes, 800, 'z'));
  std::string back(kPart, '\0');
  EXPECT_EQ(pread(file, back.data(), kPart, 0), static_cast<ssize_t>(kPart));
  EXPECT_EQ(back, content);  // private: the file keeps its bytes
  EXPECT_EQ(pread(shared, back.data(), kPart, 0), static_cast<ssize_t>(kPart));
  EXPECT_TRUE(IsFilled(back.data(), kPart, 'd'));
  memory[2 * kPart] = 'e';
  EXPECT_EQ(pread(shared, back.data(), 1, 0), 1);
  EXPECT_EQ(back[0], 'e');  // the mapping is the file's again
  munmap(memory, kParts * kPart);
  close(file);
  close(shared);
}

// Up to the last byte that is mapped; one more is too many, and nothing has changed then.
TEST_F(RegisteredKindsTest, EndsWhereItsMappingEnds) {
  constexpr size_t kBytes = 6 * kPage;
  char* around = Map(kBytes + 2 * kPage);
  char* memory = around + kPage;
  ASSERT_EQ(mprotect(around, kPage, PROT_NONE), 0);
  ASSERT_EQ(mprotect(memory + kBytes, kPage, PROT_NONE), 0);
  std::memset(memory, 'a', kBytes);
  RegisterAndUse(memory, kBytes, 'b');
  RegisterAndUse(memory + kBytes - 100, 100, 'c');
  EXPECT_TRUE(IsFilled(memory, kBytes - 100, 'b'));
  const CUresult beyond = cuMemHostRegister(memory, kBytes + 1, 0);
  const CUresult before = cuMemHostRegister(memory - 1, kBytes, 0);
  EXPECT_NE(beyond, CUDA_SUCCESS);
  Say("beyond", beyond);
  Say("before", before);
  EXPECT_TRUE(IsFilled(memory, kBytes - 100, 'b'));
  memory[5] = 'd';
  RegisterAndUse(memory, kBytes, 'e');
  munmap(around, kBytes + 2 * kPage);
}

TEST_F(RegisteredKindsTest, TransparentHugePages) {
  constexpr size_t kBytes = 5 * kHuge;
  char* memory = Map(kBytes);
  const size_t skip = (kHuge - reinterpret_cast<uintptr_t>(memory) % kHuge) % kHuge;
  madvise(memory, kBytes, MADV_HUGEPAGE);  // where the machine has them
  std::memset(memory, 'a', kBytes);
  RegisterAndUse(memory + skip, 2 * kHuge, 'b');
  RegisterAndUse(memory + skip + 1000, 3 * kHuge, 'c');
  EXPECT_TRUE(IsFilled(memory, skip, 'a'));
  EXPECT_TRUE(IsFilled(memory + skip, 1000, 'b'));
  EXPECT_TRUE(IsFilled(memory + skip + 1000 + 3 * kHuge, kBytes - skip - 1000 - 3 * kHuge, 'a'));
  munmap(memory, kBytes);
}

// A guest cannot register that of another kind of page which processes share: it says so and leaves it alone.
bool RefusesShared(char* memory) {
  if (std::getenv("CAUSEWAY") == nullptr || !SharesMemory()) return false;
  EXPECT_EQ(cuMemHostRegister(memory, kHuge, 0), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_TRUE(IsFilled(memory, 2 * kHuge, 'a'));
  return munmap(memory, 2 * kHuge) == 0;
}

// Memory of the machine's reserve of huge pages: as a whole, and parts of one of its pages.
TEST_F(RegisteredKindsTest, ReservedHugePages) {
  for (const int kind : {MAP_PRIVATE, MAP_SHARED}) {
    char* memory = Map(2 * kHuge, kind | MAP_ANONYMOUS | MAP_HUGETLB | MAP_POPULATE);
    if (memory == nullptr) GTEST_SKIP() << "no huge pages are reserved here";
    std::memset(memory, 'a', 2 * kHuge);
    if (kind == MAP_SHARED && RefusesShared(memory)) continue;
    RegisterAndUse(memory + kHuge - 1000, 3000, 'b');
    EXPECT_TRUE(IsFilled(memory, kHuge - 1000, 'a'));
    EXPECT_TRUE(IsFilled(memory + kHuge + 2000, kHuge - 2000, 'a'));
    RegisterAndUse(memory + kHuge, kHuge, 'c');
    RegisterAndUse(memory + 1000, kHuge, 'd');
    EXPECT_TRUE(IsFilled(memory, 1000, 'a'));
    EXPECT_TRUE(IsFilled(memory + 1000 + kHuge, kHuge - 1000, 'c'));
    EXPECT_EQ(munmap(memory, 2 * kHuge), 0);
  }
}

// What the program will not have swapped stays so.
TEST_F(RegisteredKindsTest, LockedMemoryStaysLocked) {
  for (const size_t bytes : {20 * kPage, size_t{3} << 20}) {
    char* memory = Map(bytes);
    std::memset(memory, 'a', bytes);
    if (mlock(memory, bytes) != 0) GTEST_SKIP() << "not so much may be locked here";
    ASSERT_TRUE(IsLocked(memory + kPage));
    RegisterAndUse(memory + 100, bytes - 200, 'b');
    for (const size_t at : {size_t{0}, bytes / 2 / kPage * kPage, bytes - kPage})
      EXPECT_TRUE(IsLocked(memory + at)) << at << " of " << bytes;
    EXPECT_EQ(munlock(memory, bytes), 0);
    EXPECT_FALSE(IsLocked(memory + kPage));
    munmap(memory, bytes);
  }
}

// What realloc does, with memory that is registered still: nobody else gets its pages afterwards. It is large
// enough that several steps replace it, and once others have bytes on its first and its last page.
TEST_F(RegisteredKindsTest, MovedMeanwhile) {
  constexpr size_t kBytes = 20 << 20;
  for (const size_t margin : {size_t{0}, size_t{100}}) {
    for (const int kind : {MAP_PRIVATE, MAP_SHARED}) {
      char *memory = Map(kBytes, kind | MAP_ANONYMOUS), *place = Map(kBytes), *other = Map(kBytes);
      std::memset(memory, 'a', kBytes);
      std::memset(other, 'o', kBytes);
      OK(cuMemHostRegister(memory + margin, kBytes - 2 * margin, 0));
      memory[kBytes - 1] = 'b';
      char* moved = static_cast<char*>(mremap(memory, kBytes, kBytes, MREMAP_MAYMOVE | MREMAP_FIXED, place));
      ASSERT_EQ(moved, place) << std::strerror(errno);
      moved[5] = 'c';
      OK(cuMemHostUnregister(memory + margin));
      RegisterAndUse(other, kBytes, 'x');
      EXPECT_EQ(moved[5], 'c');
      EXPECT_EQ(moved[kBytes - 1], 'b');
      EXPECT_EQ(std::count(moved, moved + kBytes, 'a'), static_cast<std::ptrdiff_t>(kBytes - 2));
      RegisterAndUse(moved, kBytes, 'y');
      munmap(moved, kBytes);
      munmap(other, kBytes);
    }
  }
}

// A child that becomes another program gets its arguments from registered memory, and leaves it alone.
TEST_F(RegisteredKindsTest, AnotherProgramIsStarted) {
  constexpr size_t kBytes = 3 << 20;
  char* memory = Map(kBytes);
  std::memset(memory, 'a', kBytes);
  OK(cuMemHostRegister(memory, kBytes, 0));
  char* words = memory + kHuge / 2;
  std::strcpy(words, "test \"$0\" = registered && exit 7");
  std::strcpy(words + 100, "registered");
  char shell[] = "sh", option[] = "-c";
  char* arguments[] = {shell, option, words, words + 100, nullptr};
  for (int round = 0; round < 3; ++round) {
    pid_t child = 0;
    ASSERT_EQ(posix_spawn(&child, "/bin/sh", nullptr, nullptr, arguments, environ), 0);
    memory[5] = static_cast<char>('b' + round);
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(WEXITSTATUS(status), 7);
    EXPECT_EQ(memory[5], 'b' + round);
  }
  UseFromDevice(memory, kBytes, 'x');
  OK(cuMemHostUnregister(memory));
  EXPECT_TRUE(IsFilled(memory, kBytes, 'x'));
  munmap(memory, kBytes);
}

// Memory of other devices is the guest's own hardware, which the host's GPU cannot reach.
TEST_F(RegisteredKindsTest, MemoryOfOtherDevices) {
  if (std::getenv("CAUSEWAY") == nullptr) GTEST_SKIP() << "what a driver does depends on the machine";
  char* memory = Map(kPage);
  std::memset(memory, 'a', kPage);
  EXPECT_EQ(cuMemHostRegister(memory, kPage, CU_MEMHOSTREGISTER_IOMEMORY), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuMemHostUnregister(memory), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  RegisterAndUse(memory, kPage, 'b');
  munmap(memory, kPage);
}

}  // namespace
}  // namespace causeway::driver_test
