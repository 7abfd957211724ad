// SPDX-License-Identifier: Apache-2.0
// Managed memory that a kernel has used since the program did, handed to system calls, and touched where no
// signal handler can help. Natively all of it works. Through Causeway migrating memory needs userfaultfd for
// it (docs/managed_memory.md); where the process may not use that, system calls answer EFAULT until the
// program has touched the pages itself.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vector>

#include "tests/driver/child_process.h"
#include "tests/driver/driver_test.h"
#include "tests/yield_until.h"

namespace causeway::driver_test {
namespace {

constexpr size_t kBytes = 1 << 20;
constexpr uint32_t kWords = kBytes / 4;

bool MayUseUserfaultfd() {
  int fd = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK));
  if (fd < 0) fd = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
  if (fd >= 0) close(fd);
  return fd >= 0;
}

// Whether system calls may touch managed memory wherever its pages are.
bool AreServed() {
  if (std::getenv("CAUSEWAY") == nullptr) return true;
  const char *form = std::getenv("CAUSEWAY_MANAGED"), *faults = std::getenv("CAUSEWAY_MANAGED_FAULTS");
  if (SharesMemory() && (form == nullptr || std::string_view(form) == "coherent")) return true;
  return (faults == nullptr || std::string_view(faults) != "signals") && MayUseUserfaultfd();
}

class ManagedSystemCallTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    OK(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    CUdeviceptr memory = 0;
    OK(cuMemAllocManaged(&memory, kBytes, CU_MEM_ATTACH_GLOBAL));
    words_ = reinterpret_cast<uint32_t*>(memory);
    for (uint32_t i = 0; i < kWords; ++i) words_[i] = i;
    file_ = memfd_create("managed", MFD_CLOEXEC);
    ASSERT_EQ(ftruncate(file_, kBytes), 0);
  }
  void TearDown() override {
    if (file_ >= 0) close(file_);
    if (words_ != nullptr) {
      EXPECT_EQ(cuMemFree(Address()), CUDA_SUCCESS);
    }
    DriverTest::TearDown();
  }
  CUdeviceptr Address() const { return reinterpret_cast<CUdeviceptr>(words_); }
  // A kernel adds to all words, and nobody has touched them since.
  void Add(uint32_t value) {
    CUdeviceptr data = Address();
    uint32_t count = kWords;
    void* parameters[] = {&data, &count, &value};
    EXPECT_EQ(cuLaunchKernel(Kernel("add"), kWords / 256, 1, 1, 256, 1, 1, 0, stream_, parameters, nullptr),
              CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  }
  // That the call moved so many bytes; where pages that are away are not served, that it failed, and works
  // once the program has touched them.
  template <class Call>
  void Expect(ssize_t bytes, Call call) {
    ssize_t moved = call();
    if (!AreServed()) {
      EXPECT_EQ(moved, -1);
      EXPECT_EQ(errno, EFAULT);
      for (uint32_t i = 0; i < kWords; i += 1024) static_cast<volatile uint32_t*>(words_)[i] = words_[i];
      moved = call();
    }
    EXPECT_EQ(moved, bytes);
  }

  CUstream stream_ = nullptr;
  uint32_t* words_ = nullptr;
  int file_ = -1;
};

TEST_F(ManagedSystemCallTest, WriteFromIt) {
  Add(5);
  Expect(kBytes, [&] { return write(file_, words_, kBytes); });
  std::vector<uint32_t> written(kWords);
  ASSERT_EQ(pread(file_, written.data(), kBytes, 0), ssize_t{kBytes});
  for (uint32_t i = 0; i < kWords; ++i) ASSERT_EQ(written[i], i + 5);
}

TEST_F(ManagedSystemCallTest, ReadIntoIt) {
  std::vector<uint32_t> text(kWords);
  for (uint32_t i = 0; i < kWords; ++i) text[i] = 3 * i;
  ASSERT_EQ(pwrite(file_, text.data(), kBytes, 0), ssize_t{kBytes});
  Add(5);
  Expect(kBytes, [&] { return pread(file_, words_, kBytes, 0); });
  Add(1);
  for (uint32_t i = 0; i < kWords; ++i) ASSERT_EQ(words_[i], 3 * i + 1);
}

// Parts of pages: what is beside them stays.
TEST_F(ManagedSystemCallTest, ReadIntoPartsOfIt) {
  constexpr size_t kPart = 1000, kAt = 65536 - 500;
  std::vector<uint8_t> text(kPart, 0xa5);
  ASSERT_EQ(pwrite(file_, text.data(), kPart, 0), ssize_t{kPart});
  Add(7);
  auto* bytes = reinterpret_cast<uint8_t*>(words_);
  Expect(kPart, [&] { return pread(file_, bytes + kAt, kPart, 0); });
  Add(0);
  for (size_t i = 0; i < kPart; ++i) ASSERT_EQ(bytes[kAt + i], 0xa5);
  for (uint32_t i = 0; i < kWords; ++i) {
    const bool beside = i * 4 + 4 <= kAt || i * 4 >= kAt + kPart;
    ASSERT_TRUE(!beside || words_[i] == i + 7) << i;
  }
}

