// SPDX-License-Identifier: Apache-2.0
// What is told of one share on one GPU: of a scope, or of all scopes that have one together.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "host_backend/common/shares/share_terms.h"
#include "host_backend/daemon/shares/arbiter.h"
#include "host_backend/daemon/shares/link_arbiter.h"

namespace causeway::daemon {

struct ShareStatus {
  std::string scope;                // Scope::share
  std::vector<std::string> scopes;  // all that have it together, and a session on this GPU
  uint64_t device = 0;              // as in AccountCell::device
  ShareTerms terms;
  ShareFigures figures;   // since its first session of those that live; only while turns were in force
  bool in_turns = false;  // they are in force on the GPU now
  LinkFigures link[kLinkDirections]{};  // of copies over the GPU's link, kToDevice and kToHost
  // How long records of the scope have waited, on all GPUs: at most so long; 0: none has.
  double wait_p50_us = 0, wait_p99_us = 0, wait_longest_us = 0;
};

}  // namespace causeway::daemon
