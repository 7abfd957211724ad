// SPDX-License-Identifier: Apache-2.0
// What worker and guest process agree on before anything is mapped for both: where slices lie, and where the
// driver shall place nothing because the guest process has something there.
#include "ivshmem_ring/address_windows.h"

#include <sys/mman.h>

#include "host_backend/session.h"
#include "ivshmem_ring/registration.h"

namespace causeway::host {
namespace {

bool IsPlausible(uint64_t window, const RegionView& region) {
  return window % kGranuleBytes == 0 && window >= (uint64_t{1} << 32) &&
         window <= (uint64_t{1} << 47) - region.bytes && !InDeviceWindow(window) &&
         !InDeviceWindow(window + region.bytes - 1);
}

}  // namespace

CUresult Session::ReserveWindow(uint64_t address) {
  if (!shares_memory()) return CUDA_SUCCESS;
  const std::lock_guard change(memory_change_mutex_);
  if (!IsPlausible(address, region_) || window_reserved_ || !arenas_.empty()) {
    violations.fetch_add(1);
    return CUDA_ERROR_INVALID_VALUE;
  }
#ifndef __SANITIZE_THREAD__  // TSan's own ranges leave no room for it
  if (!ReserveAll({address, address + region_.bytes})) return CUDA_ERROR_MAP_FAILED;
  window_reserved_ = true;
#endif
  const std::unique_lock lock(arenas_mutex_);
  region_.window_address = address;
  return CUDA_SUCCESS;
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
    if (request.in.ok() && !good) session.violations.fetch_add(1);
    if (!request.in.ok() || !good) return CUDA_ERROR_INVALID_VALUE;
  }
  if (const CUresult result = session.ReserveWindow(body.window_address)) return result;
  // What is mapped there already was so before the session and holds none of its memory.
  for (uint32_t i = 0; i < body.count; ++i) ReserveFree({taken[i].begin, taken[i].end});
  return CUDA_SUCCESS;
}

}  // namespace causeway::host
