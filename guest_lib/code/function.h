// SPDX-License-Identifier: Apache-2.0
// What the guest keeps of a kernel: attributes for local answers, the layout that launches are packed by.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "guest_lib/process/lock_order.h"
#include "guest_lib/session/handles.h"
#include "ivshmem_ring/messages/code_messages.h"
#include "ivshmem_ring/protocol/call.h"

namespace causeway::guest {

// One attribute as a call through this handle has set it.
struct Setting {
  int value;
  CUdevice device;
  uint64_t context;  // Object::id of the caller's; 0: none
  uint64_t changes;  // AttributeChanges() right after it; 0: never set
};

struct Function {
  std::string name;
  std::atomic<uint64_t>* changes = nullptr;  // where those of this name are counted
  void SetName(std::string_view text);

  std::atomic<int> attribute[kFunctionAttributes] = {};
  CUresult attribute_result[kFunctionAttributes] = {};
  // Attributes that can be set: AttributeChanges() when the value was read; 0: may be an older one.
  std::atomic<uint64_t> read_at[kFunctionAttributes] = {};
  CUdevice device = 0;  // whose attributes these are: a kernel has others on each
  uint32_t parameter_bytes = 0;
  std::vector<ParameterLayout> layout;
  // False: described where no context was current, in which the driver tells no parameters of a kernel. A
  // description from within a context takes its place and keeps it, for those who still look at it.
  bool whole = true;
  std::unique_ptr<Function> before;

  Mutex<Lock::kFunction> mutex;  // of what follows
  // What the driver has answered about occupancy since `answers_at`, by question (occupancy.cc).
  uint64_t answers_at = 0;
  std::unordered_map<uint64_t, uint64_t> answers;
  Setting settings[kFunctionAttributes] = {};
  // Launches that the host's driver has accepted since `accepted_at`, the AttributeChanges() of then, as
  // hashes (launch.cc), and the most dynamic shared memory of one of them: the attribute may have been raised
  // through another handle of the same code.
  uint64_t accepted_at = 0;
  std::unordered_set<uint64_t> accepted;
  uint32_t accepted_shared_bytes = 0;
};

// What is known of the function or kernel behind a handle; asks the host if nothing is yet. Null: no such
// handle, or no answer.
Function* FunctionOf(const void* handle);

// After a module or library is unloaded: its functions are gone with it.
void ForgetFunctionsOf(WireHandle owner);

// Never 0, and another number after each cuFuncSetAttribute and cuKernelSetAttribute that changed something
// of this code. A kernel and its functions share attributes, so it may have been done through another's
// handle; they share their name as well, by which changes are counted.
uint64_t AttributeChanges(const Function& function);
// The value of now, from the host if it may have changed.
CUresult CurrentAttribute(Function* function, CUfunction handle, CUfunction_attribute attribute, int* value);

// All functions of a module, in the driver's order.
CUresult FunctionsOf(CUmodule module, std::vector<CUfunction>* functions);
// The module of a library in the current context (cuLibraryGetModule).
CUresult ModuleOf(CUlibrary library, CUmodule* module);

// Fills `functions` with the first `count` that the module or library holds.
CUresult EnumerateFunctions(Op op, CUfunction* functions, unsigned count, WireHandle owner);

}  // namespace causeway::guest
