// SPDX-License-Identifier: Apache-2.0
// What the driver tells about a function or kernel.
#pragma once
#include <vector>

#include "host_backend/worker/driver/driver.h"
#include "ivshmem_ring/messages/code_messages.h"

namespace causeway::host {

// Offsets and sizes of a kernel's parameters. `function` may be a kernel, which the driver takes in a
// function's place nearly everywhere (not when asked for parameters), or null where `kernel` is given. False
// if the driver does not tell, or tells of more parameters than a kernel can have.
bool ParametersOf(CUfunction function, CUkernel kernel, std::vector<ParameterLayout>* layout);

}  // namespace causeway::host
