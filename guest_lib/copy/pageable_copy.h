// SPDX-License-Identifier: Apache-2.0
// Linear copies between ordinary memory of the program and the device.
#pragma once
#include "guest_lib/staging/copy_plan.h"

namespace causeway::guest {

// Makes the copy in the current context, and returns what cuMemcpyHtoD, cuMemcpyDtoH or their asynchronous
// form returns to the program. `copy.bytes` is not 0; a copy that becomes a node of a captured graph does not
// come here. `known`: this process made the allocation and has checked the range, so the call need not wait
// for the host's check. It sends messages.
CUresult CopyPageable(const LinearCopy& copy, bool known);

}  // namespace causeway::guest
