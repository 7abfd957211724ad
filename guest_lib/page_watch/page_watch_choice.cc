// SPDX-License-Identifier: Apache-2.0
// Which of the ways of page_watch.h this process goes.
#include <stdlib.h>

#include <string>
#include <string_view>

#include "guest_lib/page_watch/page_watch.h"
#include "guest_lib/process/log.h"

namespace causeway::guest {
namespace {

PageWatch* Choose() {
  const char* value = getenv("CAUSEWAY_MANAGED_FAULTS");
  const std::string_view asked = value != nullptr ? value : "";
  if (!asked.empty() && asked != "userfaultfd" && asked != "signals")
    Complain("CAUSEWAY_MANAGED_FAULTS is neither userfaultfd nor signals: what is possible will be used");
  PageWatch* watch = asked == "signals" ? nullptr : MakeUserfaultfdWatch();
  if (watch == nullptr && asked == "userfaultfd")
    Complain("this process may not use userfaultfd for faults in system calls: signals will be used");
  if (watch == nullptr) watch = MakeSignalsWatch();
  Explain(std::string("faults in managed memory are served by ") +
          (watch->serves_system_calls() ? "userfaultfd" : "signals"));
  return watch;
}

}  // namespace

PageWatch& PageWatch::Get() {
  static PageWatch& watch = *Choose();  // never destroyed
  return watch;
}

}  // namespace causeway::guest
