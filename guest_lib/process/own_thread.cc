// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/process/own_thread.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>

#include <initializer_list>

namespace causeway::guest {

void StayLoaded() {
  Dl_info self{};
  if (dladdr(reinterpret_cast<const void*>(&StayLoaded), &self) != 0)
    dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
}

int StartOwnThread(void* (*main)(void*), bool all_signals, void* argument) {
  StayLoaded();
  sigset_t blocked, before;
  all_signals ? sigemptyset(&blocked) : sigfillset(&blocked);
  for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) sigdelset(&blocked, own);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_sigmask(SIG_BLOCK, &blocked, &before);
  pthread_t thread;
  const int failed = pthread_create(&thread, &attributes, main, argument);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  return failed;
}

}  // namespace causeway::guest
