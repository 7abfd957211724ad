// SPDX-License-Identifier: Apache-2.0
// Graphs as objects: creation, copies, edges, and what can be asked about them.
#include <algorithm>
#include <unordered_map>

#include "tests/software_gpu/graph_exec.h"

namespace causeway::software_gpu {
namespace {

// The array-and-count convention of graph queries: with a null array only the count is answered, otherwise
// the array is filled, its unused rest with null, and *count becomes the number of entries filled.
template <typename Handle>
CUresult Answer(const std::vector<Handle>& found, Handle* array, size_t* count) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (array == nullptr) {
    *count = found.size();
    return CUDA_SUCCESS;
  }
  size_t room = *count;
  if (room == 0) return CUDA_ERROR_INVALID_VALUE;  // an array for nothing
  *count = std::min(room, found.size());
  std::copy_n(found.begin(), *count, array);
  std::fill(array + *count, array + room, nullptr);
  return CUDA_SUCCESS;
}

template <typename Body>
CUresult OnGraph(const char* function, CUgraph handle, const Body& body) {
  return OnDevice(function, [&]() -> CUresult {
    GraphRef graph = Graphs().Find(handle);
    if (graph == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    std::lock_guard lock(GraphLock());
    return body(graph);
  });
}

template <typename Body>
CUresult OnNode(const char* function, CUgraphNode handle, const Body& body) {
  return OnDevice(function, [&]() -> CUresult {
    NodeRef node = Nodes().Find(handle);
    if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard lock(GraphLock());
    return body(node);
  });
}

// Adds or removes edges from[i] -> to[i].
CUresult ChangeEdges(const GraphRef& graph, const CUgraphNode* from, const CUgraphNode* to, size_t count,
                     bool add) {
  std::vector<NodeRef> sources;
  std::vector<NodeRef> targets;
  if (!FindNodes(from, count, &sources) || !FindNodes(to, count, &targets)) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    bool here =
        sources[i]->graph.lock() == graph && targets[i]->graph.lock() == graph && sources[i] != targets[i];
    std::vector<NodeRef>& dependencies = targets[i]->dependencies;
    bool exists = std::find(dependencies.begin(), dependencies.end(), sources[i]) != dependencies.end();
    if (!here || exists == add) return CUDA_ERROR_INVALID_VALUE;
    if (add) {
      dependencies.push_back(sources[i]);
    } else {
      std::erase(dependencies, sources[i]);
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace

GraphRef CloneGraph(const GraphRef& original) {
  std::vector<NodeRef> ordered;
  if (!OrderNodes(*original, &ordered)) return nullptr;
  GraphRef clone = MakeGraph();
  clone->user_objects = original->user_objects;
  std::unordered_map<Node*, NodeRef> copies;
  for (const NodeRef& node : ordered) {
    std::vector<NodeRef> dependencies;
    for (const NodeRef& dependency : node->dependencies) dependencies.push_back(copies.at(dependency.get()));
    NodeRef copy = AddNode(clone, node->operation, std::move(dependencies));
    copy->original = node;
    copy->attributes = node->attributes;
    if (node->child != nullptr) {
      copy->child = CloneGraph(node->child);
      if (copy->child == nullptr) return nullptr;
      copy->child->embedded = true;
    }
    copies.emplace(node.get(), std::move(copy));
  }
  return clone;
}

}  // namespace causeway::software_gpu

using namespace causeway::software_gpu;

extern "C" {

CUresult cuGraphCreate(CUgraph* phGraph, unsigned int flags) {
  return OnDevice(__func__, [&]() -> CUresult {
    if (phGraph == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    *phGraph = MakeGraph()->handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphDestroy(CUgraph hGraph) {
  return OnDevice(__func__, [&]() -> CUresult {
    GraphRef graph = Graphs().Find(hGraph);
    if (graph == nullptr || graph->embedded) return CUDA_ERROR_INVALID_VALUE;
    Graphs().Remove(hGraph);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphClone(CUgraph* phGraphClone, CUgraph originalGraph) {
  return OnGraph(__func__, originalGraph, [&](const GraphRef& original) -> CUresult {
    if (phGraphClone == nullptr) return CUDA_ERROR_INVALID_VALUE;
    GraphRef clone = CloneGraph(original);
    if (clone == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *phGraphClone = clone->handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphNodeFindInClone(CUgraphNode* phNode, CUgraphNode hOriginalNode, CUgraph hClonedGraph) {
  return OnGraph(__func__, hClonedGraph, [&](const GraphRef& clone) -> CUresult {
    NodeRef original = Nodes().Find(hOriginalNode);
    if (phNode == nullptr || original == nullptr) return CUDA_ERROR_INVALID_VALUE;
    for (const NodeRef& node : clone->nodes) {
      if (node->original.lock() != original) continue;
      *phNode = node->handle;
      return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuGraphGetNodes(CUgraph hGraph, CUgraphNode* nodes, size_t* numNodes) {
  return OnGraph(__func__, hGraph, [&](const GraphRef& graph) {
    std::vector<CUgraphNode> found;
    for (const NodeRef& node : graph->nodes) found.push_back(node->handle);
    return Answer(found, nodes, numNodes);
  });
}

CUresult cuGraphGetRootNodes(CUgraph hGraph, CUgraphNode* rootNodes, size_t* numRootNodes) {
  return OnGraph(__func__, hGraph, [&](const GraphRef& graph) {
    std::vector<CUgraphNode> found;
    for (const NodeRef& node : graph->nodes) {
      if (node->dependencies.empty()) found.push_back(node->handle);
    }
    return Answer(found, rootNodes, numRootNodes);
  });
}

CUresult cuGraphGetEdges_v2(CUgraph hGraph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* edgeData,
                            size_t* numEdges) {
  return OnGraph(__func__, hGraph, [&](const GraphRef& graph) -> CUresult {
    std::vector<CUgraphNode> sources;
    std::vector<CUgraphNode> targets;
    for (const NodeRef& node : graph->nodes) {
      for (const NodeRef& dependency : node->dependencies) {
        sources.push_back(dependency->handle);
        targets.push_back(node->handle);
      }
    }
    if (numEdges == nullptr || (from == nullptr) != (to == nullptr)) return CUDA_ERROR_INVALID_VALUE;
    size_t room = *numEdges;
    CUresult result = Answer(sources, from, numEdges);
    if (result == CUDA_SUCCESS && to != nullptr) result = Answer(targets, to, &room);
    if (edgeData != nullptr && to != nullptr) std::fill_n(edgeData, room, CUgraphEdgeData{});
    return result;
  });
}

CUresult cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType* type) {
  return OnNode(__func__, hNode, [&](const NodeRef& node) -> CUresult {
    if (type == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *type = node->operation.type;
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphNodeGetDependencies_v2(CUgraphNode hNode, CUgraphNode* dependencies,
                                       CUgraphEdgeData* edgeData, size_t* numDependencies) {
  return OnNode(__func__, hNode, [&](const NodeRef& node) {
    std::vector<CUgraphNode> found;
    for (const NodeRef& dependency : node->dependencies) found.push_back(dependency->handle);
    CUresult result = Answer(found, dependencies, numDependencies);
    bool filled = result == CUDA_SUCCESS && dependencies != nullptr && edgeData != nullptr;
    if (filled) std::fill_n(edgeData, *numDependencies, CUgraphEdgeData{});
    return result;
  });
}

CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode hNode, CUgraphNode* dependentNodes,
                                         CUgraphEdgeData* edgeData, size_t* numDependentNodes) {
  return OnNode(__func__, hNode, [&](const NodeRef& node) -> CUresult {
    GraphRef graph = node->graph.lock();
    if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::vector<CUgraphNode> found;
    for (const NodeRef& other : graph->nodes) {
      bool dependent = std::find(other->dependencies.begin(), other->dependencies.end(), node) !=
                       other->dependencies.end();
      if (dependent) found.push_back(other->handle);
    }
    CUresult result = Answer(found, dependentNodes, numDependentNodes);
    bool filled = result == CUDA_SUCCESS && dependentNodes != nullptr && edgeData != nullptr;
    if (filled) std::fill_n(edgeData, *numDependentNodes, CUgraphEdgeData{});
    return result;
  });
}

CUresult cuGraphAddDependencies_v2(CUgraph hGraph, const CUgraphNode* from, const CUgraphNode* to,
                                   const CUgraphEdgeData*, size_t numDependencies) {
  return OnGraph(__func__, hGraph,
                 [&](const GraphRef& graph) { return ChangeEdges(graph, from, to, numDependencies, true); });
}

CUresult cuGraphRemoveDependencies_v2(CUgraph hGraph, const CUgraphNode* from, const CUgraphNode* to,
                                      const CUgraphEdgeData*, size_t numDependencies) {
  return OnGraph(__func__, hGraph,
                 [&](const GraphRef& graph) { return ChangeEdges(graph, from, to, numDependencies, false); });
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode hNode, CUgraph* phGraph) {
  return OnNode(__func__, hNode, [&](const NodeRef& node) -> CUresult {
    if (phGraph == nullptr || node->child == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *phGraph = node->child->handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphDestroyNode(CUgraphNode hNode) {
  return OnNode(__func__, hNode, [&](const NodeRef& node) -> CUresult {
    GraphRef graph = node->graph.lock();
    if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::erase(graph->nodes, node);
    for (const NodeRef& other : graph->nodes) std::erase(other->dependencies, node);
    Nodes().Remove(hNode);
    return CUDA_SUCCESS;
  });
}

}  // extern "C"

// The forms of before edge data.
extern "C" {

CUresult cuGraphGetEdges(CUgraph hGraph, CUgraphNode* from, CUgraphNode* to, size_t* numEdges) {
  return cuGraphGetEdges_v2(hGraph, from, to, nullptr, numEdges);
}

CUresult cuGraphNodeGetDependencies(CUgraphNode hNode, CUgraphNode* dependencies, size_t* numDependencies) {
  return cuGraphNodeGetDependencies_v2(hNode, dependencies, nullptr, numDependencies);
}

CUresult cuGraphNodeGetDependentNodes(CUgraphNode hNode, CUgraphNode* dependentNodes,
                                      size_t* numDependentNodes) {
  return cuGraphNodeGetDependentNodes_v2(hNode, dependentNodes, nullptr, numDependentNodes);
}

CUresult cuGraphAddDependencies(CUgraph hGraph, const CUgraphNode* from, const CUgraphNode* to,
                                size_t numDependencies) {
  return cuGraphAddDependencies_v2(hGraph, from, to, nullptr, numDependencies);
}

CUresult cuGraphRemoveDependencies(CUgraph hGraph, const CUgraphNode* from, const CUgraphNode* to,
                                   size_t numDependencies) {
  return cuGraphRemoveDependencies_v2(hGraph, from, to, nullptr, numDependencies);
}

}  // extern "C"
