// SPDX-License-Identifier: Apache-2.0
#include "host_backend/command/libvirt/placed_domain.h"

#include <algorithm>

namespace causeway::command {

std::vector<std::string> PlacedDomain::RegionNames() const {
  std::vector<std::string> names;
  for (const auto* xml : {&next, &live}) {
    if (!*xml) continue;
    for (const RegionDevice& device : (*xml)->Regions()) {
      if (std::find(names.begin(), names.end(), device.region) == names.end()) names.push_back(device.region);
    }
  }
  return names;
}

Result<PlacedDomain> Place(Domain domain) {
  PlacedDomain placed{std::move(domain), std::nullopt, std::nullopt};
  const bool runs = placed.domain.active(), persistent = placed.domain.persistent();
  if (!runs && !persistent) return Error{"Domain " + placed.domain.name() + " has just ended, and is gone."};
  if (runs) {
    auto xml = placed.domain.Xml(false);
    if (!xml.ok()) return Error{xml.error()};
    placed.live = std::move(xml.value());
  }
  if (persistent) {
    auto xml = placed.domain.Xml(true);
    if (!xml.ok()) return Error{xml.error()};
    placed.next = std::move(xml.value());
  }
  return placed;
}

std::optional<RegionDevice> FindRegion(const std::optional<DomainXml>& xml, const std::string& region) {
  if (!xml) return std::nullopt;
  for (const RegionDevice& device : xml->Regions()) {
    if (device.region == region) return device;
  }
  return std::nullopt;
}

std::string OtherOwner(const HostLink& link, const std::string& region, const std::string& self) {
  for (Domain& domain : link.All()) {
    if (domain.name() == self) continue;
    const auto other = Place(std::move(domain));
    if (!other.ok()) continue;  // it has ended meanwhile
    const auto names = other.value().RegionNames();
    if (std::find(names.begin(), names.end(), region) != names.end()) return other.value().domain.name();
  }
  return {};
}

std::string Undo::All(std::string problem) {
  while (!steps_.empty()) {
    if (const std::string left = steps_.back()(); !left.empty()) problem += " Not undone: " + left;
    steps_.pop_back();
  }
  return problem;
}

}  // namespace causeway::command
