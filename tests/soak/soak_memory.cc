// SPDX-License-Identifier: Apache-2.0
// Memory of every kind: allocated, copied in every way, verified, freed.
#include <cstring>

#include "tests/soak/soak.h"

namespace causeway::soak {
namespace {

void DeviceCopies(Thread& thread) {
  const size_t count = 1 + thread.Below(1u << (4 + thread.Below(16)));
  const auto in = thread.Numbers(count);
  std::vector<uint32_t> out(count);
  DeviceMemory first, second;
  SOAK(cuMemAlloc(first.out(), count * 4));
  SOAK(cuMemAlloc(second.out(), count * 4));
  SOAK(cuMemcpyHtoD(first, in.data(), count * 4));
  SOAK(cuMemcpyDtoD(second, first, count * 4));
  SOAK(cuMemcpyDtoH(out.data(), second, count * 4));
  SOAK_EXPECT(in == out);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  SOAK(cuMemGetAddressRange(&base, &bytes, first + count * 2));
  SOAK_EXPECT(base == first && bytes >= count * 4);
  first.Done();
  second.Done();
}

void Fills(Thread& thread) {
  const size_t count = 16 + thread.Below(5000);
  DeviceMemory memory;
  SOAK(cuMemAlloc(memory.out(), count * 4));
  const uint32_t value = static_cast<uint32_t>(thread.random());
  SOAK(cuMemsetD32(memory, value, count));
  SOAK(cuMemsetD8(memory, 7, 4));
  SOAK(cuMemsetD16(memory + 4, 9, 2));
  std::vector<uint32_t> out(count);
  SOAK(cuMemcpyDtoH(out.data(), memory, count * 4));
  SOAK_EXPECT(out[0] == 0x07070707 && out[1] == 0x00090009 && out[2] == value && out[count - 1] == value);
}

void PitchedCopies(Thread& thread) {
  const size_t width = 4 * (1 + thread.Below(300)), height = 1 + thread.Below(40);
  DeviceMemory memory;
  size_t pitch = 0;
  SOAK(cuMemAllocPitch(memory.out(), &pitch, width, height, 4));
  const auto in = thread.Numbers(width / 4 * height);
  std::vector<uint32_t> out(in.size());
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = in.data();
  copy.srcPitch = width;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = memory;
  copy.dstPitch = pitch;
  copy.WidthInBytes = width;
  copy.Height = height;
  SOAK(cuMemcpy2D(&copy));
  CUDA_MEMCPY2D back{};
  back.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  back.srcDevice = memory;
  back.srcPitch = pitch;
  back.dstMemoryType = CU_MEMORYTYPE_HOST;
  back.dstHost = out.data();
  back.dstPitch = width;
  back.WidthInBytes = width;
  back.Height = height;
  SOAK(cuMemcpy2D(&back));
  SOAK_EXPECT(in == out);
}

void PinnedCopies(Thread& thread) {
  const size_t count = 1 + thread.Below(100000);
  Stream stream;
  PinnedMemory pinned;
  DeviceMemory memory;
  SOAK(cuStreamCreate(stream.out(), CU_STREAM_NON_BLOCKING));
  SOAK(cuMemHostAlloc(pinned.out(), count * 4, thread.Below(2) != 0 ? CU_MEMHOSTALLOC_DEVICEMAP : 0));
  SOAK(cuMemAlloc(memory.out(), count * 4));
  const auto in = thread.Numbers(count);
  std::memcpy(pinned, in.data(), count * 4);
  SOAK(cuMemcpyHtoDAsync(memory, pinned, count * 4, stream));
  thread.LaunchAdd(memory, static_cast<uint32_t>(count), 3, stream);
  SOAK(cuMemcpyDtoHAsync(pinned, memory, count * 4, stream));
  SOAK(cuStreamSynchronize(stream));
  const auto* out = static_cast<const uint32_t*>(pinned.get());
  for (size_t i = 0; i < count; ++i) SOAK_EXPECT(out[i] == in[i] + 3);
  pinned.Done();
}

void RegisteredMemory(Thread& thread) {
  const size_t count = 1 + thread.Below(30000);
  std::vector<uint32_t> memory = thread.Numbers(count + 64);
  const std::vector<uint32_t> before = memory;
  Registration registration;
  SOAK(cuMemHostRegister(memory.data() + 32, count * 4, 0));
  *registration.out() = memory.data() + 32;
  CUdeviceptr device = 0;
  SOAK(cuMemHostGetDevicePointer(&device, memory.data() + 32, 0));
  thread.LaunchAdd(device, static_cast<uint32_t>(count), 5, nullptr);
  SOAK(cuStreamSynchronize(nullptr));
  for (size_t i = 0; i < memory.size(); ++i) {
    SOAK_EXPECT(memory[i] == before[i] + (i >= 32 && i < 32 + count ? 5 : 0));
  }
  registration.Done();
  SOAK_EXPECT(memory[0] == before[0] && memory[32] == before[32] + 5);
}

void ManagedMemory(Thread& thread) {
  const size_t count = 1 + thread.Below(30000);
  DeviceMemory memory;
  SOAK(cuMemAllocManaged(memory.out(), count * 4, CU_MEM_ATTACH_GLOBAL));
  auto* words = reinterpret_cast<uint32_t*>(memory.get());
  for (size_t i = 0; i < count; ++i) words[i] = static_cast<uint32_t>(i);
  thread.LaunchAdd(memory, static_cast<uint32_t>(count), 11, nullptr);
  SOAK(cuStreamSynchronize(nullptr));
  for (size_t i = 0; i < count; ++i) SOAK_EXPECT(words[i] == i + 11);
}

void StreamOrdered(Thread& thread) {
  const size_t count = 1 + thread.Below(50000);
  Stream stream;
  SOAK(cuStreamCreate(stream.out(), CU_STREAM_NON_BLOCKING));
  CUdeviceptr memory = 0;
  SOAK(cuMemAllocAsync(&memory, count * 4, stream));
  SOAK(cuMemsetD32Async(memory, 1, count, stream));
  thread.LaunchAdd(memory, static_cast<uint32_t>(count), 1, stream);
  std::vector<uint32_t> out(count);
  SOAK(cuMemcpyDtoHAsync(out.data(), memory, count * 4, stream));
  SOAK(cuMemFreeAsync(memory, stream));
  SOAK(cuStreamSynchronize(stream));
  for (const uint32_t word : out) SOAK_EXPECT(word == 2);
}

void OwnPool(Thread& thread) {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  Pool pool;
  SOAK(cuMemPoolCreate(pool.out(), &properties));
  cuuint64_t threshold = 1u << thread.Below(24);
  SOAK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  CUdeviceptr memory = 0;
  SOAK(cuMemAllocFromPoolAsync(&memory, 1 + thread.Below(1u << 20), pool, nullptr));
  SOAK(cuMemFreeAsync(memory, nullptr));
  SOAK(cuStreamSynchronize(nullptr));
  SOAK(cuMemPoolTrimTo(pool, 0));
}

void Arrays(Thread& thread) {
  CUDA_ARRAY_DESCRIPTOR descriptor{};
  descriptor.Width = 1 + thread.Below(200);
  descriptor.Height = 1 + thread.Below(30);
  descriptor.Format = CU_AD_FORMAT_UNSIGNED_INT32;
  descriptor.NumChannels = 1;
  Array array;
  SOAK(cuArrayCreate(array.out(), &descriptor));
  const auto in = thread.Numbers(descriptor.Width * descriptor.Height);
  std::vector<uint32_t> out(in.size());
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = in.data();
  copy.srcPitch = copy.WidthInBytes = descriptor.Width * 4;
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = array;
  copy.Height = descriptor.Height;
  SOAK(cuMemcpy2D(&copy));
  CUDA_MEMCPY2D back{};
  back.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  back.srcArray = array;
  back.dstMemoryType = CU_MEMORYTYPE_HOST;
  back.dstHost = out.data();
  back.dstPitch = back.WidthInBytes = copy.WidthInBytes;
  back.Height = copy.Height;
  SOAK(cuMemcpy2D(&back));
  SOAK_EXPECT(in == out);
}

void VirtualMemory(Thread& thread) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  size_t granularity = 0;
  SOAK(cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  const size_t bytes = granularity * (1 + thread.Below(3));
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle handle = 0;
  SOAK(cuMemAddressReserve(&address, bytes, 0, 0, 0));
  SOAK(cuMemCreate(&handle, bytes, &properties, 0));
  SOAK(cuMemMap(address, bytes, 0, handle, 0));
  CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  SOAK(cuMemSetAccess(address, bytes, &access, 1));
  SOAK(cuMemsetD32(address, 5, bytes / 4));
  uint32_t word = 0;
  SOAK(cuMemcpyDtoH(&word, address + bytes - 4, 4));
  SOAK_EXPECT(word == 5);
  SOAK(cuMemUnmap(address, bytes));
  SOAK(cuMemRelease(handle));
  SOAK(cuMemAddressFree(address, bytes));
}

void PointerAttributes(Thread& thread) {
  DeviceMemory memory;
  PinnedMemory pinned;
  SOAK(cuMemAlloc(memory.out(), 4096));
  SOAK(cuMemAllocHost(pinned.out(), 4096));
  CUmemorytype type{};
  SOAK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory + thread.Below(4096)));
  SOAK_EXPECT(type == CU_MEMORYTYPE_DEVICE);
  SOAK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                             reinterpret_cast<CUdeviceptr>(pinned.get())));
  SOAK_EXPECT(type == CU_MEMORYTYPE_HOST);
  size_t free_bytes = 0, total_bytes = 0;
  SOAK(cuMemGetInfo(&free_bytes, &total_bytes));
  SOAK_EXPECT(free_bytes <= total_bytes);
}

}  // namespace

std::vector<Group> MemoryGroups() {
  return {{"device copies", DeviceCopies},
          {"fills", Fills},
          {"pitched copies", PitchedCopies},
          {"pinned copies", PinnedCopies},
          {"registered memory", RegisteredMemory},
          {"managed memory", ManagedMemory},
          {"stream-ordered memory", StreamOrdered},
          {"own pool", OwnPool},
          {"arrays", Arrays},
          {"virtual memory", VirtualMemory},
          {"pointer attributes", PointerAttributes}};
}

}  // namespace causeway::soak
