// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "guest_lib/page_watch/page_watch.h"
#include "guest_lib/page_watch/parts.h"
#include "guest_lib/process/log.h"
#include "ivshmem_ring/system/futex.h"

namespace causeway::guest {
namespace {

class SignalsWatch final : public PageWatch {
 public:
  bool serves_system_calls() const override { return false; }
  bool notices_writes() const override { return true; }

  void Arm(FaultClaim claim) override { InstallFaultHandler(FaultOwner::kManagedMemory, claim); }

  void Set(const WatchedPages& pages, Access from, Access to) override {
    const bool readable = to >= Access::kRead, writable = to >= Access::kWrite;
    void* const begin = reinterpret_cast<void*>(pages.begin);
    const size_t bytes = pages.end - pages.begin;
    if (mprotect(begin, bytes, writable ? PROT_READ | PROT_WRITE : readable ? PROT_READ : PROT_NONE) != 0)
      Complain("pages of managed memory cannot be protected: " + std::string(strerror(errno)));
    if (from != Access::kNone || !readable) return;
    InParts(bytes, kPartBytes, [=](uint64_t at, uint64_t count) {
      madvise(static_cast<std::byte*>(begin) + at, count,
              writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
    });
  }

  void TryAgain(uint64_t, uint64_t) override {}

  void Ring() override {
    rung_.fetch_add(1);
    FutexWake(&rung_, 1, FutexOf::kThisProcess);
  }
  void Wait(int64_t nanoseconds) override {
    FutexWait(&rung_, seen_, nanoseconds, FutexOf::kThisProcess);
    seen_ = rung_.load();
  }
  // They come to the claim alone.
  size_t TakeFaults(PageFault*, size_t) override { return 0; }

 private:
  std::atomic<uint32_t> rung_{0};
  uint32_t seen_ = 0;  // of `rung_`
};

}  // namespace

PageWatch* MakeSignalsWatch() {
  return new SignalsWatch;
}

}  // namespace causeway::guest
