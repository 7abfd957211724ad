// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/pool/own_spares.h"

#include <utility>

namespace causeway::daemon {

OwnSpares::OwnSpares(Counts wanted) : wanted_(std::move(wanted)) {
  for (const auto& [scope, count] : wanted_) total_ += count;
}

std::string OwnSpares::Lacking(const Counts& ready, const SpareUse& use, Time now) const {
  std::string lacking;
  double fewest = 0;
  for (const auto& [scope, count] : wanted_) {
    const auto own = ready.find(scope);
    if (own != ready.end() && own->second >= count) continue;
    const double taken = use.Taken(scope, now);
    if (!lacking.empty() && taken >= fewest) continue;
    lacking = scope;
    fewest = taken;
  }
  return lacking;
}

std::string OwnSpares::ForReady(const Counts& ready, bool sessions_wait, const SpareUse& use, Time now) {
  if (sessions_wait && std::exchange(last_was_kept_, false)) return {};
  std::string scope = Lacking(ready, use, now);
  last_was_kept_ = sessions_wait && !scope.empty();
  return scope;
}

}  // namespace causeway::daemon
