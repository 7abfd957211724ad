// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/code/function.h"

#include <algorithm>
#include <memory>

#include "guest_lib/process/lock_order.h"
#include "guest_lib/session/blob.h"
#include "guest_lib/stream/remote.h"

namespace causeway::guest {
namespace {

// By name. Two names may meet in one place: both are then taken for changed.
std::atomic<uint64_t> attribute_changes[4096];

constexpr uint32_t kIsKernel = 1;  // Object::flags

bool MakesKernels(Op op) {
  return op == Op::cuLibraryGetKernel || op == Op::cuLibraryEnumerateKernels;
}

// The context that ends what the operation makes: none for kernels, which end with their library alone.
Object* NewFunction(Op op, WireHandle parent) {
  Object* object = NewObject(HandleKind::kFunction, MakesKernels(op) ? nullptr : CurrentContextObject());
  if (object == nullptr) return nullptr;
  object->parent = parent;
  object->flags = MakesKernels(op) ? kIsKernel : 0;
  return object;
}

// Of the current context; 0 without one, as the host takes it.
CUdevice CurrentDevice() {
  const Object* context = CurrentContextObject();
  return context != nullptr ? ContextOf(context).device : 0;
}

// Can change between two looks at it.
bool CanBeSet(CUfunction_attribute attribute) {
  return attribute >= CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES &&
         attribute != CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET;
}

// Reads a description into `detail`, that of a moment after `changes` was AttributeChanges(). How many
// parameters there are; their layouts may come in several replies.
uint32_t ReadDescription(Reader& reply, Function* detail, uint64_t changes) {
  const auto description = reply.Get<FunctionDescription>();
  detail->device = CurrentDevice();
  for (uint32_t i = 0; i < kFunctionAttributes; ++i) {
    detail->attribute[i] = description.attribute[i];
    detail->attribute_result[i] = static_cast<CUresult>(description.attribute_result[i]);
    detail->read_at[i] = changes;
  }
  detail->parameter_bytes = description.parameter_bytes;
  for (uint32_t i = 0; i < description.here && reply.ok(); ++i)
    detail->layout.push_back(reply.Get<ParameterLayout>());
  return description.parameter_count;
}

// Asks for what is not known yet of a function: all, or the layouts that did not fit its first description.
CUresult Describe(const Object* object, Function* detail, bool with_name) {
  for (uint32_t parameters = ~0u; detail->layout.size() < parameters;) {
    const size_t before = detail->layout.size();
    const uint64_t changes = detail->changes != nullptr ? AttributeChanges(*detail) : 0;
    ChannelLease lease;
    Writer w = lease.Begin();
    w.Put(DescribeFunctionBody{WireOf(object), object->flags & kIsKernel, static_cast<uint32_t>(before)});
    Reader reply;
    if (const CUresult result = lease.AwaitSent(lease.Send(Op::kDescribeFunction, w), &reply)) return result;
    reply.Get<WireHandle>();
    parameters = ReadDescription(reply, detail, changes);
    const auto name_bytes = reply.Get<uint64_t>();
    const bool is_inline = name_bytes <= kMaxInlineNameBytes;
    const std::byte* name = is_inline ? reply.Take(name_bytes) : nullptr;
    if (!reply.ok()) return CUDA_ERROR_UNKNOWN;
    std::vector<std::byte> fetched;
    if (!is_inline) {
      if (const CUresult result = FetchBlob(lease, name_bytes, &fetched)) return result;
      name = fetched.data();
    }
    if (with_name) detail->SetName({reinterpret_cast<const char*>(name), name_bytes});
    if (detail->layout.size() == before) break;
  }
  return CUDA_SUCCESS;
}

// A handle seen before keeps its detail: another thread may be launching by it.
Function* Publish(Object* object, std::unique_ptr<Function> detail) {
  static Mutex<Lock::kFunctionsPublished> mutex;
  const std::lock_guard lock(mutex);
  auto* known = static_cast<Function*>(object->detail);
  if (known == nullptr || (!known->whole && detail->whole)) {
    detail->before.reset(known);
    object->detail = detail.release();
  }
  return static_cast<Function*>(object->detail);
}

// Asks the owner (module, library or kernel) for a function by name.
template <class Owner>
CUresult Get(Op op, Owner owner, const char* name, CUfunction* function) {
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto detail = std::make_unique<Function>();
  detail->whole = !MakesKernels(op) || CurrentContextObject() != nullptr;
  const Object* kernel = FindObject(HandleKind::kFunction, owner);
  if (name != nullptr) {
    detail->SetName(name);
  } else if (const Function* known = FunctionOf(owner)) {
    detail->SetName(known->name);  // a kernel's function keeps its name
  } else {
    detail->SetName({});
  }
  CUfunction handle = nullptr;
  uint32_t parameters = 0;
  const uint64_t changes = AttributeChanges(*detail);
  {
    const uint64_t name_bytes = name != nullptr ? detail->name.size() + 1 : 0;
    ChannelLease lease;
    if (lease.error() != CUDA_SUCCESS) return lease.error();
    Blob blob(lease);
    if (name_bytes > kMaxInlineNameBytes) {
      const auto copy = [&](uint64_t at, std::span<std::byte> to) { CopyPart(at, to, name, 0, name_bytes); };
      if (const CUresult result = blob.Fill(name_bytes, copy)) return result;
    }
    Writer w = lease.Begin();
    const WireHandle owner_wire = Remote{}.ToWire(owner, w);
    // A kernel's function ends with the kernel's library.
    Object* fresh =
        w.ok() ? NewFunction(op, kernel != nullptr ? kernel->parent.load() : owner_wire) : nullptr;
    if (fresh == nullptr) return w.ok() ? CUDA_ERROR_OUT_OF_MEMORY : w.error();
    w.Put(GetFunctionBody{owner_wire, WireOf(fresh), name_bytes});
    if (name_bytes <= kMaxInlineNameBytes) w.PutBytes(name, name_bytes);
    Reader reply;
    if (const CUresult result = lease.AwaitSent(blob.Send(op, w), &reply)) {
      FreeObject(fresh);
      return result;
    }
    handle = Remote{}.Settle(reinterpret_cast<CUfunction>(fresh), reply.Get<WireHandle>());
    parameters = ReadDescription(reply, detail.get(), changes);
    if (!reply.ok()) return CUDA_ERROR_UNKNOWN;
  }
  Object* object = Find(handle);
  if (object == nullptr) return CUDA_ERROR_UNKNOWN;
  if (detail->layout.size() < parameters) {
    if (const CUresult result = Describe(object, detail.get(), false)) return result;
  }
  Publish(object, std::move(detail));
  *function = handle;
  return CUDA_SUCCESS;
}

CUresult GetAttribute(int* value, CUfunction_attribute attribute, CUfunction handle) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (value == nullptr || attribute < 0 || static_cast<uint32_t>(attribute) >= kFunctionAttributes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (Find(handle) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Function* function = FunctionOf(handle);
  if (function == nullptr) return CUDA_ERROR_UNKNOWN;
  return CurrentAttribute(function, handle, attribute, value);
}

CUresult GetName(const char** name, const void* handle) {
  if (const CUresult result = InitialisedOrError()) return result;
  const Function* function = name != nullptr ? FunctionOf(handle) : nullptr;
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *name = function->name.c_str();
  return CUDA_SUCCESS;
}

CUresult GetParameter(const void* handle, size_t index, size_t* offset, size_t* bytes) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Function* function = FunctionOf(handle);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (offset == nullptr || index >= function->layout.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = function->layout[index].offset;
  if (bytes != nullptr) *bytes = function->layout[index].bytes;
  return CUDA_SUCCESS;
}

// Sets an attribute by `send`, unless this handle has set it to the same value and nothing of the same code
// has been set since: programs do so before every launch.
template <class Send>
CUresult SetAttribute(CUfunction handle, CUfunction_attribute attribute, int value, CUdevice device,
                      Send send) {
  if (const CUresult result = InitialisedOrError()) return result;
  Function* function = Find(handle) != nullptr ? FunctionOf(handle) : nullptr;
  if (function == nullptr || static_cast<uint32_t>(attribute) >= kFunctionAttributes) return send();
  const Object* context = CurrentContextObject();
  const uint64_t context_id = context != nullptr ? context->id : 0;
  std::unique_lock lock(function->mutex);
  const Setting& known = function->settings[attribute];
  if (known.changes != 0 && known.changes == AttributeChanges(*function) && known.value == value &&
      known.device == device && known.context == context_id) {
    lock.unlock();
    return CheckSend();
  }
  lock.unlock();
  // Counted before and after: what others read or have accepted meanwhile is neither of before nor of now,
  // and of two calls at once nobody knows which was the last.
  uint64_t started = function->changes->fetch_add(1) + 1;
  const CUresult result = send();
  const bool alone = function->changes->compare_exchange_strong(started, started + 1);
  if (!alone) function->changes->fetch_add(1);
  if (result != CUDA_SUCCESS || !alone) return result;
  const uint64_t now = started + 2;
  lock.lock();
  function->settings[attribute] = {value, device, context_id, now};
  if (function->device == device) {
    function->attribute[attribute] = value;
    function->read_at[attribute] = now;
  }
  return CUDA_SUCCESS;
}

// What is known of the kernel for the current context. Null: nothing.
CUfunction KnownFunctionOf(const Object& kernel) {
  const Object* context = CurrentContextObject();
  Function* known = context != nullptr ? KnownFunction(kernel) : nullptr;
  if (known == nullptr) return nullptr;
  const std::lock_guard lock(known->mutex);
  for (const Function::InContext& each : known->functions) {
    if (each.context == context->id) return reinterpret_cast<CUfunction>(ObjectOf(each.function));
  }
  return nullptr;
}

void NoteFunctionOf(const Object& kernel, uint64_t context_id, CUfunction function) {
  Function* known = KnownFunction(kernel);
  const Object* object = Find(function);
  if (known == nullptr || object == nullptr) return;
  const std::lock_guard lock(known->mutex);
  auto& all = known->functions;
  std::erase_if(all, [&](const Function::InContext& each) { return each.context == context_id; });
  if (all.size() == Function::kMostFunctions) all.erase(all.begin());
  all.push_back({context_id, WireOf(object)});
}

// Of a call that changed how the driver runs the function.
CUresult NoteChange(CUresult result, const void* handle) {
  const Object* object = FindObject(HandleKind::kFunction, handle);
  auto* function = object != nullptr ? static_cast<Function*>(object->detail) : nullptr;
  if (result == CUDA_SUCCESS && function != nullptr) function->changes->fetch_add(1);
  return result;
}

// One page of an enumeration; what the module does not have stays untouched.
CUresult EnumeratePage(Op op, CUfunction* functions, uint32_t count, uint32_t first, uint32_t here,
                       WireHandle owner) {
  std::vector<Object*> fresh;
  PendingCall call(op);
  call.writer().Put(EnumerateBody{owner, count, first, here, 0});
  for (uint32_t i = 0; i < here; ++i) {
    Object* object = NewFunction(op, owner);
    if (object == nullptr) break;
    fresh.push_back(object);
    call.writer().Put(WireOf(object));
  }
  CUresult result = fresh.size() < here ? CUDA_ERROR_OUT_OF_MEMORY : call.writer().error();
  if (result == CUDA_SUCCESS) result = call.Finish();
  for (uint32_t i = 0; i < fresh.size(); ++i) {
    if (result != CUDA_SUCCESS) {
      FreeObject(fresh[i]);
      continue;
    }
    const auto handle =
        Remote{}.Settle(reinterpret_cast<CUfunction>(fresh[i]), call.reader().Get<WireHandle>());
    if (handle != nullptr) functions[first + i] = handle;
  }
  return result;
}

}  // namespace

Function* FunctionOf(const void* handle) {
  Object* object = FindObject(HandleKind::kFunction, handle);
  if (object == nullptr) return nullptr;
  if (Function* known = KnownFunction(*object)) return known;
  auto detail = std::make_unique<Function>();
  detail->whole = (object->flags & kIsKernel) == 0 || CurrentContextObject() != nullptr;
  if (Describe(object, detail.get(), true) != CUDA_SUCCESS) return nullptr;
  return Publish(object, std::move(detail));
}

void ForgetFunctionsOf(WireHandle owner) {
  FreeChildrenOf(owner, [](Object* object) {
    delete static_cast<Function*>(object->detail);
    object->detail = nullptr;
  });
}

void Function::SetName(std::string_view text) {
  name = text;
  changes = &attribute_changes[Fnv1a(text) % std::size(attribute_changes)];
}

uint64_t AttributeChanges(const Function& function) {
  return function.changes->load() + 1;
}

CUresult CurrentAttribute(Function* function, CUfunction handle, CUfunction_attribute attribute, int* value) {
  const uint64_t now = AttributeChanges(*function);
  if (CanBeSet(attribute) && function->read_at[attribute] != now) {
    int fresh = 0;
    const Object* object = Find(handle);
    const bool is_kernel = object != nullptr && (object->flags & kIsKernel) != 0;
    const CUresult result = is_kernel
                                ? Wait<Op::cuKernelGetAttribute>(
                                      &fresh, attribute, reinterpret_cast<CUkernel>(handle), function->device)
                                : Wait<Op::cuFuncGetAttribute>(&fresh, attribute, handle);
    if (result != CUDA_SUCCESS) return result;
    function->attribute[attribute] = fresh;
    function->read_at[attribute] = now;
  }
  const CUresult result = function->attribute_result[attribute];
  if (result == CUDA_SUCCESS) *value = function->attribute[attribute];
  return result;
}

CUresult EnumerateFunctions(Op op, CUfunction* functions, unsigned count, WireHandle owner) {
  constexpr uint32_t kPage = (kMaxChannelRecordBytes - 512) / sizeof(WireHandle);
  for (uint32_t first = 0; first < count; first += kPage) {
    const uint32_t here = std::min(kPage, count - first);
    if (const CUresult result = EnumeratePage(op, functions, count, first, here, owner)) return result;
  }
  return CUDA_SUCCESS;
}

CUresult FunctionsOf(CUmodule module, std::vector<CUfunction>* functions) {
  unsigned count = 0;
  if (const CUresult result = Wait<Op::cuModuleGetFunctionCount>(&count, module)) return result;
  const Object* object = Find(module);
  if (object == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  functions->resize(count);
  return EnumerateFunctions(Op::cuModuleEnumerateFunctions, functions->data(), count, WireOf(object));
}

CUresult ModuleOf(CUlibrary library, CUmodule* module) {
  return Wait<Op::cuLibraryGetModule>(module, library);
}

}  // namespace causeway::guest

using namespace causeway;
using namespace causeway::guest;

extern "C" {

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (Find(module) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return Get(Op::cuModuleGetFunction, module, name, function);
}

CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (Find(library) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return Get(Op::cuLibraryGetKernel, library, name, reinterpret_cast<CUfunction*>(kernel));
}

CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  if (const CUresult result = InitialisedOrError()) return result;
  const Object* object = Find(kernel);
  if (object == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUfunction known = KnownFunctionOf(*object)) {
    if (const CUresult result = CheckSend()) return result;
    *function = known;
    return CUDA_SUCCESS;
  }
  const Object* context = CurrentContextObject();
  const uint64_t context_id = context != nullptr ? context->id : 0;
  const CUresult result = Get(Op::cuKernelGetFunction, kernel, nullptr, function);
  // Another thread may have unloaded the library meanwhile.
  if (result == CUDA_SUCCESS && context_id != 0 && Find(kernel) == object)
    NoteFunctionOf(*object, context_id, *function);
  return result;
}

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
  return GetAttribute(value, attribute, function);
}

CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  const Function* function = DeviceCount() > 1 ? FunctionOf(kernel) : nullptr;
  if (function != nullptr && function->device != device)
    return Wait<Op::cuKernelGetAttribute>(value, attribute, kernel, device);
  return GetAttribute(value, attribute, reinterpret_cast<CUfunction>(kernel));
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  const auto send = [&] { return Wait<Op::cuFuncSetAttribute>(function, attribute, value); };
  return SetAttribute(function, attribute, value, CurrentDevice(), send);
}

CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device) {
  const auto send = [&] { return Wait<Op::cuKernelSetAttribute>(attribute, value, kernel, device); };
  return SetAttribute(reinterpret_cast<CUfunction>(kernel), attribute, value, device, send);
}

CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) {
  const CUresult result = Wait<Op::cuFuncSetCacheConfig>(function, config);
  return NoteChange(result, function);
}

CUresult cuFuncSetSharedMemConfig(CUfunction function, CUsharedconfig config) {
  const CUresult result = Wait<Op::cuFuncSetSharedMemConfig>(function, config);
  return NoteChange(result, function);
}

CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice device) {
  const CUresult result = Wait<Op::cuKernelSetCacheConfig>(kernel, config, device);
  return NoteChange(result, kernel);
}

CUresult cuFuncGetName(const char** name, CUfunction function) {
  return GetName(name, function);
}
CUresult cuKernelGetName(const char** name, CUkernel kernel) {
  return GetName(name, kernel);
}
CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t* offset, size_t* bytes) {
  return GetParameter(function, index, offset, bytes);
}
CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t* offset, size_t* bytes) {
  if (const CUresult result = NeedContext()) return result;
  return GetParameter(kernel, index, offset, bytes);
}

}  // extern "C"
