// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/copy/captured_bytes.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "ivshmem_ring/transport/record.h"

namespace causeway::host {

const std::byte* KeepCaptured(const std::byte* bytes, uint64_t count) {
  constexpr uint64_t kLeast = 64u << 10;
  thread_local std::byte* place = nullptr;
  thread_local uint64_t room = 0;
  if (count > kBulkBytes) return nullptr;
  if (count > room) {
    const uint64_t wanted = std::max(kLeast, std::bit_ceil(count));
    void* mapped = mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return nullptr;
    place = static_cast<std::byte*>(mapped);  // the smaller one before it stays, too
    room = wanted;
  }
  if (count != 0) std::memcpy(place, bytes, count);
  return place;
}

}  // namespace causeway::host
