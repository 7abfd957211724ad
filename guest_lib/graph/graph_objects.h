// SPDX-License-Identifier: Apache-2.0
// What the guest keeps of graphs: which node belongs to which graph, so that handles end when the driver ends
// what they stand for, and the arrays that the driver lends to the program.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <memory>
#include <vector>

#include "guest_lib/session/handles.h"

namespace causeway::guest {

// A node's parameters as the last Get call answered them. The program may keep pointers into it.
struct NodeSnapshot {
  CUgraphNodeParams params{};
  std::vector<std::byte> bytes;
  std::vector<void*> pointers;
  size_t buffer_bytes = 0;
  void* extra[5] = {};
};

// Both sides of a handle's family. Calls with dead or null handles do nothing.
void OwnNode(CUgraph graph, CUgraphNode node);
void OwnNodeLike(CUgraphNode sibling, CUgraphNode node);  // of the same graph
void OwnGraph(CUgraphNode node, CUgraph graph);           // a child graph, a conditional body
// The handle itself stays; all that ends with it goes.
void EndContents(CUgraph graph);
void EndContents(CUgraphNode node);

// Whether the node's parameters were given as one packed buffer (`extra`).
void SetPackedForm(CUgraphNode node, bool packed);
bool HasPackedForm(CUgraphNode node);
// Keeps the snapshot for as long as the node lives and its parameters stay as they are, and returns the one
// that the program may point into; null if the node is not alive.
const NodeSnapshot* KeepSnapshot(CUgraphNode node, std::unique_ptr<NodeSnapshot> snapshot);

// The body graphs of a conditional node, as long as the node lives.
CUgraph* KeepBodies(CUgraphNode node, std::vector<CUgraph> bodies);

}  // namespace causeway::guest
