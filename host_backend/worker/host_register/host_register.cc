// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/host_register/host_register.h"

#include <sys/mman.h>

#include "host_backend/worker/accounting/accounting.h"
#include "host_backend/worker/addresses/guest_addresses.h"
#include "host_backend/worker/process/populate.h"
#include "ivshmem_ring/messages/registration.h"

namespace causeway::host {
namespace {

constexpr uint64_t kLowestAddress = 1u << 16;
constexpr uint64_t kHighestAddress = (uint64_t{1} << 47) - kPageBytes;
constexpr size_t kMaxHostRanges = 1u << 16;
// Memory of an honest program may lie where this process has its program, heap or stack, which the answer
// then tells. So few answers find nothing out: these places differ by 28 bits and more in each process.
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

}  // namespace

bool HostRanges::MayRegister(const RegisterBody& body) {
  if (!arenas_.agreed()) {
    session_.Violation("it registers memory before it has agreed on addresses");
    return false;
  }
  const RegionView& region = arenas_.region();
  const Window pages = IsPlausible(body, region) ? PagesOf(body) : Window{0, 0};
  const Window slices = arenas_.SlicesAt(0, region.bytes);
  if (pages.end != 0 && (pages.end <= slices.begin || pages.begin >= slices.end)) return true;
  session_.violations.fetch_add(1);
  return false;
}

CUresult HostRanges::Register(const RegisterBody& body, uint64_t* device_address) {
  if (!session_.shares_memory()) return CUDA_ERROR_NOT_SUPPORTED;
  if (!MayRegister(body)) return CUDA_ERROR_INVALID_VALUE;
  if (OverlapsDeviceWindow(PagesOf(body))) return CUDA_ERROR_NOT_SUPPORTED;  // free or not
#ifdef __SANITIZE_THREAD__
  return CUDA_ERROR_NOT_SUPPORTED;  // TSan ends a program that maps memory at the guest's addresses
#endif
  const RegionView& region = arenas_.region();
  std::unique_lock change(mutex_);
  if (OverlapsAny(ranges_, body.address, body.bytes)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  const PageRange pages = OwnPages(ranges_, body.address, body.bytes);
  if (ranges_.size() >= kMaxHostRanges || pages.bytes() > region.bytes - mapped_bytes_)
    return CUDA_ERROR_OUT_OF_MEMORY;
  const Window range{pages.begin, pages.end};
  auto* at = reinterpret_cast<void*>(pages.begin);
  if (pages.bytes() != 0) {
    if (body.offset % kPageBytes != 0 || !region.OwnsSlices(body.offset, pages.bytes())) {
      session_.violations.fetch_add(1);
      return CUDA_ERROR_INVALID_VALUE;
    }
    const GuestAddresses::Claimed claimed = TheGuestAddresses().Claim(range);
    if (claimed == GuestAddresses::Claimed::kTaken) {
      const bool probes = ++collisions_ > kMostCollisions;
      change.unlock();
      if (probes) session_.Violation("it registers memory at addresses of the worker's own, again and again");
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    const int protection = body.writable != 0 ? PROT_READ | PROT_WRITE : PROT_READ;
    if (claimed != GuestAddresses::Claimed::kYes ||
        !TheGuestAddresses().Map(range, protection, region.fd, body.offset)) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    Populate(static_cast<std::byte*>(at), pages.bytes());
  }
  const Driver& driver = TheDriver();
  auto* start = reinterpret_cast<void*>(body.address);
  CUresult result = driver.cuMemHostRegister_v2(start, body.bytes, body.flags | CU_MEMHOSTREGISTER_DEVICEMAP);
  if (result == CUDA_SUCCESS) {
    CUdeviceptr device = body.address;
    driver.cuMemHostGetDevicePointer_v2(&device, start, 0);
    *device_address = device;
  } else {
    if (pages.bytes() != 0) TheGuestAddresses().Retire(range);
    return result;
  }
  // The driver has judged what the guest process may do there. The pages are the guest's in any case, and a
  // copy that writes them must not end this process.
  if (pages.bytes() != 0 && body.writable == 0) mprotect(at, pages.bytes(), PROT_READ | PROT_WRITE);
  ranges_[body.address] = {body.bytes};
  arenas_.Name(body.address, body.bytes);
  mapped_bytes_ += pages.bytes();
  TheAccounting().Add(MemoryKind::kPinned, kNoDevice, pages.bytes());
  return CUDA_SUCCESS;
}

CUresult HostRanges::Unregister(uint64_t address) {
  const std::lock_guard change(mutex_);
  const auto found = ranges_.find(address);
  if (found == ranges_.end()) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  const CUresult result = TheDriver().cuMemHostUnregister(reinterpret_cast<void*>(address));
  // Whatever else the driver says, the range stays: it may still use the pages.
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED) return result;
  const PageRange pages = OwnPages(ranges_, address, found->second.bytes);
  ranges_.erase(found);
  arenas_.Forget(address);
  if (pages.bytes() != 0) {
    Depopulate(reinterpret_cast<std::byte*>(pages.begin), pages.bytes());
    TheGuestAddresses().Retire({pages.begin, pages.end});  // copies and graphs may still name it
  }
  mapped_bytes_ -= pages.bytes();
  TheAccounting().Return(MemoryKind::kPinned, kNoDevice, pages.bytes());
  return CUDA_SUCCESS;
}

CUresult Serve_kRegisterHost(Session& session, Request& request) {
  const auto body = request.in.Get<RegisterBody>();
  if (!request.in.ok()) return request.in.error();
  uint64_t device_address = 0;
  const CUresult result = session.part<HostRanges>().Register(body, &device_address);
  if (result == CUDA_SUCCESS) request.out.Put(device_address);
  return result;
}

CUresult Serve_kUnregisterHost(Session& session, Request& request) {
  const auto body = request.in.Get<RegisterBody>();
  return request.in.ok() ? session.part<HostRanges>().Unregister(body.address) : request.in.error();
}

}  // namespace causeway::host
