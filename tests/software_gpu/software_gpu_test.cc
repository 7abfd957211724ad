// SPDX-License-Identifier: Apache-2.0
// Devices, contexts, memory and copies of the software GPU.
#include <cstring>
#include <thread>

#include "tests/software_gpu/test_driver.h"

namespace causeway::software_gpu_test {
namespace {

TEST(Initialisation, CallsBeforeInitAnswerNotInitialised) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  int count = 0;
  int version = 0;
  const char* text = nullptr;
  EXPECT_EXIT(
      {
        bool ok = CU(cuDeviceGetCount)(&count) == CUDA_ERROR_NOT_INITIALIZED &&
                  CU(cuCtxSynchronize)() == CUDA_ERROR_NOT_INITIALIZED &&
                  CU(cuDriverGetVersion)(&version) == CUDA_SUCCESS && version == 13000 &&
                  CU(cuGetErrorName)(CUDA_ERROR_ILLEGAL_ADDRESS, &text) == CUDA_SUCCESS &&
                  std::strcmp(text, "CUDA_ERROR_ILLEGAL_ADDRESS") == 0 &&
                  CU(cuInit)(1) == CUDA_ERROR_INVALID_VALUE && CU(cuInit)(0) == CUDA_SUCCESS;
        std::exit(ok ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(DriverTest, DeviceLooksLikeAnSm90) {
  int value = 0;
  EXPECT_EQ(CU(cuDeviceGetCount)(&value), CUDA_SUCCESS);
  EXPECT_EQ(value, 1);
  EXPECT_EQ(CU(cuDeviceGetAttribute)(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0), CUDA_SUCCESS);
  EXPECT_EQ(value, 32);
  EXPECT_EQ(CU(cuDeviceGetAttribute)(&value, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0), CUDA_SUCCESS);
  EXPECT_EQ(value, 9);
  EXPECT_EQ(CU(cuDeviceGetAttribute)(&value, static_cast<CUdevice_attribute>(250), 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuDeviceGetAttribute)(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 7), CUDA_ERROR_INVALID_DEVICE);
  CUdevice device = -1;
  EXPECT_EQ(CU(cuDeviceGet)(&device, 1), CUDA_ERROR_INVALID_DEVICE);
  char bus_id[32] = {};
  EXPECT_EQ(CU(cuDeviceGetPCIBusId)(bus_id, sizeof bus_id, 0), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuDeviceGetByPCIBusId)(&device, bus_id), CUDA_SUCCESS);
  EXPECT_EQ(device, 0);
}

TEST_F(DriverTest, CreatedContextIsPushedAndPopped) {
  CUcontext created = nullptr;
  CUcontext current = nullptr;
  ASSERT_EQ(CU(cuCtxCreate_v2)(&created, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuCtxGetCurrent)(&current), CUDA_SUCCESS);
  EXPECT_EQ(current, created);
  EXPECT_EQ(CU(cuCtxDestroy_v2)(created), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuCtxGetCurrent)(&current), CUDA_SUCCESS);
  EXPECT_EQ(current, context_);
  EXPECT_EQ(CU(cuCtxDestroy_v2)(created), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(DriverTest, PrimaryContextIsCountedAndKeepsItsHandle) {
  unsigned flags = 0;
  int active = 0;
  unsigned long long first_id = 0;
  unsigned long long second_id = 0;
  EXPECT_EQ(CU(cuCtxGetId)(context_, &first_id), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuDevicePrimaryCtxRelease_v2)(0), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuDevicePrimaryCtxGetState)(0, &flags, &active), CUDA_SUCCESS);
  EXPECT_EQ(active, 0);
  EXPECT_EQ(CU(cuDevicePrimaryCtxRelease_v2)(0), CUDA_ERROR_INVALID_CONTEXT);
  CUdeviceptr pointer = 0;
  EXPECT_EQ(CU(cuMemAlloc_v2)(&pointer, 16), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CUcontext again = nullptr;
  EXPECT_EQ(CU(cuDevicePrimaryCtxRetain)(&again, 0), CUDA_SUCCESS);
  EXPECT_EQ(again, context_);
  EXPECT_EQ(CU(cuCtxGetId)(context_, &second_id), CUDA_SUCCESS);
  EXPECT_NE(first_id, second_id);
  EXPECT_EQ(CU(cuMemAlloc_v2)(&pointer, 16), CUDA_SUCCESS);
}

TEST_F(DriverTest, ThreadsStartWithoutContext) {
  std::thread([] {
    CUcontext current = reinterpret_cast<CUcontext>(1);
    EXPECT_EQ(CU(cuCtxGetCurrent)(&current), CUDA_SUCCESS);
    EXPECT_EQ(current, nullptr);
    CUdeviceptr pointer = 0;
    EXPECT_EQ(CU(cuMemAlloc_v2)(&pointer, 16), CUDA_ERROR_INVALID_CONTEXT);
  }).join();
}

TEST_F(DriverTest, AllocationErrorsAsNatively) {
  CUdeviceptr pointer = 0;
  EXPECT_EQ(CU(cuMemAlloc_v2)(nullptr, 16), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuMemAlloc_v2)(&pointer, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuMemAlloc_v2)(&pointer, size_t{1} << 50), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(CU(cuMemFree_v2)(0), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuMemFree_v2)(12345), CUDA_ERROR_INVALID_VALUE);
  pointer = Allocate(1000);
  EXPECT_EQ(pointer % 256, 0u);
  EXPECT_EQ(CU(cuMemFree_v2)(pointer + 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuMemFree_v2)(pointer), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuMemFree_v2)(pointer), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(DriverTest, FreedMemoryIsReusedAndAccounted) {
  size_t free_before = 0;
  size_t free_after = 0;
  size_t total = 0;
  ASSERT_EQ(CU(cuMemGetInfo_v2)(&free_before, &total), CUDA_SUCCESS);
  size_t bytes = total / 2 + 1;
  for (int round = 0; round < 3; ++round) {
    CUdeviceptr pointer = 0;
    CUdeviceptr second = 0;
    ASSERT_EQ(CU(cuMemAlloc_v2)(&pointer, bytes), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuMemAlloc_v2)(&second, bytes), CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT_EQ(CU(cuMemFree_v2)(pointer), CUDA_SUCCESS);
  }
  ASSERT_EQ(CU(cuMemGetInfo_v2)(&free_after, &total), CUDA_SUCCESS);
  EXPECT_EQ(free_before, free_after);
}

TEST_F(DriverTest, CopiesStayInTheirAllocation) {
  CUdeviceptr pointer = Allocate(1000);
  std::vector<char> host(4096, 'x');
  EXPECT_EQ(CU(cuMemcpyHtoD_v2)(pointer, host.data(), 1000), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuMemcpyHtoD_v2)(pointer, host.data(), 1001), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuMemcpyHtoD_v2)(2, host.data(), 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuMemcpyHtoD_v2)(pointer, host.data(), 0), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuMemsetD32_v2)(2, 0, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuMemsetD32_v2)(pointer + 2, 0, 1), CUDA_ERROR_INVALID_VALUE);
  std::vector<char> back(1000);
  EXPECT_EQ(CU(cuMemcpy)(reinterpret_cast<uintptr_t>(back.data()), pointer, 1000), CUDA_SUCCESS);
  EXPECT_EQ(std::memcmp(back.data(), host.data(), 1000), 0);
}

TEST_F(DriverTest, MemsetsOfAllWidths) {
  CUdeviceptr pointer = Allocate(64);
  EXPECT_EQ(CU(cuMemsetD32_v2)(pointer, 0x01020304, 4), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuMemsetD16_v2)(pointer + 4, 0xabcd, 2), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuMemsetD2D8_v2)(pointer + 8, 8, 0xee, 2, 2), CUDA_SUCCESS);
  std::vector<unsigned> words = Read(pointer, 6);
  EXPECT_EQ(words, (std::vector<unsigned>{0x01020304, 0xabcdabcd, 0x0102eeee, 0x01020304, 0x0000eeee, 0}));
}

