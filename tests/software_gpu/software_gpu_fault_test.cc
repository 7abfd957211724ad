// SPDX-License-Identifier: Apache-2.0
// Device faults and misbehaviour on request. Both last as long as the process, so each test has its own: the
// statements run in a child process that is started anew, and end with exit(0) if all went as expected.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "tests/software_gpu/test_driver.h"

namespace causeway::software_gpu_test {
namespace {

class FaultTest : public ::testing::Test {
 protected:
  FaultTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

// Ends the child with the line of the first expectation that failed.
void Check(bool holds, int line) {
  if (holds) return;
  std::fprintf(stderr, "expectation in line %d does not hold\n", line);
  std::_Exit(1);
}

struct Device {
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUdeviceptr data = 0;

  Device() {
    Check(CU(cuInit)(0) == CUDA_SUCCESS, __LINE__);
    Check(CU(cuDevicePrimaryCtxRetain)(&context, 0) == CUDA_SUCCESS, __LINE__);
    Check(CU(cuCtxSetCurrent)(context) == CUDA_SUCCESS, __LINE__);
    Check(CU(cuModuleLoadData)(&module, kKernels) == CUDA_SUCCESS, __LINE__);
    Check(CU(cuMemAlloc_v2)(&data, 4096) == CUDA_SUCCESS, __LINE__);
  }

  CUresult Launch(const char* name, void** parameters) {
    CUfunction function = nullptr;
    Check(CU(cuModuleGetFunction)(&function, module, name) == CUDA_SUCCESS, __LINE__);
    return CU(cuLaunchKernel)(function, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr);
  }

  CUresult LaunchAdd() {
    unsigned zero = 0;
    void* parameters[] = {&data, &zero, &zero};
    return Launch("add", parameters);
  }

