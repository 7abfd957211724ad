// SPDX-License-Identifier: Apache-2.0
// Census category memcpy: ordinary memory, in sizes and shapes around the pieces that a copy may be cut into,
// from several threads at once, and what goes on around it.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/driver/child_process.h"
#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

// Causeway copies with several threads where there are processors for them; here always.
[[maybe_unused]] const int copy_threads = setenv("CAUSEWAY_COPY_THREADS", "4", 0);

constexpr size_t kMost = (6u << 20) + 4096;
constexpr unsigned char kGuard = 0xa5;

void Fill(unsigned char* bytes, size_t count, uint32_t seed) {
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<unsigned char>((i * 2654435761u + seed) >> 11);
}

class PageableCopyTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    OK(cuMemAlloc(&device_, kMost));
    OK(cuStreamCreate(&blocking_, CU_STREAM_DEFAULT));
    OK(cuStreamCreate(&apart_, CU_STREAM_NON_BLOCKING));
    source_.resize(kMost + 64);
    Fill(source_.data(), source_.size(), 1);
  }
  // There and back, each way from and to an odd address; what lies beside the destination stays.
  void CheckBothWays(size_t bytes, size_t shift, CUstream stream, bool asynchronous) {
    std::vector<unsigned char> back(bytes + 64, kGuard);
    unsigned char *from = source_.data() + shift, *to = back.data() + 32 - shift;
    OK(cuMemsetD8Async(device_, 0, kMost, stream));
    OK(cuStreamSynchronize(stream));
    if (asynchronous) {
      OK(cuMemcpyHtoDAsync(device_ + shift, from, bytes, stream));
      OK(cuMemcpyDtoHAsync(to, device_ + shift, bytes, stream));
    } else {
      OK(cuMemcpyHtoD(device_ + shift, from, bytes));
      OK(cuMemcpyDtoH(to, device_ + shift, bytes));
    }
    ASSERT_EQ(std::memcmp(to, from, bytes), 0) << bytes;
    ASSERT_EQ(to[-1], kGuard) << bytes;
    ASSERT_EQ(to[bytes], kGuard) << bytes;
  }
  CUdeviceptr device_ = 0;
  CUstream blocking_ = nullptr, apart_ = nullptr;
  std::vector<unsigned char> source_;
};

// A thread that copies there and back until the object ends, which expects that each copy was right.
class Copier {
 public:
  Copier(CUcontext context, CUdeviceptr device, const std::vector<unsigned char>& source)
      : thread_([=, this, &source] { Run(context, device, source.data()); }) {}
  ~Copier() {
    end_ = true;
    thread_.join();
    EXPECT_TRUE(good_);
  }

 private:
  void Run(CUcontext context, CUdeviceptr device, const unsigned char* source) {
    std::vector<unsigned char> back(kMost);
    good_ = cuCtxSetCurrent(context) == CUDA_SUCCESS;
    while (good_ && !end_.load()) {
      std::memset(back.data(), 0, back.size());
      good_ = cuMemcpyHtoD(device, source, kMost) == CUDA_SUCCESS &&
              cuMemcpyDtoH(back.data(), device, kMost) == CUDA_SUCCESS &&
              std::memcmp(back.data(), source, kMost) == 0;
    }
  }
  std::atomic<bool> end_{false};
  bool good_ = false;  // the thread's own until it has ended
  std::thread thread_;
};

TEST_F(PageableCopyTest, SizesAroundPieces) {
  size_t shift = 0;
  for (const size_t at : {size_t{3} << 10, size_t{64} << 10, size_t{256} << 10, size_t{512} << 10,
                          size_t{1} << 20, size_t{2} << 20, size_t{3} << 20, size_t{6} << 20}) {
    for (const size_t bytes : {at - 1, at, at + 1, at + 1000}) {
      ++shift;
      CheckBothWays(bytes, shift % 17, apart_, shift % 2 != 0);
      if (HasFatalFailure()) return;
    }
  }
}

// More than any buffers between hold, also beside work that needs some of them.
class QueuedCopyTest : public PageableCopyTest {
 protected:
  static constexpr size_t kLarge = (37u << 20) + 4099;
  void SetUp() override {
    PageableCopyTest::SetUp();
    OK(cuMemFree(device_));
    OK(cuMemAlloc(&device_, kLarge));
    large_.resize(kLarge);
    Fill(large_.data(), kLarge, 3);
  }
  // Whether the bytes are the same after the way there and back.
  bool Returns(CUdeviceptr device, const std::vector<unsigned char>& from, CUstream stream) {
    // Kept by each thread: new pages for each copy would take longer than the copy.
    static thread_local std::vector<unsigned char> back;
    back.assign(from.size(), kGuard);
    const CUresult there = stream != nullptr ? cuMemcpyHtoDAsync(device, from.data(), from.size(), stream)
                                             : cuMemcpyHtoD(device, from.data(), from.size());
    const CUresult here = stream != nullptr ? cuMemcpyDtoHAsync(back.data(), device, from.size(), stream)
                                            : cuMemcpyDtoH(back.data(), device, from.size());
    return there == CUDA_SUCCESS && here == CUDA_SUCCESS && back == from;
  }
  std::vector<unsigned char> large_;
  const int kRounds = OnSoftwareGpu() ? 4 : 12;  // beside others
};

