// SPDX-License-Identifier: Apache-2.0
// The rows that take and give device memory, counted. Each stands before the driver's function of its name
// and has its answers, but for CUDA_ERROR_OUT_OF_MEMORY over the VM's limit. Memory that was imported counts
// in the process that made it.
#include <algorithm>
#include <optional>

#include "host_backend/worker/accounting/accounting.h"
#include "host_backend/worker/accounting/managed_copies.h"
#include "host_backend/worker/driver/guard.h"

namespace causeway::host {
namespace {

using Counted = Guards<struct CountsMemory>;

constexpr uint64_t kSmallStep = 512;       // the driver's alignment
constexpr uint64_t kLargeStep = 2u << 20;  // its page: what is 1 MiB or more has pages of its own
constexpr uint64_t kMost = uint64_t{1} << 62;

uint64_t Taken(uint64_t bytes) {
  const uint64_t step = bytes < kLargeStep / 2 ? kSmallStep : kLargeStep;
  return (std::min(bytes, kMost) + step - 1) / step * step;
}

template <class T>
uint64_t KeyOf(T value) {
  return reinterpret_cast<uint64_t>(value);
}
uint64_t KeyOf(CUmemGenericAllocationHandle value) {
  return value;
}

// Memory on the context's device, charged before the driver's `entry` makes it. `made`: what it is held for.
template <auto entry, class Made, class... More>
CUresult MakeCharged(ChargeSpace space, MemoryKind kind, uint64_t bytes, Made* made, More... more) {
  CUdevice device = 0;
  if (TheDriver().cuCtxGetDevice(&device) != CUDA_SUCCESS)
    return Counted::own<entry>(made, more...);  // it says what is wrong
  ChargeRef charge = TheAccounting().Reserve(kind, device, bytes);
  if (charge == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = Counted::own<entry>(made, more...);
  if (result == CUDA_SUCCESS) TheAccounting().Hold(space, KeyOf(*made), std::move(charge), true);
  return result;
}
// The same for an array.
template <auto entry, class Made, class... More>
CUresult MakeArray(uint64_t bytes, Made* array, More... more) {
  return MakeCharged<entry>(ChargeSpace::kArray, MemoryKind::kDevice, bytes, array, more...);
}

// Of a place where memory is asked for.
struct Place {
  MemoryKind kind = MemoryKind::kPinned;
  int device = kNoDevice;
  explicit Place(const CUmemLocation& location) {
    if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) return;
    kind = MemoryKind::kDevice;
    device = location.id;
  }
};

CUresult GiveBack(ChargeSpace space, uint64_t key, auto give_back) {
  Holding holding = TheAccounting().Take(space, key);
  const CUresult result = give_back();
  if (result != CUDA_SUCCESS) TheAccounting().PutBack(space, key, std::move(holding));
  return result;
}
// The guard of a function that gives back what its one parameter names.
template <auto entry, ChargeSpace space, class T>
CUresult Ends(T what) {
  return GiveBack(space, KeyOf(what), [&] { return Counted::own<entry>(what); });
}

// ---- linear memory ----

CUresult Alloc(CUdeviceptr* address, size_t bytes) {
  return MakeCharged<&Driver::cuMemAlloc_v2>(ChargeSpace::kAddress, MemoryKind::kDevice, Taken(bytes),
                                             address, bytes);
}

// It counts on the device wherever the driver keeps it: all of it may come to lie there.
CUresult AllocManaged(CUdeviceptr* address, size_t bytes, unsigned flags) {
  return MakeCharged<&Driver::cuMemAllocManaged>(ChargeSpace::kAddress, MemoryKind::kManaged, Taken(bytes),
                                                 address, bytes, flags);
}

// Whose pitch is known only afterwards: the driver's are multiples of 512.
CUresult AllocPitch(CUdeviceptr* address, size_t* pitch, size_t width, size_t height, unsigned element) {
  const uint64_t row = (std::min<uint64_t>(width, kMost) + kSmallStep - 1) / kSmallStep * kSmallStep;
  const uint64_t bytes = height != 0 && row > kMost / height ? kMost : row * height;
  return MakeCharged<&Driver::cuMemAllocPitch_v2>(ChargeSpace::kAddress, MemoryKind::kDevice, Taken(bytes),
                                                  address, pitch, width, height, element);
}

// What the driver frees, from a pool or not.
CUresult FreeCounted(CUdeviceptr address, auto free) {
  return TheAccounting().FreeFromPool(address,
                                      [&] { return GiveBack(ChargeSpace::kAddress, address, free); });
}

// The largest managed block that may lie there; 0: none does.
uint64_t ManagedBytes(CUdeviceptr address) {
  return TheAccounting().Find(ChargeSpace::kAddress, address).Most([](const Charge& charge) {
    return charge.kind() == MemoryKind::kManaged ? charge.bytes() : 0;
  });
}

// While it waits for the copies of a block, others may end that and get a larger one at its address, whose copies it has not
// waited for.
CUresult Free(CUdeviceptr address) {
  std::optional<ManagedFree> waits;
  uint64_t waited = 0;
  for (uint64_t bytes = ManagedBytes(address); bytes > waited; bytes = ManagedBytes(address)) {
    waits.reset();
    waits.emplace(address, bytes);
    waited = bytes;
  }
  return FreeCounted(address, [&] { return Counted::own<&Driver::cuMemFree_v2>(address); });
}

CUresult FreeAsync(CUdeviceptr address, CUstream stream) {
  return FreeCounted(address, [&] { return Counted::own<&Driver::cuMemFreeAsync>(address, stream); });
}

// ---- arrays ----

uint64_t BitsOf(CUarray_format format, unsigned channels) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return 8 * uint64_t{channels};
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return 16 * uint64_t{channels};
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
      return 32 * uint64_t{channels};
    case CU_AD_FORMAT_BC1_UNORM:
    case CU_AD_FORMAT_BC1_UNORM_SRGB:
    case CU_AD_FORMAT_BC4_UNORM:
    case CU_AD_FORMAT_BC4_SNORM:
      return 4;
    case CU_AD_FORMAT_UNORM_INT8X1:
    case CU_AD_FORMAT_SNORM_INT8X1:
      return 8;
    case CU_AD_FORMAT_NV12:
      return 12;
    case CU_AD_FORMAT_UNORM_INT8X2:
    case CU_AD_FORMAT_SNORM_INT8X2:
    case CU_AD_FORMAT_UNORM_INT16X1:
    case CU_AD_FORMAT_SNORM_INT16X1:
      return 16;
    default:
      break;
  }
  // Other block-compressed formats have 8 bits, the widest of the others 64.
  if (format >= CU_AD_FORMAT_BC2_UNORM && format <= CU_AD_FORMAT_BC7_UNORM_SRGB) return 8;
  return 64;
}

