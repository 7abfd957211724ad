// SPDX-License-Identifier: Apache-2.0
// A checked launch, ready to run: on a stream now, or as a graph's node.
#pragma once

#include <cstddef>
#include <vector>

#include "tests/software_gpu/graph.h"
#include "tests/software_gpu/module.h"

namespace causeway::software_gpu {

// Operation::parameters of a kernel.
struct KernelNode {
  ModuleRef module;  // keeps the program and its variables alive
  FunctionRef function;
  Launch launch;  // launch.parameters points into `parameters`
  std::vector<std::byte> parameters;
  std::vector<void*> pointers;  // to each parameter, for those who ask for the node's parameters
};

// Checks the launch as cuLaunchKernel does and copies the parameters.
CUresult MakeKernelOperation(const ContextRef& context, CUfunction function, Launch launch, void** pointers,
                             void** extra, Operation* operation);

}  // namespace causeway::software_gpu
