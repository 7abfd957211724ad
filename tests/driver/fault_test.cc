// SPDX-License-Identifier: Apache-2.0
// Faults of the device: sticky, of one process alone. Each happens in a child; this process computes beside
// it.
#include <cstdio>

#include "tests/driver/child_process.h"
#include "tests/driver/driver_test.h"
#include "tests/yield_until.h"

namespace causeway::driver_test {
namespace {

using namespace std::chrono_literals;

// write(address): *address = 1. fail(): a device-side assert.
constexpr char kFaults[] = R"(
.version 8.0
.target sm_80
.address_size 64
.extern .func __assertfail
(
  .param .b64 message, .param .b64 file, .param .b32 line, .param .b64 function, .param .b64 size
);
.global .align 1 .b8 text[5] = {102, 97, 105, 108, 0};
.visible .entry write(.param .u64 address)
{
  .reg .b64 %rd<2>; .reg .b32 %r<2>;
  ld.param.u64 %rd1, [address];
  mov.u32 %r1, 1;
  st.global.u32 [%rd1], %r1;
  ret;
}
.visible .entry fail()
{
  .reg .b64 %rd<4>; .reg .b32 %r<2>;
  mov.u64 %rd1, text;
  cvta.global.u64 %rd2, %rd1;
  mov.u32 %r1, 7;
  mov.u64 %rd3, 1;
  {
  .param .b64 param0;
  st.param.b64 [param0], %rd2;
  .param .b64 param1;
  st.param.b64 [param1], %rd2;
  .param .b32 param2;
  st.param.b32 [param2], %r1;
  .param .b64 param3;
  st.param.b64 [param3], %rd2;
  .param .b64 param4;
  st.param.b64 [param4], %rd3;
  call.uni __assertfail, (param0, param1, param2, param3, param4);
  }
  ret;
}
)";

// The child's answer: 0, or one more for each check that failed; stderr says which.
int wrong = 0;
void Expect(const char* what, CUresult got, CUresult expected) {
  if (got == expected) return;
  ++wrong;
  std::fprintf(stderr, "after the fault %s = %d, not %d\n", what, got, expected);
}
#define EXPECT_AFTER(expected, call) Expect(#call, call, expected)

struct Process {
  CUcontext context = nullptr;
  CUmodule module = nullptr, kernels = nullptr;
  CUfunction add = nullptr, spin = nullptr, crash = nullptr;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  CUdeviceptr memory = 0;
  void* pinned = nullptr;

