// SPDX-License-Identifier: Apache-2.0
// Census category unified memory: managed memory, prefetches, advice, attachment. Pointers: pointer_test.cc.
#include <vector>

#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

// The software GPU by itself knows no batches, and takes any attachment.
#define NEEDS_BATCHES()                                      \
  if (OnSoftwareGpu() && std::getenv("CAUSEWAY") == nullptr) \
  GTEST_SKIP() << "the software GPU has no "                 \
                  "batches"

constexpr size_t kBytes = 1 << 20;

class UnifiedMemoryTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    OK(cuMemAllocManaged(&memory_, kBytes, CU_MEM_ATTACH_GLOBAL));
    OK(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
  }
  uint32_t* values() { return reinterpret_cast<uint32_t*>(memory_); }
  int Attribute(CUmem_range_attribute attribute, size_t offset = 0, size_t bytes = kBytes) {
    int value = -99;
    EXPECT_EQ(cuMemRangeGetAttribute(&value, 4, attribute, memory_ + offset, bytes), CUDA_SUCCESS);
    return value;
  }

  CUdeviceptr memory_ = 0;
  CUstream stream_ = nullptr;
};

CUmemLocation Location(CUmemLocationType type, int id) {
  CUmemLocation location{};
  location.type = type;
  location.id = id;
  return location;
}

