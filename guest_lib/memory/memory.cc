// SPDX-License-Identifier: Apache-2.0
// Device and pinned memory: allocation, and what this process knows of its pointers.
#include "guest_lib/memory/memory.h"
#include "ivshmem_ring/protocol/maybe_result.h"

#include <atomic>
#include <map>
#include <shared_mutex>

#include "guest_lib/addresses/address_windows.h"
#include "guest_lib/addresses/private_host.h"
#include "guest_lib/addresses/region_memory.h"
#include "guest_lib/host_register/host_register.h"
#include "guest_lib/host_register/pinned_reach.h"
#include "guest_lib/managed/managed_memory.h"
#include "guest_lib/managed/pager.h"
#include "guest_lib/memory/freed_blocks.h"
#include "guest_lib/memory/freed_memory.h"
#include "guest_lib/memory/host_pool.h"
#include "guest_lib/process/lock_order.h"
#include "guest_lib/session/device_reach.h"
#include "guest_lib/stream/capture_rule.h"
#include "guest_lib/stream/completion.h"
#include "guest_lib/stream/giving_back.h"
#include "guest_lib/stream/remote.h"

namespace causeway::guest {
namespace {

SharedMutex<Lock::kAllocations> allocations_mutex;
auto& allocations = *new std::map<uint64_t, DeviceAllocation>;  // by address; never destroyed
std::atomic<bool> any_sync_memops{false};                       // has ever been set in this process

// Forgets an allocation before it is freed: afterwards its address may be another thread's already.
class Forgotten {
 public:
  explicit Forgotten(CUdeviceptr address) {
    const std::unique_lock lock(allocations_mutex);
    node_ = allocations.extract(address);
  }
  bool known() const { return !node_.empty(); }
  // Only of one that is known.
  const DeviceAllocation& allocation() const { return node_.mapped(); }
  // The call failed: the allocation is still there.
  void Restore() {
    const std::unique_lock lock(allocations_mutex);
    if (known()) allocations.insert(std::move(node_));
  }

