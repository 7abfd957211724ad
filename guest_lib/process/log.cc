// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/process/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <memory>

#include "guest_lib/process/own_thread.h"

namespace causeway::guest {
namespace {

bool Asked(const char* level) {
  const char* wanted = getenv("CAUSEWAY_LOG");
  return wanted != nullptr && strcmp(wanted, level) == 0;
}

void* SayAndForget(void* sentence) {
  const std::unique_ptr<std::string> owned(static_cast<std::string*>(sentence));
  Complain(*owned);
  return nullptr;
}

}  // namespace

void Complain(const std::string& sentence) {
  static std::atomic<int> left{20};
  if (Asked("off") || left.fetch_sub(1) <= 0) return;
  dprintf(STDERR_FILENO, "causeway: %s\n", sentence.c_str());
}

void ComplainElsewhere(const std::string& sentence) {
  auto* copy = new std::string(sentence);
  if (StartOwnThread(SayAndForget, false, copy) != 0) delete copy;
}

void Explain(const std::string& sentence) {
  if (Asked("debug")) Complain(sentence);
}

}  // namespace causeway::guest