TEST_F(UnifiedMemoryTest, AllocationErrors) {
  CUdeviceptr memory = 0;
  EXPECT_EQ(cuMemAllocManaged(nullptr, 100, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAllocManaged(&memory, 0, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAllocManaged(&memory, 100, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAllocManaged(&memory, 100, CU_MEM_ATTACH_SINGLE), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemAllocManaged(&memory, 100, CU_MEM_ATTACH_HOST));
  EXPECT_EQ(cuMemFreeHost(reinterpret_cast<void*>(memory)), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemFree(memory));
  EXPECT_EQ(cuMemFree(memory), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(UnifiedMemoryTest, BothProcessorsSeeEachOther) {
  for (uint32_t i = 0; i < 10000; ++i) values()[i] = i;
  uint32_t count = 10000, add = 5;
  void* parameters[] = {&memory_, &count, &add};
  OK(cuLaunchKernel(Kernel("add"), 40, 1, 1, 256, 1, 1, 0, stream_, parameters, nullptr));
  OK(cuStreamSynchronize(stream_));
  for (uint32_t i = 0; i < 10000; ++i) ASSERT_EQ(values()[i], i + 5);
  OK(cuMemsetD32(memory_, 77, 10));
  OK(cuCtxSynchronize());
  EXPECT_EQ(values()[9], 77u);
  uint32_t out[4] = {};
  OK(cuMemcpyDtoH(out, memory_, sizeof out));
  EXPECT_EQ(out[3], 77u);
  const uint32_t in[2] = {3, 4};
  OK(cuMemcpyHtoD(memory_ + 400, in, sizeof in));
  EXPECT_EQ(values()[101], 4u);
  CUdeviceptr device = 0;
  OK(cuMemAlloc(&device, 4000));
  OK(cuMemcpyDtoD(device, memory_, 4000));
  OK(cuMemcpy(memory_ + 8000, device, 4000));
  OK(cuCtxSynchronize());
  EXPECT_EQ(values()[2101], 4u);
}

// While a kernel runs: it polls what the CPU writes.
TEST_F(UnifiedMemoryTest, CpuReleasesRunningKernel) {
  int concurrent = 0;
  OK(cuDeviceGetAttribute(&concurrent, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 0));
  Say("concurrent", concurrent);
  if (concurrent == 0 && !OnSoftwareGpu()) GTEST_SKIP() << "no concurrent access";
  values()[0] = 0;
  void* parameters[] = {&memory_};
  OK(cuLaunchKernel(Kernel("spin"), 1, 1, 1, 1, 1, 1, 0, stream_, parameters, nullptr));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(cuStreamQuery(stream_), CUDA_ERROR_NOT_READY);
  *static_cast<volatile uint32_t*>(values()) = 1;
  OK(cuStreamSynchronize(stream_));
}

TEST_F(UnifiedMemoryTest, Prefetch) {
  auto* v1 = SymbolAs<CUresult(CUdeviceptr, size_t, CUdevice, CUstream)>("cuMemPrefetchAsync");
  const CUmemLocation device = Location(CU_MEM_LOCATION_TYPE_DEVICE, 0),
                      host = Location(CU_MEM_LOCATION_TYPE_HOST, 0);
  EXPECT_EQ(Attribute(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION), CU_DEVICE_INVALID);
  values()[5] = 5;
  OK(v1(memory_, kBytes, 0, stream_));
  EXPECT_EQ(Attribute(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION), 0);
  OK(v1(memory_, kBytes, CU_DEVICE_CPU, nullptr));
  EXPECT_EQ(Attribute(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION), CU_DEVICE_CPU);
  OK(cuMemPrefetchAsync(memory_, kBytes / 2, device, 0, stream_));
  EXPECT_EQ(Attribute(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION), CU_DEVICE_INVALID);
  EXPECT_EQ(Attribute(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, 0, kBytes / 2), 0);
  EXPECT_EQ(Attribute(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE, kBytes / 2, 100),
            CU_MEM_LOCATION_TYPE_HOST);
  EXPECT_EQ(Attribute(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID, 0, 100), 0);
  OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(values()[5], 5u);
  OK(cuMemPrefetchAsync(memory_, 1, host, 0, stream_));
  EXPECT_EQ(v1(memory_, kBytes, 99, stream_), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(v1(memory_, kBytes + 1, 0, stream_), CUDA_ERROR_INVALID_VALUE);
  Say("zero", v1(memory_, 0, 0, stream_));
  EXPECT_EQ(cuMemPrefetchAsync(memory_, kBytes, device, 1, stream_), CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr plain = 0;
  OK(cuMemAlloc(&plain, 4096));
  EXPECT_EQ(v1(plain, 4096, 0, stream_), CUDA_ERROR_INVALID_VALUE);
  auto* v1p = SymbolAs<CUresult(CUdeviceptr, size_t, CUdevice, CUstream)>("cuMemPrefetchAsync_ptsz");
  auto* v2p = SymbolAs<CUresult(CUdeviceptr, size_t, CUmemLocation, unsigned, CUstream)>(
      "cuMemPrefetchAsync_v2_ptsz");
  if (v1p != nullptr) {
    EXPECT_EQ(v1p(memory_, kBytes, 0, nullptr), CUDA_SUCCESS);
  }
  if (v2p != nullptr) {
    EXPECT_EQ(v2p(memory_, kBytes, host, 0, nullptr), CUDA_SUCCESS);
  }
}

TEST_F(UnifiedMemoryTest, NodesOfTheHost) {
  int node = -1;
  OK(cuDeviceGetAttribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 0));
  if (node < 0) GTEST_SKIP() << "the host is one node";
  const CUmemLocation there = Location(CU_MEM_LOCATION_TYPE_HOST_NUMA, node),
                      current = Location(CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0);
  values()[3] = 3;
  OK(cuMemPrefetchAsync(memory_, kBytes, there, 0, stream_));
  EXPECT_EQ(Attribute(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE), CU_MEM_LOCATION_TYPE_HOST_NUMA);
  EXPECT_EQ(Attribute(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID), node);
  OK(cuMemAdvise(memory_, kBytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, there));
  // Driver 580 takes it and says that there is none.
  Say("preferred type", Attribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE));
  Say("preferred node", Attribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID));
  OK(cuMemPrefetchAsync(memory_, kBytes, current, 0, stream_));
  OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(values()[3], 3u);
  EXPECT_EQ(cuMemAdvise(memory_, kBytes, CU_MEM_ADVISE_SET_ACCESSED_BY, there), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(UnifiedMemoryTest, Advice) {
  auto* v1 = SymbolAs<CUresult(CUdeviceptr, size_t, CUmem_advise, CUdevice)>("cuMemAdvise");
  const CUmemLocation host = Location(CU_MEM_LOCATION_TYPE_HOST, 0);
  EXPECT_EQ(Attribute(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY), 0);
  OK(v1(memory_, kBytes, CU_MEM_ADVISE_SET_READ_MOSTLY, 0));
  EXPECT_EQ(Attribute(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY), 1);
  OK(v1(memory_ + kBytes / 2, 4096, CU_MEM_ADVISE_UNSET_READ_MOSTLY, 0));
  EXPECT_EQ(Attribute(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY), 0);
  EXPECT_EQ(Attribute(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 0, kBytes / 2), 1);
  EXPECT_EQ(Attribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION), CU_DEVICE_INVALID);
  OK(v1(memory_, kBytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, 0));
  EXPECT_EQ(Attribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION), 0);
  EXPECT_EQ(Attribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE), CU_MEM_LOCATION_TYPE_DEVICE);
  EXPECT_EQ(Attribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID), 0);
  OK(cuMemAdvise(memory_, kBytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host));
  EXPECT_EQ(Attribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION), CU_DEVICE_CPU);
  OK(v1(memory_, kBytes, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, 0));
  EXPECT_EQ(Attribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION), CU_DEVICE_INVALID);
  int devices[3] = {7, 7, 7};
  OK(v1(memory_, kBytes, CU_MEM_ADVISE_SET_ACCESSED_BY, 0));
  OK(cuMemRangeGetAttribute(devices, 12, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, memory_, kBytes));
  EXPECT_EQ(devices[0], 0);
  EXPECT_EQ(devices[1], CU_DEVICE_INVALID);
  EXPECT_EQ(devices[2], CU_DEVICE_INVALID);
  OK(v1(memory_, kBytes, CU_MEM_ADVISE_UNSET_ACCESSED_BY, 0));
  int read_mostly = 9, preferred = 9;
  void* data[] = {&read_mostly, &preferred};
  size_t sizes[] = {4, 4};
  CUmem_range_attribute attributes[] = {CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY,
                                        CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION};
  OK(cuMemRangeGetAttributes(data, sizes, attributes, 2, memory_, kBytes));
  EXPECT_EQ(read_mostly, 0);
  EXPECT_EQ(preferred, CU_DEVICE_INVALID);
}

