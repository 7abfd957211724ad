// SPDX-License-Identifier: Apache-2.0
// Census category vmm: reserve, create, map, access, share.
#include "tests/driver/two_processes.h"

namespace causeway::driver_test {
namespace {

class VmmTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    prop_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop_.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    prop_.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    access_.location = prop_.location;
    access_.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    OK(cuMemGetAllocationGranularity(&bytes_, &prop_, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  }
  void Map(CUdeviceptr* address, CUmemGenericAllocationHandle handle) {
    OK(cuMemAddressReserve(address, bytes_, 0, 0, 0));
    OK(cuMemMap(*address, bytes_, 0, handle, 0));
    OK(cuMemSetAccess(*address, bytes_, &access_, 1));
  }
  void Unmap(CUdeviceptr address) {
    OK(cuMemUnmap(address, bytes_));
    OK(cuMemAddressFree(address, bytes_));
  }
  unsigned Word(CUdeviceptr address, size_t index) {
    unsigned word = 0;
    EXPECT_EQ(cuMemcpyDtoH(&word, address + 4 * index, sizeof word), CUDA_SUCCESS);
    return word;
  }

  CUmemAllocationProp prop_{};
  CUmemAccessDesc access_{};
  size_t bytes_ = 0;
};
using VmmPeer = VmmTest;

TEST_F(VmmTest, Granularity) {
  size_t least = 0, best = 0;
  OK(cuMemGetAllocationGranularity(&least, &prop_, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  OK(cuMemGetAllocationGranularity(&best, &prop_, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  Say("least", least);
  Say("recommended", best);
  EXPECT_EQ(cuMemGetAllocationGranularity(nullptr, &prop_, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemGetAllocationGranularity(&least, nullptr, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
            CUDA_ERROR_INVALID_VALUE);
}

// One may ask about memory of the host; a wrong size is said before that it cannot be had.
TEST_F(VmmTest, MemoryOfTheHost) {
  CUmemAllocationProp host{};
  host.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  host.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  size_t bytes = 0;
  EXPECT_EQ(cuMemGetAllocationGranularity(&bytes, &host, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED), CUDA_SUCCESS);
  EXPECT_NE(bytes, 0u);
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(cuMemCreate(&handle, 4, &host, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(VmmTest, MapUseUnmap) {
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle handle = 0;
  OK(cuMemCreate(&handle, bytes_, &prop_, 0));
  Map(&address, handle);
  OK(cuMemsetD32(address, 5, bytes_ / 4));
  const CUfunction add = Kernel("add");
  unsigned count = static_cast<unsigned>(bytes_ / 4), value = 3;
  void* parameters[] = {&address, &count, &value};
  OK(cuLaunchKernel(add, (count + 255) / 256, 1, 1, 256, 1, 1, 0, nullptr, parameters, nullptr));
  EXPECT_EQ(Word(address, 0), 8u);
  EXPECT_EQ(Word(address, bytes_ / 4 - 1), 8u);
  unsigned long long flags = 0;
  OK(cuMemGetAccess(&flags, &prop_.location, address));
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  CUmemorytype type{};
  OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address + 16));
  EXPECT_EQ(type, CU_MEMORYTYPE_DEVICE);
  CUmemAllocationProp read{};
  OK(cuMemGetAllocationPropertiesFromHandle(&read, handle));
  EXPECT_EQ(read.location.id, 0);
  EXPECT_EQ(read.requestedHandleTypes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  // The memory outlives its handle while it is mapped.
  OK(cuMemRelease(handle));
  EXPECT_EQ(Word(address, 1), 8u);
  Unmap(address);
}

TEST_F(VmmTest, TheSameMemoryTwice) {
  CUdeviceptr one = 0, two = 0;
  CUmemGenericAllocationHandle handle = 0;
  OK(cuMemCreate(&handle, bytes_, &prop_, 0));
  Map(&one, handle);
  Map(&two, handle);
  ASSERT_NE(one, two);
  OK(cuMemsetD32(one, 77, 16));
  EXPECT_EQ(Word(two, 15), 77u);
  Unmap(one);
  EXPECT_EQ(Word(two, 0), 77u);
  Unmap(two);
  OK(cuMemRelease(handle));
}

TEST_F(VmmTest, Retain) {
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle handle = 0, retained = 0;
  OK(cuMemCreate(&handle, bytes_, &prop_, 0));
  Map(&address, handle);
  OK(cuMemRetainAllocationHandle(&retained, reinterpret_cast<void*>(address + bytes_ / 2)));
  Say("same handle", retained == handle);
  OK(cuMemRelease(handle));
  CUmemAllocationProp read{};
  OK(cuMemGetAllocationPropertiesFromHandle(&read, retained));  // one reference is left
  OK(cuMemRelease(retained));
  Unmap(address);
  EXPECT_EQ(cuMemRetainAllocationHandle(nullptr, reinterpret_cast<void*>(address)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_NE(cuMemRetainAllocationHandle(&retained, reinterpret_cast<void*>(address)), CUDA_SUCCESS);
}

TEST_F(VmmTest, Reservations) {
  CUdeviceptr address = 0, second = 0;
  OK(cuMemAddressReserve(&address, 4 * bytes_, 0, 0, 0));
  // A wish that is free is granted.
  OK(cuMemAddressFree(address, 4 * bytes_));
  OK(cuMemAddressReserve(&second, 4 * bytes_, 0, address, 0));
  EXPECT_EQ(second, address);
  OK(cuMemAddressFree(second, 4 * bytes_));
  OK(cuMemAddressReserve(&address, bytes_, 16 * bytes_, 0, 0));
  EXPECT_EQ(address % (16 * bytes_), 0u);
  OK(cuMemAddressFree(address, bytes_));
  EXPECT_EQ(cuMemAddressReserve(nullptr, bytes_, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressReserve(&address, bytes_ / 2 + 1, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressReserve(&address, bytes_, 3, 0, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(VmmTest, PiecesOfOneReservation) {
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle handles[3];
  OK(cuMemAddressReserve(&address, 3 * bytes_, 0, 0, 0));
  for (int i = 0; i < 3; ++i) {
    OK(cuMemCreate(&handles[i], bytes_, &prop_, 0));
    OK(cuMemMap(address + static_cast<size_t>(i) * bytes_, bytes_, 0, handles[i], 0));
  }
  OK(cuMemSetAccess(address, 3 * bytes_, &access_, 1));
  if (!OnSoftwareGpu()) {  // which knows no operation on two allocations
    OK(cuMemsetD32(address + bytes_ - 4, 9, 2));
    EXPECT_EQ(Word(address, bytes_ / 4 - 1), 9u);
    EXPECT_EQ(Word(address, bytes_ / 4), 9u);
  }
  EXPECT_EQ(cuMemAddressFree(address, 3 * bytes_), CUDA_ERROR_INVALID_VALUE);  // still mapped
  OK(cuMemUnmap(address, 3 * bytes_));
  for (const auto handle : handles) OK(cuMemRelease(handle));
  OK(cuMemAddressFree(address, 3 * bytes_));
}

TEST_F(VmmTest, WrongArguments) {
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(cuMemCreate(nullptr, bytes_, &prop_, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemCreate(&handle, bytes_, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemCreate(&handle, bytes_ / 2 + 1, &prop_, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemCreate(&handle, bytes_, &prop_, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemGetAllocationPropertiesFromHandle(nullptr, handle), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemCreate(&handle, bytes_, &prop_, 0));
  EXPECT_NE(cuMemMap(0x1000, bytes_, 0, handle, 0), CUDA_SUCCESS);
  CUdeviceptr address = 0;
  OK(cuMemAddressReserve(&address, bytes_, 0, 0, 0));
  EXPECT_NE(cuMemSetAccess(address, bytes_, &access_, 1), CUDA_SUCCESS);  // nothing mapped
  OK(cuMemMap(address, bytes_, 0, handle, 0));
  EXPECT_NE(cuMemMap(address, bytes_, 0, handle, 0), CUDA_SUCCESS);  // taken
  EXPECT_EQ(cuMemSetAccess(address, bytes_, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
  unsigned long long flags = 0;
  EXPECT_EQ(cuMemGetAccess(nullptr, &prop_.location, address), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemGetAccess(&flags, nullptr, address), CUDA_ERROR_INVALID_VALUE);
  Unmap(address);
  OK(cuMemRelease(handle));
}

TEST_F(VmmTest, SharedByDescriptor) {
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle handle = 0;
  OK(cuMemCreate(&handle, bytes_, &prop_, 0));
  Map(&address, handle);
  OK(cuMemsetD32(address, 123, bytes_ / 4));
  OK(cuCtxSynchronize());
  int descriptor = -1;
  OK(cuMemExportToShareableHandle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  ASSERT_GE(descriptor, 0);
  Say("close on exec", (fcntl(descriptor, F_GETFD) & FD_CLOEXEC) != 0);
  {
    Peer peer("VmmPeer.DISABLED_Import");
    ASSERT_TRUE(peer.there());
    int step = 0;
    peer.Send(step, descriptor);
    close(descriptor);
    ASSERT_TRUE(peer.Receive(&step));
    EXPECT_EQ(step, 1);
  }
  EXPECT_EQ(Word(address, 100), 124u);
  Unmap(address);
  OK(cuMemRelease(handle));
}

TEST_F(VmmPeer, DISABLED_Import) {
  Peer peer;
  int step = 0, descriptor = -1;
  ASSERT_TRUE(peer.Receive(&step, &descriptor));
  ASSERT_GE(descriptor, 0);
  CUmemGenericAllocationHandle handle = 0;
  OK(cuMemImportFromShareableHandle(&handle, reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)),
                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(descriptor);
  CUdeviceptr address = 0;
  Map(&address, handle);
  EXPECT_EQ(Word(address, bytes_ / 4 - 1), 123u);
  OK(cuMemsetD32(address, 124, bytes_ / 4));
  OK(cuCtxSynchronize());
  Unmap(address);
  OK(cuMemRelease(handle));
  step = 1;
  peer.Send(step);
}

// The descriptor keeps the memory alive when its maker has given it up.
TEST_F(VmmTest, TheDescriptorKeepsTheMemory) {
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle handle = 0, imported = 0;
  OK(cuMemCreate(&handle, bytes_, &prop_, 0));
  Map(&address, handle);
  OK(cuMemsetD32(address, 55, 1));
  int descriptor = -1;
  OK(cuMemExportToShareableHandle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  Unmap(address);
  OK(cuMemRelease(handle));
  OK(cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)),
                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(descriptor);
  Map(&address, imported);
  EXPECT_EQ(Word(address, 0), 55u);
  Unmap(address);
  OK(cuMemRelease(imported));
}

// More, one after the other, than could be kept: nothing may pile up.
TEST_F(VmmTest, ClosedDescriptorsAreForgotten) {
  for (int i = 0; i < 1200; ++i) {
    CUmemGenericAllocationHandle handle = 0;
    OK(cuMemCreate(&handle, bytes_, &prop_, 0));
    int descriptor = -1;
    OK(cuMemExportToShareableHandle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemRelease(handle));
    close(descriptor);
  }
}

TEST_F(VmmTest, SharingWrongly) {
  CUmemGenericAllocationHandle handle = 0, imported = 0;
  CUmemAllocationProp alone = prop_;
  alone.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
  OK(cuMemCreate(&handle, bytes_, &alone, 0));
  int descriptor = -1;
  EXPECT_EQ(cuMemExportToShareableHandle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemExportToShareableHandle(nullptr, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_ERROR_INVALID_VALUE);
  OK(cuMemRelease(handle));
  const int foreign = open("/dev/null", O_RDONLY);
  EXPECT_NE(cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(static_cast<intptr_t>(foreign)),
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            CUDA_SUCCESS);
  close(foreign);
  EXPECT_EQ(cuMemImportFromShareableHandle(nullptr, nullptr, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            CUDA_ERROR_INVALID_VALUE);
}

// A dma-buf needs a device node in the guest. Natively it may work or not; nobody may die of it.
TEST_F(VmmTest, AddressRangeHandle) {
  NEEDS_HARDWARE("dma-bufs");
  CUdeviceptr address = 0;
  OK(cuMemAlloc(&address, 1u << 21));
  int descriptor = -1;
  const CUresult result =
      cuMemGetHandleForAddressRange(&descriptor, address, 1u << 21, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
  if (result == CUDA_SUCCESS) close(descriptor);
  OK(cuMemFree(address));
}

}  // namespace
}  // namespace causeway::driver_test