TEST_F(QueuedCopyTest, EachForm) {
  for (uint32_t round = 0; round < 2; ++round) {
    for (CUstream stream : {CUstream{nullptr}, blocking_, apart_}) {
      Fill(large_.data(), large_.size() / 7, round);
      if (round == 0) {
        OK(cuCtxSynchronize());
      }
      ASSERT_TRUE(Returns(device_, large_, stream)) << round;
    }
  }
}

// What comes after the copy in the program's streams sees all of it, what came before none.
TEST_F(QueuedCopyTest, OrderWithOtherWork) {
  std::vector<unsigned char> back(kLarge);
  for (CUstream stream : {CUstream{nullptr}, blocking_}) {
    OK(cuMemsetD8Async(device_, 1, kLarge, blocking_));
    OK(cuMemcpyHtoD(device_, large_.data(), kLarge));
    std::memset(large_.data(), 0x5a, kLarge);
    OK(cuMemsetD8Async(device_ + kLarge - 1, 2, 1, stream));
    OK(cuMemcpyDtoH(back.data(), device_, kLarge));
    Fill(large_.data(), kLarge, 3);
    ASSERT_EQ(std::memcmp(back.data(), large_.data(), kLarge - 1), 0);
    ASSERT_EQ(back[kLarge - 1], 2);
    OK(cuCtxSynchronize());
    OK(cuMemcpyHtoD(device_, large_.data(), kLarge));  // nothing is left to wait for
    OK(cuMemcpyHtoD(device_ + kLarge - 2, &back[kLarge - 1], 1));
    OK(cuMemsetD8Async(device_ + kLarge - 1, 3, 1, stream));
    OK(cuMemcpyDtoHAsync(back.data(), device_, kLarge, blocking_));
    ASSERT_EQ(std::memcmp(back.data(), large_.data(), kLarge - 2), 0);
    ASSERT_EQ(back[kLarge - 2], 2);
    ASSERT_EQ(back[kLarge - 1], 3);
  }
}