TEST_F(UnifiedMemoryTest, AdviceErrors) {
  auto* v1 = SymbolAs<CUresult(CUdeviceptr, size_t, CUmem_advise, CUdevice)>("cuMemAdvise");
  EXPECT_EQ(v1(memory_, kBytes, static_cast<CUmem_advise>(0), 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(v1(memory_, kBytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, 99), CUDA_ERROR_INVALID_DEVICE);
  const CUmemLocation nowhere = {CU_MEM_LOCATION_TYPE_DEVICE, {99}};
  EXPECT_EQ(cuMemAdvise(memory_, kBytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, nowhere),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(v1(memory_, kBytes + 1, CU_MEM_ADVISE_SET_READ_MOSTLY, 0), CUDA_ERROR_INVALID_VALUE);
  int value = 0;
  EXPECT_EQ(cuMemRangeGetAttribute(nullptr, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, memory_, 4),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemRangeGetAttribute(&value, 3, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, memory_, 4),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemRangeGetAttribute(&value, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, memory_, kBytes + 1),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(UnifiedMemoryTest, Attach) {
  NEEDS_BATCHES();
  OK(cuStreamAttachMemAsync(stream_, memory_, 0, CU_MEM_ATTACH_SINGLE));
  OK(cuStreamAttachMemAsync(stream_, memory_, kBytes, CU_MEM_ATTACH_HOST));
  OK(cuStreamAttachMemAsync(stream_, memory_, 0, CU_MEM_ATTACH_GLOBAL));
  OK(cuStreamSynchronize(stream_));
}

TEST_F(UnifiedMemoryTest, AttachmentOfAPart) {
  NEEDS_BATCHES();
  EXPECT_EQ(cuStreamAttachMemAsync(stream_, memory_, 10, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_INVALID_VALUE);
}

// Not without a flag, and not of the default stream alone: NVIDIA's library crashes at one of the two.
TEST_F(UnifiedMemoryTest, AttachmentInTheDefaultStream) {
  NEEDS_BATCHES();
  OK(cuStreamAttachMemAsync(nullptr, memory_, 0, CU_MEM_ATTACH_GLOBAL));
  OK(cuStreamSynchronize(nullptr));
}

TEST_F(UnifiedMemoryTest, Batches) {
  NEEDS_BATCHES();
  auto* prefetch = SymbolAs<CUresult(CUdeviceptr*, size_t*, size_t, CUmemLocation*, size_t*, size_t,
                                     unsigned long long, CUstream)>("cuMemPrefetchBatchAsync");
  auto* both = SymbolAs<CUresult(CUdeviceptr*, size_t*, size_t, CUmemLocation*, size_t*, size_t,
                                 unsigned long long, CUstream)>("cuMemDiscardAndPrefetchBatchAsync");
  auto* discard = SymbolAs<CUresult(CUdeviceptr*, size_t*, size_t, unsigned long long, CUstream)>(
      "cuMemDiscardBatchAsync");
  CUdeviceptr at[3] = {memory_, memory_ + 8192, memory_ + 65536};
  size_t bytes[3] = {8192, 4096, 4096};
  CUmemLocation places[2] = {Location(CU_MEM_LOCATION_TYPE_DEVICE, 0),
                             Location(CU_MEM_LOCATION_TYPE_HOST, 0)};
  size_t first[2] = {0, 2};
  OK(prefetch(at, bytes, 3, places, first, 2, 0, stream_));
  EXPECT_EQ(Attribute(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, 8192, 4096), 0);
  EXPECT_EQ(Attribute(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, 65536, 4096), CU_DEVICE_CPU);
  OK(both(at, bytes, 3, places, first, 2, 0, stream_));
  Say("discard", discard(at, bytes, 3, 0, stream_));
  OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(prefetch(at, bytes, 3, places, first, 2, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
  first[1] = 3;
  EXPECT_EQ(prefetch(at, bytes, 3, places, first, 2, 0, stream_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(discard(at, bytes, 0, 0, stream_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(discard(at, bytes, 1, 1, stream_), CUDA_ERROR_INVALID_VALUE);
}

// That a list is missing is said before that there is no context.
TEST_F(UnifiedMemoryTest, BatchesWithoutAContext) {
  NEEDS_BATCHES();
  auto* prefetch = SymbolAs<CUresult(CUdeviceptr*, size_t*, size_t, CUmemLocation*, size_t*, size_t,
                                     unsigned long long, CUstream)>("cuMemPrefetchBatchAsync");
  auto* discard = SymbolAs<CUresult(CUdeviceptr*, size_t*, size_t, unsigned long long, CUstream)>(
      "cuMemDiscardBatchAsync");
  CUmemLocation place = Location(CU_MEM_LOCATION_TYPE_DEVICE, 0);
  size_t bytes = 4096, first = 0;
  CUcontext before = nullptr;
  OK(cuCtxPopCurrent(&before));
  EXPECT_EQ(discard(&memory_, nullptr, 1, 0, stream_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(prefetch(&memory_, &bytes, 1, &place, &first, 0, 0, stream_), CUDA_ERROR_INVALID_VALUE);
  OK(cuCtxPushCurrent(before));
}

TEST_F(UnifiedMemoryTest, FreeWaitsForTheWholeDevice) {
  Spinner spinner(Kernel("spin"), stream_);
  EXPECT_TRUE(Waits(spinner, [&] { EXPECT_EQ(cuMemFree(memory_), CUDA_SUCCESS); }));
}

TEST_F(UnifiedMemoryTest, Attributes) {
  unsigned type = 0, managed = 0;
  uint64_t value = 0;
  OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory_ + 4));
  EXPECT_EQ(type, unsigned{CU_MEMORYTYPE_DEVICE});
  OK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, memory_ + 4));
  EXPECT_EQ(managed, 1u);
  OK(cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_HOST_POINTER, memory_ + 4));
  EXPECT_EQ(value, memory_ + 4);
  OK(cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, memory_ + 4));
  EXPECT_EQ(value, memory_ + 4);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  OK(cuMemGetAddressRange(&base, &bytes, memory_ + 100));
  EXPECT_EQ(base, memory_);
  EXPECT_EQ(bytes, kBytes);
}

}  // namespace
}  // namespace causeway::driver_test
