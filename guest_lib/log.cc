// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>

namespace causeway::guest {

void Complain(const std::string& sentence) {
  static std::atomic<int> left{20};
  const char* wanted = getenv("CAUSEWAY_LOG");
  if ((wanted != nullptr && strcmp(wanted, "off") == 0) || left.fetch_sub(1) <= 0) return;
  dprintf(STDERR_FILENO, "causeway: %s\n", sentence.c_str());
}

}  // namespace causeway::guest
