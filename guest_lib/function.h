// SPDX-License-Identifier: Apache-2.0
// What the guest keeps of a kernel: attributes for local answers, the layout that launches are packed by.
#pragma once
#include "ivshmem_ring/driver_api.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "guest_lib/handles.h"
#include "ivshmem_ring/call.h"
#include "ivshmem_ring/code_messages.h"

namespace causeway::guest {

struct Function {
  std::string name;
  std::atomic<int> attribute[kFunctionAttributes] = {};
  // Most dynamic shared memory of a launch that the driver has accepted; the attribute may have been raised
  // through another handle of the same code.
  std::atomic<uint32_t> accepted_shared_bytes{0};
  CUresult attribute_result[kFunctionAttributes] = {};
  // Attributes that can be set: AttributeChanges() when the value was read.
  std::atomic<uint64_t> read_at[kFunctionAttributes] = {};
  uint32_t parameter_bytes = 0;
  std::vector<ParameterLayout> layout;
  // False: described where no context was current, in which the driver tells no parameters of a kernel. A
  // description from within a context takes its place and keeps it, for those who still look at it.
  bool whole = true;
  std::unique_ptr<Function> before;

  // Launches that the host's driver has accepted once, as hashes (launch.cc).
  std::mutex accepted_mutex;
  std::unordered_set<uint64_t> accepted;
};

// What is known of the function or kernel behind a handle; asks the host if nothing is yet. Null: no such
// handle, or no answer.
Function* FunctionOf(const void* handle);

// After a module or library is unloaded: its functions are gone with it.
void ForgetFunctionsOf(WireHandle owner);

// Successful cuFuncSetAttribute and cuKernelSetAttribute so far. A kernel and its functions share attributes,
// so one of them may have changed through another's handle.
uint64_t AttributeChanges();
// The value of now, from the host if it may have changed.
CUresult CurrentAttribute(Function* function, CUfunction handle, CUfunction_attribute attribute, int* value);

// Fills `functions` with the first `count` that the module or library holds.
CUresult EnumerateFunctions(Op op, CUfunction* functions, unsigned count, WireHandle owner);

}  // namespace causeway::guest
