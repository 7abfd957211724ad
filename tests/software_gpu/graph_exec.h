// SPDX-License-Identifier: Apache-2.0
// Executable graphs.
#pragma once

#include "tests/software_gpu/graph_handles.h"

namespace causeway::software_gpu {

// The graph's operations in an order that respects the dependencies; false when these form a circle.
// Caller holds GraphLock().
bool OrderNodes(const Graph& graph, std::vector<NodeRef>* ordered);

// Runs the graph's operations one after the other (a child graph's node).
CUresult MakeChildOperation(const GraphRef& child, Operation* operation);

}  // namespace causeway::software_gpu
