// SPDX-License-Identifier: Apache-2.0
// A domain with what libvirt says of it at one moment, and steps that are undone.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "host_backend/command/libvirt/host_link.h"

namespace causeway::command {

struct PlacedDomain {
  Domain domain;
  std::optional<DomainXml> live;  // it runs
  std::optional<DomainXml> next;  // it is persistent: what its next start will be

  // Its regions in either, each name once.
  std::vector<std::string> RegionNames() const;
  // Any of the two: the machine is the same in both.
  const DomainXml& any() const { return live ? *live : *next; }
};
Result<PlacedDomain> Place(Domain domain);

// That device of the XML; empty: there is none.
std::optional<RegionDevice> FindRegion(const std::optional<DomainXml>& xml, const std::string& region);

// The name of another domain than `self` that has that region; empty: there is none.
std::string OtherOwner(const HostLink& link, const std::string& region, const std::string& self);

// What has been done, to be undone in the reverse order unless Keep is called.
class Undo {
 public:
  // `step` returns "" or a sentence that says what is left.
  void Add(std::function<std::string()> step) { steps_.push_back(std::move(step)); }
  void Keep() { steps_.clear(); }
  // Undoes all of it. What could not be undone follows `problem`.
  std::string All(std::string problem);

 private:
  std::vector<std::function<std::string()>> steps_;
};

}  // namespace causeway::command