TEST_F(ManagedSystemCallTest, PastThePageCache) {
  char name[] = "managed_direct_XXXXXX";
  const int file = mkostemp(name, O_DIRECT | O_CLOEXEC);
  if (file >= 0) unlink(name);
  if (file < 0) GTEST_SKIP() << "no file here can be read directly";
  const char* way = std::getenv("CAUSEWAY");
  if (way != nullptr && std::string_view(way) == "module")
    GTEST_SKIP() << "pages of the device have no struct";
  Add(5);
  Expect(kBytes, [&] { return pwrite(file, words_, kBytes, 0); });
  for (uint32_t i = 0; i < kWords; ++i) words_[i] = 1;
  Add(5);
  Expect(kBytes, [&] { return pread(file, words_, kBytes, 0); });
  Add(1);
  for (uint32_t i = 0; i < kWords; ++i) ASSERT_EQ(words_[i], i + 6);
  close(file);
}

TEST_F(ManagedSystemCallTest, ThreadThatBlocksAllSignals) {
  if (!AreServed()) return;  // it would die
  Add(5);
  uint32_t seen = 0;
  std::thread thread([&] {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);
    seen = words_[1000];
    words_[1000] = 1;
  });
  thread.join();
  EXPECT_EQ(seen, 1005u);
  Add(2);
  EXPECT_EQ(words_[1000], 3u);
}

// That knows nothing of other handlers.
TEST_F(ManagedSystemCallTest, HandlerInstalledAfterALaunch) {
  if (!AreServed()) return;  // the handler would be called
  struct sigaction own {
  }, before{};
  own.sa_handler = [](int) { _exit(33); };
  Add(5);
  ASSERT_EQ(sigaction(SIGSEGV, &own, &before), 0);
  EXPECT_EQ(words_[1000], 1005u);
  words_[1000] = 1;
  Add(2);
  EXPECT_EQ(words_[1000], 3u);
  sigaction(SIGSEGV, &before, nullptr);
}

// The call's own bytes let the kernel end.
TEST_F(ManagedSystemCallTest, ReleasesARunningKernel) {
  if (!AreServed()) return;
  int concurrent = 0;
  OK(cuDeviceGetAttribute(&concurrent, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 0));
  if (concurrent == 0) GTEST_SKIP() << "no concurrent access";
  const uint32_t one = 1;
  ASSERT_EQ(pwrite(file_, &one, sizeof one, 0), ssize_t{sizeof one});
  words_[0] = 0;
  CUdeviceptr flag = Address();
  void* parameters[] = {&flag};
  OK(cuLaunchKernel(Kernel("spin"), 1, 1, 1, 1, 1, 1, 0, stream_, parameters, nullptr));
  EXPECT_EQ(pread(file_, words_, sizeof one, 0), ssize_t{sizeof one});
  OK(cuStreamSynchronize(stream_));
}

TEST_F(ManagedSystemCallTest, ManyThreadsAtOnce) {
  if (!AreServed()) return;
  constexpr uint32_t kThreads = 8, kEach = kWords / kThreads;
  for (uint32_t round = 1; round <= 5; ++round) {
    Add(1);
    std::atomic<uint32_t> ready{0}, wrong{0};
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        uint32_t* const own = words_ + t * kEach;
        std::vector<uint32_t> copy(kEach);
        ready.fetch_add(1);
        test::YieldUntil([&] { return ready.load() == kThreads; });
        if (t % 2 == 0 && pwrite(file_, own, kEach * 4, t * kEach * 4) != ssize_t{kEach * 4}) ++wrong;
        if (t % 2 == 0 && pread(file_, copy.data(), kEach * 4, t * kEach * 4) != ssize_t{kEach * 4}) ++wrong;
        if (t % 2 == 1) memcpy(copy.data(), own, kEach * 4);
        for (uint32_t i = 0; i < kEach; ++i) wrong += copy[i] == t * kEach + i + round ? 0 : 1;
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(wrong.load(), 0u) << "round " << round;
  }
}

// Neither the child nor its death disturbs, and a program that is started takes none of it along.
TEST_F(ManagedSystemCallTest, AfterAFork) {
  for (uint32_t round = 1; round <= 3; ++round) {
    Add(1);
    const pid_t child = fork();
    if (child == 0) {
      if (round == 2) execl("/bin/true", "true", nullptr);
      _exit(0);
    }
    Expect(kBytes, [&] { return pwrite(file_, words_, kBytes, 0); });
    EXPECT_EQ(words_[5], 5 + round);
    int status = 1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
}

TEST_F(ManagedSystemCallTest, OneGibibyte) {
  constexpr uint64_t kLarge = uint64_t{1} << 30, kStep = (4 << 20) / 4;
  CUdeviceptr memory = 0;
  OK(cuMemAllocManaged(&memory, kLarge, CU_MEM_ATTACH_GLOBAL));
  auto* large = reinterpret_cast<volatile uint32_t*>(memory);
  for (uint64_t i = 0; i < kLarge / 4; i += kStep) large[i] = static_cast<uint32_t>(i / kStep);
  OK(cuMemsetD32Async(memory + kLarge / 2, 77, 1 << 20, stream_));
  OK(cuStreamSynchronize(stream_));
  for (uint64_t i = 0; i < kLarge / 8; i += kStep) ASSERT_EQ(large[i], i / kStep);
  for (uint64_t i = 0; i < 1 << 20; ++i) ASSERT_EQ(large[kLarge / 8 + i], 77u);
  ASSERT_EQ(large[kLarge / 8 + (1 << 20)], kLarge / 8 / kStep + 1);
  ASSERT_EQ(large[kLarge / 4 - kStep], kLarge / 4 / kStep - 1);
  ASSERT_EQ(large[kLarge / 4 - 1], 0u);
  OK(cuMemFree(memory));
}

}  // namespace
}  // namespace causeway::driver_test
