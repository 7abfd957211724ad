// SPDX-License-Identifier: Apache-2.0
// What the guest keeps of graphs: the ownership tree of graphs and nodes, so that handles end when the driver
// ends their objects, and the arrays that the driver would lend to the program. Any thread may call these
// functions; they send no messages (guest_lib/process/lock_order.h).
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <memory>
#include <vector>

#include "guest_lib/session/handles.h"

namespace causeway::guest {

// A node's parameters, as the last call that asked for them answered. The program may keep pointers into it.
struct NodeSnapshot {
  CUgraphNodeParams params{};
  std::vector<std::byte> bytes;  // what `params` points to
  // Of a kernel node: pointers to its parameters, or their one buffer's size and the `extra` for it.
  std::vector<void*> pointers;
  size_t buffer_bytes = 0;
  void* extra[5] = {};
};

// Put an object into the ownership tree: the node below its graph, or the child graph or conditional body
// below its node. Calls with null handles, or with handles of ended objects, do nothing.
void OwnNode(CUgraph graph, CUgraphNode node);
void OwnNodeLike(CUgraphNode sibling, CUgraphNode node);  // below the sibling's graph
void OwnGraph(CUgraphNode node, CUgraph graph);
// End everything below an object in the tree. The object's own handle stays.
void EndContents(CUgraph graph);
void EndContents(CUgraphNode node);

// Whether the node's parameters were given as one packed buffer (`extra`).
void SetPackedForm(CUgraphNode node, bool packed);
bool HasPackedForm(CUgraphNode node);
// Keeps the snapshot until the node ends or its parameters change, and returns the snapshot into which the
// program may have pointers. Null: the node does not exist.
const NodeSnapshot* KeepSnapshot(CUgraphNode node, std::unique_ptr<NodeSnapshot> snapshot);

// Keeps the body graphs of a conditional node as long as the node exists, and returns their array.
CUgraph* KeepBodies(CUgraphNode node, std::vector<CUgraph> bodies);

}  // namespace causeway::guest
