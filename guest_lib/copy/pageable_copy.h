// SPDX-License-Identifier: Apache-2.0
// Linear copies between ordinary memory of the program and the device.
#pragma once
#include "guest_lib/staging/copy_plan.h"

namespace causeway::guest {

// Makes the copy in the current context. `copy.bytes` is not 0, and its stream does not capture it as a node.
// `known`: the device's side is known to lie in one allocation, so that the host need not judge it before the
// call returns. It sends messages.
CUresult CopyPageable(const LinearCopy& copy, bool known);

}  // namespace causeway::guest
