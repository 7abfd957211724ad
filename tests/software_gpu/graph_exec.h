// SPDX-License-Identifier: Apache-2.0
// Executable graphs.
#pragma once

#include "tests/software_gpu/graph_handles.h"

namespace causeway::software_gpu {

// The graph's operations in an order that respects the dependencies; false when these form a circle.
// Caller holds GraphLock().
bool OrderNodes(const Graph& graph, std::vector<NodeRef>* ordered);

// What the node does when it is launched: a child graph's is what that graph holds now. Caller holds
// GraphLock(). False when a child graph's dependencies form a circle.
bool OperationOf(const NodeRef& node, Operation* operation);

// A graph with copies of all nodes; null when the dependencies form a circle. Caller holds GraphLock().
GraphRef CloneGraph(const GraphRef& original);

}  // namespace causeway::software_gpu
