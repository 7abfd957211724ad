// SPDX-License-Identifier: Apache-2.0
// Copies in graphs between the device and ordinary memory of the program. Natively such a node reads or
// writes that memory at each launch, but the device cannot reach it here. So the node is a hidden child
// graph: a function of this library that copies between that memory and a staging buffer in pinned memory,
// and the copy between the buffer and the device. The program sees a memcpy node
// (docs/graphs_and_callbacks.md). Any thread may call these functions; they send messages.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"
#include "ivshmem_ring/protocol/maybe_result.h"

#include "guest_lib/graph/graph_node.h"

namespace causeway::guest {

// Whether a copy needs such a node, because one side is ordinary memory. Pinned memory that the device does not reach counts as
// ordinary; the caller has the device reach it before it asks (NameOnDevice in memory.h).
bool NeedsStaging(const CUDA_MEMCPY3D& box);

// Adds such a node. CUDA_ERROR_NOT_SUPPORTED: the session shares no memory, and the device cannot reach pinned memory of this
// process, which the staging buffer would be.
CUresult AddStagedCopy(CUgraphNode* node, CUgraph graph, const Dependencies& dependencies,
                       const CUDA_MEMCPY3D& box, CUcontext context);
// Whether the node is such a copy. *given and *context are the parameters as the program gave them.
bool IsStagedCopy(CUgraphNode node, CUDA_MEMCPY3D* given = nullptr, CUcontext* context = nullptr);
// Gets the graph of a child graph node, or the hidden graph of such a copy.
CUresult GetChildGraph(CUgraphNode node, CUgraph* graph);
// Changes such a node into any copy. `exec` is as in SetNode (graph_node.h).
CUresult SetStagedCopy(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D& box, CUcontext context);

// The answer to a change that SetNode has refused with CUDA_ERROR_NOT_SUPPORTED, because it would turn another node into such a
// copy. The driver supports that change, so a program that passed other wrong values expects the error for those.
CUresult RefusedCopy(CUgraphNode node, const CUDA_MEMCPY3D& box);

// Turns an asynchronous copy from or to ordinary memory into a node if its stream captures. *captured says
// whether it does; if not, nothing was done.
CUresult CaptureCopy(CUstream stream, const CUDA_MEMCPY3D& box, bool* captured);

// The same for a linear copy, to be asked while any stream captures (AnyCapture). The result is the call's
// answer if the stream captures. None: it does not, and nothing was done.
MaybeResult CaptureLinearCopy(CUstream stream, CUdeviceptr to, CUdeviceptr from, size_t bytes);

}  // namespace causeway::guest
