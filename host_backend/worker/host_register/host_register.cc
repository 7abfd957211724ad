// SPDX-License-Identifier: Apache-2.0
// Memory of the guest process that it has registered. The guest puts region pages in the place of its own;
// here the same pages are mapped at the guest's own address, so that the driver registers them under it and
// host pointer and device pointer are one. The guest chooses the address: it must be free, nothing of the
// driver's or ours is ever replaced, and from then on it is the guest's
// (host_backend/worker/addresses/guest_addresses.h). A guest library has the addresses of the driver and of
// most of what a worker maps reserved, so that nothing of its program lies there; the rest, the worker's
// program, heap and main stack, lies somewhere in a tebibyte. A guest that registers there looks for them,
// and loses its session before it has learned where they are.
#include <sys/mman.h>

#include "host_backend/worker/accounting/accounting.h"
#include "host_backend/worker/addresses/guest_addresses.h"
#include "host_backend/worker/process/populate.h"
#include "host_backend/worker/session/session.h"
#include "ivshmem_ring/messages/registration.h"

namespace causeway::host {
namespace {

constexpr uint64_t kLowestAddress = 1u << 16;
constexpr uint64_t kHighestAddress = (uint64_t{1} << 47) - kPageBytes;
constexpr size_t kMaxHostRanges = 1u << 16;
// Memory of an honest program may lie where this process has its program, heap or stack, which the answer
// then tells. So few answers find nothing out: these places differ by 28 bits and more from process to
// process.
#ifdef __SANITIZE_ADDRESS__
constexpr uint32_t kMostCollisions = ~0u;  // its heap lies at the same addresses in every process
#else
constexpr uint32_t kMostCollisions = 3;
#endif
constexpr unsigned kFlags =
    CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY;

bool IsPlausible(const RegisterBody& body, const RegionView& region) {
  return body.bytes != 0 && body.bytes <= region.bytes && body.address >= kLowestAddress &&
         body.address < kHighestAddress && body.bytes <= kHighestAddress - body.address &&
         (body.flags & ~kFlags) == 0;
}

Window PagesOf(const RegisterBody& body) {
  return {PageFloor(body.address), PageCeiling(body.address + body.bytes)};
}

bool IsOwnBacking(const RegionView& region, uint64_t offset, uint64_t bytes) {
  return offset % kPageBytes == 0 && offset >= FirstSliceOffset(SlotCount(region.bytes)) &&
         offset <= region.bytes && bytes <= region.bytes - offset && OwnsGranules(region, offset, bytes);
}

}  // namespace

bool Session::MayRegister(const RegisterBody& body) {
  if (!agreed_.load(std::memory_order_acquire)) {
    Violation("it registers memory before it has agreed on addresses");
    return false;
  }
  const Window pages = IsPlausible(body, region_) ? PagesOf(body) : Window{0, 0};
  const Window slices = SlicesAt(0, region_.bytes);
  if (pages.end != 0 && (pages.end <= slices.begin || pages.begin >= slices.end)) return true;
  violations.fetch_add(1);
  return false;
}

CUresult Session::RegisterHost(const RegisterBody& body, uint64_t* device_address) {
  if (!shares_memory()) return CUDA_ERROR_NOT_SUPPORTED;
  if (!MayRegister(body)) return CUDA_ERROR_INVALID_VALUE;
  if (OverlapsDeviceWindow(PagesOf(body))) return CUDA_ERROR_NOT_SUPPORTED;  // free or not
#ifdef __SANITIZE_THREAD__
  return CUDA_ERROR_NOT_SUPPORTED;  // TSan ends a program that maps memory at the guest's addresses
#endif
  std::unique_lock change(host_change_mutex_);
  if (OverlapsAny(host_ranges_, body.address, body.bytes)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  const PageRange pages = OwnPages(host_ranges_, body.address, body.bytes);
  if (host_ranges_.size() >= kMaxHostRanges || pages.bytes() > region_.bytes - host_range_bytes_)
    return CUDA_ERROR_OUT_OF_MEMORY;
  const Window range{pages.begin, pages.end};
  auto* at = reinterpret_cast<void*>(pages.begin);
  if (pages.bytes() != 0) {
    if (!IsOwnBacking(region_, body.offset, pages.bytes())) {
      violations.fetch_add(1);
      return CUDA_ERROR_INVALID_VALUE;
    }
    const GuestAddresses::Claimed claimed = TheGuestAddresses().Claim(range);
    if (claimed == GuestAddresses::Claimed::kTaken) {
      const bool probes = ++host_collisions_ > kMostCollisions;
      change.unlock();
      if (probes) Violation("it registers memory at addresses of the worker's own, again and again");
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    const int protection = body.writable != 0 ? PROT_READ | PROT_WRITE : PROT_READ;
    if (claimed != GuestAddresses::Claimed::kYes ||
        !TheGuestAddresses().Map(range, protection, region_.fd, body.offset)) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    Populate(static_cast<std::byte*>(at), pages.bytes());
  }
  Driver& driver = TheDriver();
  auto* start = reinterpret_cast<void*>(body.address);
  CUresult result = driver.cuMemHostRegister_v2(start, body.bytes, body.flags | CU_MEMHOSTREGISTER_DEVICEMAP);
  if (result == CUDA_SUCCESS) {
    CUdeviceptr device = body.address;
    if (driver.cuMemHostGetDevicePointer_v2 != nullptr)
      driver.cuMemHostGetDevicePointer_v2(&device, start, 0);
    *device_address = device;
  } else {
    if (pages.bytes() != 0) TheGuestAddresses().Retire(range);
    return result;
  }
  // The driver has judged what the guest process may do there. The pages are the guest's in any case, and a
  // copy that writes them must not end this process.
  if (pages.bytes() != 0 && body.writable == 0) mprotect(at, pages.bytes(), PROT_READ | PROT_WRITE);
  {
    const std::unique_lock lock(arenas_mutex_);
    host_ranges_[body.address] = {body.bytes};
  }
  host_range_bytes_ += pages.bytes();
  TheAccounting().Add(MemoryKind::kPinned, kNoDevice, pages.bytes());
  return CUDA_SUCCESS;
}

CUresult Session::UnregisterHost(uint64_t address) {
  const std::lock_guard change(host_change_mutex_);
  const auto found = host_ranges_.find(address);
  if (found == host_ranges_.end()) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  const CUresult result = TheDriver().cuMemHostUnregister(reinterpret_cast<void*>(address));
  // Whatever else the driver says, the range stays: it may still use the pages.
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED) return result;
  const PageRange pages = OwnPages(host_ranges_, address, found->second.bytes);
  {
    const std::unique_lock lock(arenas_mutex_);
    host_ranges_.erase(found);
  }
  if (pages.bytes() != 0) {
    Depopulate(reinterpret_cast<std::byte*>(pages.begin), pages.bytes());
    TheGuestAddresses().Retire({pages.begin, pages.end});  // copies and graphs may still name it
  }
  host_range_bytes_ -= pages.bytes();
  TheAccounting().Return(MemoryKind::kPinned, kNoDevice, pages.bytes());
  return CUDA_SUCCESS;
}

CUresult Serve_kRegisterHost(Session& session, Request& request) {
  const auto body = request.in.Get<RegisterBody>();
  if (!request.in.ok()) return request.in.error();
  uint64_t device_address = 0;
  const CUresult result = session.RegisterHost(body, &device_address);
  if (result == CUDA_SUCCESS) request.out.Put(device_address);
  return result;
}

CUresult Serve_kUnregisterHost(Session& session, Request& request) {
  const auto body = request.in.Get<RegisterBody>();
  return request.in.ok() ? session.UnregisterHost(body.address) : request.in.error();
}

}  // namespace causeway::host
