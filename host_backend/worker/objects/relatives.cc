// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/objects/relatives.h"

namespace causeway::host {

WireHandle Relatives::NameOf(const void* graph) const {
  const auto found = names_.find(graph);
  return found != names_.end() ? found->second : 0;
}

WireHandle Relatives::Join(const void* one, WireHandle name, const void* other) {
  if (one == other) return name;
  const WireHandle before = NameOf(other);
  const auto put = [this](const void* graph, WireHandle under) {
    names_[graph] = under;
    members_[under].insert(graph);
  };
  put(one, name);
  if (before == 0 || before == name) {
    put(other, name);
    return name;
  }
  // The fewer get the name of the more, so that many joins cost little each.
  const bool keeps_first = members_[name].size() >= members_[before].size();
  const auto fewer = members_.extract(keeps_first ? before : name);
  const WireHandle stays = keeps_first ? name : before;
  for (const void* each : fewer.mapped()) put(each, stays);
  return stays;
}

void Relatives::Forget(const void* graph) {
  const auto found = names_.find(graph);
  if (found == names_.end()) return;
  const auto members = members_.find(found->second);
  members->second.erase(graph);
  if (members->second.empty()) members_.erase(members);
  names_.erase(found);
}

}  // namespace causeway::host
