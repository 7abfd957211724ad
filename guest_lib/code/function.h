// SPDX-License-Identifier: Apache-2.0
// What the guest keeps of a kernel: attributes, for answers in the guest, and the layout of its parameters,
// by which launches are packed. Any thread may call these functions; they may send messages, so no lock of
// this library's is held around them.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "guest_lib/process/lock_order.h"
#include "guest_lib/session/context.h"
#include "ivshmem_ring/messages/code_messages.h"
#include "ivshmem_ring/protocol/call.h"

namespace causeway::guest {

// One attribute as a call with this handle has set it.
struct Setting {
  int value;
  CUdevice device;
  uint64_t context;  // Object::id of the caller's; 0: none
  uint64_t changes;  // AttributeChanges() right after it; 0: never set
};

// A hash for the tables of this process that are looked at in calls that programs repeat (occupancy.cc,
// launch.cc): it takes eight bytes at a step, because a hash byte by byte took more time than all the rest of
// such a call. `seed` is the hash of what comes before.
inline uint64_t QuickHash(const void* bytes, size_t size, uint64_t seed = 0) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;
  const auto* from = static_cast<const char*>(bytes);
  uint64_t hash = seed + size * kOdd;
  while (size != 0) {
    uint64_t word = 0;
    const size_t step = std::min(size, sizeof word);
    std::memcpy(&word, from, step);
    hash = (hash ^ word) * kOdd;
    hash ^= hash >> 32;
    from += step;
    size -= step;
  }
  return hash;
}

struct Function {
  std::string name;
  std::atomic<uint64_t>* changes = nullptr;  // the counter of AttributeChanges, which all of this name share
  void SetName(std::string_view text);       // sets both

  std::atomic<int> attribute[kFunctionAttributes] = {};
  CUresult attribute_result[kFunctionAttributes] = {};
  // Of attributes that can be set: AttributeChanges() when the value was read; 0: it may be out of date.
  std::atomic<uint64_t> read_at[kFunctionAttributes] = {};
  CUdevice device = 0;  // the device for which the attributes are; a kernel has others on each
  uint32_t parameter_bytes = 0;
  std::vector<ParameterLayout> layout;
  // False: it was described while no context was current, when the driver tells no parameters of a kernel. A
  // later description takes its place and keeps it in `before`, because other threads may still use it.
  bool whole = true;
  std::unique_ptr<Function> before;

  Mutex<Lock::kFunction> mutex;  // protects what follows
  // What the driver has answered about occupancy since `answers_at`, by question (occupancy.cc).
  uint64_t answers_at = 0;
  std::unordered_map<uint64_t, uint64_t> answers;
  Setting settings[kFunctionAttributes] = {};
  // Of a kernel: its functions in contexts, the newest last. Libraries ask for them before each launch.
  struct InContext {
    uint64_t context = 0;     // Object::id
    WireHandle function = 0;  // of an object that may have ended since
  };
  static constexpr size_t kMostFunctions = 8;
  std::vector<InContext> functions;
  // Hashes of the launches that the host's driver has accepted since AttributeChanges() was `accepted_at`
  // (launch.cc), and the most dynamic shared memory that one of them had: the attribute may have been raised
  // through another handle of the same code.
  uint64_t accepted_at = 0;
  std::unordered_set<uint64_t> accepted;
  uint32_t accepted_shared_bytes = 0;
};

// What is known of a function or kernel without asking the host; null if that is nothing, or too little for the
// current context. It lives until the module or library is unloaded.
inline Function* KnownFunction(const Object& object) {
  auto* known = static_cast<Function*>(object.detail);
  return known != nullptr && (known->whole || CurrentContextObject() == nullptr) ? known : nullptr;
}
// The same of a handle; asks the host if nothing is known yet. Null: no such handle, or no answer.
Function* FunctionOf(const void* handle);

// To be called when a module or library was unloaded. Frees its functions.
void ForgetFunctionsOf(WireHandle owner);

// A number that is never 0, and another one after each cuFuncSetAttribute and cuKernelSetAttribute that
// changed this code. A kernel and its functions share attributes, so a call with any of their handles counts;
// it is counted by the name, which they share as well.
uint64_t AttributeChanges(const Function& function);
// The attribute's present value, from the host if it may have changed.
CUresult CurrentAttribute(Function* function, CUfunction handle, CUfunction_attribute attribute, int* value);

// All functions of a module, in the driver's order.
CUresult FunctionsOf(CUmodule module, std::vector<CUfunction>* functions);
// The module of a library in the current context (cuLibraryGetModule).
CUresult ModuleOf(CUlibrary library, CUmodule* module);

// Fills `functions` with the first `count` that the module or library holds.
CUresult EnumerateFunctions(Op op, CUfunction* functions, unsigned count, WireHandle owner);

}  // namespace causeway::guest
