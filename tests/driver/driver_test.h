// SPDX-License-Identifier: Apache-2.0
// What the conformance programs share. Each is an ordinary CUDA program: linked against libcuda.so.1, it runs
// on NVIDIA's library and on Causeway's, and compare_ways.py holds the two runs against each other. So a test
// states what CUDA does (expectations), and records what CUDA leaves open but must be the same both times
// (Say).
#pragma once

#include <cuda.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>

#include "tests/driver/kernels.h"

namespace causeway::driver_test {

// A step that the rest of the test needs.
#define OK(call) ASSERT_EQ(call, CUDA_SUCCESS)

// The software GPU (tests/software_gpu) lacks some of the hardware; it says so in its name.
inline bool OnSoftwareGpu() {
  char name[256] = "";
  return cuDeviceGetName(name, sizeof name, 0) == CUDA_SUCCESS &&
         std::string_view(name).find("oftware") != std::string_view::npos;
}
#define NEEDS_HARDWARE(what) \
  if (::causeway::driver_test::OnSoftwareGpu()) GTEST_SKIP() << "the software GPU lacks " what

// Over TCP, encrypted or not, copies to pinned or registered memory that the device does not reach are done when the call returns,
// and copies from it have read the bytes by then.
inline bool SharesMemory() {
  const char* way = std::getenv("CAUSEWAY");
  return way == nullptr ||
         (!std::string_view(way).starts_with("tcp:") && !std::string_view(way).starts_with("tls:"));
}
#define NEEDS_SHARED_MEMORY() \
  if (!::causeway::driver_test::SharesMemory()) GTEST_SKIP() << "TCP shares no memory"

// A value that the two runs must agree on.
template <class T>
void Say(const std::string& key, const T& value) {
  ::testing::Test::RecordProperty(key, ::testing::PrintToString(value));
}

// A function of the library by its exact exported name: the older ABIs, which cuda.h hides.
void* Symbol(const char* name);
template <class Function>
Function* SymbolAs(const char* name) {
  return reinterpret_cast<Function*>(Symbol(name));
}

// Replies that the calling thread has waited for, as Causeway's library counts them; always 0 on any other.
uint64_t RepliesAwaited();

// The primary context of device 0, current. It lasts as long as the suite: making one takes a GPU longer than
// most tests.
class DriverTest : public ::testing::Test {
 public:
  static void TearDownTestSuite() { LetContextEnd(); }

 protected:
  void SetUp() override;
  // After a failure the context ends and frees what the test left.
  void TearDown() override;
  // For a test of what ends with the context: the last reference is the test's own.
  static void LetContextEnd();
  // One of the kernels in kernels.h; the module stays until the context ends.
  CUfunction Kernel(const char* name);
  // Runs add(data, 1, 37) on a 5, by whatever stands for the kernel.
  static void ExpectAdds(CUfunction add);

  CUcontext context_ = nullptr;
  CUmodule module_ = nullptr;

 private:
  // With DRIVER_TEST_BESIDE_MANAGED in the environment: managed memory that no test has anything to do with.
  CUdeviceptr beside_ = 0;
};

// With a word of device memory that is zero, and the kernels to change it and to occupy a stream.
class AddTest : public DriverTest {
 protected:
  void SetUp() override;
  // data_[0] += value
  CUresult Add(CUstream stream, uint32_t value);

  static constexpr size_t kDataBytes = 1 << 16;
  CUdeviceptr data_ = 0;
  CUfunction spin_ = nullptr, add_ = nullptr;
};

// A kernel that occupies its stream until Release() or the end of its life. Its flag is host memory that the
// GPU reads. (No call could release it in device memory: while one call waits for the kernel, NVIDIA's driver holds
// up the others.)
class Spinner {
 public:
  Spinner(CUfunction spin, CUstream stream);
  ~Spinner();
  Spinner(const Spinner&) = delete;
  Spinner& operator=(const Spinner&) = delete;
  void Release() { *flag_ = 1; }

 private:
  volatile uint32_t* flag_ = nullptr;
};

// How long what occupies a stream is held where a call is expected to wait for it. A call that does not wait and takes
// longer than that is taken for one that waits: DRIVER_TEST_HOLD_MS=400 finds it on a busy machine, too.
std::chrono::milliseconds HoldTime();

// True when `call` returned only after the spinner ended, which is released after a while: a short one if the
// call is expected to wait, else long enough for a call on a busy machine.
template <class Call>
bool Waits(Spinner& spinner, Call call, bool expected = true) {
  const std::chrono::milliseconds patience = expected ? HoldTime() : std::chrono::milliseconds(10'000);
  std::atomic<bool> done{false};
  std::atomic<bool> released{false};
  std::thread releaser([&] {
    const auto end = std::chrono::steady_clock::now() + patience;
    while (!done.load() && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    if (!done.load()) released.store(true);
    spinner.Release();
  });
  call();
  const bool waited = released.load();
  done.store(true);
  releaser.join();
  return waited;
}

}  // namespace causeway::driver_test