TEST_F(DriverTest, TwoAndThreeDimensionalCopies) {
  CUdeviceptr pointer = 0;
  size_t pitch = 0;
  ASSERT_EQ(CU(cuMemAllocPitch_v2)(&pointer, &pitch, 12, 3, 4), CUDA_SUCCESS);
  EXPECT_EQ(pitch % 512, 0u);
  std::vector<unsigned> host{1, 2, 3, 4, 5, 6, 7, 8, 9};
  CUDA_MEMCPY2D plane{};
  plane.srcMemoryType = CU_MEMORYTYPE_HOST;
  plane.srcHost = host.data();
  plane.srcPitch = 12;
  plane.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  plane.dstDevice = pointer;
  plane.dstPitch = pitch;
  plane.WidthInBytes = 12;
  plane.Height = 3;
  ASSERT_EQ(CU(cuMemcpy2D_v2)(&plane), CUDA_SUCCESS);
  EXPECT_EQ(Read(pointer + pitch, 3), (std::vector<unsigned>{4, 5, 6}));

  std::vector<unsigned> back(4, 0);
  CUDA_MEMCPY3D box{};
  box.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  box.srcDevice = pointer;
  box.srcPitch = pitch;
  box.srcHeight = 1;  // each row is a slice
  box.srcXInBytes = 4;
  box.srcZ = 1;
  box.dstMemoryType = CU_MEMORYTYPE_HOST;
  box.dstHost = back.data();
  box.dstPitch = 8;
  box.dstHeight = 1;
  box.WidthInBytes = 8;
  box.Height = 1;
  box.Depth = 2;
  ASSERT_EQ(CU(cuMemcpy3D_v2)(&box), CUDA_SUCCESS);
  EXPECT_EQ(back, (std::vector<unsigned>{5, 6, 8, 9}));
  box.Depth = 3;
  box.srcZ = 2;
  EXPECT_EQ(CU(cuMemcpy3D_v2)(&box), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(DriverTest, HostMemoryIsMappedAndRegisteredOnce) {
  void* pinned = nullptr;
  ASSERT_EQ(CU(cuMemHostAlloc)(&pinned, 5000, 0), CUDA_SUCCESS);
  CUdeviceptr device_pointer = 0;
  EXPECT_EQ(CU(cuMemHostGetDevicePointer_v2)(&device_pointer, pinned, 0), CUDA_SUCCESS);
  EXPECT_EQ(device_pointer, reinterpret_cast<uintptr_t>(pinned));
  unsigned type = 0;
  EXPECT_EQ(CU(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device_pointer + 100),
            CUDA_SUCCESS);
  EXPECT_EQ(type, unsigned{CU_MEMORYTYPE_HOST});
  EXPECT_EQ(CU(cuMemFreeHost)(pinned), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuMemFreeHost)(pinned), CUDA_ERROR_INVALID_VALUE);

  std::vector<char> pages(3 * 4096);
  EXPECT_EQ(CU(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                      reinterpret_cast<uintptr_t>(pages.data())),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuMemHostRegister_v2)(pages.data(), pages.size(), 0), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuMemHostRegister_v2)(pages.data() + 4096, 16, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(CU(cuMemHostUnregister)(pages.data()), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuMemHostUnregister)(pages.data()), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

TEST_F(DriverTest, PoolsCountWhatTheyGive) {
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(CU(cuDeviceGetDefaultMemPool)(&pool, 0), CUDA_SUCCESS);
  CUdeviceptr pointer = 0;
  ASSERT_EQ(CU(cuMemAllocAsync)(&pointer, 100000, nullptr), CUDA_SUCCESS);
  cuuint64_t used = 0;
  EXPECT_EQ(CU(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used), CUDA_SUCCESS);
  EXPECT_GE(used, 100000u);
  EXPECT_EQ(CU(cuMemFreeAsync)(pointer, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuStreamSynchronize)(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used), CUDA_SUCCESS);
  EXPECT_EQ(used, 0u);
  EXPECT_EQ(CU(cuMemFreeAsync)(pointer, nullptr), CUDA_ERROR_INVALID_VALUE);
}

// Hints of a range take no room for each of its pages.
TEST_F(DriverTest, HintsHoldByRuns) {
  constexpr size_t kBytes = size_t{1} << 40, kPage = 4096;
  CUdeviceptr memory = 0;
  ASSERT_EQ(CU(cuMemAllocManaged)(&memory, kBytes, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  const auto advise = [&](size_t at, size_t bytes, CUmem_advise advice) {
    return CU(cuMemAdvise)(memory + at, bytes, advice, 0);
  };
  const auto read_mostly = [&](size_t at, size_t bytes) {
    int value = -1;
    EXPECT_EQ(CU(cuMemRangeGetAttribute)(&value, sizeof value, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY,
                                         memory + at, bytes),
              CUDA_SUCCESS);
    return value;
  };
  EXPECT_EQ(read_mostly(0, kBytes), 0);
  ASSERT_EQ(advise(0, kBytes, CU_MEM_ADVISE_SET_READ_MOSTLY), CUDA_SUCCESS);
  EXPECT_EQ(read_mostly(0, kBytes), 1);
  ASSERT_EQ(advise(8 * kPage, kPage, CU_MEM_ADVISE_UNSET_READ_MOSTLY), CUDA_SUCCESS);
  EXPECT_EQ(read_mostly(0, kBytes), 0);
  EXPECT_EQ(read_mostly(0, 8 * kPage), 1);
  EXPECT_EQ(read_mostly(8 * kPage, 1), 0);
  EXPECT_EQ(read_mostly(9 * kPage, kBytes - 9 * kPage), 1);
  ASSERT_EQ(advise(8 * kPage + 5, 1, CU_MEM_ADVISE_SET_READ_MOSTLY), CUDA_SUCCESS);
  EXPECT_EQ(read_mostly(0, kBytes), 1);
  EXPECT_EQ(CU(cuMemFree_v2)(memory), CUDA_SUCCESS);
}

}  // namespace
}  // namespace causeway::software_gpu_test