  Process() {
    const bool ready = cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
                       cuCtxSetCurrent(context) == CUDA_SUCCESS &&
                       cuModuleLoadData(&kernels, kKernels) == CUDA_SUCCESS &&
                       cuModuleGetFunction(&add, kernels, "add") == CUDA_SUCCESS &&
                       cuModuleGetFunction(&spin, kernels, "spin") == CUDA_SUCCESS &&
                       cuModuleGetFunction(&crash, kernels, "crash") == CUDA_SUCCESS &&
                       cuModuleLoadData(&module, kFaults) == CUDA_SUCCESS &&
                       cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS &&
                       cuEventCreate(&event, 0) == CUDA_SUCCESS && cuMemAlloc(&memory, 256) == CUDA_SUCCESS &&
                       cuMemAllocHost(&pinned, 256) == CUDA_SUCCESS;
    if (!ready) _exit(90);
  }
  CUresult Launch(CUfunction function, void** parameters) {
    return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
  }
  // Until the device has told, at most 5 s.
  CUresult Fault() {
    const auto end = std::chrono::steady_clock::now() + 5s;
    CUresult result = CUDA_SUCCESS;
    while (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY) {
      if (std::chrono::steady_clock::now() > end) _exit(91);
      result = cuStreamQuery(stream);
    }
    return result;
  }
};

// Every call that needs the context answers the same from now on.
void ExpectSticky(Process& p, CUresult error) {
  CUdeviceptr made = 0;
  CUevent event = nullptr;
  CUstream stream = nullptr;
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  void* host = nullptr;
  size_t free = 0, total = 0;
  uint32_t n = 1, value = 1, word = 0;
  float milliseconds = 0;
  void* parameters[] = {&p.memory, &n, &value};
  EXPECT_AFTER(error, cuStreamQuery(p.stream));
  EXPECT_AFTER(error, cuStreamQuery(nullptr));
  EXPECT_AFTER(error, cuStreamSynchronize(p.stream));
  EXPECT_AFTER(error, cuStreamWaitEvent(p.stream, p.event, 0));
  EXPECT_AFTER(error, cuCtxSynchronize());
  EXPECT_AFTER(error, cuMemAlloc(&made, 256));
  EXPECT_AFTER(error, cuMemFree(p.memory));
  EXPECT_AFTER(error, cuEventCreate(&event, 0));
  EXPECT_AFTER(error, cuEventRecord(p.event, p.stream));
  EXPECT_AFTER(error, cuEventQuery(p.event));
  EXPECT_AFTER(error, cuEventSynchronize(p.event));
  EXPECT_AFTER(error, cuEventElapsedTime(&milliseconds, p.event, p.event));
  EXPECT_AFTER(error, cuEventDestroy(p.event));
  EXPECT_AFTER(error, cuStreamCreate(&stream, 0));
  EXPECT_AFTER(error, cuModuleLoadData(&module, kKernels));
  EXPECT_AFTER(error, cuModuleGetFunction(&function, p.kernels, "store"));
  EXPECT_AFTER(error, cuModuleUnload(p.module));
  EXPECT_AFTER(error, cuMemHostAlloc(&host, 4096, 0));
  EXPECT_AFTER(error, cuMemGetInfo(&free, &total));
  EXPECT_AFTER(error, p.Launch(p.add, parameters));
  EXPECT_AFTER(error, cuMemcpyHtoD(p.memory, &word, 4));
  EXPECT_AFTER(error, cuMemcpyDtoH(&word, p.memory, 4));
  EXPECT_AFTER(error, cuMemcpyDtoDAsync(p.memory, p.memory + 64, 4, p.stream));
  EXPECT_AFTER(error, cuMemsetD8Async(p.memory, 0, 4, p.stream));
  EXPECT_AFTER(error, cuLaunchHostFunc(
                          p.stream, [](void*) {}, nullptr));
  EXPECT_AFTER(error, cuStreamDestroy(p.stream));
}

void ExpectUntouched(Process& p) {
  int number = 0, active = 0, major = 0;
  unsigned flags = 0, version = 0;
  CUcontext current = nullptr;
  CUdevice device = -1;
  EXPECT_AFTER(CUDA_SUCCESS, cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
  EXPECT_AFTER(CUDA_SUCCESS, cuDeviceGetCount(&number));
  EXPECT_AFTER(CUDA_SUCCESS, cuCtxGetCurrent(&current));
  EXPECT_AFTER(CUDA_SUCCESS, cuCtxGetDevice(&device));
  EXPECT_AFTER(CUDA_SUCCESS, cuCtxGetApiVersion(p.context, &version));
  EXPECT_AFTER(CUDA_SUCCESS, cuDevicePrimaryCtxGetState(0, &flags, &active));
  EXPECT_AFTER(CUDA_SUCCESS, cuDriverGetVersion(&number));
  if (current != p.context || device != 0) ++wrong;
}

// A reset is answered, but nothing works again in this process.
void ExpectNoWayBack(Process& p, CUresult error) {
  CUcontext context = nullptr;
  CUdeviceptr made = 0;
  EXPECT_AFTER(CUDA_SUCCESS, cuDevicePrimaryCtxReset(0));
  EXPECT_AFTER(error, cuDevicePrimaryCtxRetain(&context, 0));
  EXPECT_AFTER(error, cuCtxCreate(&context, nullptr, 0, 0));
  EXPECT_AFTER(CUDA_ERROR_CONTEXT_IS_DESTROYED == cuMemAlloc(&made, 4) ? error : error, error);
  (void)p;
}

void FaultAndExit(const char* kernel, CUdeviceptr address, CUresult expected) {
  Process p;
  int before = 0, after = 0;
  const CUresult peer = cuDeviceCanAccessPeer(&before, 0, 0);
  CUfunction function = p.crash;
  if (kernel != nullptr && cuModuleGetFunction(&function, p.module, kernel) != CUDA_SUCCESS) _exit(92);
  void* parameters[] = {&address};
  Expect("launch", p.Launch(function, parameters), CUDA_SUCCESS);
  Expect("the fault", p.Fault(), expected);
  ExpectSticky(p, expected);
  ExpectUntouched(p);
  EXPECT_AFTER(peer, cuDeviceCanAccessPeer(&after, 0, 0));
  ExpectNoWayBack(p, expected);
  exit(wrong);
}

TEST(Child, DISABLED_BadAddress) {
  FaultAndExit("write", 0x7ffffff0, CUDA_ERROR_ILLEGAL_ADDRESS);
}
TEST(Child, DISABLED_Trap) {
  FaultAndExit(nullptr, 0, CUDA_ERROR_LAUNCH_FAILED);
}
TEST(Child, DISABLED_Assert) {
  FaultAndExit("fail", 0, CUDA_ERROR_ASSERT);
}

// A copy that is waited for, behind a kernel whose fault nobody knows of yet: the fault is its error.
void FaultBeforeCopy(const std::function<CUresult(Process&)>& copy) {
  Process p;
  if (cuCtxSynchronize() != CUDA_SUCCESS) _exit(93);
  Expect("crash", cuLaunchKernel(p.crash, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr), CUDA_SUCCESS);
  Expect("the copy behind it", copy(p), CUDA_ERROR_LAUNCH_FAILED);
  ExpectSticky(p, CUDA_ERROR_LAUNCH_FAILED);
  exit(wrong);
}
uint32_t copied = 0;
TEST(Child, DISABLED_SmallCopyToHostBehindAFault) {
  FaultBeforeCopy([](Process& p) { return cuMemcpyDtoH(&copied, p.memory, 4); });
}
TEST(Child, DISABLED_SmallCopyToDeviceBehindAFault) {
  FaultBeforeCopy([](Process& p) { return cuMemcpyHtoD(p.memory, &copied, 4); });
}
TEST(Child, DISABLED_PinnedCopyToHostBehindAFault) {
  FaultBeforeCopy([](Process& p) { return cuMemcpyDtoH(p.pinned, p.memory, 256); });
}
TEST(Child, DISABLED_PinnedCopyToDeviceBehindAFault) {
  FaultBeforeCopy([](Process& p) { return cuMemcpyHtoD(p.memory, p.pinned, 256); });
}

// Copies that are under way when a kernel of another stream faults end with its error.
void FaultBesideCopies(const std::function<CUresult(CUdeviceptr, std::vector<char>&)>& copy) {
  Process p;
  CUdeviceptr device = 0;
  std::vector<char> host(size_t{24} << 20, 1);
  if (cuMemAlloc(&device, host.size()) != CUDA_SUCCESS) _exit(93);
  std::atomic<int> copies{0};
  CUresult result = CUDA_SUCCESS;
  std::thread copier([&] {
    result = cuCtxSetCurrent(p.context);
    for (; result == CUDA_SUCCESS; copies.fetch_add(1)) result = copy(device, host);
  });
  test::SleepUntil([&] { return copies.load() >= 3; });
  Expect("crash", p.Launch(p.crash, nullptr), CUDA_SUCCESS);
  copier.join();
  Expect("the copies", result, CUDA_ERROR_LAUNCH_FAILED);
  ExpectSticky(p, CUDA_ERROR_LAUNCH_FAILED);
  exit(wrong);
}
TEST(Child, DISABLED_LargeCopiesToDeviceMeetAFault) {
  FaultBesideCopies([](CUdeviceptr device, std::vector<char>& host) {
    return cuMemcpyHtoD(device, host.data(), host.size());
  });
}
TEST(Child, DISABLED_LargeCopiesToHostMeetAFault) {
  FaultBesideCopies([](CUdeviceptr device, std::vector<char>& host) {
    return cuMemcpyDtoH(host.data(), device, host.size());
  });
}

// Of what is enqueued behind a fault, callbacks run and learn the error, host functions do not run.
std::atomic<int> host_functions{0}, callbacks{0};
std::atomic<int> status{-1};
TEST(Child, DISABLED_CallbacksBehindAFault) {
  Process p;
  CUdeviceptr flag = 0;
  CUstream side = nullptr;
  if (cuMemAlloc(&flag, 4) != CUDA_SUCCESS || cuMemsetD32(flag, 0, 1) != CUDA_SUCCESS ||
      cuStreamCreate(&side, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS || cuCtxSynchronize() != CUDA_SUCCESS) {
    _exit(93);
  }
  // So that all is enqueued before the fault is known.
  void* parameters[] = {&flag};
  Expect("spin", p.Launch(p.spin, parameters), CUDA_SUCCESS);
  Expect("crash", p.Launch(p.crash, nullptr), CUDA_SUCCESS);
  Expect("host function",
         cuLaunchHostFunc(
             p.stream, [](void*) { host_functions.fetch_add(1); }, nullptr),
         CUDA_SUCCESS);
  Expect("callback",
         cuStreamAddCallback(
             p.stream,
             [](CUstream, CUresult result, void*) {
               status.store(result);
               callbacks.fetch_add(1);
             },
             nullptr, 0),
         CUDA_SUCCESS);
  Expect("release", cuMemsetD32Async(flag, 1, 1, side), CUDA_SUCCESS);
  Expect("the fault", p.Fault(), CUDA_ERROR_LAUNCH_FAILED);
  const auto end = std::chrono::steady_clock::now() + 5s;
  while (callbacks.load() == 0 && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(1ms);
  if (callbacks.load() != 1 || host_functions.load() != 0 || status.load() != CUDA_ERROR_LAUNCH_FAILED) {
    std::fprintf(stderr, "%d callbacks with status %d, %d host functions\n", callbacks.load(), status.load(),
                 host_functions.load());
    ++wrong;
  }
  exit(wrong);
}

class FaultTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    add_ = Kernel("add");
    OK(cuMemAlloc(&data_, 4));
    OK(cuMemsetD32(data_, 0, 1));
  }
  // This process, before, beside and after the fault of the child.
  void Compute() {
    uint32_t n = 1, value = 1, read = 0;
    void* parameters[] = {&data_, &n, &value};
    OK(cuLaunchKernel(add_, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
    OK(cuMemcpyDtoH(&read, data_, 4));
    EXPECT_EQ(read, ++expected_);
  }
  void RunBeside(const char* child) {
    std::atomic<bool> done{false};
    int code = -1;
    Compute();
    std::thread runner([&] {
      code = RunChild(child);
      done.store(true);
    });
    while (!done.load() && !HasFailure()) {
      Compute();
      std::this_thread::sleep_for(1ms);
    }
    runner.join();
    EXPECT_EQ(code, 0);
    Compute();
  }
  CUfunction add_ = nullptr;
  CUdeviceptr data_ = 0;
  uint32_t expected_ = 0;
};

TEST_F(FaultTest, BadAddress) {
  RunBeside("Child.DISABLED_BadAddress");
}
TEST_F(FaultTest, Trap) {
  RunBeside("Child.DISABLED_Trap");
}
TEST_F(FaultTest, Assert) {
  RunBeside("Child.DISABLED_Assert");
}
TEST_F(FaultTest, CallbacksBehindAFault) {
  RunBeside("Child.DISABLED_CallbacksBehindAFault");
}

TEST_F(FaultTest, CopiesBehindAFault) {
  for (const char* child :
       {"Child.DISABLED_SmallCopyToHostBehindAFault", "Child.DISABLED_SmallCopyToDeviceBehindAFault",
        "Child.DISABLED_PinnedCopyToHostBehindAFault", "Child.DISABLED_PinnedCopyToDeviceBehindAFault"}) {
    RunBeside(child);
  }
}

TEST_F(FaultTest, LargeCopiesMeetAFault) {
  RunBeside("Child.DISABLED_LargeCopiesToDeviceMeetAFault");
  RunBeside("Child.DISABLED_LargeCopiesToHostMeetAFault");
}

// Errors that are no fault leave everything as it was.
TEST_F(FaultTest, LaunchErrorsAreNotSticky) {
  uint32_t n = 1, value = 1;
  void* parameters[] = {&data_, &n, &value};
  EXPECT_EQ(cuLaunchKernel(add_, 1, 1, 1, 5000, 1, 1, 0, nullptr, parameters, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLaunchKernel(add_, 0, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr),
            CUDA_ERROR_INVALID_HANDLE);
  Compute();
}

}  // namespace
}  // namespace causeway::driver_test