// As the description says; padding and tiling of the driver's own are not known.
uint64_t BytesOf(const CUDA_ARRAY3D_DESCRIPTOR& array, unsigned levels) {
  constexpr unsigned kEmpty = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;
  if ((array.Flags & kEmpty) != 0) return 0;  // what is mapped into it counts by itself
  uint64_t bits = 0;
  uint64_t width = std::max<uint64_t>(array.Width, 1), height = std::max<uint64_t>(array.Height, 1);
  uint64_t depth = std::max<uint64_t>(array.Depth, 1);
  const bool layered = (array.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
  if (width > kMost || height > kMost / width || depth > kMost / width / height / 64) return kMost;
  for (unsigned level = 0; level < std::clamp(levels, 1u, 64u); ++level) {
    bits += width * height * depth * BitsOf(array.Format, array.NumChannels);
    width = std::max<uint64_t>(width / 2, 1);
    height = std::max<uint64_t>(height / 2, 1);
    if (!layered) depth = std::max<uint64_t>(depth / 2, 1);
  }
  return Taken((bits + 7) / 8);
}

CUresult ArrayCreate(CUarray* array, const CUDA_ARRAY_DESCRIPTOR* flat) {
  const CUDA_ARRAY3D_DESCRIPTOR description{flat->Width, flat->Height, 0, flat->Format, flat->NumChannels, 0};
  return MakeArray<&Driver::cuArrayCreate_v2>(BytesOf(description, 1), array, flat);
}

CUresult Array3DCreate(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR* description) {
  return MakeArray<&Driver::cuArray3DCreate_v2>(BytesOf(*description, 1), array, description);
}

CUresult MipmappedArrayCreate(CUmipmappedArray* array, const CUDA_ARRAY3D_DESCRIPTOR* description,
                              unsigned levels) {
  return MakeArray<&Driver::cuMipmappedArrayCreate>(BytesOf(*description, levels), array, description,
                                                    levels);
}

// ---- virtual memory management: memory lasts while it has a reference or is mapped ----

CUresult Create(CUmemGenericAllocationHandle* allocation, size_t bytes, const CUmemAllocationProp* properties,
                unsigned long long flags) {
  const Place place(properties->location);
  ChargeRef charge = TheAccounting().Reserve(place.kind, place.device, bytes);
  if (charge == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = Counted::own<&Driver::cuMemCreate>(allocation, bytes, properties, flags);
  if (result == CUDA_SUCCESS)
    TheAccounting().Hold(ChargeSpace::kAllocation, *allocation, std::move(charge), false);
  return result;
}

CUresult Retain(CUmemGenericAllocationHandle* allocation, void* address) {
  const CUresult result = Counted::own<&Driver::cuMemRetainAllocationHandle>(allocation, address);
  if (result != CUDA_SUCCESS || allocation == nullptr) return result;
  Accounting& accounting = TheAccounting();
  // It may have been released while it was mapped, and comes back with the same charge.
  if (!accounting.HoldAgain(ChargeSpace::kAllocation, *allocation))
    accounting.PutBack(ChargeSpace::kAllocation, *allocation,
                       accounting.FindAround(ChargeSpace::kMapping, KeyOf(address)));
  return result;
}

CUresult Import(CUmemGenericAllocationHandle* allocation, void* handle, CUmemAllocationHandleType type) {
  const CUresult result = Counted::own<&Driver::cuMemImportFromShareableHandle>(allocation, handle, type);
  // Of this process's own: one more reference to it.
  if (result == CUDA_SUCCESS) TheAccounting().HoldAgain(ChargeSpace::kAllocation, *allocation);
  return result;
}

CUresult Map(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle allocation,
             unsigned long long flags) {
  Holding memory = TheAccounting().Find(ChargeSpace::kAllocation, allocation);
  const CUresult result = Counted::own<&Driver::cuMemMap>(address, bytes, offset, allocation, flags);
  if (result == CUDA_SUCCESS && memory.charge != nullptr)
    TheAccounting().Hold(ChargeSpace::kMapping, address, std::move(memory));
  return result;
}

CUresult Unmap(CUdeviceptr address, size_t bytes) {
  // Before the call: another thread may map something there as soon as nothing is.
  auto taken = TheAccounting().TakeRange(ChargeSpace::kMapping, address, bytes);
  const CUresult result = Counted::own<&Driver::cuMemUnmap>(address, bytes);
  if (result == CUDA_SUCCESS) return result;
  for (auto& [key, holding] : taken) TheAccounting().PutBack(ChargeSpace::kMapping, key, std::move(holding));
  return result;
}

// ---- pools, graphs ----

CUresult PoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  const CUresult result = Counted::own<&Driver::cuMemPoolCreate>(pool, properties);
  if (result != CUDA_SUCCESS) return result;
  const Place place(properties->location);
  TheAccounting().KnowPool(*pool, place.kind, place.device);
  return result;
}

// Pools that the driver has by itself, for other kinds of memory than cuDeviceGetDefaultMemPool's; or one that the program
// has made and set in the place of such a pool.
template <auto entry>
CUresult GivenPool(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type) {
  const auto give = [&] { return Counted::own<entry>(pool, location, type); };
  if (pool == nullptr || location == nullptr) return give();
  const Place place(*location);
  return TheAccounting().KnowGivenPool(
      pool, type == CU_MEM_ALLOCATION_TYPE_MANAGED ? MemoryKind::kManaged : place.kind, place.device, give);
}

CUresult PoolDestroy(CUmemoryPool pool) {
  return TheAccounting().EndPool(pool, [&] { return Counted::own<&Driver::cuMemPoolDestroy>(pool); });
}

CUresult PoolTrimTo(CUmemoryPool pool, size_t keep) {
  const CUresult result = Counted::own<&Driver::cuMemPoolTrimTo>(pool, keep);
  TheAccounting().Refresh();
  return result;
}

CUresult FromPool(CUmemoryPool pool, CUdeviceptr* address, size_t bytes, CUstream stream, auto allocate) {
  return TheAccounting().AllocateFromPool(pool, address, bytes, allocate,
                                          [&] { Counted::own<&Driver::cuMemFreeAsync>(*address, stream); });
}

CUresult AllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream) {
  return FromPool(pool, address, bytes, stream, [&] {
    return Counted::own<&Driver::cuMemAllocFromPoolAsync>(address, bytes, pool, stream);
  });
}

