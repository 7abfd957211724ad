// SPDX-License-Identifier: Apache-2.0
// The references to the guest's user objects, counted beside the driver: natively a call that names an object
// after its last reference went reads freed memory and may answer CUDA_SUCCESS.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "host_backend/worker/driver/driver.h"

namespace causeway::host {

// What is counted here the driver has at least: a clone of a graph has what its original has, while a graph
// within another's node and an executable graph hold references that only the driver knows, and no call can
// release. Threads: any. A change is made under one lock together with the driver's call.
class UserObjects {
 public:
  // Calls the driver; CUDA_ERROR_INVALID_VALUE instead if the object may be gone or has fewer references, and
  // CUDA_ERROR_OUT_OF_MEMORY where the program and its graphs would have more than 2^31 - 1.
  CUresult Retain(CUuserObject object, unsigned count);
  CUresult Release(CUuserObject object, unsigned count);
  CUresult RetainByGraph(CUgraph graph, CUuserObject object, unsigned count, unsigned flags);
  CUresult ReleaseByGraph(CUgraph graph, CUuserObject object, unsigned count);
  CUresult Clone(CUgraph* copy, CUgraph graph);
  // The program made it, with so many references.
  void Begin(CUuserObject object, unsigned count);
  using Held = std::vector<std::pair<CUuserObject, uint64_t>>;
  // Before the graph may end: what it holds is not relied on from here. Returns that.
  Held GraphEnds(CUgraph graph);
  // It has not ended, and holds what GraphEnds returned: that counts again.
  void GraphLives(CUgraph graph, const Held& held);

 private:
  struct Counts {
    uint64_t owned = 0;  // by the program
    std::map<CUgraph, uint64_t> by_graph;
  };
  static bool HasRoom(const Counts& counts, uint64_t more);
  // Null: it may be gone.
  Counts* Find(CUuserObject object);
  void ForgetIfGone(CUuserObject object);

  std::mutex mutex_;
  std::map<CUuserObject, Counts> counts_;
};

// A worker has one session.
UserObjects& TheUserObjects();

// Puts the guards that count.
void CountUserObjects(Driver& driver);

// The exception: objects that the worker makes for itself (host_nodes.cc) are none of the guest's, so that
// nothing is counted of them. Each call is about one reference.
struct UncountedUserObjects {
  static CUresult RetainByGraph(CUgraph graph, CUuserObject object);
  static CUresult ReleaseByGraph(CUgraph graph, CUuserObject object);
  static CUresult Release(CUuserObject object);
};

}  // namespace causeway::host
