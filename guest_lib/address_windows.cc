// SPDX-License-Identifier: Apache-2.0
// Reserving at load, agreeing with the worker.
#include "guest_lib/address_windows.h"

#include <stdio.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "guest_lib/log.h"
#include "guest_lib/session.h"
#include "ivshmem_ring/session_messages.h"

namespace causeway::guest {

std::atomic<uint32_t> taken_ranges{0};

namespace {

Window taken[kMaxTakenRanges];  // written once, before taken_ranges

std::string Hex(uint64_t value) {
  char text[24];
  snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

void ReserveOnce() {
  std::vector<Window> all;
  for (const Window& window : kDeviceWindows) {
    const auto found = ReserveFree(window);
    all.insert(all.end(), found.begin(), found.end());
  }
  // Too many to tell: those that are near each other become one, with what lies between.
  for (uint64_t gap = 1u << 20; all.size() > kMaxTakenRanges; gap *= 2) {
    std::vector<Window> merged;
    for (const Window& range : all) {
      const bool near = !merged.empty() && range.begin - merged.back().end < gap &&
                        InDeviceWindow(merged.back().begin, range.end - merged.back().begin);
      if (near) {
        merged.back().end = range.end;
      } else {
        merged.push_back(range);
      }
    }
    all = std::move(merged);
  }
  std::copy(all.begin(), all.end(), taken);
  taken_ranges.store(static_cast<uint32_t>(all.size()), std::memory_order_release);
}

// At load, before the program has mapped much of its own.
__attribute__((constructor)) void AtLoad() {
  ReserveDeviceWindows();
}

CUresult Ask(uint64_t window_address) {
  PendingCall call(Op::kAgreeOnAddresses);
  const uint32_t count = taken_ranges.load(std::memory_order_acquire);
  call.writer().Put(AddressBody{window_address, count, 0});
  for (uint32_t i = 0; i < count; ++i) call.writer().Put(TakenRange{taken[i].begin, taken[i].end});
  return call.writer().ok() ? call.Finish() : call.writer().error();
}

}  // namespace

void ReserveDeviceWindows() {
  static std::once_flag once;
  std::call_once(once, ReserveOnce);
}

bool IsTaken(uint64_t address, uint64_t bytes) {
  const uint32_t count = taken_ranges.load(std::memory_order_acquire);
  return std::any_of(taken, taken + count, [=](const Window& range) {
    return address < range.end && (address >= range.begin || bytes > range.begin - address);
  });
}

CUresult AgreeOnAddresses(Connection& connection) {
  for (;;) {
    const CUresult result = Ask(connection.window_address);
    if (result != CUDA_ERROR_MAP_FAILED) return result;
    if (connection.MoveWindow()) continue;
    Complain("the worker on the host has no room left for the shared region of " +
             std::to_string(connection.region_bytes >> 20) +
             " MiB at any address that is free here too: make region_mib (or local_region_mib) smaller");
    return result;
  }
}

bool AdmitDeviceMemory(CUdeviceptr address, uint64_t bytes) {
#ifdef __SANITIZE_THREAD__
  if (!IsTaken(address, bytes)) return true;  // workers under TSan have another layout
#endif
  if (IsDeviceAddress(address, std::max<uint64_t>(bytes, 1))) return true;
  Complain(
      "the host's driver has placed " + std::to_string(bytes) + " bytes of device memory at " + Hex(address) +
      ", where this process has memory of its own: the call gets CUDA_ERROR_OUT_OF_MEMORY; load libcuda.so.1 "
      "before what maps memory there");
  return false;
}

}  // namespace causeway::guest
