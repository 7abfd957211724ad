// SPDX-License-Identifier: Apache-2.0
// Functions of the program in graphs: host nodes, and destructors of user objects. Any thread may call these
// functions; they send messages.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include "guest_lib/graph/graph_node.h"

namespace causeway::guest {

// Adds a host node. The number of its function (callbacks.h) is released when the graph, its clones and the
// executable graphs made of them are gone. If `number` is not null it receives the number, and the caller
// releases it.
CUresult AddHostNode(NodeForm form, CUgraphNode* node, CUgraph graph, const Dependencies& dependencies,
                     CUhostFn function, void* user_data, uint64_t* number = nullptr);
CUresult SetHostNode(NodeForm form, CUgraphExec exec, CUgraphNode node, const CUgraphNodeParams& params);

// Calls `destroy` when the graph, its clones and the executable graphs made of them are gone.
CUresult TieToGraph(CUgraph graph, CUhostFn destroy, void* data, CUuserObject* object = nullptr);

}  // namespace causeway::guest
