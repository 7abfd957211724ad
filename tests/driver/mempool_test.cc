// SPDX-License-Identifier: Apache-2.0
// Census category mempool: pools, their attributes and access, current pools, pools of other processes.
#include "tests/driver/two_processes.h"

namespace causeway::driver_test {
namespace {

class MempoolTest : public DriverTest {
 protected:
  CUmemPoolProps Props(CUmemAllocationHandleType handles = CU_MEM_HANDLE_TYPE_NONE) {
    CUmemPoolProps props{};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.handleTypes = handles;
    props.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    return props;
  }
  // Null: there are no pools on the host.
  CUmemoryPool PoolOnTheHost() {
    int supported = 0;
    CUmemoryPool pool = nullptr;
    CUmemPoolProps props = Props();
    props.location = {CU_MEM_LOCATION_TYPE_HOST, {0}};
    EXPECT_EQ(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED, 0),
              CUDA_SUCCESS);
    if (supported != 0) {
      EXPECT_EQ(cuMemPoolCreate(&pool, &props), CUDA_SUCCESS);
    }
    return pool;
  }
  unsigned Word(CUdeviceptr address) {
    unsigned word = 0;
    EXPECT_EQ(cuMemcpyDtoH(&word, address, sizeof word), CUDA_SUCCESS);
    return word;
  }
};
using MempoolPeer = MempoolTest;

TEST_F(MempoolTest, DefaultAndCurrent) {
  CUmemoryPool pool = nullptr, current = nullptr, made = nullptr;
  OK(cuDeviceGetDefaultMemPool(&pool, 0));
  OK(cuDeviceGetMemPool(&current, 0));
  EXPECT_EQ(current, pool);
  const CUmemPoolProps props = Props();
  OK(cuMemPoolCreate(&made, &props));
  OK(cuDeviceSetMemPool(0, made));
  OK(cuDeviceGetMemPool(&current, 0));
  EXPECT_EQ(current, made);
  OK(cuDeviceSetMemPool(0, pool));
  OK(cuDeviceGetMemPool(&current, 0));
  EXPECT_EQ(current, pool);
  OK(cuMemPoolDestroy(made));
  EXPECT_NE(cuMemPoolDestroy(pool), CUDA_SUCCESS);  // a default pool stays
  OK(cuDeviceGetDefaultMemPool(&pool, 0));
  EXPECT_EQ(cuDeviceGetDefaultMemPool(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuDeviceGetDefaultMemPool(&pool, 99), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuDeviceGetMemPool(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuDeviceGetMemPool(&pool, -1), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(MempoolTest, ByLocation) {
  CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemoryPool pool = nullptr, same = nullptr, current = nullptr;
  OK(cuDeviceGetDefaultMemPool(&pool, 0));
  OK(cuMemGetDefaultMemPool(&same, &location, CU_MEM_ALLOCATION_TYPE_PINNED));
  EXPECT_EQ(same, pool);
  OK(cuMemGetMemPool(&current, &location, CU_MEM_ALLOCATION_TYPE_PINNED));
  EXPECT_EQ(current, pool);
  OK(cuMemSetMemPool(&location, CU_MEM_ALLOCATION_TYPE_PINNED, pool));
  EXPECT_EQ(cuMemGetDefaultMemPool(nullptr, &location, CU_MEM_ALLOCATION_TYPE_PINNED),
            CUDA_ERROR_INVALID_VALUE);
}

// Memory that the program and the device see at one address, freed in the stream's order.
TEST_F(MempoolTest, OnTheHost) {
  CUmemoryPool pool = PoolOnTheHost();
  if (pool == nullptr) GTEST_SKIP() << "no pools on the host";
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, {0}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  OK(cuMemPoolSetAccess(pool, &access, 1));  // no device may touch it unless it is told so
  CUdeviceptr address = 0, other = 0;
  OK(cuMemAllocFromPoolAsync(&address, 0, pool, stream));  // no error, and no memory
  OK(cuMemAllocFromPoolAsync(&address, 4000, pool, stream));
  OK(cuStreamSynchronize(stream));
  auto* words = reinterpret_cast<uint32_t*>(address);
  for (uint32_t i = 0; i < 1000; ++i) words[i] = i;
  uint32_t count = 1000, add = 5;
  void* parameters[] = {&address, &count, &add};
  OK(cuLaunchKernel(Kernel("add"), 4, 1, 1, 256, 1, 1, 0, stream, parameters, nullptr));
  OK(cuStreamSynchronize(stream));
  EXPECT_EQ(words[999], 1004u);
  OK(cuMemsetD32Async(address, 8, 10, stream));
  OK(cuStreamSynchronize(stream));
  EXPECT_EQ(words[9], 8u);
  EXPECT_EQ(words[10], 15u);
  {
    // Freed while the stream is busy, it is nobody else's before the stream comes to it.
    Spinner spinner(Kernel("spin"), stream);
    OK(cuLaunchKernel(Kernel("add"), 4, 1, 1, 256, 1, 1, 0, stream, parameters, nullptr));
    OK(cuMemFreeAsync(address, stream));
    OK(cuMemAllocFromPoolAsync(&other, 4000, pool, nullptr));
    EXPECT_NE(other, address);
  }
  OK(cuStreamSynchronize(stream));
  if (OnSoftwareGpu()) {  // NVIDIA's driver need not recognise it
    EXPECT_NE(cuMemFreeAsync(address, stream), CUDA_SUCCESS);
  }
  OK(cuMemFree(other));
  for (int i = 0; i < 200; ++i) {
    OK(cuMemAllocFromPoolAsync(&address, 8 << 20, pool, stream));
    OK(cuStreamSynchronize(stream));
    *reinterpret_cast<char*>(address) = 1;
    OK(cuMemFreeAsync(address, stream));
    OK(cuStreamSynchronize(stream));
  }
  OK(cuMemPoolDestroy(pool));
  OK(cuStreamDestroy(stream));
}

// While a kernel waits for the program, memory that kernels have used is freed, and allocated again, without a wait.
TEST_F(MempoolTest, FreeingToAPoolOnTheHostWaitsForNothing) {
  CUmemoryPool pool = PoolOnTheHost();
  if (pool == nullptr) GTEST_SKIP() << "no pools on the host";
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, {0}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  OK(cuMemPoolSetAccess(pool, &access, 1));
  CUstream stream = nullptr, busy = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&busy, CU_STREAM_NON_BLOCKING));
  CUdeviceptr address = 0;
  OK(cuMemAllocFromPoolAsync(&address, 4000, pool, stream));
  OK(cuMemsetD32Async(address, 8, 1000, stream));
  OK(cuStreamSynchronize(stream));
  EXPECT_EQ(reinterpret_cast<uint32_t*>(address)[999], 8u);
  {
    Spinner spinner(Kernel("spin"), busy);
    EXPECT_FALSE(Waits(
        spinner,
        [&] {
          OK(cuMemFreeAsync(address, stream));
          OK(cuStreamSynchronize(stream));
          OK(cuMemAllocFromPoolAsync(&address, 4000, pool, stream));
          OK(cuMemsetD32Async(address, 9, 1000, stream));
          OK(cuStreamSynchronize(stream));
        },
        false));
  }
  EXPECT_EQ(reinterpret_cast<uint32_t*>(address)[999], 9u);
  OK(cuMemFree(address));
  OK(cuMemPoolDestroy(pool));
  OK(cuStreamDestroy(busy));
  OK(cuStreamDestroy(stream));
}

// A context in which kernels have used it may end, and those of another one use it.
TEST_F(MempoolTest, MemoryOnTheHostOutlastsContexts) {
  CUmemoryPool pool = PoolOnTheHost();
  if (pool == nullptr) GTEST_SKIP() << "no pools on the host";
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, {0}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  OK(cuMemPoolSetAccess(pool, &access, 1));
  constexpr uint32_t kCount = 30'000;
  CUdeviceptr address = 0;
  OK(cuMemAllocFromPoolAsync(&address, kCount * 4, pool, nullptr));
  OK(cuStreamSynchronize(nullptr));
  auto* words = reinterpret_cast<uint32_t*>(address);
  for (uint32_t i = 0; i < kCount; ++i) words[i] = i;
  const auto add_in_current = [&](uint32_t value) {
    CUmodule module = nullptr;
    CUfunction add = nullptr;
    OK(cuModuleLoadData(&module, kKernels));
    OK(cuModuleGetFunction(&add, module, "add"));
    uint32_t count = kCount;
    void* parameters[] = {&address, &count, &value};
    OK(cuLaunchKernel(add, (kCount + 255) / 256, 1, 1, 256, 1, 1, 0, nullptr, parameters, nullptr));
    OK(cuCtxSynchronize());
    OK(cuModuleUnload(module));
  };
  CUcontext other = nullptr;
  OK(cuCtxCreate(&other, nullptr, 0, 0));
  add_in_current(1);
  OK(cuCtxDestroy(other));
  OK(cuCtxSetCurrent(context_));
  for (uint32_t i = 0; i < kCount; ++i) ASSERT_EQ(words[i], i + 1) << i;
  add_in_current(10);
  for (uint32_t i = 0; i < kCount; ++i) ASSERT_EQ(words[i], i + 11) << i;
  OK(cuMemFree(address));
  OK(cuMemPoolDestroy(pool));
}

// The pools that the host has by itself, which the program can touch like any other.
TEST_F(MempoolTest, OnTheHostByLocation) {
  int supported = 0;
  OK(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED, 0));
  if (supported == 0) GTEST_SKIP() << "no pools on the host";
  constexpr CUmemAllocationType kType = CU_MEM_ALLOCATION_TYPE_PINNED;
  CUmemLocation host{CU_MEM_LOCATION_TYPE_HOST, {0}}, nowhere{CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, {0}};
  CUmemoryPool pool = nullptr, same = nullptr, made = nullptr, of_device = nullptr;
  OK(cuMemGetDefaultMemPool(&pool, &host, kType));
  OK(cuMemGetDefaultMemPool(&same, &host, kType));
  EXPECT_EQ(same, pool);
  OK(cuMemGetMemPool(&same, &host, kType));
  EXPECT_EQ(same, pool);
  OK(cuDeviceGetDefaultMemPool(&of_device, 0));
  EXPECT_NE(of_device, pool);
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, {0}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  OK(cuMemPoolSetAccess(pool, &access, 1));
  CUdeviceptr address = 0;
  OK(cuMemAllocFromPoolAsync(&address, 4000, pool, nullptr));
  OK(cuStreamSynchronize(nullptr));
  auto* words = reinterpret_cast<volatile uint32_t*>(address);
  words[999] = 7;
  uint32_t count = 1000, add = 5;
  void* parameters[] = {&address, &count, &add};
  OK(cuLaunchKernel(Kernel("add"), 4, 1, 1, 256, 1, 1, 0, nullptr, parameters, nullptr));
  OK(cuStreamSynchronize(nullptr));
  EXPECT_EQ(words[999], 12u);
  OK(cuMemFreeAsync(address, nullptr));
  OK(cuStreamSynchronize(nullptr));
  EXPECT_NE(cuMemPoolDestroy(pool), CUDA_SUCCESS);  // a default pool stays
  CUmemPoolProps props = Props();
  props.location = host;
  OK(cuMemPoolCreate(&made, &props));
  OK(cuMemSetMemPool(&host, kType, made));
  OK(cuMemGetMemPool(&same, &host, kType));
  EXPECT_EQ(same, made);
  EXPECT_EQ(cuMemSetMemPool(&host, kType, of_device), CUDA_ERROR_INVALID_VALUE);
  EXPECT_NE(cuDeviceSetMemPool(0, made), CUDA_SUCCESS);
  OK(cuMemSetMemPool(&host, kType, pool));
  OK(cuMemPoolDestroy(made));
  OK(cuMemGetMemPool(&same, &host, kType));
  EXPECT_EQ(same, pool);
  EXPECT_EQ(cuMemGetDefaultMemPool(&same, &nowhere, kType), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuMemGetDefaultMemPool(&same, &host, CU_MEM_ALLOCATION_TYPE_INVALID), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(MempoolTest, AllocateTrimAttributes) {
  CUmemoryPool pool = nullptr;
  const CUmemPoolProps props = Props();
  OK(cuMemPoolCreate(&pool, &props));
  cuuint64_t threshold = 64u << 20, used = 1, reserved = 0, high = 0;
  OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  cuuint64_t read = 0;
  OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &read));
  EXPECT_EQ(read, threshold);
  CUdeviceptr address = 0;
  OK(cuMemAllocFromPoolAsync(&address, 1u << 20, pool, nullptr));
  OK(cuMemsetD32Async(address, 6, 16, nullptr));
  OK(cuStreamSynchronize(nullptr));
  EXPECT_EQ(Word(address), 6u);
  OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
  EXPECT_GE(used, 1u << 20);
  OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
  EXPECT_GE(reserved, used);
  OK(cuMemFreeAsync(address, nullptr));
  OK(cuStreamSynchronize(nullptr));
  OK(cuMemPoolTrimTo(pool, 0));
  OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
  EXPECT_EQ(used, 0u);
  OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &high));
  EXPECT_GE(high, 1u << 20);
  cuuint64_t zero = 0;
  OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
  OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &high));
  EXPECT_EQ(high, 0u);
  for (const auto attribute :
       {CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
        CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES}) {
    int flag = -1, off = 0;
    OK(cuMemPoolGetAttribute(pool, attribute, &flag));
    EXPECT_EQ(flag, 1);
    OK(cuMemPoolSetAttribute(pool, attribute, &off));
    OK(cuMemPoolGetAttribute(pool, attribute, &flag));
    EXPECT_EQ(flag, 0);
  }
  EXPECT_EQ(cuMemPoolGetAttribute(pool, static_cast<CUmemPool_attribute>(99), &read),
            CUDA_ERROR_INVALID_VALUE);
  OK(cuMemPoolDestroy(pool));
}

