// SPDX-License-Identifier: Apache-2.0
// Devices that can access pageable memory (HMM, ATS) are not served: a guest's kernel could read and write
// all memory of the worker by plain pointers.
#pragma once
#include <string>

namespace causeway::host {

// One sentence that says which of the first `count` devices can, why none is served then, and what to do;
// empty: none can. The driver is initialised.
std::string PageableAccessRefusal(int count);

}  // namespace causeway::host
