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

struct Entry {
  GuardedRange range;
  std::atomic<bool> tripped{false};
};

Entry g_entries[kMaxRanges];

void OnSigbus(int, siginfo_t* info, void*) {
  const auto fault = reinterpret_cast<uintptr_t>(info->si_addr);
  for (Entry& entry : g_entries) {
    const auto found = entry.range.Find(fault, [] {});
    if (!found) continue;
    void* replaced = mmap(reinterpret_cast<void*>(found->begin), found->bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    if (replaced == MAP_FAILED) break;
    entry.tripped.store(true, std::memory_order_relaxed);
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

void GuardedRange::Set(uintptr_t begin, size_t bytes) {
  // Each store is a release, so that a handler that reads the new begin or size also sees the count that Clear has stored before, and
  // leaves the entry alone (Find).
  begin_.store(begin, std::memory_order_release);
  bytes_.store(bytes, std::memory_order_release);
  changes_.store(changes_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

void GuardedRange::Clear() {
  changes_.store(changes_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

SigbusGuard::SigbusGuard(void* address, size_t bytes) : index_(0) {
  static const bool installed = (InstallHandler(), true);
  (void)installed;
  while (index_ < kMaxRanges && !g_entries[index_].range.is_free()) ++index_;
  if (index_ == kMaxRanges) {
    std::fprintf(stderr, "causewayd: more than %zu regions are mapped at once\n", kMaxRanges);
    std::abort();
  }
  g_entries[index_].tripped.store(false, std::memory_order_relaxed);
  g_entries[index_].range.Set(reinterpret_cast<uintptr_t>(address), bytes);
}

SigbusGuard::~SigbusGuard() {
  g_entries[index_].range.Clear();
}

bool SigbusGuard::tripped() const {
  return g_entries[index_].tripped.load(std::memory_order_relaxed);
}

}  // namespace causeway::daemon
