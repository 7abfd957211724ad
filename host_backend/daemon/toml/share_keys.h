// SPDX-License-Identifier: Apache-2.0
// The keys of a table that say what of the GPUs' time a VM, user or peer is to have (docs/sharing.md, "Settings"), and the
// rule that what is reserved can be kept.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "host_backend/common/shares/share_terms.h"
#include "host_backend/daemon/toml/table_reader.h"

namespace causeway::daemon {

// Bounds of turn_ms.
inline constexpr double kLeastTurnMs = 0.5, kMostTurnMs = 50;

// "latency", "normal" or "background".
const char* NameOf(ShareClass share_class);
std::optional<ShareClass> ShareClassNamed(std::string_view name);

// The keys `prefix`weight, `prefix`cap, `prefix`class and `prefix`pcie_mib_per_s over `terms`; with `may_reserve` also `prefix`reserve, which can only
// be promised where it is known how many there are that it is promised to.
ShareTerms ReadShareTerms(TableReader& reader, const std::string& prefix, ShareTerms terms, bool may_reserve);

// The same keys, without a prefix, where they differ from what they are without such a key.
void AddShareTerms(toml::table& table, const ShareTerms& terms);

// What is reserved on each GPU, in percent. A scope that names no GPU may use all of them, so that its reservation counts on
// each. Nothing is known here of the GPUs that there are.
class Reservations {
 public:
  // "" or a clause that says which scopes have more than 100 % together with this one, which then is not counted.
  std::string Add(const std::string& scope, uint32_t percent, const std::vector<std::string>& gpus);

 private:
  struct One {
    std::string scope;
    uint32_t percent;
    std::vector<std::string> gpus;
  };
  // `gpu` empty: one that nobody names.
  std::string WhyTooMuch(const One& fresh, const std::string& gpu) const;
  std::vector<One> all_;
};

}  // namespace causeway::daemon
