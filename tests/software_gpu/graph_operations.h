// SPDX-License-Identifier: Apache-2.0
// From node parameters to operations; every function refuses parameters that make no sense with 1.
#pragma once

#include "tests/software_gpu/graph.h"

namespace causeway::software_gpu {

CUresult MakeKernelNodeOperation(const ContextRef& context, const CUDA_KERNEL_NODE_PARAMS* parameters,
                                 Operation* operation);
CUresult MakeMemcpyOperation(const CUDA_MEMCPY3D* parameters, Operation* operation);
CUresult MakeFillOperation(const CUDA_MEMSET_NODE_PARAMS* parameters, Operation* operation);
CUresult MakeHostNodeOperation(const CUDA_HOST_NODE_PARAMS* parameters, Operation* operation);

CUresult MakeEventOperation(CUevent handle, bool record, Operation* operation);
CUresult MakeBatchOperation(const CUDA_BATCH_MEM_OP_NODE_PARAMS* parameters,
                            Operation* operation);  // stream_memops.cc

// By the union's type; 801 for types that the software GPU lacks.
CUresult MakeOperation(const ContextRef& context, const CUgraphNodeParams& parameters, Operation* operation);

}  // namespace causeway::software_gpu