CUresult AllocAsync(CUdeviceptr* address, size_t bytes, CUstream stream) {
  return FromPool(nullptr, address, bytes, stream,
                  [&] { return Counted::own<&Driver::cuMemAllocAsync>(address, bytes, stream); });
}

CUresult GraphLaunch(CUgraphExec exec, CUstream stream) {
  return TheAccounting().LaunchGraph(exec,
                                     [&] { return Counted::own<&Driver::cuGraphLaunch>(exec, stream); });
}

CUresult GraphExecDestroy(CUgraphExec exec) {
  return TheAccounting().EndGraph(exec, [&] { return Counted::own<&Driver::cuGraphExecDestroy>(exec); });
}

CUresult GraphMemTrim(CUdevice device) {
  const CUresult result = Counted::own<&Driver::cuDeviceGraphMemTrim>(device);
  TheAccounting().GraphsTrimmed();
  return result;
}

// ---- modules ----

CUresult ModuleUnload(CUmodule module) {
  const Holding memory = TheAccounting().Take(ChargeSpace::kModule, KeyOf(module));
  const CUresult result = GiveBack(ChargeSpace::kImage, KeyOf(module),
                                   [&] { return Counted::own<&Driver::cuModuleUnload>(module); });
  if (result != CUDA_SUCCESS) TheAccounting().PutBack(ChargeSpace::kModule, KeyOf(module), memory);
  return result;
}

