// SPDX-License-Identifier: Apache-2.0
// Sleeping on a word of 32 bits until it changes: the kernel's futex, of which glibc has no function (futex(2)). Of a word of 64 bits
// the kernel compares the low half, which lies at its address. Any thread; no lock is taken, so that signal handlers may use it.
#pragma once
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>

namespace causeway {

// Which threads may sleep on a word: those of this process, or those of all processes that map the memory. Sleeper and waker have to name the
// same one, because the kernel keeps the two kinds of sleepers apart.
enum class FutexOf { kThisProcess = FUTEX_PRIVATE_FLAG, kAllProcesses = 0 };

inline constexpr int64_t kFutexForEver = -1;

// Sleeps while the word is `seen`, for at most so many nanoseconds. True: somebody woke it. False, with errno: ETIMEDOUT the time was
// over, EAGAIN the word was another at the beginning, EINTR a signal came.
inline bool FutexWait(const void* word, uint32_t seen, int64_t nanoseconds, FutexOf of) {
  constexpr int64_t kSecond = 1'000'000'000;
  const timespec most{static_cast<time_t>(nanoseconds / kSecond), static_cast<long>(nanoseconds % kSecond)};
  return syscall(SYS_futex, word, FUTEX_WAIT | static_cast<int>(of), seen, nanoseconds >= 0 ? &most : nullptr,
                 nullptr, 0) == 0;
}

// After the word was changed: wakes so many of those that sleep on it, and returns how many there were.
inline uint32_t FutexWake(const void* word, int most, FutexOf of) {
  const long woken = syscall(SYS_futex, word, FUTEX_WAKE | static_cast<int>(of), most, nullptr, nullptr, 0);
  return woken > 0 ? static_cast<uint32_t>(woken) : 0;
}
inline uint32_t FutexWakeAll(const void* word, FutexOf of) {
  return FutexWake(word, INT_MAX, of);
}

}  // namespace causeway
