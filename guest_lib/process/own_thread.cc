// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/process/own_thread.h"

#include <dlfcn.h>
#include <pthread.h>

#include <optional>

#include "ivshmem_ring/system/own_signals.h"

namespace causeway::guest {

void StayLoaded() {
  Dl_info self{};
  if (dladdr(reinterpret_cast<const void*>(&StayLoaded), &self) != 0)
    dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
}

int StartOwnThread(void* (*main)(void*), bool all_signals, void* argument) {
  StayLoaded();
  std::optional<WithoutProgramsSignals> no_signals;
  if (!all_signals) no_signals.emplace();
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  const int failed = pthread_create(&thread, &attributes, main, argument);
  pthread_attr_destroy(&attributes);
  return failed;
}

}  // namespace causeway::guest
