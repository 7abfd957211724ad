// SPDX-License-Identifier: Apache-2.0
// Census category host memory: registered memory that kernels read and write. Where memory is not shared its bytes are exchanged with the
// host, by whole pages or, beside others' bytes, by comparing.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "tests/driver/driver_test.h"
#include "tests/yield_until.h"

namespace causeway::driver_test {
namespace {

constexpr size_t kPage = 4096;

class RegisteredReachTest : public DriverTest {
 protected:
  void Launch(const char* name, uint32_t blocks, uint32_t threads, CUstream stream, void** parameters) {
    OK(cuLaunchKernel(Kernel(name), blocks, 1, 1, threads, 1, 1, 0, stream, parameters, nullptr));
  }
  void Add(uint32_t* values, uint32_t count, uint32_t value, CUstream stream = nullptr) {
    auto device = reinterpret_cast<CUdeviceptr>(values);
    void* parameters[] = {&device, &count, &value};
    Launch("add", (count + 255) / 256, 256, stream, parameters);
  }
  void Store(volatile uint32_t* at, uint32_t value, CUstream stream = nullptr) {
    auto device = reinterpret_cast<CUdeviceptr>(at);
    void* parameters[] = {&device, &value};
    Launch("store", 1, 1, stream, parameters);
  }
  void Spin(volatile uint32_t* flag, CUstream stream) {
    auto device = reinterpret_cast<CUdeviceptr>(flag);
    void* parameters[] = {&device};
    Launch("spin", 1, 1, stream, parameters);
  }
};

// Memory of a test's own, parts of which are registered; each word holds its index.
std::vector<uint32_t> Words(size_t count) {
  std::vector<uint32_t> words(count);
  std::iota(words.begin(), words.end(), 0u);
  return words;
}

TEST_F(RegisteredReachTest, EveryBeginAndSize) {
  std::vector<uint32_t> words = Words(60'000);
  for (const uint32_t count : {1u, 2u, 3u, 100u, 1023u, 1024u, 1025u, 3000u, 4096u, 4500u, 20'000u}) {
    for (const size_t first : {1u, 2u, 1000u, 1023u, 1024u, 1025u, 9000u}) {
      uint32_t* begin = words.data() + first;
      const std::vector<uint32_t> before = words;
      OK(cuMemHostRegister(begin, count * 4, CU_MEMHOSTREGISTER_DEVICEMAP));
      Add(begin, count, 1);
      OK(cuStreamSynchronize(nullptr));
      EXPECT_EQ(begin[count - 1], before[first + count - 1] + 1);
      for (uint32_t i = 0; i < count; ++i) begin[i] += 10;
      begin[-1] = 77;  // beside it
      Add(begin, count, 100);
      OK(cuCtxSynchronize());
      for (uint32_t i = 0; i < count; ++i)
        ASSERT_EQ(begin[i], before[first + i] + 111) << count << " at " << first << ": " << i;
      Add(begin, count, 1000);
      OK(cuMemHostUnregister(begin));
      for (uint32_t i = 0; i < count; ++i)
        ASSERT_EQ(begin[i], before[first + i] + 1111) << count << " at " << first << ": " << i;
      EXPECT_EQ(begin[-1], 77u);
      EXPECT_EQ(begin[count], before[first + count]);
      words = before;
    }
  }
}

// In a small registration, which is compared, and in a large one: at its ends, which are compared, and in the middle, whose pages are watched.
TEST_F(RegisteredReachTest, KernelsAndTheProgramPollEachOthersWords) {
  for (const size_t count : {2u, 50'000u}) {
    std::vector<uint32_t> words = Words(60'000);
    uint32_t* begin = words.data() + 3;
    OK(cuMemHostRegister(begin, count * 4, 0));
    for (const size_t at : {size_t{0}, count / 2, count - 1}) {
      volatile uint32_t* word = begin + at;
      volatile uint32_t* flag = begin + (at == 0 ? 1 : 0);
      *word = 0;
      *flag = 0;
      CUstream stream = nullptr;
      OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
      Store(word, 0x01020304, stream);
      Spin(flag, stream);
      test::YieldUntil([&] { return *word == 0x01020304; });
      EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
      *flag = 1;
      OK(cuStreamSynchronize(stream));
      OK(cuStreamDestroy(stream));
    }
    OK(cuMemHostUnregister(begin));
  }
}

// Also pinned memory: no call but these names it.
TEST_F(RegisteredReachTest, StreamsWaitForAndWriteItsWords) {
  std::vector<uint32_t> words = Words(10'000);
  void* pinned = nullptr;
  OK(cuMemHostAlloc(&pinned, 160, 0));
  uint32_t* registered = words.data() + 5;
  OK(cuMemHostRegister(registered, 40 * 4, 0));
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (uint32_t* begin : {registered, static_cast<uint32_t*>(pinned)}) {
    const auto device = reinterpret_cast<CUdeviceptr>(begin);
    begin[1] = 0;
    begin[3] = 8;
    OK(cuStreamWaitValue32(stream, device + 4, 9, CU_STREAM_WAIT_VALUE_EQ));
    OK(cuStreamWriteValue32(stream, device + 8, 33, 0));
    EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    EXPECT_NE(begin[2], 33u);
    reinterpret_cast<volatile uint32_t*>(begin)[1] = 9;
    OK(cuStreamSynchronize(stream));
    EXPECT_EQ(begin[2], 33u);
    EXPECT_EQ(begin[3], 8u);
  }
  OK(cuStreamDestroy(stream));
  OK(cuMemHostUnregister(registered));
  OK(cuMemFreeHost(pinned));
}

// store_at(place, value): **place = value
constexpr char kStoreAt[] = R"(
.version 8.0
.target sm_80
.address_size 64
.visible .entry store_at(.param .u64 place, .param .u32 value)
{
  .reg .b32 %r<2>; .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [place];
  ld.param.u32 %r1, [value];
  ld.global.u64 %rd2, [%rd1];
  st.global.u32 [%rd2], %r1;
  ret;
}
)";

// Memory that was made for the device is reached by kernels that find its address in memory.
TEST_F(RegisteredReachTest, AnAddressInMemory) {
  CUmodule module = nullptr;
  CUfunction store_at = nullptr;
  OK(cuModuleLoadData(&module, kStoreAt));
  OK(cuModuleGetFunction(&store_at, module, "store_at"));
  CUdeviceptr place = 0;
  OK(cuMemAlloc(&place, 8));
  void* pinned = nullptr;
  OK(cuMemHostAlloc(&pinned, 4000, CU_MEMHOSTALLOC_DEVICEMAP));
  std::vector<uint32_t> words = Words(40'000);
  OK(cuMemHostRegister(words.data() + 9, 30'000 * 4, CU_MEMHOSTREGISTER_DEVICEMAP));
  for (uint32_t* word : {static_cast<uint32_t*>(pinned) + 5, words.data() + 9, words.data() + 20'000}) {
    OK(cuMemcpyHtoD(place, &word, sizeof word));
    uint32_t value = 123;
    void* parameters[] = {&place, &value};
    OK(cuLaunchKernel(store_at, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
    OK(cuStreamSynchronize(nullptr));
    EXPECT_EQ(*word, 123u);
  }
  OK(cuMemHostUnregister(words.data() + 9));
  OK(cuMemFreeHost(pinned));
  OK(cuMemFree(place));
  OK(cuModuleUnload(module));
}

TEST_F(RegisteredReachTest, FillsAndCopies) {
  for (const uint32_t count : {500u, 100'000u}) {
    std::vector<uint32_t> words = Words(110'000);
    uint32_t* begin = words.data() + 7;
    OK(cuMemHostRegister(begin, count * 4, 0));
    CUdeviceptr mapped = 0, device = 0;
    OK(cuMemHostGetDevicePointer(&mapped, begin, 0));
    EXPECT_EQ(mapped, reinterpret_cast<CUdeviceptr>(begin));
    OK(cuMemAlloc(&device, count * 4));
    OK(cuMemcpyHtoD(device, begin, count * 4));
    Add(begin, count, 1);
    OK(cuMemcpyHtoDAsync(device, begin, count * 4, nullptr));  // after the kernel
    OK(cuMemsetD32Async(mapped, 5, count, nullptr));
    OK(cuMemcpyDtoD(mapped, device, 8));
    OK(cuStreamSynchronize(nullptr));
    EXPECT_EQ(begin[0], 8u);
    EXPECT_EQ(begin[1], 9u);
    EXPECT_EQ(begin[2], 5u);
    EXPECT_EQ(begin[count - 1], 5u);
    EXPECT_EQ(begin[-1], 6u);
    EXPECT_EQ(begin[count], count + 7);
    OK(cuMemcpyDtoHAsync(begin, device, count * 4, nullptr));
    Add(begin, count, 1);
    OK(cuStreamSynchronize(nullptr));
    for (uint32_t i = 0; i < count; ++i) ASSERT_EQ(begin[i], i + 9) << i;
    OK(cuMemHostUnregister(begin));
    OK(cuMemFree(device));
  }
}

struct Seen {
  uint32_t* word;
  uint32_t value;
};

TEST_F(RegisteredReachTest, AHostFunctionSeesAndWrites) {
  std::vector<uint32_t> words = Words(100);
  uint32_t* begin = words.data() + 1;
  OK(cuMemHostRegister(begin, 40, 0));
  Seen seen{begin + 4, 0};
  Store(begin + 4, 55);
  OK(cuLaunchHostFunc(
      nullptr,
      [](void* data) {
        auto* one = static_cast<Seen*>(data);
        one->value = *one->word;
        *one->word = 60;
      },
      &seen));
  Add(begin + 4, 1, 1);
  OK(cuStreamSynchronize(nullptr));
  EXPECT_EQ(seen.value, 55u);
  EXPECT_EQ(begin[4], 61u);
  OK(cuMemHostUnregister(begin));
}

// Another thread writes all the while on the pages where the range begins and ends.
TEST_F(RegisteredReachTest, WhatOthersWriteBesideItStays) {
  for (const uint32_t count : {100u, 30'000u}) {
    std::vector<uint32_t> words = Words(40'000);
    uint32_t* begin = words.data() + 1024 + 9;
    volatile uint32_t* before = begin - 1;
    volatile uint32_t* after = begin + count;
    OK(cuMemHostRegister(begin, count * 4, 0));
    const std::vector<uint32_t> first(begin, begin + count);
    std::atomic<bool> ends{false};
    std::atomic<uint32_t> wrong{0};
    std::thread other([&] {
      for (uint32_t i = 1; !ends; ++i) {
        *before = i;
        *after = i + 1;
        if (*before != i || *after != i + 1) ++wrong;
      }
    });
    for (uint32_t round = 1; round <= 50; ++round) {
      Add(begin, count, 1);
      OK(cuStreamSynchronize(nullptr));
      ASSERT_EQ(begin[0], first[0] + round);
      ASSERT_EQ(begin[count - 1], first[count - 1] + round);
    }
    ends = true;
    other.join();
    EXPECT_EQ(wrong, 0u);
    OK(cuMemHostUnregister(begin));
  }
}

TEST_F(RegisteredReachTest, AForkedChildHasWhatItHeld) {
  std::vector<uint32_t> words = Words(40'000);
  uint32_t* begin = words.data() + 11;
  constexpr uint32_t kCount = 30'000;
  OK(cuMemHostRegister(begin, kCount * 4, 0));
  Add(begin, kCount, 1);
  OK(cuStreamSynchronize(nullptr));
  const pid_t child = fork();
  if (child == 0) {
    for (uint32_t i = 0; i < kCount; ++i) {
      if (begin[i] != i + 12) _exit(1);
      begin[i] = 0;
    }
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  Add(begin, kCount, 1);
  OK(cuMemHostUnregister(begin));
  for (uint32_t i = 0; i < kCount; ++i) ASSERT_EQ(begin[i], i + 13) << i;
}

// What system calls write reaches the device like what the program writes, once no work is in flight.
TEST_F(RegisteredReachTest, SystemCallsReadAndWriteIt) {
  std::vector<uint32_t> words = Words(20'000);
  uint32_t* begin = words.data() + 10;
  constexpr uint32_t kCount = 16'000;
  OK(cuMemHostRegister(begin, kCount * 4, 0));
  Add(begin, kCount, 1);
  OK(cuStreamSynchronize(nullptr));
  const int file = memfd_create("test", MFD_CLOEXEC);
  ASSERT_EQ(pwrite(file, begin, kCount * 4, 4), ssize_t{kCount * 4});
  Add(begin, kCount, 5);
  OK(cuStreamSynchronize(nullptr));
  ASSERT_EQ(pread(file, begin, kCount * 4, 0), ssize_t{kCount * 4});
  Add(begin, kCount, 100);
  OK(cuMemHostUnregister(begin));
  EXPECT_EQ(begin[0], 100u);
  for (uint32_t i = 1; i < kCount; ++i) ASSERT_EQ(begin[i], i + 110) << i;
  close(file);
}

// What lies at the address afterwards is somebody else's.
TEST_F(RegisteredReachTest, MemoryThatWasUnmappedWithoutUnregistering) {
  constexpr size_t kBytes = 16 * kPage;
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* begin = static_cast<uint32_t*>(memory);
  constexpr uint32_t kCount = kBytes / 4 - 100;  // its end shares a page
  OK(cuMemHostRegister(begin, kCount * 4, 0));
  Add(begin, kCount, 1);
  OK(cuStreamSynchronize(nullptr));
  EXPECT_EQ(begin[kCount - 1], 1u);
  begin[5] = 9;
  ASSERT_EQ(munmap(memory, kBytes), 0);
  CUdeviceptr device = 0;
  OK(cuMemAlloc(&device, 4));
  Store(reinterpret_cast<uint32_t*>(device), 1);
  OK(cuStreamSynchronize(nullptr));
  ASSERT_EQ(mmap(memory, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
            memory);
  std::memset(memory, 4, kBytes);
  for (int round = 0; round < 3; ++round) {
    Store(reinterpret_cast<uint32_t*>(device), 2);
    OK(cuStreamSynchronize(nullptr));
  }
  OK(cuMemHostUnregister(begin));
  for (size_t i = 0; i < kBytes; ++i) ASSERT_EQ(static_cast<char*>(memory)[i], 4) << i;
  munmap(memory, kBytes);
  OK(cuMemFree(device));
}

// Two registrations meet on a page, and one of them is made anew with other bytes.
TEST_F(RegisteredReachTest, NeighboursOnOnePage) {
  alignas(4096) static uint32_t page[1024];
  std::memset(page, 0, sizeof page);
  uint32_t *a = page + 10, *b = page + 500;
  OK(cuMemHostRegister(a, 400, 0));
  OK(cuMemHostRegister(b, 400, 0));
  Add(a, 100, 1);
  b[0] = 77;
  Add(b, 100, 1);
  OK(cuStreamSynchronize(nullptr));
  EXPECT_EQ(b[0], 78u);
  OK(cuMemHostUnregister(b));
  std::memset(b, 0, 400);
  OK(cuMemHostRegister(b, 400, 0));
  Add(b, 50, 1);
  OK(cuStreamSynchronize(nullptr));
  for (int i = 0; i < 100; ++i) ASSERT_EQ(b[i], i < 50 ? 1u : 0u) << i;
  EXPECT_EQ(a[99], 1u);
  OK(cuMemHostUnregister(a));
  OK(cuMemHostUnregister(b));
}

// A thread of the program writes one half of a word, and kernels the other.
TEST_F(RegisteredReachTest, BothWriteOneWord) {
  alignas(8) static uint32_t words[4];
  OK(cuMemHostRegister(words, sizeof words, 0));
  std::atomic<bool> ends{false};
  std::atomic<uint32_t> undone{0};
  std::thread other([&] {
    volatile uint32_t* own = words + 1;
    for (uint32_t i = 1; !ends; ++i) {
      *own = i;
      for (int look = 0; look < 20; ++look) undone += *own != i ? 1 : 0;
    }
  });
  for (uint32_t i = 1; i <= 300; ++i) {
    Store(words, i);
    OK(cuStreamSynchronize(nullptr));
    ASSERT_EQ(words[0], i);
  }
  ends = true;
  other.join();
  EXPECT_EQ(undone, 0u);
  OK(cuMemHostUnregister(words));
}

// What a kernel wrote at the end of the memory, beside others' bytes, is there when the program has seen a flag in the middle.
TEST_F(RegisteredReachTest, AFlagComesAfterItsData) {
  constexpr uint32_t kCount = 40'000;
  std::vector<uint32_t> words = Words(kCount + 100);
  uint32_t* begin = words.data() + 3;
  OK(cuMemHostRegister(begin, kCount * 4, 0));
  volatile uint32_t* data = begin + kCount - 1;
  volatile uint32_t* flag = begin + kCount / 2;
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (uint32_t i = 1; i <= 100; ++i) {
    Store(data, 1'000'000 + i, stream);
    Store(flag, 2'000'000 + i, stream);
    test::YieldUntil([&] { return *flag == 2'000'000 + i; });
    ASSERT_EQ(*data, 1'000'000 + i);
    OK(cuStreamSynchronize(stream));
  }
  OK(cuStreamDestroy(stream));
  OK(cuMemHostUnregister(begin));
}

TEST_F(RegisteredReachTest, AnotherThreadTouchesItWhileItIsUnregistered) {
  std::vector<char> memory(2 << 20);
  std::atomic<bool> ends{false};
  std::thread other([&] {
    volatile char* bytes = memory.data();
    for (size_t i = 0; !ends; i = (i + 40961) % memory.size()) bytes[i] = static_cast<char>(bytes[i] + 1);
  });
  for (uint32_t round = 0; round < 100; ++round) {
    OK(cuMemHostRegister(memory.data(), memory.size(), 0));
    Store(reinterpret_cast<uint32_t*>(memory.data()), round);
    OK(cuStreamSynchronize(nullptr));
    OK(cuMemHostUnregister(memory.data()));
  }
  ends = true;
  other.join();
}

// While a kernel waits for a thread that will name registered memory, another thread registers some, which may wait for the kernel.
TEST_F(RegisteredReachTest, NamedWhileAnotherRegistrationWaits) {
  std::vector<uint32_t> first = Words(20'000), second = Words(20'000);
  OK(cuMemHostRegister(first.data(), first.size() * 4, 0));
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  {
    Spinner spinner(Kernel("spin"), stream);
    CUcontext context = context_;
    std::thread other([&] {
      OK(cuCtxSetCurrent(context));
      OK(cuMemHostRegister(second.data(), second.size() * 4, 0));
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::thread ends([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      spinner.Release();
    });
    Store(first.data(), 7, stream);
    ends.join();
    other.join();
  }
  OK(cuStreamSynchronize(stream));
  EXPECT_EQ(first[0], 7u);
  OK(cuMemHostUnregister(first.data()));
  OK(cuMemHostUnregister(second.data()));
  OK(cuStreamDestroy(stream));
}

TEST_F(RegisteredReachTest, GraphsUseIt) {
  std::vector<uint32_t> words = Words(20'000);
  uint32_t* begin = words.data() + 2;
  constexpr uint32_t kCount = 15'000;
  OK(cuMemHostRegister(begin, kCount * 4, 0));
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUdeviceptr device = 0;
  OK(cuMemAlloc(&device, kCount * 4));
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  Add(begin, kCount, 1, stream);
  OK(cuMemcpyHtoDAsync(device, begin, kCount * 4, stream));
  OK(cuMemcpyDtoHAsync(begin + 1, device, 8, stream));
  CUgraph graph = nullptr;
  OK(cuStreamEndCapture(stream, &graph));
  CUgraphExec executable = nullptr;
  OK(cuGraphInstantiate(&executable, graph, 0));
  for (int round = 0; round < 3; ++round) {
    begin[0] = 50;
    OK(cuGraphLaunch(executable, stream));
    OK(cuStreamSynchronize(stream));
    EXPECT_EQ(begin[0], 51u);
    EXPECT_EQ(begin[1], 51u);
  }
  EXPECT_EQ(begin[2], 52u);
  EXPECT_EQ(begin[3], 5u + 3);
  EXPECT_EQ(begin[kCount - 1], kCount + 1 + 3);
  OK(cuGraphExecDestroy(executable));
  OK(cuGraphDestroy(graph));
  OK(cuMemFree(device));
  OK(cuStreamDestroy(stream));
  OK(cuMemHostUnregister(begin));
}

}  // namespace
}  // namespace causeway::driver_test
