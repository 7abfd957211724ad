// SPDX-License-Identifier: Apache-2.0
// What worker and guest process agree on before anything is mapped for both: where slices lie, and where the
// driver shall place nothing because the guest process has something there.
#include "ivshmem_ring/messages/address_windows.h"

#include "host_backend/worker/addresses/arenas.h"
#include "host_backend/worker/addresses/guest_addresses.h"
#include "host_backend/worker/session/session.h"
#include "ivshmem_ring/messages/registration.h"

namespace causeway::host {
namespace {

bool IsPlausible(uint64_t window, const RegionView& region) {
  return window % kGranuleBytes == 0 && window >= (uint64_t{1} << 32) &&
         region.bytes <= (uint64_t{1} << 47) && window <= (uint64_t{1} << 47) - region.bytes &&
         !OverlapsDeviceWindow({window, window + region.bytes});
}

// A guest library tries a few; each that is refused tells a little of where this process has something.
constexpr uint32_t kMostRefusedWindows = 64;

}  // namespace

CUresult Arenas::ReserveWindow(uint64_t address) {
  if (!session_.shares_memory()) return CUDA_SUCCESS;
  bool probes = false, never_sent = false;
  {
    const std::lock_guard change(change_mutex_);
    never_sent = !IsPlausible(address, region_) || agreed_.load(std::memory_order_relaxed);
    if (!never_sent && TakeWindow(address)) return CUDA_SUCCESS;
    probes = ++refused_windows_ > kMostRefusedWindows;
  }
  if (never_sent) {
    session_.Violation("it agrees on addresses a second time, or on impossible ones");
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (probes) session_.Violation("it asks for its shared memory at one address after the other");
  return CUDA_ERROR_MAP_FAILED;
}

bool Arenas::TakeWindow(uint64_t address) {
#ifndef __SANITIZE_THREAD__  // TSan's own ranges leave no room for it
  if (TheGuestAddresses().Claim({address, address + region_.bytes}) != GuestAddresses::Claimed::kYes)
    return false;
#endif
  {
    const std::unique_lock lock(named_mutex_);
    region_.window_address = address;
  }
  agreed_.store(true, std::memory_order_release);
  return true;
}

CUresult Serve_kAgreeOnAddresses(Session& session, Request& request) {
  const auto body = request.in.Get<AddressBody>();
  if (!request.in.ok() || body.count > kMaxTakenRanges) return CUDA_ERROR_INVALID_VALUE;
  TakenRange taken[kMaxTakenRanges];
  for (uint32_t i = 0; i < body.count; ++i) {
    taken[i] = request.in.Get<TakenRange>();
    const bool good = taken[i].begin < taken[i].end && taken[i].begin % kPageBytes == 0 &&
                      taken[i].end % kPageBytes == 0 &&
                      InDeviceWindow(taken[i].begin, taken[i].end - taken[i].begin);
    if (request.in.ok() && !good) session.Violation("it names taken addresses outside of the device's");
    if (!request.in.ok() || !good) return CUDA_ERROR_INVALID_VALUE;
  }
  if (const CUresult result = session.part<Arenas>().ReserveWindow(body.window_address)) return result;
  // What is mapped there already was so before the session and holds none of its memory.
  for (uint32_t i = 0; i < body.count; ++i) ReserveFree({taken[i].begin, taken[i].end});
  return CUDA_SUCCESS;
}

}  // namespace causeway::host
