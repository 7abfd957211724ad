// SPDX-License-Identifier: Apache-2.0
// Functions of the program in graphs: host nodes, and destructors of user objects.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include "guest_lib/graph/graph_node.h"

namespace causeway::guest {

// Adds a host node. The function's number is given back when the graph, its clones and what was made of them
// are gone; if `number` is given, its owner does that.
CUresult AddHostNode(NodeForm form, CUgraphNode* node, CUgraph graph, const Dependencies& dependencies,
                     CUhostFn function, void* user_data, uint64_t* number = nullptr);
CUresult SetHostNode(NodeForm form, CUgraphExec exec, CUgraphNode node, const CUgraphNodeParams& params);

// Calls `destroy` when the graph, its clones and the executable graphs made of them are gone.
CUresult TieToGraph(CUgraph graph, CUhostFn destroy, void* data, CUuserObject* object = nullptr);

}  // namespace causeway::guest
