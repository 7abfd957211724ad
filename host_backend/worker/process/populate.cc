// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/process/populate.h"

#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <span>
#include <system_error>
#include <thread>
#include <vector>

#include "ivshmem_ring/messages/registration.h"
#include "ivshmem_ring/system/huge_pages.h"
#include "ivshmem_ring/transport/waiter.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace causeway::host {
namespace {

constexpr uint64_t kPartBytes = 4u << 20;     // at a time
constexpr uint64_t kThreadBytes = 16u << 20;  // what is worth a thread

// All threads are made before one begins: making a thread changes the address space, which has to wait for
// whoever fills it, and all others wait behind. They go from the last part to the first, because the guest
// may be at the same pages from the first to the last.
void Advise(std::byte* pages, uint64_t bytes, int advice) {
  constexpr uint64_t kMostThreads = 8;
  const uint64_t count =
      std::min({(bytes + kThreadBytes - 1) / kThreadBytes, uint64_t{KnownProcessors()}, kMostThreads});
  std::atomic<uint64_t> left{(bytes + kPartBytes - 1) / kPartBytes};
  std::atomic<bool> all_made{false};
  auto work = [&] {
    for (uint64_t part = left.load(); part != 0;) {
      if (!left.compare_exchange_weak(part, part - 1)) continue;
      const uint64_t at = --part * kPartBytes;  // and `part` is what is left
      madvise(pages + at, std::min(kPartBytes, bytes - at), advice);
    }
  };
  std::vector<std::jthread> threads;
  try {
    for (uint64_t i = 1; i < count; ++i) {
      threads.emplace_back([&] {
        all_made.wait(false);
        work();
      });
    }
  } catch (const std::system_error&) {
    // No more threads can be had: those that there are do it.
  }
  all_made.store(true);
  all_made.notify_all();
  work();
}

}  // namespace

void Populate(std::byte* pages, uint64_t bytes) {
  if (!WantsHugePages(bytes)) madvise(pages, bytes, MADV_NOHUGEPAGE);
  Advise(pages, bytes, MADV_POPULATE_READ);
}

void Depopulate(std::byte* pages, uint64_t bytes) {
  if (bytes > kThreadBytes) Advise(pages, bytes, MADV_DONTNEED);
}

void LeaveReadPages() {
  const auto leave = [](dl_phdr_info* object, size_t, void*) {
    for (const ElfW(Phdr) & part : std::span(object->dlpi_phdr, object->dlpi_phnum)) {
      // Only parts that are never written: a page that was written has no other copy.
      if (part.p_type != PT_LOAD || part.p_flags != PF_R) continue;
      const uint64_t begin = PageFloor(object->dlpi_addr + part.p_vaddr);
      const uint64_t end = PageFloor(object->dlpi_addr + part.p_vaddr + part.p_filesz);
      if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
    }
    return 1;  // the first object is the program; the libraries behind it are left alone
  };
  dl_iterate_phdr(leave, nullptr);
}

}  // namespace causeway::host
