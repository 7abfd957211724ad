// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/process/call_counter.h"

#include <sys/eventfd.h>
#include <unistd.h>

namespace causeway::host {

CallCounter::CallCounter() : alarm_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

uint64_t CallCounter::total() const {
  uint64_t sum = 0;
  for (const Count& count : counts_) sum += count.value.load();
  return sum;
}

bool CallCounter::Arm(uint64_t seen) {
  if (alarm_.get() < 0) return false;  // then it is looked at again and again
  armed_.store(true);
  if (total() == seen) return true;
  armed_.store(false);
  return false;
}

void CallCounter::Quiet() {
  uint64_t rings = 0;
  [[maybe_unused]] const ssize_t got = read(alarm_.get(), &rings, sizeof rings);
}

void CallCounter::Ring() {
  if (!armed_.exchange(false)) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t put = write(alarm_.get(), &one, sizeof one);
}

}  // namespace causeway::host