  CUresult LaunchStore(CUdeviceptr address) {
    unsigned value = 7;
    void* parameters[] = {&address, &value};
    return Launch("store", parameters);
  }
};

// What holds after any device fault.
void CheckSticky(Device& device, CUresult error) {
  CUdeviceptr pointer = 0;
  CUstream stream = nullptr;
  CUcontext context = nullptr;
  int value = 0;
  Check(CU(cuCtxSynchronize)() == error, __LINE__);
  Check(CU(cuMemAlloc_v2)(&pointer, 16) == error, __LINE__);
  Check(CU(cuMemFree_v2)(device.data) == error, __LINE__);
  Check(CU(cuStreamCreate)(&stream, 0) == error, __LINE__);
  Check(CU(cuStreamQuery)(nullptr) == error, __LINE__);
  Check(CU(cuModuleUnload)(device.module) == error, __LINE__);
  Check(CU(cuCtxGetCurrent)(&context) == CUDA_SUCCESS && context == device.context, __LINE__);
  Check(CU(cuDeviceGetAttribute)(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0) == CUDA_SUCCESS, __LINE__);
  Check(CU(cuDevicePrimaryCtxReset_v2)(0) == CUDA_SUCCESS, __LINE__);
  Check(CU(cuDevicePrimaryCtxRetain)(&context, 0) == error, __LINE__);
  std::exit(0);
}

TEST_F(FaultTest, BadAddressIsSticky) {
  EXPECT_EXIT(
      {
        Device device;
        Check(device.LaunchStore(0x1000) == CUDA_SUCCESS, __LINE__);
        CheckSticky(device, CUDA_ERROR_ILLEGAL_ADDRESS);
      },
      ::testing::ExitedWithCode(0), IsOtherLibrary() ? "" : "kernel store");
}

TEST_F(FaultTest, TrapIsSticky) {
  EXPECT_EXIT(
      {
        Device device;
        Check(device.Launch("crash", nullptr) == CUDA_SUCCESS, __LINE__);
        CheckSticky(device, CUDA_ERROR_LAUNCH_FAILED);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(FaultTest, FreedMemoryIsNotAddressable) {
  EXPECT_EXIT(
      {
        Device device;
        Check(device.LaunchStore(device.data) == CUDA_SUCCESS, __LINE__);
        Check(CU(cuCtxSynchronize)() == CUDA_SUCCESS, __LINE__);
        Check(CU(cuMemFree_v2)(device.data) == CUDA_SUCCESS, __LINE__);
        Check(device.LaunchStore(device.data) == CUDA_SUCCESS, __LINE__);
        Check(CU(cuCtxSynchronize)() == CUDA_ERROR_ILLEGAL_ADDRESS, __LINE__);
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

// Two blocks of mapped memory, whose access is taken away without a wait for the device; a stream that begins
// when the gate opens.
class WorkThatWaits : public Device {
 public:
  WorkThatWaits() {
    Check(CU(cuMemAddressReserve)(&memory_, 2 * kBlock, 0, 0, 0) == CUDA_SUCCESS, __LINE__);
    for (CUdeviceptr block : {memory_, other()}) {
      CUmemAllocationProp properties{};
      properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
      properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
      CUmemGenericAllocationHandle handle = 0;
      Check(CU(cuMemCreate)(&handle, kBlock, &properties, 0) == CUDA_SUCCESS, __LINE__);
      Check(CU(cuMemMap)(block, kBlock, 0, handle, 0) == CUDA_SUCCESS, __LINE__);
      SetAccess(block, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    }
    void* gate = nullptr;
    Check(CU(cuMemHostAlloc)(&gate, 4096, CU_MEMHOSTALLOC_DEVICEMAP) == CUDA_SUCCESS, __LINE__);
    gate_ = static_cast<unsigned*>(gate);
    *gate_ = 0;
    Check(CU(cuStreamCreate)(&stream_, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS, __LINE__);
    Check(CU(cuStreamWaitValue32_v2)(stream_, reinterpret_cast<CUdeviceptr>(gate), 1,
                                     CU_STREAM_WAIT_VALUE_EQ) == CUDA_SUCCESS,
          __LINE__);
  }

  CUdeviceptr memory() const { return memory_; }
  CUdeviceptr other() const { return memory_ + kBlock; }
  CUstream stream() const { return stream_; }

  void SetAccess(CUdeviceptr block, CUmemAccess_flags access) {
    CUmemAccessDesc wanted{};
    wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    wanted.flags = access;
    Check(CU(cuMemSetAccess)(block, kBlock, &wanted, 1) == CUDA_SUCCESS, __LINE__);
  }
  CUresult OpenGate() {
    __atomic_store_n(gate_, 1u, __ATOMIC_RELEASE);
    return CU(cuStreamSynchronize)(stream_);
  }
  [[noreturn]] void ExpectFault() {
    Check(OpenGate() == CUDA_ERROR_ILLEGAL_ADDRESS, __LINE__);
    Check(CU(cuCtxSynchronize)() == CUDA_ERROR_ILLEGAL_ADDRESS, __LINE__);
    std::exit(0);
  }

 private:
  static constexpr size_t kBlock = 2u << 20;
  CUdeviceptr memory_ = 0;
  CUstream stream_ = nullptr;
  unsigned* gate_ = nullptr;
};

// `ask` asks for work; then the memory can be read at most (`written`), or not be touched any more.
template <typename Ask>
void ExpectFaultOfWork(const Ask& ask, bool written) {
  EXPECT_EXIT(
      {
        WorkThatWaits work;
        Check(ask(work) == CUDA_SUCCESS, __LINE__);
        work.SetAccess(work.memory(),
                       written ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_NONE);
        work.ExpectFault();
      },
      ::testing::ExitedWithCode(0), IsOtherLibrary() ? "" : "device fault 700");
}

CUDA_MEMCPY2D Plane(CUdeviceptr to, CUdeviceptr from) {
  CUDA_MEMCPY2D plane{};
  plane.dstMemoryType = plane.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  plane.dstDevice = to;
  plane.srcDevice = from;
  plane.dstPitch = plane.srcPitch = 512;
  plane.WidthInBytes = 64;
  plane.Height = 100;
  return plane;
}

TEST_F(FaultTest, QueuedFillOfMemoryThatWasTakenAway) {
  for (bool written : {false, true})
    ExpectFaultOfWork(
        [](WorkThatWaits& work) { return CU(cuMemsetD32Async)(work.memory(), 7, 64, work.stream()); },
        written);
}

TEST_F(FaultTest, QueuedCopyToMemoryThatWasTakenAway) {
  for (bool written : {false, true})
    ExpectFaultOfWork(
        [](WorkThatWaits& work) {
          return CU(cuMemcpyDtoDAsync_v2)(work.memory(), work.other(), 4096, work.stream());
        },
        written);
}

TEST_F(FaultTest, QueuedCopyFromMemoryThatWasTakenAway) {
  ExpectFaultOfWork(
      [](WorkThatWaits& work) {
        return CU(cuMemcpyDtoDAsync_v2)(work.other(), work.memory(), 4096, work.stream());
      },
      false);
}

TEST_F(FaultTest, QueuedCopyOfTheProgramsMemoryToWhatWasTakenAway) {
  ExpectFaultOfWork(
      [](WorkThatWaits& work) {
        const char bytes[100] = "the source is captured";
        return CU(cuMemcpyHtoDAsync_v2)(work.memory(), bytes, sizeof bytes, work.stream());
      },
      true);
}

TEST_F(FaultTest, QueuedPlaneToAndFromMemoryThatWasTakenAway) {
  ExpectFaultOfWork(
      [](WorkThatWaits& work) {
        const CUDA_MEMCPY2D plane = Plane(work.memory(), work.other());
        return CU(cuMemcpy2DAsync_v2)(&plane, work.stream());
      },
      true);
  ExpectFaultOfWork(
      [](WorkThatWaits& work) {
        const CUDA_MEMCPY2D plane = Plane(work.other(), work.memory());
        return CU(cuMemcpy2DAsync_v2)(&plane, work.stream());
      },
      false);
}

TEST_F(FaultTest, QueuedWordsInMemoryThatWasTakenAway) {
  ExpectFaultOfWork(
      [](WorkThatWaits& work) { return CU(cuStreamWriteValue32_v2)(work.stream(), work.memory(), 1, 0); },
      true);
  ExpectFaultOfWork(
      [](WorkThatWaits& work) {
        return CU(cuStreamWaitValue64_v2)(work.stream(), work.memory(), 1, CU_STREAM_WAIT_VALUE_GEQ);
      },
      false);
}

TEST_F(FaultTest, KernelStoresToMemoryThatMayBeRead) {
  ExpectFaultOfWork(
      [](WorkThatWaits& work) {
        CUfunction store = nullptr;
        CUdeviceptr address = work.memory();
        unsigned value = 7;
        void* parameters[] = {&address, &value};
        Check(CU(cuModuleGetFunction)(&store, work.module, "store") == CUDA_SUCCESS, __LINE__);
        return CU(cuLaunchKernel)(store, 1, 1, 1, 1, 1, 1, 0, work.stream(), parameters, nullptr);
      },
      true);
}

TEST_F(FaultTest, ReadingMemoryThatMayBeReadIsNoFault) {
  EXPECT_EXIT(
      {
        WorkThatWaits work;
        Check(CU(cuMemcpyDtoDAsync_v2)(work.other(), work.memory(), 4096, work.stream()) == CUDA_SUCCESS,
              __LINE__);
        work.SetAccess(work.memory(), CU_MEM_ACCESS_FLAGS_PROT_READ);
        Check(work.OpenGate() == CUDA_SUCCESS, __LINE__);
        work.SetAccess(work.memory(), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        Check(CU(cuMemsetD8_v2)(work.memory(), 1, 4096) == CUDA_SUCCESS, __LINE__);
        Check(CU(cuCtxSynchronize)() == CUDA_SUCCESS, __LINE__);
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

// Nodes are checked when they are made, and run when their memory may have been freed for long.
void FillFreedMemoryByGraph(bool managed) {
  Device device;
  CUdeviceptr memory = 0;
  void* pinned = nullptr;
  const CUresult made = managed ? CU(cuMemAllocManaged)(&memory, 1u << 20, CU_MEM_ATTACH_GLOBAL)
                                : CU(cuMemHostAlloc)(&pinned, 1u << 20, CU_MEMHOSTALLOC_DEVICEMAP);
  Check(made == CUDA_SUCCESS, __LINE__);
  if (!managed) memory = reinterpret_cast<CUdeviceptr>(pinned);
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  CUgraphExec exec = nullptr;
  const CUDA_MEMSET_NODE_PARAMS fill{memory, 0, 7, 4, 1000, 1};
  Check(CU(cuGraphCreate)(&graph, 0) == CUDA_SUCCESS, __LINE__);
  Check(CU(cuGraphAddMemsetNode)(&node, graph, nullptr, 0, &fill, device.context) == CUDA_SUCCESS, __LINE__);
  Check(CU(cuGraphInstantiateWithFlags)(&exec, graph, 0) == CUDA_SUCCESS, __LINE__);
  Check(CU(cuGraphLaunch)(exec, nullptr) == CUDA_SUCCESS, __LINE__);
  Check(CU(cuCtxSynchronize)() == CUDA_SUCCESS, __LINE__);
  Check((managed ? CU(cuMemFree_v2)(memory) : CU(cuMemFreeHost)(pinned)) == CUDA_SUCCESS, __LINE__);
  Check(CU(cuGraphLaunch)(exec, nullptr) == CUDA_SUCCESS, __LINE__);
  Check(CU(cuCtxSynchronize)() == CUDA_ERROR_ILLEGAL_ADDRESS, __LINE__);
  std::exit(0);
}

TEST_F(FaultTest, GraphFillsFreedMemory) {
  EXPECT_EXIT(FillFreedMemoryByGraph(true), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(FillFreedMemoryByGraph(false), ::testing::ExitedWithCode(0), "");
}

TEST_F(FaultTest, InjectedFailureHitsTheNthCall) {
  setenv("SOFTWARE_GPU_FAIL", "cuMemAlloc_v2:3:2,cuStreamCreate:1:999", 1);
  EXPECT_EXIT(
      {
        Device device;  // the first cuMemAlloc_v2
        CUdeviceptr pointer = 0;
        CUstream stream = nullptr;
        Check(CU(cuMemAlloc_v2)(&pointer, 16) == CUDA_SUCCESS, __LINE__);
        Check(CU(cuMemAlloc_v2)(&pointer, 16) == CUDA_ERROR_OUT_OF_MEMORY, __LINE__);
        Check(CU(cuMemAlloc_v2)(&pointer, 16) == CUDA_SUCCESS, __LINE__);
        Check(CU(cuStreamCreate)(&stream, 0) == CUDA_ERROR_UNKNOWN, __LINE__);
        Check(CU(cuStreamCreate)(&stream, 0) == CUDA_SUCCESS, __LINE__);
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
  unsetenv("SOFTWARE_GPU_FAIL");
}

TEST_F(FaultTest, MisspelledWishEndsTheProcess) {
  setenv("SOFTWARE_GPU_FAIL", "cuMemAlloc_v2=3", 1);
  EXPECT_EXIT(CU(cuInit)(0), ::testing::KilledBySignal(SIGABRT), "SOFTWARE_GPU_FAIL is 'cuMemAlloc_v2=3'");
  unsetenv("SOFTWARE_GPU_FAIL");
}

TEST_F(FaultTest, DeviceIsLostAfterLaunches) {
  setenv("SOFTWARE_GPU_LOSE_AFTER_LAUNCHES", "2", 1);
  EXPECT_EXIT(
      {
        Device device;
        Check(device.LaunchAdd() == CUDA_SUCCESS, __LINE__);
        Check(device.LaunchAdd() == CUDA_SUCCESS, __LINE__);
        Check(CU(cuCtxSynchronize)() == CUDA_SUCCESS, __LINE__);
        device.LaunchAdd();
        CheckSticky(device, CUDA_ERROR_LAUNCH_FAILED);
      },
      ::testing::ExitedWithCode(0), "the device is lost");
  unsetenv("SOFTWARE_GPU_LOSE_AFTER_LAUNCHES");
}

TEST_F(FaultTest, ProcessDiesAtLaunch) {
  setenv("SOFTWARE_GPU_ABORT_AT_LAUNCH", "2", 1);
  EXPECT_EXIT(
      {
        Device device;
        Check(device.LaunchAdd() == CUDA_SUCCESS, __LINE__);
        device.LaunchAdd();
        std::exit(0);
      },
      ::testing::KilledBySignal(SIGABRT), "aborting at launch 2");
  unsetenv("SOFTWARE_GPU_ABORT_AT_LAUNCH");
}

void LoadACubin() {
  Device device;
  std::ifstream file(std::string(SOFTWARE_GPU_IMAGES) + "/cubin.fatbin", std::ios::binary);
  const std::string image((std::istreambuf_iterator<char>(file)), {});
  CUmodule module = nullptr;
  Check(CU(cuModuleLoadData)(&module, image.data()) == CUDA_SUCCESS, __LINE__);
  unsigned count = 0;
  Check(CU(cuModuleGetFunctionCount)(&count, module) == CUDA_SUCCESS && count == 2, __LINE__);
  CUfunction scale = nullptr;
  Check(CU(cuModuleGetFunction)(&scale, module, "scale") == CUDA_SUCCESS, __LINE__);
  size_t offset = 0;
  size_t bytes = 0;
  Check(CU(cuFuncGetParamInfo)(scale, 1, &offset, &bytes) == CUDA_SUCCESS, __LINE__);
  Check(offset == 8 && bytes == 4, __LINE__);
  Check(CU(cuFuncGetParamInfo)(scale, 2, &offset, &bytes) == CUDA_ERROR_INVALID_VALUE, __LINE__);
  Check(CU(cuModuleGetGlobal_v2)(&device.data, &bytes, module, "table") == CUDA_SUCCESS, __LINE__);
  Check(bytes == 12, __LINE__);
  unsigned factor = 5;
  void* parameters[] = {&device.data, &factor};
  Check(CU(cuLaunchKernel)(scale, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr) == CUDA_SUCCESS,
        __LINE__);
  Check(CU(cuCtxSynchronize)() == CUDA_SUCCESS, __LINE__);
  std::exit(0);
}

TEST_F(FaultTest, CubinsAreOutlinedWhereWanted) {
  setenv("SOFTWARE_GPU_CUBINS", "1", 1);
  EXPECT_EXIT(LoadACubin(), ::testing::ExitedWithCode(0), "");
  unsetenv("SOFTWARE_GPU_CUBINS");
}

TEST_F(FaultTest, SeveralDevicesShareOneAddressSpace) {
  setenv("SOFTWARE_GPU_DEVICES", "2", 1);
  EXPECT_EXIT(
      {
        Device device;
        int count = 0;
        int peer = 0;
        CUcontext second = nullptr;
        CUdeviceptr there = 0;
        unsigned word = 0;
        Check(CU(cuDeviceGetCount)(&count) == CUDA_SUCCESS && count == 2, __LINE__);
        Check(CU(cuDeviceCanAccessPeer)(&peer, 0, 1) == CUDA_SUCCESS && peer == 1, __LINE__);
        Check(CU(cuDevicePrimaryCtxRetain)(&second, 1) == CUDA_SUCCESS, __LINE__);
        Check(CU(cuCtxSetCurrent)(second) == CUDA_SUCCESS, __LINE__);
        Check(CU(cuMemAlloc_v2)(&there, 4) == CUDA_SUCCESS, __LINE__);
        Check(CU(cuMemsetD32_v2)(there, 77, 1) == CUDA_SUCCESS, __LINE__);
        Check(CU(cuCtxSynchronize)() == CUDA_SUCCESS, __LINE__);
        Check(CU(cuMemcpyPeer)(device.data, device.context, there, second, 4) == CUDA_SUCCESS, __LINE__);
        Check(CU(cuMemcpyDtoH_v2)(&word, device.data, 4) == CUDA_SUCCESS && word == 77, __LINE__);
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
  unsetenv("SOFTWARE_GPU_DEVICES");
}

TEST_F(FaultTest, ForkedChildIsRefused) {
  EXPECT_EXIT(
      {
        Device device;
        pid_t child = fork();
        if (child == 0) {
          int count = 0;
          int version = 0;
          bool refused = CU(cuDeviceGetCount)(&count) == CUDA_ERROR_NOT_INITIALIZED &&
                         CU(cuInit)(0) == CUDA_ERROR_NOT_INITIALIZED &&
                         CU(cuDriverGetVersion)(&version) == CUDA_SUCCESS;
          std::_Exit(refused ? 0 : 1);
        }
        int status = -1;
        waitpid(child, &status, 0);
        Check(status == 0, __LINE__);
        Check(device.LaunchAdd() == CUDA_SUCCESS && CU(cuCtxSynchronize)() == CUDA_SUCCESS, __LINE__);
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace causeway::software_gpu_test
