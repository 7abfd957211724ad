// SPDX-License-Identifier: Apache-2.0
#include "host_backend/populate.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

#include "ivshmem_ring/huge_pages.h"
#include "ivshmem_ring/waiter.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace causeway::host {
namespace {

constexpr uint64_t kPartBytes = 16u << 20;

void Advise(std::byte* pages, uint64_t bytes, int advice) {
  constexpr uint64_t kMostThreads = 8;
  const uint64_t parts = (bytes + kPartBytes - 1) / kPartBytes;
  const uint64_t count = std::min<uint64_t>(KnownProcessors(), kMostThreads);
  std::atomic<uint64_t> next{0};
  auto work = [&] {
    for (uint64_t part; (part = next.fetch_add(1)) < parts;) {
      const uint64_t at = part * kPartBytes;
      madvise(pages + at, std::min(kPartBytes, bytes - at), advice);
    }
  };
  std::vector<std::jthread> threads;
  try {
    for (uint64_t i = 1; i < std::min(count, parts); ++i) threads.emplace_back(work);
  } catch (const std::system_error&) {
    // No more threads can be had: those that there are do it.
  }
  work();
}

}  // namespace

void Populate(std::byte* pages, uint64_t bytes) {
  if (!WantsHugePages(bytes)) madvise(pages, bytes, MADV_NOHUGEPAGE);
  Advise(pages, bytes, MADV_POPULATE_READ);
}

void Depopulate(std::byte* pages, uint64_t bytes) {
  if (bytes > kPartBytes) Advise(pages, bytes, MADV_DONTNEED);
}

}  // namespace causeway::host
