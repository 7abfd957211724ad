// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/addresses/address_windows.h"

#include <stdio.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "guest_lib/process/lock_order.h"
#include "guest_lib/process/log.h"
#include "guest_lib/session/session.h"
#include "ivshmem_ring/messages/session_messages.h"

namespace causeway::guest {

std::atomic<uint32_t> taken_ranges{0};
std::atomic<uint32_t> further_windows{0};

namespace {

Window taken[kMaxTakenRanges];  // written once, before taken_ranges

// Each is written once, before further_windows counts it, and stays: the driver's reservations stay its own.
constexpr uint32_t kMostFurtherWindows = 64;
Window further[kMostFurtherWindows];
Mutex<Lock::kFurtherWindows> further_mutex;

std::string Hex(uint64_t value) {
  char text[24];
  snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

// At load, before the program has mapped much of its own.
[[gnu::constructor]] void ReserveDeviceWindows() {
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

// The driver reserves much at once and then places memory in it, so most of what is around will be its, too.
bool ReserveAround(uint64_t address, uint64_t bytes) {
  constexpr uint64_t kEnd = uint64_t{1} << 47;
  const std::lock_guard lock(further_mutex);
  const uint32_t count = further_windows.load(std::memory_order_relaxed);
  if (IsInFurtherWindow(address, bytes)) return true;  // another thread was here
  if (count == kMostFurtherWindows || address >= kEnd || bytes > kEnd - address) return false;
  for (const uint64_t block : {uint64_t{64} << 30, uint64_t{1} << 30, uint64_t{2} << 20, uint64_t{4096}}) {
    Window window{address / block * block, (address + bytes + block - 1) / block * block};
    for (uint32_t i = 0; i < count; ++i) {  // what is reserved already need not be once more
      if (further[i].begin <= window.begin && further[i].end > window.begin) window.begin = further[i].end;
      if (further[i].begin < window.end && further[i].end >= window.end) window.end = further[i].begin;
    }
    if (window.begin == 0 || window.begin >= window.end || window.end > kEnd || !ReserveAll(window)) continue;
    further[count] = window;
    further_windows.store(count + 1, std::memory_order_release);
    return true;
  }
  return false;
}

CUresult Ask(uint64_t window_address) {
  PendingCall call(Op::kAgreeOnAddresses);
  const uint32_t count = taken_ranges.load(std::memory_order_acquire);
  call.writer().Put(AddressBody{window_address, count, 0});
  for (uint32_t i = 0; i < count; ++i) call.writer().Put(TakenRange{taken[i].begin, taken[i].end});
  return call.Finish();
}

}  // namespace

bool IsInFurtherWindow(uint64_t address, uint64_t bytes) {
  // Acquire pairs with the release in ReserveAround.
  const uint32_t count = further_windows.load(std::memory_order_acquire);
  // Memory may reach from one into the next.
  for (uint64_t at = address; at - address < bytes;) {
    const Window* window = std::find_if(further, further + count,
                                        [at](const Window& one) { return at >= one.begin && at < one.end; });
    if (window == further + count) return false;
    at = window->end;
  }
  return true;
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
  bytes = std::max<uint64_t>(bytes, 1);
  if (IsDeviceAddress(address, bytes)) return true;
  if (!IsTaken(address, bytes) && ReserveAround(address, bytes)) return true;
  Complain(
      "the host's driver has placed " + std::to_string(bytes) + " bytes of device memory at " + Hex(address) +
      ", where this process has memory of its own: the call gets CUDA_ERROR_OUT_OF_MEMORY; load libcuda.so.1 "
      "before what maps memory there");
  return false;
}

}  // namespace causeway::guest
