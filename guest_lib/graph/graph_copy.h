// SPDX-License-Identifier: Apache-2.0
// Copies in graphs between the device and ordinary memory of the program, which the device cannot reach:
// natively such a node reads or writes that memory at each launch. Here it is a hidden child graph: a
// function of this library that copies to or from a staging buffer in pinned memory, and the copy between
// that and the device. The program sees a memcpy node.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <optional>

#include "guest_lib/graph/graph_node.h"

namespace causeway::guest {

// Whether a copy needs that: a side is ordinary memory.
bool NeedsStaging(const CUDA_MEMCPY3D& box);

CUresult AddStagedCopy(CUgraphNode* node, CUgraph graph, const Dependencies& dependencies,
                       const CUDA_MEMCPY3D& box, CUcontext context);
// Whether the node is one; its parameters as the program gave them.
bool IsStagedCopy(CUgraphNode node, CUDA_MEMCPY3D* given = nullptr, CUcontext* context = nullptr);
// Changes one, to any copy. `exec` as in SetNode.
CUresult SetStagedCopy(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D& box, CUcontext context);

// An asynchronous copy that touches ordinary memory, on a stream that is capturing: becomes a node. *captured
// false: the stream captures nothing, the copy is as usual.
CUresult CaptureCopy(CUstream stream, const CUDA_MEMCPY3D& box, bool* captured);

// The same for a linear copy: what the call answers, if it was captured or cannot be. None: the copy is as usual.
std::optional<CUresult> CaptureLinearCopy(CUstream stream, CUdeviceptr to, CUdeviceptr from, size_t bytes);

}  // namespace causeway::guest
