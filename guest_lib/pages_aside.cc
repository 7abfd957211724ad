// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/pages_aside.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>

namespace causeway::guest {
namespace {

constexpr uint64_t kWorthwhile = 1u << 20;

std::atomic<uint64_t> waiting{0};  // bytes

uint64_t MostWaiting() {
  static const uint64_t bytes =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) / 8;
  return bytes;
}

}  // namespace

std::byte* ReserveAside(const Mapping& mapping) {
  const uint64_t bytes = mapping.end - mapping.begin;
  if (mapping.shared || mapping.inode != 0 || bytes < kWorthwhile) return nullptr;
  if (waiting.fetch_add(bytes, std::memory_order_relaxed) + bytes <= MostWaiting()) {
    if (std::byte* aside = ReserveLike(mapping.begin, bytes)) return aside;
  }
  ForgetAside(bytes);
  return nullptr;
}

void KeepAside(std::byte* aside, uint64_t bytes) {
  madvise(aside, bytes, MADV_DONTFORK);
}

bool AreThere(std::byte* aside, uint64_t bytes) {
  unsigned char resident = 0;
  return mincore(aside + PageFloor(bytes / 2), kPageBytes, &resident) == 0 && (resident & 1) != 0;
}

bool WakeAside(std::byte* aside, uint64_t bytes) {
  return mprotect(aside, bytes, PROT_READ | PROT_WRITE) == 0 && madvise(aside, bytes, MADV_DOFORK) == 0;
}

void ForgetAside(uint64_t bytes) {
  waiting.fetch_sub(bytes, std::memory_order_relaxed);
}

void DropAside(std::byte* aside, uint64_t bytes) {
  munmap(aside, bytes);
  ForgetAside(bytes);
}

}  // namespace causeway::guest
