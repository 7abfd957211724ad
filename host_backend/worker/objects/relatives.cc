// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/objects/relatives.h"

namespace causeway::host {

WireHandle Relatives::NameOf(const void* graph) const {
  const auto found = names_.find(graph);
  return found != names_.end() ? found->second : 0;
}

void Relatives::Join(const void* one, WireHandle name, const void* other) {
  if (one == other) return;
  const WireHandle before = NameOf(other);
  auto& members = members_[name];
  for (const void* each : {one, other}) {
    names_[each] = name;
    members.insert(each);
  }
  const auto former =
      before != 0 && before != name ? members_.extract(before) : decltype(members_)::node_type{};
  if (former.empty()) return;
  for (const void* each : former.mapped()) {
    names_[each] = name;
    members.insert(each);
  }
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
