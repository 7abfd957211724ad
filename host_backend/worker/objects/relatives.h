// SPDX-License-Identifier: Apache-2.0
// Which graphs and executable graphs share parts inside NVIDIA's driver. A clone, the copy that a child node holds and an
// executable graph go on sharing parts with the graph that they were made of, and no lock of the driver's guards those:
// when two threads use or end one of them each, its library crashes (580.159.04: 4 of 15 runs of
// tests/hostile/hostile_handles_test.cc, GraphsAndTheirNodes; 0 of 30 where nothing is cloned or instantiated). So relatives
// are changed and ended by one request at a time, as one graph is.
//
// Not thread-safe: the handle table's mutex guards it. It owns nothing, and an object is known by the driver's pointer, which is
// another object's once Forget was called.
#pragma once

#include <unordered_map>
#include <unordered_set>

#include "ivshmem_ring/protocol/handle.h"

namespace causeway::host {

// Whether objects of that kind may have relatives.
constexpr bool HasRelatives(HandleKind kind) {
  return kind == HandleKind::kGraph || kind == HandleKind::kGraphExec;
}

class Relatives {
 public:
  // The name by which one request takes all relatives of a graph (ExclusiveUses); 0: it has none.
  WireHandle NameOf(const void* graph) const;
  // They are relatives from here on, and so are theirs. The caller has both to itself: the first by `name`, which is its relatives'
  // or, where it has none, its own number; the other by its relatives' name or its number. What comes back is the name of all of
  // them, one of those two.
  WireHandle Join(const void* one, WireHandle name, const void* other);
  // The driver has ended it.
  void Forget(const void* graph);

 private:
  std::unordered_map<const void*, WireHandle> names_;
  std::unordered_map<WireHandle, std::unordered_set<const void*>> members_;
};

}  // namespace causeway::host
