// SPDX-License-Identifier: Apache-2.0
// Signals of threads that a library starts in a program that is not its own.
#pragma once
#include <pthread.h>
#include <signal.h>

#include <initializer_list>

namespace causeway {

// All signals but those that a fault of the thread itself causes. Where one of those is blocked the kernel ends the process without asking a
// handler; a guest's library has a handler for pages that it has taken away for a moment (guest_lib/process/fault_handler.h).
inline sigset_t SignalsOfOthers() {
  sigset_t signals;
  sigfillset(&signals);
  for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) sigdelset(&signals, own);
  return signals;
}

// While an object of this class lives, threads that the calling thread starts take no signals that are meant for the program, and it takes
// none either.
class WithoutProgramsSignals {
 public:
  WithoutProgramsSignals() {
    const sigset_t signals = SignalsOfOthers();
    pthread_sigmask(SIG_BLOCK, &signals, &before_);
  }
  ~WithoutProgramsSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  WithoutProgramsSignals(const WithoutProgramsSignals&) = delete;
  WithoutProgramsSignals& operator=(const WithoutProgramsSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace causeway
