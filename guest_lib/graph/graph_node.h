// SPDX-License-Identifier: Apache-2.0
// Adds, changes and asks for nodes of graphs, by messages. Any thread may call these functions.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <functional>

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
// Changes a node's parameters: in its graph, or, if `exec` is not null, in that executable graph.
CUresult SetNode(NodeForm form, CUgraphExec exec, CUgraphNode node, const CUgraphNodeParams& params);
// Adds a node with any number of dependencies: `add` is called with as many as a message holds, and the
// others are added as edges afterwards.
CUresult AddInPieces(CUgraphNode* node, CUgraph graph, const Dependencies& dependencies,
                     const std::function<CUresult(const Dependencies&)>& add);

// Fills *params with the parameters of a node of that type. What they point to stays valid until the node
// ends or its parameters change.
CUresult GetNode(CUgraphNode node, CUgraphNodeType type, CUgraphNodeParams* params);

}  // namespace causeway::guest
