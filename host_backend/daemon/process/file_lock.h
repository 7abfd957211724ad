// SPDX-License-Identifier: Apache-2.0
// The lock that tells whether another daemon lives.
#pragma once
#include <sys/file.h>
#include <unistd.h>

namespace causeway {

// Takes the exclusive lock of `fd`. False: another process has it.
inline bool LockAtOnce(int fd) {
  return flock(fd, LOCK_EX | LOCK_NB) == 0;
}
// The same for a daemon that starts. False: another process has kept it for longer than a second. It does not
// give up at once, because a worker that a killed daemon was starting shares its locks between fork and exec.
inline bool LockExclusively(int fd) {
  constexpr int kTries = 50;
  constexpr useconds_t kPauseMicroseconds = 20'000;
  for (int i = 0; i < kTries; ++i) {
    if (LockAtOnce(fd)) return true;
    usleep(kPauseMicroseconds);
  }
  return false;
}

}  // namespace causeway
