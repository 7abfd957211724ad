// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/process/fault_handler.h"

#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <mutex>

#include "guest_lib/process/lock_order.h"

namespace causeway::guest {
namespace {

auto& install_mutex = *new Mutex<Lock::kFaultHandler>;
std::atomic<FaultClaim> claims[static_cast<size_t>(FaultOwner::kCount)];

struct sigaction chained;        // what was there when ours was put on top, last
struct sigaction first_chained;  // and the first time: for a chain that leads back to us
bool installed = false;

constexpr int kChaining = 0x43415553;

void CallHandler(const struct sigaction& action, int number, siginfo_t* info, void* context) {
  if ((action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction != nullptr) {
    action.sa_sigaction(number, info, context);
  } else if (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) {
    // The fault happens again when we return, and ends the process as it would have without us.
    struct sigaction plain {};
    plain.sa_handler = SIG_DFL;
    sigaction(number, &plain, nullptr);
    if (info->si_code <= 0) syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), number);  // sent, not a fault
  } else {
    action.sa_handler(number);
  }
}

bool IsClaimed(const siginfo_t& info, const void* context) {
  if (info.si_code != SEGV_ACCERR) return false;
  constexpr greg_t kWrite = 2, kFetch = 16;  // of the processor's error code
  const greg_t error = static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR];
  if ((error & kFetch) != 0) return false;
  const PageFault fault{reinterpret_cast<uint64_t>(info.si_addr), (error & kWrite) != 0};
  for (const std::atomic<FaultClaim>& claim : claims) {
    const FaultClaim ask = claim.load(std::memory_order_acquire);
    if (ask != nullptr && ask(fault)) return true;
  }
  return false;
}

void OnFault(int number, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  if (!IsClaimed(*info, context)) {
    // The handler below may be the program's, which put ours below its own and calls it. The mark is in the
    // signal's own record, because a handler may also leave by longjmp.
    const bool led_back = info->si_errno == kChaining;
    info->si_errno = kChaining;
    CallHandler(led_back ? first_chained : chained, number, info, context);
  }
  errno = saved_errno;
}

}  // namespace

void InstallFaultHandler(FaultOwner owner, FaultClaim claim) {
  const std::lock_guard lock(install_mutex);
  claims[static_cast<size_t>(owner)].store(claim, std::memory_order_release);
  struct sigaction now {};
  sigaction(SIGSEGV, nullptr, &now);
  if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == OnFault) return;
  chained = now;
  if (!installed) first_chained = now;
  installed = true;
  struct sigaction ours {};
  ours.sa_sigaction = OnFault;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&ours.sa_mask);
  sigaction(SIGSEGV, &ours, nullptr);
}

}  // namespace causeway::guest
