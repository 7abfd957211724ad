// SPDX-License-Identifier: Apache-2.0
// The registries of graphs, nodes and executable graphs, for the graph and capture files.
#pragma once

#include "tests/software_gpu/graph.h"
#include "tests/software_gpu/handles.h"

namespace causeway::software_gpu {

// An instantiated graph: the nodes in an order that respects their dependencies.
struct GraphExec {
  std::vector<Operation> operations;  // guarded by GraphLock()
  std::vector<NodeRef> sources;       // the node each operation came from
  std::vector<bool> enabled;
  unsigned long long flags = 0;
  UserReferences user_objects;  // as the graph had them
  GraphRef graph;               // keeps the graph's captured allocations alive
  CompletionRef last_launch;
};

template <>
inline uint64_t ExclusiveOwner(const Node& node) {
  const GraphRef graph = node.graph.lock();
  return graph != nullptr ? reinterpret_cast<uint64_t>(graph->handle) : 0;
}

Registry<CUgraph, Graph>& Graphs();
Registry<CUgraphNode, Node>& Nodes();
Registry<CUgraphExec, GraphExec>& GraphExecs();

// False when the array is null but not empty, or a handle is not alive.
bool FindNodes(const CUgraphNode* handles, size_t count, std::vector<NodeRef>* nodes);

}  // namespace causeway::software_gpu