 private:
  std::map<uint64_t, DeviceAllocation>::node_type node_;
};

// Device memory that the driver has made is the program's, unless its addresses mean something else here.
CUresult Admit(CUdeviceptr address, uint64_t bytes, bool from_pool, Object* pool, uint64_t source,
               auto give_back) {
  if (!AdmitDeviceMemory(address, bytes)) {
    give_back();
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  RememberAllocation(address, bytes, from_pool, pool, source);
  return CUDA_SUCCESS;
}

// From the pool (null: the device's current one), unless memory that was freed before in the stream serves.
template <class Ask>
CUresult AllocateOnStream(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream,
                          const Ask& ask) {
  if (bytes == 0) return ask();  // no error, and nothing to remember
  // What is allocated in a capture belongs to the graph.
  const uint64_t source = AnyCapture() ? 0 : SourceOfPool(pool);
  if (const auto taken = TakeFreed(address, bytes, source, stream)) {
    if (*taken == CUDA_SUCCESS) RememberAllocation(*address, bytes, true, Find(pool), source);
    return *taken;
  }
  CUresult result = ask();
  if (result == CUDA_ERROR_OUT_OF_MEMORY && WaitForLateFrees()) result = ask();
  if (result != CUDA_SUCCESS) return result;
  return Admit(*address, bytes, true, Find(pool), source, [&] {
    Post<Op::cuMemFreeAsync>(*address, stream);
    NoteFreedOnHost(stream);
  });
}

bool SetDeviceSyncMemops(CUdeviceptr address, bool value) {
  const std::unique_lock lock(allocations_mutex);
  auto found = allocations.upper_bound(address);
  if (found == allocations.begin()) return false;
  --found;
  if (address - found->first >= found->second.bytes) return false;
  found->second.sync_memops = value;
  return true;
}

}  // namespace

void RememberAllocation(CUdeviceptr address, uint64_t bytes, bool from_pool, Object* pool, uint64_t source) {
  const std::unique_lock lock(allocations_mutex);
  allocations[address] = {address, bytes, CurrentContextObject(), NextId(), from_pool, pool, false, source};
}

void NoteShared(CUdeviceptr address) {
  const std::unique_lock lock(allocations_mutex);
  const auto found = allocations.find(address);
  if (found != allocations.end()) found->second.source = 0;
}

void RememberMapping(CUdeviceptr address, uint64_t bytes) {
  RememberAllocation(address, bytes, true);
  const std::unique_lock lock(allocations_mutex);
  if (const auto found = allocations.find(address); found != allocations.end()) found->second.mapped = true;
}

std::vector<DeviceAllocation> TakeAllocations(CUdeviceptr address, uint64_t bytes) {
  const std::unique_lock lock(allocations_mutex);
  std::vector<DeviceAllocation> taken;
  const auto begin = allocations.lower_bound(address);
  auto end = begin;
  for (; end != allocations.end() && end->first - address < bytes; ++end) taken.push_back(end->second);
  allocations.erase(begin, end);
  return taken;
}

void ReturnAllocations(const std::vector<DeviceAllocation>& taken) {
  const std::unique_lock lock(allocations_mutex);
  for (const DeviceAllocation& allocation : taken) allocations.emplace(allocation.address, allocation);
}

bool FindAllocation(CUdeviceptr address, DeviceAllocation* allocation) {
  const std::shared_lock lock(allocations_mutex);
  auto found = allocations.upper_bound(address);
  if (found == allocations.begin()) return false;
  --found;
  if (address - found->first >= found->second.bytes) return false;
  *allocation = found->second;
  return true;
}

bool FindHost(uint64_t address, HostAllocation* allocation) {
  Session* session = Session::Get();
  if (session == nullptr) return false;
  return session->memory().Find(address, allocation) ||
         (AnyRegistered() && FindRegistered(address, allocation)) || FindPrivateHost(address, allocation) ||
         FindMigrating(address, allocation, false);
}

bool SyncsMemops(uint64_t address) {
  if (!any_sync_memops.load(std::memory_order_relaxed)) return false;
  DeviceAllocation device;
  if (FindAllocation(address, &device)) return device.sync_memops;
  HostAllocation host;
  return FindHost(address, &host) && host.sync_memops;
}

CUresult CheckDeviceRange(CUdeviceptr address, uint64_t bytes, bool* known) {
  DeviceAllocation device;
  HostAllocation host;
  uint64_t start = 0, size = 0;
  *known = true;
  if (FindAllocation(address, &device)) {
    start = device.address;
    size = device.bytes;
    if (device.mapped && bytes > size - (address - start)) {
      *known = false;  // what adjoins may be mapped as well
      return CUDA_SUCCESS;
    }
  } else if (FindHost(address, &host) && host.device_address != 0) {
    if (unreached_blocks.load(std::memory_order_acquire) != 0) {
      if (const CUresult result = ReachPinned(address)) return result;
    }
    start = host.address;
    size = host.bytes;
  } else {
    *known = false;  // variables of modules and mapped memory are the host's to judge
    return IsDeviceAddress(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  return bytes <= size - (address - start) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

PointerKind KindOfPointer(uint64_t address) {
  if (Session::Made().memory().InWindow(address)) return PointerKind::kPinned;
  HostAllocation known;
  if (FindMigrating(address, &known, true)) return PointerKind::kManaged;
  if (IsDeviceAddress(address)) return PointerKind::kDevice;
  // Over TCP registered memory that the device does not reach is ordinary memory, as is such pinned memory.
  const bool in_place =
      AnyRegistered() && FindRegistered(address, &known) && Session::Made().transport().shares_memory();
  return in_place ? PointerKind::kPinned : PointerKind::kPageable;
}

void NameOnDevice(const CUDA_MEMCPY3D& box) {
  const auto name = [](CUmemorytype type, CUdeviceptr device, const void* host) {
    if (type == CU_MEMORYTYPE_ARRAY) return;
    NameOnDevice(type == CU_MEMORYTYPE_HOST ? reinterpret_cast<uint64_t>(host) : device);
  };
  name(box.srcMemoryType, box.srcDevice, box.srcHost);
  name(box.dstMemoryType, box.dstDevice, box.dstHost);
}

void NameManagedAsDevice(CUDA_MEMCPY3D* box) {
  auto name = [](CUmemorytype* type, CUdeviceptr* device, const void* host) {
    const auto address = reinterpret_cast<uint64_t>(host);
    if (*type != CU_MEMORYTYPE_HOST || KindOfPointer(address) != PointerKind::kManaged) return;
    *type = CU_MEMORYTYPE_DEVICE;
    *device = address;
  };
  name(&box->srcMemoryType, &box->srcDevice, box->srcHost);
  name(&box->dstMemoryType, &box->dstDevice, box->dstHost);
}

namespace {

void EndRegistrationsOf(Object* context) {
  UnregisterAllOf(context);
  GiveBackManagedPages();  // kernels that the end of the context waits for may wait for what is in them
  LeavePinnedOf(context);
  ForgetMigratingOf(context);
}

void FreeMemoryOf(const Object* context) {
  Session::Made().memory().FreeOf(context);
  FreePinnedOf(context);
  const std::unique_lock lock(allocations_mutex);
  std::erase_if(allocations, [context](const auto& entry) { return entry.second.context == context; });
}

// The context of the memory at that address, for calls that need none to be current, where none is. Memory of a green context
// that has ended belongs to its device. Null: the thread has a context, or the memory is nobody's.
Object* OwnerOf(uint64_t address) {
  if (CurrentContextObject() != nullptr) return nullptr;
  DeviceAllocation device;
  HostAllocation host;
  Object* owner = nullptr;
  if (FindAllocation(address, &device)) {
    owner = device.context;
  } else if (FindHost(address, &host)) {
    owner = host.context;
  }
  const bool ended = owner != nullptr && !ContextOf(owner).active.load();
  return ended ? PrimaryContext(ContextOf(owner).device) : owner;
}

[[gnu::constructor]] void SetHooks() {
  hooks.context_ends = EndRegistrationsOf;
  hooks.context_ended = FreeMemoryOf;
}

}  // namespace

BoxSide SideOf(const CUDA_MEMCPY3D& box, bool source) {
  const size_t x = source ? box.srcXInBytes : box.dstXInBytes, y = source ? box.srcY : box.dstY;
  const size_t z = source ? box.srcZ : box.dstZ;
  const uint64_t device = source ? box.srcDevice : box.dstDevice;
  BoxSide side{};
  side.type = source ? box.srcMemoryType : box.dstMemoryType;
  side.base = device;
  if (side.type == CU_MEMORYTYPE_UNIFIED) {
    side.type = IsDeviceSide(KindOfPointer(device)) ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  } else if (side.type == CU_MEMORYTYPE_HOST) {
    side.base = reinterpret_cast<uint64_t>(source ? box.srcHost : box.dstHost);
  }
  side.pitch = source ? box.srcPitch : box.dstPitch;
  side.rows = source ? box.srcHeight : box.dstHeight;
  if (side.pitch == 0) side.pitch = x + box.WidthInBytes;
  if (side.rows == 0) side.rows = y + box.Height;
  side.address = side.base + (uint64_t{z} * side.rows + y) * side.pitch + x;
  side.pageable = side.type == CU_MEMORYTYPE_HOST && KindOfPointer(side.base) == PointerKind::kPageable;
  side.fits = side.type == CU_MEMORYTYPE_ARRAY || (side.base != 0 && side.pitch >= x + box.WidthInBytes);
  return side;
}

}  // namespace causeway::guest

using namespace causeway;
using namespace causeway::guest;

extern "C" {

CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  if (const CUresult result = NeedContext()) return result;
  if (address == nullptr) return AnswerBesideCaptures(CUDA_ERROR_INVALID_VALUE, CaptureRule::kUnsafe);
  if (const auto taken = TakeFreedBlock(address, bytes)) {
    if (*taken == CUDA_SUCCESS) RememberAllocation(*address, bytes, false);
    return *taken;
  }
  CUresult result = Wait<Op::cuMemAlloc_v2>(address, bytes);
  if (result == CUDA_ERROR_OUT_OF_MEMORY && WaitForLateFrees())
    result = Wait<Op::cuMemAlloc_v2>(address, bytes);
  if (result != CUDA_SUCCESS) return result;
  return Admit(*address, bytes, false, nullptr, 0, [&] { Wait<Op::cuMemFree_v2>(*address); });
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width, size_t height,
                            unsigned int element) {
  if (const CUresult result = NeedContext()) return result;
  const CUresult result = Wait<Op::cuMemAllocPitch_v2>(address, pitch, width, height, element);
  if (result != CUDA_SUCCESS) return result;
  return Admit(*address, *pitch * height, false, nullptr, 0, [&] { Wait<Op::cuMemFree_v2>(*address); });
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  if (const CUresult result = InitialisedOrError()) return result;
  const WithContextOf scope(OwnerOf(address));
  if (address == 0 || NeedContext() != CUDA_SUCCESS) {
    if (const CUresult result = CheckSend()) return result;
    return AnswerBesideCaptures(address == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE, CaptureRule::kUnsafe);
  }
  HostAllocation managed;
  if (FindManaged(address, &managed) && managed.address == address) return FreeManaged(managed);
  if (const auto freed = FreeToHostPoolNow(address)) return *freed;
  Forgotten allocation(address);
  MaybeResult held;
  if (allocation.known()) held = HoldFreedBlock(allocation.allocation());
  const CUresult result = held ? *held : Wait<Op::cuMemFree_v2>(address);
  if (allocation.known() && allocation.allocation().from_pool) NotePoolsKeepLess();
  if (result != CUDA_SUCCESS) allocation.Restore();
  return result;
}

CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream stream) {
  const WithContextOf scope(stream);
  if (const CUresult result = NeedContext()) return result;
  if (address == nullptr)
    return AnswerBesideCaptures(CUDA_ERROR_INVALID_VALUE, CaptureRule::kAllocates, stream);
  return AllocateOnStream(address, bytes, nullptr, stream,
                          [&] { return Wait<Op::cuMemAllocAsync>(address, bytes, stream); });
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream) {
  const WithContextOf scope(stream);
  if (const CUresult result = NeedContext()) return result;
  if (address == nullptr)
    return AnswerBesideCaptures(CUDA_ERROR_INVALID_VALUE, CaptureRule::kAllocates, stream);
  if (IsHostPool(pool)) return AllocateFromHostPool(address, bytes, pool, stream);
  if (Find(pool) == nullptr) return Wait<Op::cuMemAllocFromPoolAsync>(address, bytes, pool, stream);
  return AllocateOnStream(address, bytes, pool, stream,
                          [&] { return Wait<Op::cuMemAllocFromPoolAsync>(address, bytes, pool, stream); });
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  const WithContextOf scope(stream);
  if (const CUresult result = NeedContext()) return result;
  if (address == 0) return AnswerBesideCaptures(CUDA_SUCCESS, CaptureRule::kAllocates, stream);
  if (const auto freed = FreeToHostPool(address, stream)) return *freed;
  Forgotten allocation(address);
  // What a graph allocates comes back with each launch: the driver knows.
  if (!allocation.known()) {
    const CUresult result = Wait<Op::cuMemFreeAsync>(address, stream);
    NoteFreedOnHost(stream);
    return result;
  }
  const DeviceAllocation& freed = allocation.allocation();
  MaybeResult result;
  if (!freed.sync_memops && freed.context == CurrentContextObject())
    result = HoldFreed(address, freed.bytes, freed.source, stream);
  if (!result) {
    result = PostWork<Op::cuMemFreeAsync>(SubmissionOn(stream), address, stream);
    NoteFreedOnHost(stream);
  }
  if (*result != CUDA_SUCCESS) allocation.Restore();
  return *result;
}

CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  if (const CUresult result = NeedContext()) return result;
  return Wait<Op::cuMemGetInfo_v2>(free, total);
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  if (const CUresult result = NeedContext()) return result;
  DeviceAllocation allocation;
  HostAllocation host;
  uint64_t start = 0, length = 0;
  if (FindAllocation(address, &allocation)) {
    start = allocation.address;
    length = allocation.bytes;
  } else if (FindHost(address, &host)) {
    start = host.address;
    length = host.bytes;
  } else if (IsDeviceAddress(address)) {
    return Wait<Op::cuMemGetAddressRange_v2>(base, bytes, address);
  } else {
    return CUDA_ERROR_NOT_FOUND;
  }
  if (base != nullptr) *base = start;
  if (bytes != nullptr) *bytes = length;
  return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void** address, size_t bytes, unsigned int flags) {
  if (const CUresult result = NeedContext()) return result;
  constexpr unsigned kKnown =
      CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
  Session& session = Session::Made();
  if (const CUresult sticky = session.sticky()) return sticky;
  if (const CUresult unsafe = CheckUnsafeCall()) return unsafe;
  if (address == nullptr || (flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  *address = nullptr;
  if (bytes == 0) return CUDA_SUCCESS;
  if (session.transport().shares_memory())
    return session.memory().Allocate(bytes, HostKind::kPinned, flags, address);
  const CUresult result = AllocatePrivateHost(address, bytes, CurrentContextObject(), flags);
  // A kernel may find its address in memory. Where the device cannot reach it, the program is told when it names it.
  if (result == CUDA_SUCCESS && (flags & CU_MEMHOSTALLOC_DEVICEMAP) != 0)
    ReachPinned(reinterpret_cast<uint64_t>(*address));
  return result;
}

CUresult cuMemAllocHost_v2(void** address, size_t bytes) {
  return cuMemHostAlloc(address, bytes, 0);
}

CUresult cuMemFreeHost(void* address) {
  if (const CUresult result = InitialisedOrError()) return result;
  Session& session = Session::Made();
  if (const CUresult sticky = session.sticky()) return sticky;
  if (const CUresult unsafe = CheckUnsafeCall()) return unsafe;
  if (address == nullptr) return CUDA_SUCCESS;
  HostAllocation host;
  if (!FindHost(reinterpret_cast<uint64_t>(address), &host) || host.kind != HostKind::kPinned ||
      host.address != reinterpret_cast<uint64_t>(address)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const WithContextOf scope(host.context);
  // Natively this waits for the whole device: nothing on it may still use the memory.
  if (const CUresult result = DrainDevice()) return result;
  if (!session.transport().shares_memory()) return FreePinned(host.address);
  return session.memory().Free(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* device, void* host, unsigned int flags) {
  if (const CUresult result = NeedContext()) return result;
  if (device == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const auto address = reinterpret_cast<uint64_t>(host);
  HostAllocation allocation;
  if (!FindHost(address, &allocation) || allocation.kind == HostKind::kManaged)
    return CUDA_ERROR_INVALID_VALUE;
  if (allocation.device_address == 0) return CUDA_ERROR_NOT_SUPPORTED;  // TCP: kernels cannot reach it
  if (const CUresult result = ReachPinned(address)) return result;
  *device = allocation.device_address + (address - allocation.address);
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned int* flags, void* host) {
  if (const CUresult result = NeedContext()) return result;
  HostAllocation allocation;
  if (flags == nullptr || !FindHost(reinterpret_cast<uint64_t>(host), &allocation) ||
      allocation.kind == HostKind::kManaged) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *flags = allocation.flags | CU_MEMHOSTALLOC_DEVICEMAP;  // with unified addressing all of it is mapped
  return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult unsafe = CheckUnsafeCall()) return unsafe;
  if (attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) return CUDA_ERROR_INVALID_VALUE;
  const WithContextOf scope(OwnerOf(address));
  const bool on = *static_cast<const unsigned*>(value) != 0;
  if (IsDeviceAddress(address)) {
    if (const CUresult result = Wait<Op::cuPointerSetAttribute>(value, attribute, address)) return result;
    if (!SetDeviceSyncMemops(address, on)) SetMigratingSyncMemops(address, on);
  } else if (!Session::Made().memory().SetSyncMemops(address, on) && !SetRegisteredSyncMemops(address, on) &&
             !SetPrivateHostSyncMemops(address, on)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (on) any_sync_memops.store(true);
  return CUDA_SUCCESS;
}

CUresult cuMemBatchDecompressAsync(CUmemDecompressParams* parameters, size_t count, unsigned int flags,
                                   size_t* error_index, CUstream stream) {
  if (const CUresult result = NeedContext()) return result;
  if (error_index != nullptr) *error_index = SIZE_MAX;
  if (parameters == nullptr || count == 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    NameOnDevice(reinterpret_cast<uint64_t>(parameters[i].src));
    NameOnDevice(reinterpret_cast<uint64_t>(parameters[i].dst));
  }
  for (size_t done = 0; done < count;) {
    const auto piece =
        static_cast<uint32_t>(count - done < kMaxDecompressions ? count - done : kMaxDecompressions);
    Remote remote;
    PendingCall call = remote.StartCall(Op::cuMemBatchDecompressAsync);
    Writer& w = call.writer();
    w.Put(DecompressBody{remote.ToWire(stream, w), flags, piece});
    w.PutBytes(parameters + done, piece * sizeof *parameters);
    const CUresult result = call.Finish();
    if (result != CUDA_SUCCESS) {
      const auto index = call.reader().Get<uint64_t>();
      if (error_index != nullptr && call.reader().ok() && index < piece) *error_index = done + index;
      return result;
    }
    done += piece;
  }
  return CUDA_SUCCESS;
}

}  // extern "C"
