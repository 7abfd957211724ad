// SPDX-License-Identifier: Apache-2.0
// Sending the parameters of graph nodes.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <functional>
#include <span>

#include "ivshmem_ring/messages/graph_messages.h"

namespace causeway::guest {

// What a new node depends on.
struct Dependencies {
  const CUgraphNode* nodes = nullptr;
  size_t count = 0;
  const CUgraphEdgeData* edges = nullptr;
};

// Adds a node. `params` is read, and receives what the driver writes (an allocation's address, body graphs).
CUresult AddNode(NodeForm form, CUgraphNode* node, CUgraph graph, const Dependencies& dependencies,
                 CUgraphNodeParams* params);
// Changes a node's parameters, in its graph or (exec given) in an executable one.
CUresult SetNode(NodeForm form, CUgraphExec exec, CUgraphNode node, const CUgraphNodeParams& params);
// Adds a node with any number of dependencies: `add` takes as many as a message holds, the others become
// edges.
CUresult AddInPieces(CUgraphNode* node, CUgraph graph, const Dependencies& dependencies,
                     const std::function<CUresult(const Dependencies&)>& add);

// Fills `params` with what a node of that type has. What they point to lives as long as the node and its
// parameters.
CUresult GetNode(CUgraphNode node, CUgraphNodeType type, CUgraphNodeParams* params);

}  // namespace causeway::guest
