// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/host_register/away_from.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "ivshmem_ring/system/own_signals.h"

namespace causeway::guest {
namespace {

struct Job {
  void (*work)(void*);
  void* argument;
};

// Futex words. Not on the caller's stack, whose pages are exchanged while it waits for the second.
std::atomic<uint32_t> caller_waits{0}, work_done{0};

void* RunJob(void* argument) {
  const Job job = *static_cast<const Job*>(argument);
  while (caller_waits.load(std::memory_order_acquire) == 0) {
    syscall(SYS_futex, &caller_waits, FUTEX_WAIT_PRIVATE, 0, nullptr);
  }
  job.work(job.argument);
  work_done.store(1, std::memory_order_release);
  syscall(SYS_futex, &work_done, FUTEX_WAKE_PRIVATE, 1);
  return nullptr;
}

// Lets the helper begin and returns when it is done. Machine code, because no function of a library says that
// it leaves the stack alone between the two: pthread_create and pthread_join do not. All it needs is in
// registers; the system call itself changes rax, rcx and r11.
void LetWork() {
  asm volatile(
      "movl $1, (%[waits])\n\t"
      "movl %[futex], %%eax\n\t"
      "movq %[waits], %%rdi\n\t"
      "movl %[wake], %%esi\n\t"
      "movl $1, %%edx\n\t"
      "syscall\n"
      "1:\n\t"
      "cmpl $0, (%[done])\n\t"
      "jne 2f\n\t"
      "movl %[futex], %%eax\n\t"
      "movq %[done], %%rdi\n\t"
      "movl %[wait], %%esi\n\t"
      "xorl %%edx, %%edx\n\t"
      "xorl %%r10d, %%r10d\n\t"
      "syscall\n\t"
      "jmp 1b\n"
      "2:\n"
      :
      : [waits] "r"(&caller_waits), [done] "r"(&work_done), [futex] "i"(SYS_futex),
        [wake] "i"(FUTEX_WAKE_PRIVATE), [wait] "i"(FUTEX_WAIT_PRIVATE)
      : "rax", "rcx", "rdx", "rsi", "rdi", "r10", "r11", "cc", "memory");
}

}  // namespace

bool AwayFrom(uint64_t begin, uint64_t end, void (*work)(void*), void* argument) {
  const auto here = reinterpret_cast<uint64_t>(__builtin_frame_address(0));
  constexpr uint64_t kMargin = 256u << 10;  // what the work itself may use of the stack
  if (here - kMargin >= end || here + kMargin <= begin) {
    work(argument);
    return true;
  }
  Job job{work, argument};
  caller_waits.store(0, std::memory_order_relaxed);
  work_done.store(0, std::memory_order_relaxed);
  const WithoutProgramsSignals no_signals;
  pthread_t helper;
  const bool made = pthread_create(&helper, nullptr, RunJob, &job) == 0;
  if (made) {
    LetWork();
    pthread_join(helper, nullptr);
  }
  return made;
}

}  // namespace causeway::guest
