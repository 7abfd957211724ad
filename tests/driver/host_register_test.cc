// SPDX-License-Identifier: Apache-2.0
// Census category host memory: ordinary memory that is registered where it is.
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "tests/driver/driver_test.h"
#include "tests/yield_until.h"

namespace causeway::driver_test {
namespace {

constexpr size_t kPage = 4096;

class HostRegisterTest : public DriverTest {
 protected:
  // Copies to the device and back through the registered memory itself, and lets a kernel work on it.
  void UseFromDevice(uint32_t* values, uint32_t count) {
    CUdeviceptr device = 0;
    OK(cuMemAlloc(&device, count * 4));
    std::vector<uint32_t> before(values, values + count);
    OK(cuMemcpyHtoDAsync(device, values, count * 4, nullptr));
    OK(cuMemsetD32Async(device, 7, 1, nullptr));
    OK(cuMemcpyDtoHAsync(values, device, count * 4, nullptr));
    OK(cuStreamSynchronize(nullptr));
    EXPECT_EQ(values[0], 7u);
    for (uint32_t i = 1; i < count; ++i) ASSERT_EQ(values[i], before[i]) << i;
    OK(cuMemFree(device));
    CUdeviceptr mapped = 0;
    OK(cuMemHostGetDevicePointer(&mapped, values, 0));
    EXPECT_EQ(mapped, reinterpret_cast<CUdeviceptr>(values));
    uint32_t one = 1;
    void* parameters[] = {&mapped, &count, &one};
    OK(cuLaunchKernel(Kernel("add"), (count + 255) / 256, 1, 1, 256, 1, 1, 0, nullptr, parameters, nullptr));
    OK(cuCtxSynchronize());
    EXPECT_EQ(values[0], 8u);
    for (uint32_t i = 1; i < count; ++i) ASSERT_EQ(values[i], before[i] + 1) << i;
  }
};

std::vector<uint32_t> Counting(size_t count) {
  std::vector<uint32_t> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<uint32_t>(i);
  return values;
}

TEST_F(HostRegisterTest, Errors) {
  std::vector<char> memory(3 * kPage);
  EXPECT_EQ(cuMemHostRegister(nullptr, 100, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemHostRegister(memory.data(), 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemHostRegister(memory.data(), 100, 0x100), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemHostUnregister(nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemHostUnregister(memory.data()), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  OK(cuMemHostRegister(memory.data(), memory.size(), 0));
  EXPECT_EQ(cuMemHostRegister(memory.data(), memory.size(), 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(cuMemHostRegister(memory.data() + kPage, 10, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(cuMemHostUnregister(memory.data() + 1), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemHostUnregister(memory.data()));
  EXPECT_EQ(cuMemHostUnregister(memory.data()), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  void* hole = mmap(nullptr, kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  Say("notReadable", cuMemHostRegister(hole, kPage, 0));
  munmap(hole, kPage);
  Say("notMapped", cuMemHostRegister(hole, kPage, 0));
  CUdeviceptr device = 0;
  OK(cuMemAlloc(&device, kPage));
  Say("deviceMemory", cuMemHostRegister(reinterpret_cast<void*>(device), kPage, 0));
  void* pinned = nullptr;
  OK(cuMemHostAlloc(&pinned, kPage, 0));
  EXPECT_EQ(cuMemHostRegister(pinned, kPage, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemHostUnregister(pinned), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(HostRegisterTest, HeapPartialPages) {
  std::vector<uint32_t> memory = Counting(300000);
  uint32_t* middle = memory.data() + 1111;
  constexpr uint32_t kCount = 250000;
  OK(cuMemHostRegister(middle, kCount * 4, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
  EXPECT_EQ(memory, Counting(300000));
  memory[5] = 55;
  UseFromDevice(middle, kCount);
  EXPECT_EQ(memory[5], 55u);
  EXPECT_EQ(memory[1110], 1110u);
  EXPECT_EQ(memory[1111 + kCount], 1111 + kCount);
  const std::vector<uint32_t> now = memory;
  OK(cuMemHostUnregister(middle));
  EXPECT_EQ(memory, now);
  memory[1111] = 3;
  EXPECT_EQ(memory[1111], 3u);
}

TEST_F(HostRegisterTest, NeighboursOnOnePage) {
  auto* page = static_cast<char*>(
      mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  std::memset(page, 1, 2 * kPage);
  OK(cuMemHostRegister(page, 100, 0));
  const CUresult second =
      cuMemHostRegister(page + 200, kPage, 0);  // the rest of the page and part of the next
  Say("second", second);
  Say("third", cuMemHostRegister(page + 120, 40, 0));
  std::memset(page, 2, 2 * kPage);
  CUdeviceptr device = 0;
  OK(cuMemAlloc(&device, 2 * kPage));
  OK(cuMemsetD8(device, 9, 2 * kPage));
  OK(cuMemcpyDtoH(page + 10, device, 20));
  if (second == CUDA_SUCCESS) {
    OK(cuMemcpyDtoH(page + kPage, device, 20));
  }
  OK(cuMemHostUnregister(page));
  EXPECT_EQ(page[10], 9);
  EXPECT_EQ(page[9], 2);
  if (second == CUDA_SUCCESS) {
    OK(cuMemcpyDtoH(page + kPage + 50, device, 20));
    EXPECT_EQ(cuMemHostUnregister(page + 200), CUDA_SUCCESS);
    EXPECT_EQ(page[kPage], 9);
    EXPECT_EQ(page[kPage + 50], 9);
  }
  cuMemHostUnregister(page + 120);
  EXPECT_EQ(page[2 * kPage - 1], 2);
  munmap(page, 2 * kPage);
}

TEST_F(HostRegisterTest, PrivateFileMapping) {
  char name[] = "/tmp/host_register_XXXXXX";
  const int file = mkstemp(name);
  unlink(name);
  const std::vector<uint32_t> content = Counting(8 * 1024);
  ASSERT_EQ(write(file, content.data(), content.size() * 4), static_cast<ssize_t>(content.size() * 4));
  auto* mapped =
      static_cast<uint32_t*>(mmap(nullptr, content.size() * 4, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0));
  OK(cuMemHostRegister(mapped, content.size() * 4, 0));
  EXPECT_TRUE(std::equal(content.begin(), content.end(), mapped));
  UseFromDevice(mapped, static_cast<uint32_t>(content.size()));
  OK(cuMemHostUnregister(mapped));
  EXPECT_NE(mapped[0], 0u);
  uint32_t first = 99;
  EXPECT_EQ(pread(file, &first, 4, 0), 4);
  EXPECT_EQ(first, 0u);  // private: the file keeps its bytes
  munmap(mapped, content.size() * 4);
  close(file);
}

TEST_F(HostRegisterTest, SharedFileMapping) {
  const int file = memfd_create("host_register", 0);
  ASSERT_EQ(ftruncate(file, 16 * kPage), 0);
  auto* mapped =
      static_cast<uint32_t*>(mmap(nullptr, 16 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  mapped[100] = 42;
  OK(cuMemHostRegister(mapped, 16 * kPage, 0));
  UseFromDevice(mapped, 4096);
  OK(cuMemHostUnregister(mapped));
  uint32_t values[2] = {};
  EXPECT_EQ(pread(file, &values[0], 4, 0), 4);
  EXPECT_EQ(pread(file, &values[1], 4, 400), 4);
  EXPECT_EQ(values[0], mapped[0]);
  EXPECT_EQ(values[1], mapped[100]);
  mapped[5] = 77;
  EXPECT_EQ(pread(file, &values[0], 4, 20), 4);
  EXPECT_EQ(values[0], 77u);  // the mapping is the file's again
  munmap(mapped, 16 * kPage);
  close(file);
}

TEST_F(HostRegisterTest, ReadOnlyMemory) {
  auto* page = static_cast<uint32_t*>(
      mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  page[3] = 33;
  ASSERT_EQ(mprotect(page, kPage, PROT_READ), 0);
  Say("withoutFlag", cuMemHostRegister(page, kPage, 0));
  cuMemHostUnregister(page);
  int supported = 0;
  OK(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 0));
  Say("supported", supported);
  const CUresult result = cuMemHostRegister(page, kPage, CU_MEMHOSTREGISTER_READ_ONLY);
  Say("withFlag", result);
  if (result == CUDA_SUCCESS) {
    CUdeviceptr device = 0;
    uint32_t got = 0;
    OK(cuMemAlloc(&device, kPage));
    OK(cuMemcpyHtoD(device, page, kPage));
    OK(cuMemcpyDtoH(&got, device + 12, 4));
    EXPECT_EQ(got, 33u);
    OK(cuMemHostUnregister(page));
  }
  EXPECT_EQ(page[3], 33u);
  munmap(page, kPage);
}

TEST_F(HostRegisterTest, StacksOfThisAndAnotherThread) {
  uint32_t here[3000];
  for (uint32_t i = 0; i < 3000; ++i) here[i] = i;
  OK(cuMemHostRegister(here + 17, 2900 * 4, 0));
  UseFromDevice(here + 17, 2900);
  OK(cuMemHostUnregister(here + 17));
  EXPECT_EQ(here[0], 0u);
  EXPECT_EQ(here[2999], 2999u);

  std::atomic<uint32_t*> other{nullptr};
  std::atomic<bool> finish{false};
  std::thread thread([&] {
    uint32_t there[30000];
    for (uint32_t i = 0; i < 30000; ++i) there[i] = i;
    other.store(there);
    finish.wait(false);
    for (uint32_t i = 20002; i < 30000; ++i) EXPECT_EQ(there[i], i);
  });
  test::YieldUntil([&] { return other.load() != nullptr; });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  OK(cuMemHostRegister(other.load() + 10001, 10000 * 4, 0));
  UseFromDevice(other.load() + 10001, 10000);
  OK(cuMemHostUnregister(other.load() + 10001));
  finish.store(true);
  finish.notify_one();
  thread.join();
}

// Nothing that others write beside the range may be lost, however often its page comes and goes.
TEST_F(HostRegisterTest, ConcurrentWritersOfNeighbours) {
  auto* memory = static_cast<char*>(
      mmap(nullptr, 64 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> rounds[2] = {};
  std::vector<std::thread> writers;
  // One counter before the range, one after it, on its first and last page; each is only ever counted up.
  auto* counters = reinterpret_cast<volatile uint64_t*>(memory);
  for (const size_t word : {size_t{0}, 64 * kPage / 8 - 1}) {
    writers.emplace_back([&, word] {
      uint64_t count = 0;
      while (!stop.load(std::memory_order_relaxed)) {
        if (counters[word] != count) break;
        counters[word] = ++count;
        rounds[word == 0 ? 0 : 1].store(count, std::memory_order_relaxed);
      }
      EXPECT_EQ(counters[word], count);
    });
  }
  test::YieldUntil([&] { return rounds[0].load() != 0 && rounds[1].load() != 0; });
  for (int i = 0; i < 60; ++i) {
    ASSERT_EQ(cuMemHostRegister(memory + 64, 64 * kPage - 128, 0), CUDA_SUCCESS);
    memory[100 + i] = static_cast<char>(i);
    ASSERT_EQ(cuMemHostUnregister(memory + 64), CUDA_SUCCESS);
    ASSERT_EQ(memory[100 + i], static_cast<char>(i));
  }
  stop.store(true);
  for (std::thread& writer : writers) writer.join();
  munmap(memory, 64 * kPage);
}

// In the middle of a range of many pieces.
TEST_F(HostRegisterTest, ConcurrentWritersInside) {
  constexpr size_t kBytes = 24 << 20;
  auto* memory =
      static_cast<char*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  std::atomic<bool> stop{false};
  std::vector<std::thread> writers;
  for (const size_t at : {kBytes / 3, kBytes / 2, kBytes - 3 * kPage}) {
    writers.emplace_back([&, word = reinterpret_cast<volatile uint64_t*>(memory + at)] {
      uint64_t count = 0;
      while (!stop.load(std::memory_order_relaxed) && *word == count) *word = ++count;
      EXPECT_EQ(*word, count);
    });
  }
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(cuMemHostRegister(memory, kBytes, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuMemHostUnregister(memory), CUDA_SUCCESS);
  }
  stop.store(true);
  for (std::thread& writer : writers) writer.join();
  munmap(memory, kBytes);
}

// Whatever the pages that stand in for it held before.
TEST_F(HostRegisterTest, MemoryThatWasNeverTouched) {
  constexpr size_t kBytes = 9 << 20;
  CUdeviceptr device = 0;
  OK(cuMemAlloc(&device, kBytes));
  for (int round = 0; round < 2; ++round) {
    auto* memory =
        static_cast<char*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    std::string expected(kBytes, '\0');
    for (size_t at = 0; at < kBytes; at += 37 * kPage + 11) memory[at] = expected[at] = 'x';
    ASSERT_EQ(cuMemHostRegister(memory, kBytes, 0), CUDA_SUCCESS);
    OK(cuMemcpyHtoD(device, memory, kBytes));
    EXPECT_EQ(std::memcmp(memory, expected.data(), kBytes), 0) << round;
    std::memset(memory, 'y', kBytes);
    OK(cuMemcpyDtoH(memory, device, kBytes));
    EXPECT_EQ(std::memcmp(memory, expected.data(), kBytes), 0) << round;
    std::memset(memory, 'z', kBytes);
    ASSERT_EQ(cuMemHostUnregister(memory), CUDA_SUCCESS);
    EXPECT_EQ(std::count(memory, memory + kBytes, 'z'), static_cast<std::ptrdiff_t>(kBytes));
    munmap(memory, kBytes);
  }
}

TEST_F(HostRegisterTest, PartsUnmappedMeanwhile) {
  constexpr size_t kPages = 40;
  auto* memory = static_cast<char*>(
      mmap(nullptr, kPages * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  std::memset(memory, 'a', kPages * kPage);
  OK(cuMemHostRegister(memory, kPages * kPage, 0));
  munmap(memory + 10 * kPage, 5 * kPage);
  memory[30 * kPage] = 'b';
  cuMemHostUnregister(memory);
  memory[31 * kPage] = 'c';
  EXPECT_EQ(memory[9 * kPage], 'a');
  EXPECT_EQ(memory[30 * kPage], 'b');
  EXPECT_EQ(memory[31 * kPage], 'c');
  munmap(memory, kPages * kPage);
}

// The end of a registration with no address space left: the bytes stay, and nobody else gets their pages. Of
// a file, since anonymous memory has pages to come back to.
TEST_F(HostRegisterTest, EndsWithoutMemory) {
  constexpr size_t kBytes = 16 << 20;
  const int file = memfd_create("host_register", 0);
  ASSERT_EQ(ftruncate(file, kBytes), 0);
  const auto map = [&] {
    return static_cast<char*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0));
  };
  char *memory = map(), *other = map();
  close(file);
  std::memset(memory, 'a', kBytes);
  std::memset(other, 'b', kBytes);
  ASSERT_EQ(cuMemHostRegister(memory, kBytes, 0), CUDA_SUCCESS);
  unsigned long pages = 0;
  FILE* statm = std::fopen("/proc/self/statm", "r");
  ASSERT_EQ(std::fscanf(statm, "%lu", &pages), 1);
  std::fclose(statm);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  const rlimit little{pages * kPage + (4 << 20), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &little), 0);
  const CUresult result = cuMemHostUnregister(memory);
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_EQ(result, CUDA_SUCCESS);
  ASSERT_EQ(cuMemHostRegister(other, kBytes, 0), CUDA_SUCCESS);
  std::memset(other, 'c', kBytes);
  EXPECT_EQ(std::count(memory, memory + kBytes, 'a'), static_cast<std::ptrdiff_t>(kBytes));
  ASSERT_EQ(cuMemHostUnregister(other), CUDA_SUCCESS);
  EXPECT_EQ(std::count(other, other + kBytes, 'c'), static_cast<std::ptrdiff_t>(kBytes));
  munmap(memory, kBytes);
  munmap(other, kBytes);
}

// Storage to memory without a copy; in a VM the kernel refuses such a buffer with an error of its own.
TEST_F(HostRegisterTest, DirectIo) {
  char name[] = "/tmp/host_register_XXXXXX";
  const int file = mkstemp(name);
  const int direct = open(name, O_RDONLY | O_DIRECT);
  unlink(name);
  if (direct < 0) GTEST_SKIP() << "no O_DIRECT there";
  const std::string content(16 * kPage, 'd');
  ASSERT_EQ(write(file, content.data(), content.size()), static_cast<ssize_t>(content.size()));
  ASSERT_EQ(fsync(file), 0);
  auto* memory = static_cast<char*>(
      mmap(nullptr, content.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  OK(cuMemHostRegister(memory, content.size(), 0));
  const ssize_t got = pread(direct, memory, content.size(), 0);
  if (got < 0) {
    EXPECT_EQ(errno, EFAULT);
  } else {
    EXPECT_EQ(got, static_cast<ssize_t>(content.size()));
    EXPECT_EQ(std::memcmp(memory, content.data(), content.size()), 0);
  }
  OK(cuMemHostUnregister(memory));
  munmap(memory, content.size());
  close(direct);
  close(file);
}

TEST_F(HostRegisterTest, SystemCalls) {
  std::vector<char> memory(10 * kPage, 'a');
  OK(cuMemHostRegister(memory.data(), memory.size(), 0));
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_EQ(write(ends[1], "through a pipe", 14), 14);
  EXPECT_EQ(read(ends[0], memory.data() + kPage, 14), 14);
  EXPECT_EQ(std::memcmp(memory.data() + kPage, "through a pipe", 14), 0);
  EXPECT_EQ(write(ends[1], memory.data() + kPage, 7), 7);
  char back[8] = "";
  EXPECT_EQ(read(ends[0], back, 7), 7);
  EXPECT_STREQ(back, "through");
  CUdeviceptr device = 0;
  char got[15] = "";
  OK(cuMemAlloc(&device, memory.size()));
  OK(cuMemcpyHtoD(device, memory.data(), memory.size()));
  OK(cuMemcpyDtoH(got, device + kPage, 14));
  EXPECT_STREQ(got, "through a pipe");
  OK(cuMemHostUnregister(memory.data()));
  close(ends[0]);
  close(ends[1]);
}

TEST_F(HostRegisterTest, ForkLeavesBothWithTheirOwn) {
  std::vector<uint32_t> memory = Counting(50000);
  uint32_t* values = memory.data() + 100;
  OK(cuMemHostRegister(values, 40000 * 4, 0));
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    // Its own bytes, whatever the parent writes meanwhile, and free to be written, freed and allocated.
    char go = 0;
    bool ok = read(ends[0], &go, 1) == 1;
    for (uint32_t i = 0; i < 50000; ++i) ok = ok && memory[i] == i;
    std::fill(memory.begin(), memory.end(), 9);
    std::vector<char> more(1 << 20, 'x');
    memory.clear();
    memory.shrink_to_fit();
    void* pinned = nullptr;
    ok = ok && cuMemHostRegister(more.data(), more.size(), 0) == CUDA_ERROR_NOT_INITIALIZED;
    ok = ok && cuMemHostAlloc(&pinned, 100, 0) == CUDA_ERROR_NOT_INITIALIZED;
    _exit(ok ? 0 : 1);
  }
  values[0] = 12345;
  EXPECT_EQ(write(ends[1], "g", 1), 1);
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(values[0], 12345u);
  values[0] = 100;
  EXPECT_EQ(memory, Counting(50000));
  UseFromDevice(values, 40000);
  OK(cuMemHostUnregister(values));
  close(ends[0]);
  close(ends[1]);
}

TEST_F(HostRegisterTest, ContextTakesItsRegistrationsAlong) {
  std::vector<uint32_t> memory = Counting(5000);
  CUcontext other = nullptr;
  OK(cuCtxCreate(&other, nullptr, 0, 0));
  OK(cuMemHostRegister(memory.data(), memory.size() * 4, 0));
  OK(cuCtxDestroy(other));
  OK(cuCtxSetCurrent(context_));
  EXPECT_EQ(memory, Counting(5000));
  EXPECT_EQ(cuMemHostUnregister(memory.data()), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  OK(cuMemHostRegister(memory.data(), memory.size() * 4, 0));
  UseFromDevice(memory.data(), 5000);
  OK(cuMemHostUnregister(memory.data()));
}

TEST_F(HostRegisterTest, ManyAtOnce) {
  std::vector<std::vector<uint32_t>> blocks;
  for (size_t i = 0; i < 100; ++i) blocks.push_back(Counting(100 + 333 * i));
  for (auto& block : blocks) OK(cuMemHostRegister(block.data(), block.size() * 4, 0));
  for (size_t i = 0; i < blocks.size(); i += 7)
    UseFromDevice(blocks[i].data(), static_cast<uint32_t>(blocks[i].size()));
  for (size_t i = 0; i < blocks.size(); i += 2) OK(cuMemHostUnregister(blocks[i].data()));
  for (size_t i = 1; i < blocks.size(); i += 2) OK(cuMemHostUnregister(blocks[i].data()));
  for (size_t i = 0; i < blocks.size(); ++i) EXPECT_EQ(blocks[i].back(), blocks[i].size() - 1 + (i % 7 == 0));
}

// A program that handles its own faults still gets them, before and after its memory is registered.
sigjmp_buf own_handler;
bool Faults(volatile char* address) {
  if (sigsetjmp(own_handler, 1) != 0) return true;
  *address = 1;
  return false;
}

TEST_F(HostRegisterTest, ProgramsOwnFaultHandler) {
  std::vector<char> memory(3 * kPage);
  void* read_only = mmap(nullptr, kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  OK(cuMemHostRegister(memory.data(), memory.size(), 0));
  struct sigaction own {
  }, before{};
  own.sa_sigaction = [](int, siginfo_t*, void*) { siglongjmp(own_handler, 1); };
  own.sa_flags = SA_SIGINFO;
  ASSERT_EQ(sigaction(SIGSEGV, &own, &before), 0);
  for (int round = 0; round < 3; ++round) {
    EXPECT_TRUE(Faults(static_cast<char*>(read_only)));
    EXPECT_EQ(cuMemHostUnregister(memory.data()), CUDA_SUCCESS);
    EXPECT_EQ(cuMemHostRegister(memory.data(), memory.size(), 0), CUDA_SUCCESS);
  }
  sigaction(SIGSEGV, &before, nullptr);
  OK(cuMemHostUnregister(memory.data()));
  munmap(read_only, kPage);
}

// Each by itself, as the driver does it.
TEST_F(HostRegisterTest, WhichOfThemWaits) {
  NEEDS_SHARED_MEMORY();  // otherwise both wait, whatever the driver does
  std::vector<char> memory(5 * kPage);
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  {
    Spinner spinner(Kernel("spin"), stream);
    Say("registering",
        Waits(
            spinner, [&] { EXPECT_EQ(cuMemHostRegister(memory.data(), memory.size(), 0), CUDA_SUCCESS); },
            false));
  }
  {
    Spinner spinner(Kernel("spin"), stream);
    Say("its end", Waits(spinner, [&] { EXPECT_EQ(cuMemHostUnregister(memory.data()), CUDA_SUCCESS); }));
  }
  OK(cuStreamDestroy(stream));
}

TEST_F(HostRegisterTest, WaitsForTheWholeDevice) {
  std::vector<char> memory(5 * kPage);
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  {
    Spinner spinner(Kernel("spin"), stream);
    EXPECT_TRUE(Waits(spinner, [&] {
      EXPECT_EQ(cuMemHostRegister(memory.data(), memory.size(), 0), CUDA_SUCCESS);
      EXPECT_EQ(cuMemHostUnregister(memory.data()), CUDA_SUCCESS);
    }));
  }
  OK(cuStreamDestroy(stream));
}

TEST_F(HostRegisterTest, Attributes) {
  std::vector<char> memory(5 * kPage);
  char* at = memory.data() + 10;
  OK(cuMemHostRegister(at, 4 * kPage, CU_MEMHOSTREGISTER_PORTABLE));
  unsigned type = 0, managed = 9, mapped = 0, flags = 0;
  uint64_t value = 0;
  OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, reinterpret_cast<CUdeviceptr>(at + 5)));
  EXPECT_EQ(type, unsigned{CU_MEMORYTYPE_HOST});
  OK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, reinterpret_cast<CUdeviceptr>(at)));
  EXPECT_EQ(managed, 0u);
  OK(cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_HOST_POINTER, reinterpret_cast<CUdeviceptr>(at + 5)));
  EXPECT_EQ(value, reinterpret_cast<uint64_t>(at + 5));
  OK(cuPointerGetAttribute(&mapped, CU_POINTER_ATTRIBUTE_MAPPED, reinterpret_cast<CUdeviceptr>(at)));
  Say("mapped", mapped);
  OK(cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_RANGE_SIZE, reinterpret_cast<CUdeviceptr>(at)));
  Say("rangeSize", value);
  OK(cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                           reinterpret_cast<CUdeviceptr>(at + 5)));
  Say("rangeStartsBefore", reinterpret_cast<uint64_t>(at) - value);
  EXPECT_EQ(cuMemHostGetFlags(&flags, at), CUDA_SUCCESS);
  EXPECT_EQ(flags, unsigned{CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP});
  Say("freeHost", cuMemFreeHost(at));
  OK(cuMemHostUnregister(at));
  EXPECT_EQ(
      cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, reinterpret_cast<CUdeviceptr>(at + 5)),
      CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr device = 0;
  EXPECT_EQ(cuMemHostGetDevicePointer(&device, at, 0), CUDA_ERROR_INVALID_VALUE);
  auto* old = SymbolAs<CUresult(void*, size_t, unsigned)>("cuMemHostRegister");
  if (old == nullptr) GTEST_SKIP() << "no cuMemHostRegister of CUDA 4";
  OK(old(at, kPage, 0));
  OK(cuMemHostUnregister(at));
}

}  // namespace
}  // namespace causeway::driver_test