TEST_F(QueuedCopyTest, BesideOtherCopies) {
  std::atomic<bool> end{false};
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (const size_t bytes : {size_t{4}, size_t{100'000}, size_t{1} << 20, (size_t{5} << 20) + 3}) {
    threads.emplace_back([&, bytes] {
      CUdeviceptr device = 0;
      std::vector<unsigned char> own(bytes);
      Fill(own.data(), bytes, static_cast<uint32_t>(bytes));
      if (cuCtxSetCurrent(context_) != CUDA_SUCCESS || cuMemAlloc(&device, bytes) != CUDA_SUCCESS)
        failures.fetch_add(1);
      while (!end.load() && failures.load() == 0) {
        if (!Returns(device, own, nullptr)) failures.fetch_add(1);
        std::this_thread::sleep_for(std::chrono::milliseconds(bytes % 7));
      }
    });
  }
  for (int round = 0; round < kRounds; ++round) {
    EXPECT_TRUE(Returns(device_, large_, round % 2 != 0 ? apart_ : nullptr)) << round;
  }
  end.store(true);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures.load(), 0);
}

// Whatever waits for the whole device meanwhile.
TEST_F(QueuedCopyTest, BesideWaitsForTheDevice) {
  std::atomic<bool> end{false};
  std::atomic<int> failures{0};
  std::vector<unsigned char> registered(4 << 20);
  std::thread other([&] {
    bool good = cuCtxSetCurrent(context_) == CUDA_SUCCESS;
    for (size_t round = 0; good && !end.load(); ++round) {
      CUdeviceptr scratch = 0;
      good = cuMemAlloc(&scratch, 4096) == CUDA_SUCCESS && cuMemFree(scratch) == CUDA_SUCCESS &&
             cuMemHostRegister(&registered[round % 8 << 18], 200'000, 0) == CUDA_SUCCESS &&
             cuCtxSynchronize() == CUDA_SUCCESS &&
             cuMemHostUnregister(&registered[round % 8 << 18]) == CUDA_SUCCESS;
    }
    if (!good) failures.fetch_add(1);
  });
  for (int round = 0; round < kRounds; ++round) EXPECT_TRUE(Returns(device_, large_, nullptr)) << round;
  end.store(true);
  other.join();
  EXPECT_EQ(failures.load(), 0);
}

struct Shape {
  size_t width, height, depth;
};

TEST_F(PageableCopyTest, ShapesAroundPieces) {
  for (const Shape shape : {Shape{1, 5000, 7}, Shape{3, 7, 3001}, Shape{257, 1500, 9}, Shape{4096, 300, 3},
                            Shape{300'001, 5, 3}, Shape{(1 << 20) + 5, 2, 2}, Shape{700, 1, 4000}}) {
    const size_t host_pitch = shape.width + 3, device_pitch = shape.width + 5;
    const size_t rows = shape.height + 1;
    if (rows * shape.depth * device_pitch > kMost) {
      OK(cuMemFree(device_));
      OK(cuMemAlloc(&device_, rows * shape.depth * device_pitch));
    }
    std::vector<unsigned char> from(rows * shape.depth * host_pitch), back(from.size(), kGuard);
    Fill(from.data(), from.size(), 7);
    CUDA_MEMCPY3D box{};
    box.srcMemoryType = CU_MEMORYTYPE_HOST;
    box.srcHost = from.data();
    box.srcPitch = host_pitch;
    box.srcHeight = rows;
    box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    box.dstDevice = device_;
    box.dstPitch = device_pitch;
    box.dstHeight = rows;
    box.WidthInBytes = shape.width;
    box.Height = shape.height;
    box.Depth = shape.depth;
    OK(cuMemcpy3D(&box));
    OK(cuCtxSynchronize());  // it has taken the source; the device may not have all of it yet
    box.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    box.srcDevice = device_;
    box.srcPitch = device_pitch;
    box.dstMemoryType = CU_MEMORYTYPE_HOST;
    box.dstHost = back.data();
    box.dstPitch = host_pitch;
    OK(cuMemcpy3DAsync(&box, apart_));
    OK(cuStreamSynchronize(apart_));
    std::vector<unsigned char> expected(back.size(), kGuard);
    for (size_t row = 0; row < rows * shape.depth; ++row) {
      if (row % rows < shape.height)
        std::memcpy(&expected[row * host_pitch], &from[row * host_pitch], shape.width);
    }
    const auto wrong = std::mismatch(back.begin(), back.end(), expected.begin()).first;
    ASSERT_EQ(wrong, back.end()) << shape.width << "x" << shape.height << "x" << shape.depth << " at "
                                 << wrong - back.begin();
  }
}

TEST_F(PageableCopyTest, ManyThreads) {
  constexpr int kThreads = 11;  // more than there are buffers
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      const size_t bytes = (size_t{1} << 20) * (1 + i % 3) + 77 * i;
      std::vector<unsigned char> from(bytes), back(bytes);
      CUdeviceptr device = 0;
      CUstream stream = nullptr;
      bool good = cuCtxSetCurrent(context_) == CUDA_SUCCESS && cuMemAlloc(&device, bytes) == CUDA_SUCCESS &&
                  cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS;
      for (uint32_t round = 0; round < 4 && good; ++round) {
        Fill(from.data(), bytes, 100 * i + round);
        good = round % 2 != 0 ? cuMemcpyHtoDAsync(device, from.data(), bytes, stream) == CUDA_SUCCESS &&
                                    cuMemcpyDtoHAsync(back.data(), device, bytes, stream) == CUDA_SUCCESS
                              : cuMemcpyHtoD(device, from.data(), bytes) == CUDA_SUCCESS &&
                                    cuMemcpyDtoH(back.data(), device, bytes) == CUDA_SUCCESS;
        good = good && back == from;
      }
      if (!good) failures.fetch_add(1);
      cuMemFree(device);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures.load(), 0);
}

// Large copies wait as small ones do.
TEST_F(PageableCopyTest, WhatLargeCopiesWaitFor) {
  std::vector<unsigned char> host(4 << 20);
  const auto waits = [&](CUstream busy, auto call, bool expected = true) {
    Spinner spinner(Kernel("spin"), busy);
    return Waits(
        spinner, [&] { EXPECT_EQ(call(), CUDA_SUCCESS); }, expected);
  };
  for (const size_t bytes : {size_t{1} << 20, host.size()}) {
    EXPECT_TRUE(waits(blocking_, [&] { return cuMemcpyHtoD(device_, host.data(), bytes); }));
    EXPECT_TRUE(waits(blocking_, [&] { return cuMemcpyDtoH(host.data(), device_, bytes); }));
    EXPECT_FALSE(waits(
        apart_, [&] { return cuMemcpyHtoD(device_, host.data(), bytes); }, false));
    EXPECT_FALSE(waits(
        apart_, [&] { return cuMemcpyDtoH(host.data(), device_, bytes); }, false));
    EXPECT_TRUE(waits(apart_, [&] { return cuMemcpyDtoHAsync(host.data(), device_, bytes, apart_); }));
  }
  EXPECT_FALSE(waits(
      apart_, [&] { return cuMemcpyHtoDAsync(device_, host.data(), 1 << 20, apart_); }, false));
  EXPECT_TRUE(waits(apart_, [&] { return cuMemcpyHtoDAsync(device_, host.data(), 4 << 20, apart_); }));
}

// With nothing left to wait for, small copies need no answer: they still take their source at once, are seen
// by whatever is sent after them, and wait again as soon as there is something to wait for.
TEST_F(PageableCopyTest, SmallCopiesWhenNothingIsLeft) {
  std::vector<unsigned char> source(64 << 10), back(source.size());
  CUdeviceptr second = 0;
  OK(cuMemAlloc(&second, source.size()));
  // NVIDIA's manual promises it to streams that the legacy one orders alone.
  const CUstream after = OnSoftwareGpu() ? apart_ : blocking_;
  for (uint32_t round = 0; round < 60; ++round) {
    if (round % 10 == 0) {
      OK(cuCtxSynchronize());
    }
    const size_t bytes = size_t{1} << round % 17;
    for (int copy = 0; copy < 3; ++copy) {
      std::memset(source.data(), static_cast<int>(3 * round + copy), bytes);
      OK(cuMemcpyHtoD(device_ + copy, source.data(), bytes));
      std::memset(source.data(), 0xff, bytes);
    }
    OK(cuMemcpyDtoDAsync(second, device_ + 2, bytes, after));
    OK(cuMemcpyDtoHAsync(back.data(), second, bytes, after));
    ASSERT_EQ(back[0], static_cast<unsigned char>(3 * round + 2)) << round;
    ASSERT_EQ(std::memcmp(back.data(), back.data() + 1, bytes - 1), 0) << round;
  }
}

// Large ones too may return before the device has all of it, and are seen by whatever is sent after them.
TEST_F(PageableCopyTest, LargeCopiesWhenNothingIsLeft) {
  CUdeviceptr second = 0;
  OK(cuMemAlloc(&second, kMost));
  std::vector<unsigned char> source(kMost), back(kMost), expected(kMost);
  uint32_t seed = 0;
  for (const size_t bytes : {(size_t{1} << 20) + 1, size_t{3} << 20, kMost - 1, (size_t{2} << 20) + 4096}) {
    Fill(expected.data(), bytes, ++seed);
    source = expected;
    OK(cuCtxSynchronize());
    for (int copy = 0; copy < 3; ++copy) {
      OK(cuMemcpyHtoD(device_, source.data(), bytes));
      std::memset(source.data(), 0xff, bytes);
      OK(cuMemcpyDtoDAsync(second, device_, bytes, blocking_));
      OK(cuMemcpyDtoHAsync(back.data(), second, bytes, blocking_));
      ASSERT_EQ(std::memcmp(back.data(), expected.data(), bytes), 0) << bytes << " " << copy;
      source = expected;
    }
  }
}

// The source may change as soon as the call has returned, also while the stream has not come to the copy, and
// of more copies than anybody has room for.
TEST_F(PageableCopyTest, SourcesAreTakenAtOnce) {
  constexpr size_t kBytes = 400'000, kCopies = 14;
  std::vector<unsigned char> source(kBytes), back(kBytes);
  for (const bool asynchronous : {true, false}) {
    OK(cuMemsetD8(device_, 0, kMost));
    OK(cuCtxSynchronize());
    for (size_t i = 0; i < kCopies; ++i) {
      Fill(source.data(), kBytes, static_cast<uint32_t>(i + asynchronous));
      OK(asynchronous ? cuMemcpyHtoDAsync(device_ + i * kBytes, source.data(), kBytes, apart_)
                      : cuMemcpyHtoD(device_ + i * kBytes, source.data(), kBytes));
    }
    for (size_t i = 0; i < kCopies; ++i) {
      Fill(source.data(), kBytes, static_cast<uint32_t>(i + asynchronous));
      OK(cuMemcpyDtoHAsync(back.data(), device_ + i * kBytes, kBytes, apart_));
      ASSERT_EQ(std::memcmp(back.data(), source.data(), kBytes), 0) << asynchronous << " " << i;
    }
  }
  CheckBothWays(kMost - 64, 3, apart_, false);  // which needs all the room again
}

TEST_F(PageableCopyTest, SmallCopiesWaitAgain) {
  uint32_t word = 7, back = 0;
  const auto see_nothing_left = [&] {
    OK(cuCtxSynchronize());
    for (int i = 0; i < 3; ++i) OK(cuMemcpyHtoD(device_, &word, 4));
  };
  see_nothing_left();
  for (const bool other_thread : {false, true}) {
    std::unique_ptr<Spinner> spinner;
    const CUfunction spin = Kernel("spin");
    const auto occupy = [&] {
      EXPECT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
      spinner = std::make_unique<Spinner>(spin, blocking_);
    };
    see_nothing_left();
    other_thread ? std::thread(occupy).join() : occupy();
    EXPECT_TRUE(Waits(*spinner, [&] { EXPECT_EQ(cuMemcpyHtoD(device_, &word, 4), CUDA_SUCCESS); }));
  }
  see_nothing_left();
  OK(cuMemcpyHtoDAsync(device_, source_.data(), 1 << 20, blocking_));
  OK(cuMemcpyHtoD(device_, &word, 4));
  OK(cuStreamSynchronize(nullptr));  // the other stream is not ordered with it
  OK(cuMemcpyDtoHAsync(&back, device_, 4, apart_));
  EXPECT_EQ(back, 7u);
}

// What another thread captures meanwhile neither fails nor ends.
TEST_F(PageableCopyTest, BesideACapture) {
  CUstream capturing = nullptr;
  OK(cuStreamCreate(&capturing, CU_STREAM_NON_BLOCKING));
  const Copier copier(context_, device_, source_);
  CUdeviceptr cell = 0;
  EXPECT_EQ(cuMemAlloc(&cell, 4), CUDA_SUCCESS);
  for (int round = 0; round < 20; ++round) {
    CUgraph graph = nullptr;
    EXPECT_EQ(cuStreamBeginCapture(capturing, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    EXPECT_EQ(cuMemsetD32Async(cell, round, 1, capturing), CUDA_SUCCESS);
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    EXPECT_EQ(cuStreamEndCapture(capturing, &graph), CUDA_SUCCESS);
    EXPECT_NE(graph, nullptr);
    if (graph != nullptr) cuGraphDestroy(graph);
  }
}

TEST_F(PageableCopyTest, ForksWhileCopying) {
  const Copier copier(context_, device_, source_);
  for (int round = 0; round < 10; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      char byte = 0;
      _exit(cuMemcpyDtoH(&byte, device_, 1) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
}

TEST_F(PageableCopyTest, SourceThatCanOnlyBeRead) {
  void* mapped = mmap(nullptr, kMost, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  std::memcpy(mapped, source_.data(), kMost);
  ASSERT_EQ(mprotect(mapped, kMost, PROT_READ), 0);
  std::vector<unsigned char> back(kMost);
  OK(cuMemcpyHtoD(device_, mapped, kMost));
  OK(cuMemcpyDtoH(back.data(), device_, kMost));
  EXPECT_EQ(std::memcmp(back.data(), source_.data(), kMost), 0);
  munmap(mapped, kMost);
}

// Memory that ends in the middle of a copy ends the copy or the program, never anybody else's.
class MissingMemory : public PageableCopyTest {
 protected:
  unsigned char* HalfMapped(int protection) {
    auto* mapped = static_cast<unsigned char*>(
        mmap(nullptr, kMost, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    std::memset(mapped, 1, kMost);
    EXPECT_EQ(mprotect(mapped + (3 << 20), 3 << 20, protection), 0);
    return mapped;
  }
};
TEST_F(MissingMemory, DISABLED_Source) {
  _exit(cuMemcpyHtoD(device_, HalfMapped(PROT_NONE), kMost) != CUDA_SUCCESS ? 3 : 0);
}
TEST_F(MissingMemory, DISABLED_Destination) {
  _exit(cuMemcpyDtoH(HalfMapped(PROT_READ), device_, kMost) != CUDA_SUCCESS ? 3 : 0);
}
TEST_F(PageableCopyTest, MemoryThatEnds) {
  for (const char* child : {"MissingMemory.DISABLED_Source", "MissingMemory.DISABLED_Destination"}) {
    const int code = RunChild(child);
    EXPECT_TRUE(code == 3 || code == 128 + SIGSEGV || code == 128 + SIGBUS) << child << " " << code;
  }
  CheckBothWays(kMost - 64, 0, apart_, false);
}

}  // namespace
}  // namespace causeway::driver_test
