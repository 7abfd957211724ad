// SPDX-License-Identifier: Apache-2.0
// Graph objects and their registries.
#include "tests/software_gpu/graph.h"

#include "tests/software_gpu/graph_handles.h"

namespace causeway::software_gpu {

Registry<CUgraph, Graph>& Graphs() {
  static auto* graphs = new Registry<CUgraph, Graph>(true);
  return *graphs;
}

Registry<CUgraphNode, Node>& Nodes() {
  static auto* nodes = new Registry<CUgraphNode, Node>;
  return *nodes;
}

Registry<CUgraphExec, GraphExec>& GraphExecs() {
  static auto* execs = new Registry<CUgraphExec, GraphExec>(true);
  return *execs;
}

Node::~Node() {
  if (child != nullptr) Graphs().Remove(child->handle, false);
}

Graph::~Graph() {
  for (const AllocationRef& allocation : allocations) ReleaseMemory(allocation);
  for (const NodeRef& node : nodes) Nodes().Remove(node->handle, false);
}

GraphRef MakeGraph() {
  auto graph = std::make_shared<Graph>();
  graph->handle = Graphs().Add(graph);
  return graph;
}

NodeRef AddNode(const GraphRef& graph, Operation operation, std::vector<NodeRef> dependencies) {
  auto node = std::make_shared<Node>();
  node->graph = graph;
  node->operation = std::move(operation);
  node->dependencies = std::move(dependencies);
  node->handle = Nodes().Add(node);
  graph->nodes.push_back(node);
  return node;
}

bool FindNodes(const CUgraphNode* handles, size_t count, std::vector<NodeRef>* nodes) {
  if (count != 0 && handles == nullptr) return false;
  for (size_t i = 0; i < count; ++i) {
    nodes->push_back(Nodes().Find(handles[i]));
    if (nodes->back() == nullptr) return false;
  }
  return true;
}

}  // namespace causeway::software_gpu