TEST_F(MempoolTest, Access) {
  CUmemoryPool pool = nullptr;
  const CUmemPoolProps props = Props();
  OK(cuMemPoolCreate(&pool, &props));
  CUmemAccess_flags flags{};
  CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  OK(cuMemPoolGetAccess(&flags, pool, &location));
  // One may ask about places that a guest's memory cannot have.
  CUmemLocation host{CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
  CUmemAccess_flags from_there = CU_MEM_ACCESS_FLAGS_PROT_READ;
  EXPECT_EQ(cuMemPoolGetAccess(&from_there, pool, &host), CUDA_SUCCESS);
  Say("access from the host", from_there);
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  const CUmemAccessDesc access{location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  OK(cuMemPoolSetAccess(pool, &access, 1));
  OK(cuMemPoolDestroy(pool));
}

// Natively devices have no access to a pool on the host until the program gives it to them.
TEST_F(MempoolTest, AccessToAPoolOnTheHost) {
  CUmemoryPool pool = PoolOnTheHost();
  if (pool == nullptr) GTEST_SKIP() << "no pools on the host";
  CUmemLocation device{CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  OK(cuMemPoolGetAccess(&flags, pool, &device));
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
  const CUmemAccessDesc access{device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  OK(cuMemPoolSetAccess(pool, &access, 1));
  OK(cuMemPoolGetAccess(&flags, pool, &device));
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  OK(cuMemPoolDestroy(pool));
}

// A guest shares no pool of host memory; what the driver says first is said nevertheless.
TEST_F(MempoolTest, SharedPoolsOnTheHost) {
  CUmemPoolProps props = Props(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  CUmemoryPool pool = nullptr;
  props.location = {CU_MEM_LOCATION_TYPE_HOST, {0}};  // of which there are none natively
  EXPECT_EQ(cuMemPoolCreate(&pool, &props), CUDA_ERROR_INVALID_VALUE);
  CUstream stream = nullptr;
  CUgraph graph = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  props.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, {0}};
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_EQ(cuMemPoolCreate(&pool, &props), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  OK(cuStreamDestroy(stream));
}

// A list of no places is one; no list is none.
TEST_F(MempoolTest, AccessOfNoPlaces) {
  CUmemoryPool pool = nullptr;
  CUmemAccessDesc access{};
  OK(cuDeviceGetDefaultMemPool(&pool, 0));
  EXPECT_EQ(cuMemPoolSetAccess(pool, &access, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemPoolSetAccess(pool, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
}

// The place is looked at first: only devices have access, none of them less than all, and a device never loses its own pools.
TEST_F(MempoolTest, AccessOfPlaces) {
  CUmemoryPool pool = nullptr;
  const CUmemPoolProps own = Props();
  OK(cuMemPoolCreate(&pool, &own));
  const auto answer = [&](int type, int id, int flags) {
    CUmemAccessDesc access{};
    access.location.type = static_cast<CUmemLocationType>(type);
    access.location.id = id;
    access.flags = static_cast<CUmemAccess_flags>(flags);
    return cuMemPoolSetAccess(pool, &access, 1);
  };
  constexpr int kNone = 0, kRead = 1, kUnknown = 2, kAll = 3;
  EXPECT_EQ(answer(CU_MEM_LOCATION_TYPE_DEVICE, 0, kAll), CUDA_SUCCESS);
  EXPECT_EQ(answer(CU_MEM_LOCATION_TYPE_DEVICE, 0, kRead), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(answer(CU_MEM_LOCATION_TYPE_DEVICE, 0, kUnknown), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(answer(CU_MEM_LOCATION_TYPE_DEVICE, 0, kNone), CUDA_ERROR_INVALID_DEVICE);
  for (const int flags : {kNone, kUnknown, kAll})
    EXPECT_EQ(answer(CU_MEM_LOCATION_TYPE_DEVICE, -1, flags), CUDA_ERROR_INVALID_DEVICE) << flags;
  EXPECT_EQ(answer(CU_MEM_LOCATION_TYPE_DEVICE, -1, kRead), CUDA_ERROR_NOT_SUPPORTED);
  for (const int type : {0, 2, 3, 4, 5}) {
    for (const int flags : {kNone, kRead, kUnknown, kAll})
      EXPECT_EQ(answer(type, 0, flags), CUDA_ERROR_NOT_SUPPORTED) << type << " " << flags;
  }
  // Captures come first, whatever is wrong besides.
  CUstream stream = nullptr;
  CUgraph graph = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (const int flags : {kRead, kUnknown, kAll}) {
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT_EQ(answer(CU_MEM_LOCATION_TYPE_DEVICE, 0, flags), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  }
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_EQ(answer(CU_MEM_LOCATION_TYPE_DEVICE, 0, kAll), CUDA_SUCCESS);
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuGraphDestroy(graph));
  OK(cuStreamDestroy(stream));
  OK(cuMemPoolDestroy(pool));
}

// A pool of device memory is none of managed memory.
TEST_F(MempoolTest, ThePoolOfAnotherType) {
  auto* set = SymbolAs<CUresult(CUmemLocation*, CUmemAllocationType, CUmemoryPool)>("cuMemSetMemPool");
  ASSERT_NE(set, nullptr);
  CUmemoryPool pool = nullptr;
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  OK(cuDeviceGetDefaultMemPool(&pool, 0));
  EXPECT_EQ(set(&location, CU_MEM_ALLOCATION_TYPE_MANAGED, pool), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(MempoolTest, WrongArguments) {
  CUmemoryPool pool = nullptr;
  CUmemPoolProps props = Props();
  EXPECT_EQ(cuMemPoolCreate(nullptr, &props), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemPoolCreate(&pool, nullptr), CUDA_ERROR_INVALID_VALUE);
  props.location.id = 99;
  EXPECT_NE(cuMemPoolCreate(&pool, &props), CUDA_SUCCESS);
}

// NVIDIA's library follows null pointers in some of its calls.
TEST_F(MempoolTest, NullPointers) {
  if (!OnSoftwareGpu()) GTEST_SKIP() << "NVIDIA's library does not check them all";
  CUmemoryPool pool = nullptr;
  const CUmemPoolProps props = Props();
  OK(cuMemPoolCreate(&pool, &props));
  CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  cuuint64_t read = 0;
  EXPECT_EQ(cuMemPoolDestroy(nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemPoolTrimTo(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemPoolSetAccess(pool, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemPoolGetAccess(nullptr, pool, &location), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemPoolGetAttribute(nullptr, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &read),
            CUDA_ERROR_INVALID_VALUE);
  OK(cuMemPoolDestroy(pool));
}

struct PoolNote {
  CUmemPoolPtrExportData pointer{};
  int step = 0;
};

TEST_F(MempoolTest, Shared) {
  NEEDS_HARDWARE("pools for other processes");
  CUmemoryPool pool = nullptr;
  const CUmemPoolProps props = Props(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  OK(cuMemPoolCreate(&pool, &props));
  int descriptor = -1;
  OK(cuMemPoolExportToShareableHandle(&descriptor, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  ASSERT_GE(descriptor, 0);
  CUdeviceptr address = 0;
  OK(cuMemAllocFromPoolAsync(&address, 1u << 20, pool, nullptr));
  OK(cuMemsetD32Async(address, 31, 16, nullptr));
  OK(cuStreamSynchronize(nullptr));
  PoolNote note;
  OK(cuMemPoolExportPointer(&note.pointer, address));
  {
    Peer peer("MempoolPeer.DISABLED_Import");
    ASSERT_TRUE(peer.there());
    peer.Send(note, descriptor);
    close(descriptor);
    ASSERT_TRUE(peer.Receive(&note));
    EXPECT_EQ(note.step, 1);
  }
  EXPECT_EQ(Word(address), 32u);
  OK(cuMemFreeAsync(address, nullptr));
  OK(cuStreamSynchronize(nullptr));
  OK(cuMemPoolDestroy(pool));
}

TEST_F(MempoolPeer, DISABLED_Import) {
  Peer peer;
  PoolNote note;
  int descriptor = -1;
  ASSERT_TRUE(peer.Receive(&note, &descriptor));
  CUmemoryPool pool = nullptr;
  OK(cuMemPoolImportFromShareableHandle(&pool, reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)),
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  close(descriptor);
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, {0}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  OK(cuMemPoolSetAccess(pool, &access, 1));
  CUdeviceptr address = 0, none = 0;
  OK(cuMemPoolImportPointer(&address, pool, &note.pointer));
  EXPECT_EQ(Word(address), 31u);
  OK(cuMemsetD32(address, 32, 16));
  OK(cuCtxSynchronize());
  // An imported pool gives no memory of its own.
  EXPECT_NE(cuMemAllocFromPoolAsync(&none, 4096, pool, nullptr), CUDA_SUCCESS);
  OK(cuMemFree(address));
  OK(cuMemPoolDestroy(pool));
  note.step = 1;
  peer.Send(note);
}

}  // namespace
}  // namespace causeway::driver_test
