// SPDX-License-Identifier: Apache-2.0
// Census category host functions: copies from host memory that functions before them in stream order write.
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

using namespace std::chrono_literals;

class CallbackCopyTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    OK(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
  }
  void TearDown() override {
    cuStreamDestroy(stream_);
    DriverTest::TearDown();
  }

  CUstream stream_ = nullptr;
};

// A copy reads what a function before it in the stream has written.
TEST_F(CallbackCopyTest, TheFunctionWritesWhatTheNextCopyReads) {
  constexpr size_t kBytes = 64 << 10;
  CUdeviceptr device = 0;
  OK(cuMemAlloc(&device, kBytes));
  void* pinned = nullptr;
  OK(cuMemHostAlloc(&pinned, kBytes, 0));
  std::vector<char> registered(kBytes);
  OK(cuMemHostRegister(registered.data(), kBytes, 0));
  const auto write = [](void* user) {
    std::this_thread::sleep_for(20ms);
    std::memset(user, 1 + *static_cast<char*>(user), kBytes);
  };
  for (char* memory : {static_cast<char*>(pinned), registered.data()}) {
    std::memset(memory, 1, kBytes);
    std::vector<char> copied(kBytes);
    for (const size_t bytes : {size_t{4}, size_t{9000}, kBytes}) {
      OK(cuLaunchHostFunc(stream_, write, memory));
      OK(cuMemcpyHtoDAsync(device, memory, bytes, stream_));
      OK(cuMemcpyDtoHAsync(copied.data(), device, bytes, stream_));
      OK(cuStreamSynchronize(stream_));
      EXPECT_EQ(copied[0], memory[0]);
      EXPECT_EQ(copied[bytes - 1], memory[bytes - 1]);
    }
    OK(cuLaunchHostFunc(stream_, write, memory));
    CUDA_MEMCPY2D box{};
    box.srcMemoryType = CU_MEMORYTYPE_HOST;
    box.srcHost = memory;
    box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    box.dstDevice = device;
    box.srcPitch = box.dstPitch = 256;
    box.WidthInBytes = 200;
    box.Height = 100;
    OK(cuMemcpy2DAsync(&box, stream_));
    OK(cuMemcpyDtoHAsync(copied.data(), device, kBytes, stream_));
    OK(cuStreamSynchronize(stream_));
    EXPECT_EQ(memory[0], 5);
    EXPECT_EQ(copied[0], 5);
    EXPECT_EQ(copied[99 * 256 + 199], 5);
  }
  OK(cuMemHostUnregister(registered.data()));
  OK(cuMemFreeHost(pinned));
  OK(cuMemFree(device));
}

// The same for a synchronous copy behind a blocking stream, and for a function that is enqueued while another stream captures.
TEST_F(CallbackCopyTest, TheFunctionWritesWhatOtherCopiesRead) {
  constexpr size_t kBytes = 64 << 10;
  CUdeviceptr device = 0;
  void* pinned = nullptr;
  CUstream blocking = nullptr, captures = nullptr;
  OK(cuMemAlloc(&device, kBytes));
  OK(cuMemHostAlloc(&pinned, kBytes, 0));
  OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  OK(cuStreamCreate(&captures, CU_STREAM_NON_BLOCKING));
  std::memset(pinned, 1, kBytes);
  const auto write = [](void* user) {
    std::this_thread::sleep_for(20ms);
    std::memset(user, 1 + *static_cast<char*>(user), kBytes);
  };
  std::vector<char> copied(kBytes);
  OK(cuLaunchHostFunc(blocking, write, pinned));
  OK(cuMemcpyHtoD(device, pinned, kBytes));
  OK(cuMemcpyDtoH(copied.data(), device, kBytes));
  EXPECT_EQ(copied[0], 2);
  EXPECT_EQ(copied[kBytes - 1], 2);
  CUgraph graph = nullptr;
  OK(cuStreamBeginCapture(captures, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  OK(cuLaunchHostFunc(stream_, write, pinned));
  OK(cuStreamEndCapture(captures, &graph));
  OK(cuMemcpyHtoDAsync(device, pinned, kBytes, stream_));
  OK(cuMemcpyDtoHAsync(copied.data(), device, kBytes, stream_));
  OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(copied[0], 3);
  EXPECT_EQ(copied[kBytes - 1], 3);
  OK(cuGraphDestroy(graph));
  OK(cuStreamDestroy(captures));
  OK(cuStreamDestroy(blocking));
  OK(cuMemFreeHost(pinned));
  OK(cuMemFree(device));
}

// While a function of one stream has not returned, a copy in another stream is enqueued without a wait, also where that stream waits for the
// program.
TEST_F(CallbackCopyTest, ACopyDoesNotWaitForAFunctionElsewhere) {
  void* pinned = nullptr;
  CUdeviceptr device = 0;
  CUstream other = nullptr;
  const CUfunction spin = Kernel("spin");  // loading waits for the device, also for functions
  OK(cuMemHostAlloc(&pinned, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
  OK(cuMemAlloc(&device, 4096));
  OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  OK(cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(pinned), 5, 4096, other));
  OK(cuStreamSynchronize(other));
  static std::atomic<bool> go_on;
  go_on = false;
  OK(cuLaunchHostFunc(
      stream_,
      [](void*) {
        for (int i = 0; i < 1000 && !go_on; ++i) std::this_thread::sleep_for(5ms);
      },
      nullptr));
  {
    Spinner spinner(spin, other);
    EXPECT_FALSE(Waits(
        spinner, [&] { OK(cuMemcpyHtoDAsync(device, pinned, 4096, other)); }, false));
    go_on = true;  // the spinner's end waits for the device
  }
  OK(cuStreamSynchronize(stream_));
  OK(cuStreamSynchronize(other));
  char last = 0;
  OK(cuMemcpyDtoH(&last, device + 4095, 1));
  EXPECT_EQ(last, 5);
  OK(cuStreamDestroy(other));
  OK(cuMemFree(device));
  OK(cuMemFreeHost(pinned));
}

}  // namespace
}  // namespace causeway::driver_test
