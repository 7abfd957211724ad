// SPDX-License-Identifier: Apache-2.0
// What the guest keeps of a kernel: attributes for local answers, the layout that launches are packed by.
#pragma once
#include "ivshmem_ring/driver_api.h"

#include <string>
#include <vector>

#include "guest_lib/handles.h"
#include "ivshmem_ring/call.h"
#include "ivshmem_ring/session_messages.h"
#include "ivshmem_ring/wire.h"

namespace causeway::guest {

struct Function {
  std::string name;
  int attribute[kFunctionAttributes] = {};
  CUresult attribute_result[kFunctionAttributes] = {};
  uint32_t parameter_bytes = 0;
  std::vector<ParameterLayout> layout;
};

// Reads a reply that describes a function and settles its handle: `fresh` was sent with the request.
CUresult TakeFunction(Reader& reply, Object* fresh, const std::string& name, CUfunction* function);

// After a module or library is unloaded: its functions are gone with it.
void ForgetFunctionsOf(WireHandle owner);

// Asks the host for the attributes again: a kernel and its function share them, so one may have changed
// through the other's handle.
void RefreshAttributes(CUfunction function);

// Fills `functions` with the first `count` that the module or library holds.
CUresult EnumerateFunctions(Op op, CUfunction* functions, unsigned count, WireHandle owner);

// 720 when a cooperative launch has more blocks than fit on the device at once; 0 if it fits or cannot be
// told.
CUresult CheckResidency(CUfunction function, const unsigned grid[3], const unsigned block[3],
                        unsigned shared_bytes);

}  // namespace causeway::guest
