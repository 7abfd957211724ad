// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/host_register/host_register.h"

#include <sys/mman.h>
#include <unistd.h>

#include "host_backend/common/unique_fd.h"
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

bool IsPlausible(const RegisterBody& body, uint64_t most_bytes) {
  return body.bytes != 0 && body.bytes <= most_bytes && body.address >= kLowestAddress &&
         body.address < kHighestAddress && body.bytes <= kHighestAddress - body.address &&
         (body.flags & ~kFlags) == 0;
}

Window PagesOf(const RegisterBody& body) {
  return {PageFloor(body.address), PageCeiling(body.address + body.bytes)};
}

}  // namespace

bool HostRanges::MayRegister(const RegisterBody& body) {
  const bool shares = session_.shares_memory();
  // A request above the limit is refused as out of memory, and is no violation: an honest program may make it.
  constexpr uint64_t kMostAsked = uint64_t{1} << 47;
  if (shares && !arenas_.agreed()) {
    session_.Violation("it registers memory before it has agreed on addresses");
    return false;
  }
  const RegionView& region = arenas_.region();
  const bool plausible = IsPlausible(body, shares ? region.bytes : kMostAsked);
  const Window pages = plausible ? PagesOf(body) : Window{0, 0};
  const Window slices = shares ? arenas_.SlicesAt(0, region.bytes) : Window{0, 0};
  if (pages.end != 0 && (pages.end <= slices.begin || pages.begin >= slices.end)) return true;
  session_.violations.fetch_add(1);
  return false;
}

bool HostRanges::Count(uint64_t bytes) {
  if (session_.shares_memory()) {
    if (bytes > arenas_.region().bytes - mapped_bytes_) return false;
    TheAccounting().Add(MemoryKind::kPinned, kNoDevice, bytes);
  } else if (!TheAccounting().TakePinned(bytes, kMostOwnBytes)) {
    return false;
  }
  mapped_bytes_ += bytes;
  return true;
}

void HostRanges::Uncount(uint64_t bytes) {
  mapped_bytes_ -= bytes;
  TheAccounting().Return(MemoryKind::kPinned, kNoDevice, bytes);
}

bool HostRanges::MapPages(Window range, const RegisterBody& body) {
  if (session_.shares_memory()) {
    const int protection = body.writable != 0 ? PROT_READ | PROT_WRITE : PROT_READ;
    return TheGuestAddresses().Map(range, protection, arenas_.region().fd, body.offset);
  }
  // Each range has its own file, so that its memory is freed with the mapping.
  const UniqueFd file(memfd_create("causeway-pinned", MFD_CLOEXEC));
  return file && ftruncate(file.get(), static_cast<off_t>(range.end - range.begin)) == 0 &&
         TheGuestAddresses().Map(range, PROT_READ | PROT_WRITE, file.get(), 0);
}

// Maps pages at the guest's address and counts them. *probes: the guest has hit addresses of the worker's own too often, and the
// caller ends the session once it has given up the mutex.
CUresult HostRanges::PutPages(const RegisterBody& body, PageRange pages, bool* probes) {
  const Window range{pages.begin, pages.end};
  if (ranges_.size() >= kMaxHostRanges || !Count(pages.bytes())) return CUDA_ERROR_OUT_OF_MEMORY;
  if (pages.bytes() == 0) return CUDA_SUCCESS;
  const GuestAddresses::Claimed claimed = TheGuestAddresses().Claim(range);
  if (claimed == GuestAddresses::Claimed::kYes && MapPages(range, body)) {
    Populate(reinterpret_cast<std::byte*>(pages.begin), pages.bytes());
    return CUDA_SUCCESS;
  }
  Uncount(pages.bytes());
  if (claimed != GuestAddresses::Claimed::kTaken) return CUDA_ERROR_OUT_OF_MEMORY;
  *probes = ++collisions_ > kMostCollisions;
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult HostRanges::Register(const RegisterBody& body, uint64_t* device_address) {
  if (!MayRegister(body)) return CUDA_ERROR_INVALID_VALUE;
  if (OverlapsDeviceWindow(PagesOf(body))) return CUDA_ERROR_NOT_SUPPORTED;  // free or not
#ifdef __SANITIZE_THREAD__
  return CUDA_ERROR_NOT_SUPPORTED;  // TSan ends a program that maps memory at the guest's addresses
#endif
  std::unique_lock change(mutex_);
  if (OverlapsAny(ranges_, body.address, body.bytes)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  const PageRange pages = OwnPages(ranges_, body.address, body.bytes);
  const bool in_slices = session_.shares_memory() && pages.bytes() != 0;
  if (in_slices &&
      (body.offset % kPageBytes != 0 || !arenas_.region().OwnsSlices(body.offset, pages.bytes()))) {
    session_.violations.fetch_add(1);
    return CUDA_ERROR_INVALID_VALUE;
  }
  bool probes = false;
  if (const CUresult refused = PutPages(body, pages, &probes)) {
    change.unlock();
    if (probes) session_.Violation("it registers memory at addresses of the worker's own, again and again");
    return refused;
  }
  const Driver& driver = TheDriver();
  auto* start = reinterpret_cast<void*>(body.address);
  CUresult result = driver.cuMemHostRegister_v2(start, body.bytes, body.flags | CU_MEMHOSTREGISTER_DEVICEMAP);
  if (result == CUDA_SUCCESS) {
    CUdeviceptr device = body.address;
    driver.cuMemHostGetDevicePointer_v2(&device, start, 0);
    *device_address = device;
  } else {
    if (pages.bytes() != 0) TheGuestAddresses().Retire({pages.begin, pages.end});
    Uncount(pages.bytes());
    return result;
  }
  // The driver has judged what the guest process may do there. The pages are the guest's in any case, and a
  // copy that writes them must not end this process.
  if (in_slices && body.writable == 0)
    mprotect(reinterpret_cast<void*>(pages.begin), pages.bytes(), PROT_READ | PROT_WRITE);
  ranges_[body.address] = {body.bytes};
  arenas_.Name(body.address, body.bytes);
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
  Uncount(pages.bytes());
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
