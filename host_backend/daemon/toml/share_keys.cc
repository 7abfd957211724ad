// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/toml/share_keys.h"

#include <algorithm>
#include <set>

namespace causeway::daemon {

const char* NameOf(ShareClass share_class) {
  switch (share_class) {
    case ShareClass::kLatency:
      return "latency";
    case ShareClass::kBackground:
      return "background";
    default:
      return "normal";
  }
}

std::optional<ShareClass> ShareClassNamed(std::string_view name) {
  for (const ShareClass each : {ShareClass::kNormal, ShareClass::kLatency, ShareClass::kBackground}) {
    if (name == NameOf(each)) return each;
  }
  return std::nullopt;
}

ShareTerms ReadShareTerms(TableReader& reader, const std::string& prefix, ShareTerms terms,
                          bool may_reserve) {
  reader.Number(prefix + "weight", 1, kMostWeight, &terms.weight);
  reader.Number(prefix + "cap", 1, 100, &terms.cap_percent);
  if (may_reserve) reader.Number(prefix + "reserve", 0, 100, &terms.reserve_percent);
  reader.Number(prefix + "pcie_mib_per_s", 0, kMostPcieMibPerS, &terms.pcie_mib_per_s);
  if (const auto name = reader.String(prefix + "class")) {
    const auto share_class = ShareClassNamed(*name);
    const std::string key = prefix + "class";
    if (!share_class)
      reader.Fail(*reader.Take(key), key, "must be latency, normal or background, but is \"" + *name + "\"");
    terms.share_class = *share_class;
  }
  if (terms.reserve_percent > terms.cap_percent) {
    reader.Fail(*reader.Take(prefix + "reserve"), prefix + "reserve",
                "is " + std::to_string(terms.reserve_percent) + " but must not be above cap, which is " +
                    std::to_string(terms.cap_percent));
  }
  return terms;
}

void AddShareTerms(toml::table& table, const ShareTerms& terms) {
  const ShareTerms usual;
  if (terms.weight != usual.weight) table.insert("weight", int64_t(terms.weight));
  if (terms.cap_percent != usual.cap_percent) table.insert("cap", int64_t(terms.cap_percent));
  if (terms.reserve_percent != usual.reserve_percent) table.insert("reserve", int64_t(terms.reserve_percent));
  if (terms.pcie_mib_per_s != usual.pcie_mib_per_s)
    table.insert("pcie_mib_per_s", int64_t(terms.pcie_mib_per_s));
  if (terms.share_class != usual.share_class) table.insert("class", NameOf(terms.share_class));
}

std::string Reservations::Add(const std::string& scope, uint32_t percent,
                              const std::vector<std::string>& gpus) {
  if (percent == 0) return {};
  const One fresh{scope, percent, gpus};
  std::set<std::string> looked_at(gpus.begin(), gpus.end());
  if (gpus.empty()) {
    looked_at.insert("");
    for (const One& one : all_) looked_at.insert(one.gpus.begin(), one.gpus.end());
  }
  for (const std::string& gpu : looked_at) {
    if (std::string why = WhyTooMuch(fresh, gpu); !why.empty()) return why;
  }
  all_.push_back(fresh);
  return {};
}

std::string Reservations::WhyTooMuch(const One& fresh, const std::string& gpu) const {
  uint64_t sum = fresh.percent;
  std::string names;
  for (const One& one : all_) {
    const bool may_use =
        one.gpus.empty() || std::find(one.gpus.begin(), one.gpus.end(), gpu) != one.gpus.end();
    if (!may_use) continue;
    sum += one.percent;
    names += (names.empty() ? "" : ", ") + one.scope;
  }
  if (sum <= 100) return {};
  return "with what " + names + " have makes " + std::to_string(sum) + " % of " +
         (gpu.empty() ? "one GPU" : gpu) + ", of which 100 % is all";
}

}  // namespace causeway::daemon
