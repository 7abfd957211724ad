// SPDX-License-Identifier: Apache-2.0
// Checked memsets and box copies, ready to run: on a stream now, or as graph nodes.
#pragma once

#include "tests/software_gpu/graph.h"

namespace causeway::software_gpu {

// Checks alignment and range. Width and height must not be 0.
CUresult MakeMemsetOperation(const CUDA_MEMSET_NODE_PARAMS& fill, Operation* operation);

}  // namespace causeway::software_gpu