// ---- what the program is told ----

CUresult GetInfo(size_t* free, size_t* total) {
  const CUresult result = Counted::own<&Driver::cuMemGetInfo_v2>(free, total);
  if (TheAccounting().limit_bytes() == 0) return result;
  CUdevice device = 0;
  if (result == CUDA_SUCCESS && TheDriver().cuCtxGetDevice(&device) == CUDA_SUCCESS)
    TheAccounting().LimitInfo(device, free, total);
  return result;
}

}  // namespace

CUresult Uncounted::GetInfo(size_t* free, size_t* total) {
  return Counted::own<&Driver::cuMemGetInfo_v2>(free, total);
}
CUresult Uncounted::AllocateAndFree() {
  CUdeviceptr scratch = 0;
  const CUresult result = Counted::own<&Driver::cuMemAlloc_v2>(&scratch, 1);
  return result == CUDA_SUCCESS ? Counted::own<&Driver::cuMemFree_v2>(scratch) : result;
}
CUresult Uncounted::Unload(CUmodule module) {
  return Counted::own<&Driver::cuModuleUnload>(module);
}
CUresult Uncounted::TrimPool(CUmemoryPool pool) {
  return Counted::own<&Driver::cuMemPoolTrimTo>(pool, 0);
}
CUresult Uncounted::TrimGraphs(CUdevice device) {
  return Counted::own<&Driver::cuDeviceGraphMemTrim>(device);
}

void AccountMemory(Driver& driver) {
  Counted::Put<&Driver::cuMemAlloc_v2>(driver, &Alloc);
  Counted::Put<&Driver::cuMemAllocManaged>(driver, &AllocManaged);
  Counted::Put<&Driver::cuMemAllocPitch_v2>(driver, &AllocPitch);
  Counted::Put<&Driver::cuMemFree_v2>(driver, &Free);
  Counted::Put<&Driver::cuMemFreeAsync>(driver, &FreeAsync);
  Counted::Put<&Driver::cuArrayCreate_v2>(driver, &ArrayCreate);
  Counted::Put<&Driver::cuArray3DCreate_v2>(driver, &Array3DCreate);
  Counted::Put<&Driver::cuMipmappedArrayCreate>(driver, &MipmappedArrayCreate);
  Counted::Put<&Driver::cuArrayDestroy>(driver, &Ends<&Driver::cuArrayDestroy, ChargeSpace::kArray>);
  Counted::Put<&Driver::cuMipmappedArrayDestroy>(
      driver, &Ends<&Driver::cuMipmappedArrayDestroy, ChargeSpace::kArray>);
  Counted::Put<&Driver::cuMemCreate>(driver, &Create);
  Counted::Put<&Driver::cuMemRetainAllocationHandle>(driver, &Retain);
  Counted::Put<&Driver::cuMemImportFromShareableHandle>(driver, &Import);
  Counted::Put<&Driver::cuMemRelease>(driver, &Ends<&Driver::cuMemRelease, ChargeSpace::kAllocation>);
  Counted::Put<&Driver::cuMemMap>(driver, &Map);
  Counted::Put<&Driver::cuMemUnmap>(driver, &Unmap);
  Counted::Put<&Driver::cuMemPoolCreate>(driver, &PoolCreate);
  Counted::Put<&Driver::cuMemPoolDestroy>(driver, &PoolDestroy);
  Counted::Put<&Driver::cuMemGetDefaultMemPool>(driver, &GivenPool<&Driver::cuMemGetDefaultMemPool>);
  Counted::Put<&Driver::cuMemGetMemPool>(driver, &GivenPool<&Driver::cuMemGetMemPool>);
  Counted::Put<&Driver::cuMemPoolTrimTo>(driver, &PoolTrimTo);
  Counted::Put<&Driver::cuMemAllocFromPoolAsync>(driver, &AllocFromPoolAsync);
  Counted::Put<&Driver::cuMemAllocAsync>(driver, &AllocAsync);
  Counted::Put<&Driver::cuGraphLaunch>(driver, &GraphLaunch);
  Counted::Put<&Driver::cuGraphExecDestroy>(driver, &GraphExecDestroy);
  Counted::Put<&Driver::cuDeviceGraphMemTrim>(driver, &GraphMemTrim);
  Counted::Put<&Driver::cuModuleUnload>(driver, &ModuleUnload);
  Counted::Put<&Driver::cuMemGetInfo_v2>(driver, &GetInfo);
  AccountLimits(driver);
}

}  // namespace causeway::host
