// SPDX-License-Identifier: Apache-2.0
// Memory of the guest process that it has registered. The guest puts region pages in the place of its own;
// here the same pages are mapped at the guest's own address, so that the driver registers them under it and
// host pointer and device pointer are one. The guest chooses the address: it must be free, and nothing of the
// driver's or ours is ever replaced.
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "host_backend/accounting.h"
#include "host_backend/populate.h"
#include "host_backend/session.h"
#include "ivshmem_ring/registration.h"

namespace causeway::host {
namespace {

constexpr uint64_t kLowestAddress = 1u << 16;
constexpr uint64_t kHighestAddress = (uint64_t{1} << 47) - kPageBytes;
constexpr size_t kMaxHostRanges = 1u << 16;
constexpr unsigned kFlags =
    CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY;

bool IsPlausible(const RegisterBody& body, const RegionView& region) {
  return body.bytes != 0 && body.bytes <= region.bytes && body.address >= kLowestAddress &&
         body.address < kHighestAddress && body.bytes <= kHighestAddress - body.address &&
         (body.flags & ~kFlags) == 0;
}

bool IsOwnBacking(const RegionView& region, uint64_t offset, uint64_t bytes) {
  return offset % kPageBytes == 0 && offset >= FirstSliceOffset(SlotCount(region.bytes)) &&
         offset <= region.bytes && bytes <= region.bytes - offset && OwnsGranules(region, offset, bytes);
}

}  // namespace

CUresult Session::RegisterHost(const RegisterBody& body, uint64_t* device_address) {
  if (!shares_memory()) return CUDA_ERROR_NOT_SUPPORTED;
  if (!IsPlausible(body, region_)) {
    violations.fetch_add(1);
    return CUDA_ERROR_INVALID_VALUE;
  }
#ifdef __SANITIZE_THREAD__
  return CUDA_ERROR_NOT_SUPPORTED;  // TSan ends a program that maps memory at the guest's addresses
#endif
  const std::lock_guard change(host_change_mutex_);
  if (OverlapsAny(host_ranges_, body.address, body.bytes)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  const PageRange pages = OwnPages(host_ranges_, body.address, body.bytes);
  if (host_ranges_.size() >= kMaxHostRanges || pages.bytes() > region_.bytes - host_range_bytes_)
    return CUDA_ERROR_OUT_OF_MEMORY;
  auto* at = reinterpret_cast<void*>(pages.begin);
  if (pages.bytes() != 0) {
    if (!IsOwnBacking(region_, body.offset, pages.bytes())) {
      violations.fetch_add(1);
      return CUDA_ERROR_INVALID_VALUE;
    }
    const int protection = body.writable != 0 ? PROT_READ | PROT_WRITE : PROT_READ;
    void* mapped = mmap(at, pages.bytes(), protection, MAP_SHARED | MAP_FIXED_NOREPLACE, region_.fd,
                        static_cast<off_t>(body.offset));
    if (mapped != at) {
      if (mapped != MAP_FAILED) munmap(mapped, pages.bytes());
      dprintf(Output::LogFd(),
              "causeway-worker[%d]: memory of the guest process at %p cannot be registered: %s\n", getpid(),
              at, "this process has something else there");
      return CUDA_ERROR_NOT_SUPPORTED;
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
    if (pages.bytes() != 0) munmap(at, pages.bytes());
    return result;
  }
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
    auto* at = reinterpret_cast<std::byte*>(pages.begin);
    Depopulate(at, pages.bytes());
    munmap(at, pages.bytes());
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
