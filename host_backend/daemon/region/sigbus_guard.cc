// SPDX-License-Identifier: Apache-2.0
// A table of guarded ranges that the signal handler can read without locks.
#include "host_backend/daemon/region/sigbus_guard.h"

#include <signal.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace causeway::daemon {
namespace {

constexpr size_t kMaxRanges = 8192;

struct Range {
  std::atomic<uintptr_t> begin{0};  // 0: the entry is free
  std::atomic<size_t> bytes{0};
  std::atomic<bool> tripped{false};
};

Range g_ranges[kMaxRanges];

void OnSigbus(int, siginfo_t* info, void*) {
  const auto fault = reinterpret_cast<uintptr_t>(info->si_addr);
  for (Range& range : g_ranges) {
    const uintptr_t begin = range.begin.load(std::memory_order_relaxed);
    const size_t bytes = range.bytes.load(std::memory_order_relaxed);
    if (begin == 0 || fault < begin || fault - begin >= bytes) continue;
    void* replaced = mmap(reinterpret_cast<void*>(begin), bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    if (replaced == MAP_FAILED) break;
    range.tripped.store(true, std::memory_order_relaxed);
    return;
  }
  signal(SIGBUS, SIG_DFL);  // the access repeats and ends the process with its true cause
}

void InstallHandler() {
  struct sigaction action {};
  action.sa_sigaction = OnSigbus;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace

SigbusGuard::SigbusGuard(void* address, size_t bytes) : index_(0) {
  static const bool installed = (InstallHandler(), true);
  (void)installed;
  while (index_ < kMaxRanges && g_ranges[index_].begin.load() != 0) ++index_;
  if (index_ == kMaxRanges) {
    std::fprintf(stderr, "causewayd: more than %zu regions are mapped at once\n", kMaxRanges);
    std::abort();
  }
  g_ranges[index_].tripped.store(false);
  g_ranges[index_].bytes.store(bytes);
  g_ranges[index_].begin.store(reinterpret_cast<uintptr_t>(address));
}

SigbusGuard::~SigbusGuard() {
  g_ranges[index_].begin.store(0);
}

bool SigbusGuard::tripped() const {
  return g_ranges[index_].tripped.load(std::memory_order_relaxed);
}

}  // namespace causeway::daemon
