// SPDX-License-Identifier: Apache-2.0
// Functions of the program in graphs: host nodes, and destructors of user objects. A function travels as a
// number (guest_lib/callbacks/callbacks.h), and runs in a thread of this library in which CUDA calls are not
// permitted. Any thread may call what is declared here, without a lock of this library's held: each sends
// messages and waits for the replies. Errors are those of the driver's call.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include "guest_lib/graph/graph_node.h"

namespace causeway::guest {

// Adds a host node to the graph, and stores its handle in *node. The number of the function is released when
// the graph, its clones and the executable graphs made of them are gone. If `number` is not null it receives
// the number, which the caller releases. After an error no number is registered and *number is unchanged.
CUresult AddHostNode(NodeForm form, CUgraphNode* node, CUgraph graph, const Dependencies& dependencies,
                     CUhostFn function, void* user_data, uint64_t* number = nullptr);
// Changes the function of a host node: in its graph if `exec` is null, else in that executable graph. Neither
// the old number nor, after success, the new one is ever released, because launches may still want both.
CUresult SetHostNode(NodeForm form, CUgraphExec exec, CUgraphNode node, const CUgraphNodeParams& params);

// Has destroy(data) called when the graph, its clones and the executable graphs made of them are gone, and
// stores the handle of the user object in *object unless that is null. The graph holds the one reference, so
// the caller must not release it. After an error `destroy` is not called.
CUresult TieToGraph(CUgraph graph, CUhostFn destroy, void* data, CUuserObject* object = nullptr);

}  // namespace causeway::guest
