// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/device/context_calls.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "guest_lib/device/context_storage.h"
#include "guest_lib/process/lock_order.h"
#include "guest_lib/stream/completion.h"
#include "guest_lib/stream/giving_back.h"
#include "guest_lib/stream/inquiry.h"
#include "guest_lib/stream/remote.h"
#include "ivshmem_ring/messages/sharing_messages.h"

namespace causeway::guest {
namespace {

Mutex<Lock::kContexts> context_mutex;  // references and activation of contexts

struct PrimaryBody {
  int32_t device;
  uint32_t reserved;
  WireHandle context;
};

CUresult SendPrimary(Op op, CUdevice device) {
  return AskHost(op, PrimaryBody{device, 0, WireOf(PrimaryContext(device))});
}

// Whether cuCtxAttach has counted it up.
bool HasFurtherUses(const Object* context) {
  const std::lock_guard lock(context_mutex);
  const Context& its = ContextOf(context);
  return its.active.load() && !its.primary && its.green == nullptr && its.references != 0;
}

// Messages about contexts carry none: the thread's own may be the one that is not active.
struct WithoutContext {
  std::vector<Object*> saved;
  WithoutContext() { saved.swap(ThisThread().contexts); }
  ~WithoutContext() { saved.swap(ThisThread().contexts); }
};

CUcontext HandleOf(Object* object) {
  return reinterpret_cast<CUcontext>(object);
}

// Contexts that stand for green ones, in which they are until they end. Under context_mutex.
auto& green_contexts = *new std::vector<Object*>;

// With the lock. What comes back goes when the host has ended them.
std::vector<EndedObjects> Deactivate(Object* object) {
  std::vector<EndedObjects> ended_objects;
  hooks.context_ends(object);
  const Context& ended = ContextOf(object);
  ContextOf(object).active.store(false);
  // With a primary context all its green contexts end.
  std::erase_if(green_contexts, [&](Object* green) {
    if (ContextOf(green).device != ended.device) return false;
    ContextOf(green).active.store(false);
    ended_objects.emplace_back(green);
    return true;
  });
  ContextOf(object).holds = 0;
  ended_objects.emplace_back(object);
  return ended_objects;
}

// With the lock. Makes the primary context active on the host unless it is.
CUresult Activate(CUdevice device) {
  Object* object = PrimaryContext(device);
  if (ContextOf(object).active.load()) return Session::Made().sticky();
  const WithoutContext none;
  const CUresult result = SendPrimary(Op::cuDevicePrimaryCtxRetain, device);
  if (result == CUDA_SUCCESS) BeginContext(object);
  return result;
}

// Nobody needs the primary context any more.
CUresult EndPrimary(CUdevice device) {
  Object* object = PrimaryContext(device);
  ContextStorageDestroy(HandleOf(object));  // runs the program's code: without our lock
  FreeHeld();
  const std::lock_guard lock(context_mutex);
  const auto ended = Deactivate(object);
  const WithoutContext none;
  const CUresult result = SendPrimary(Op::cuDevicePrimaryCtxRelease_v2, device);
  hooks.context_ended(object);
  return result;
}

// `form`: of cuCtxCreate, which decides what the driver answers for parameters it cannot honour.
CUresult CreateContext(CUcontext* context, unsigned flags, CUdevice device, uint32_t form = 2,
                       const CUexecAffinityParam* affinities = nullptr, int affinity_count = 0) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (affinity_count < 0 || affinity_count > static_cast<int>(kMaxExecAffinities) ||
      (affinity_count != 0 && affinities == nullptr)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Object* object = NewObject(HandleKind::kContext, nullptr);
  if (object == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  auto* detail = new Context;
  detail->device = device;
  detail->flags = flags;
  detail->has_words = ContextOf(PrimaryContext(device)).has_words;
  object->detail = detail;
  CUresult result;
  {
    const WithoutContext none;
    PendingCall call(Op::cuCtxCreate_v2);
    call.writer().Put(
        CreateContextBody{WireOf(object), flags, device, static_cast<uint32_t>(affinity_count), form});
    for (int i = 0; i < affinity_count; ++i) call.writer().Put(affinities[i]);
    result = call.Finish();
  }
  if (result != CUDA_SUCCESS) {
    FreeObject(object);
    delete detail;
    return result;
  }
  BeginContext(object);
  ThisThread().contexts.push_back(object);
  *context = HandleOf(object);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult HoldPrimary(CUdevice device) {
  const std::lock_guard lock(context_mutex);
  if (const CUresult result = Activate(device)) return result;
  ++ContextOf(PrimaryContext(device)).holds;
  return CUDA_SUCCESS;
}

CUresult DropPrimary(CUdevice device) {
  {
    const std::lock_guard lock(context_mutex);
    Context& detail = ContextOf(PrimaryContext(device));
    if (detail.holds == 0 || --detail.holds != 0 || detail.references != 0 || !detail.active.load())
      return CUDA_SUCCESS;
  }
  return EndPrimary(device);
}

void AdoptGreenContext(Object* object, Object* green, CUdevice device) {
  const std::lock_guard lock(context_mutex);
  auto* detail = new Context;
  detail->device = device;
  detail->flags = ContextOf(PrimaryContext(device)).flags;
  detail->green = green;
  object->detail = detail;
  BeginContext(object);
  green_contexts.push_back(object);
}

// Other threads may still have it current: its Context stays.
void EndGreenContext(Object* object) {
  FreeHeld();
  const std::lock_guard lock(context_mutex);
  std::erase(green_contexts, object);
  ContextOf(object).active.store(false);
  std::vector<Object*>& stack = ThisThread().contexts;
  if (!stack.empty() && stack.back() == object) stack.pop_back();
  const EndedObjects ended(object);
  RetireObject(object);
}

}  // namespace causeway::guest

using namespace causeway;
using namespace causeway::guest;

extern "C" {

CUresult cuCtxGetCurrent(CUcontext* context) {
  if (!IsUsable(ThisThread())) [[unlikely]]
    return InitialisedOrError();
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *context = reinterpret_cast<CUcontext>(CurrentContextObject());
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (context != nullptr && Find(context) == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  SwapCurrentContext(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Object* object = Find(context);
  if (object == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  ThisThread().contexts.push_back(object);
  return CUDA_SUCCESS;
}

// The form of CUDA 2, in which a context belongs to one thread at a time: one that the thread has already is
// refused until cuCtxPopCurrent has set it free, and so is one that has further uses. (Natively one that another thread has is
// refused, too; here it is not.)
CUresult cuCtxPushCurrent(CUcontext context) {
  if (const CUresult result = InitialisedOrError()) return result;
  const auto& mine = ThisThread().contexts;
  const Object* object = context != nullptr ? Find(context) : nullptr;
  const bool taken = object != nullptr &&
                     (HasFurtherUses(object) || std::find(mine.begin(), mine.end(), object) != mine.end());
  return taken ? CUDA_ERROR_INVALID_CONTEXT : cuCtxPushCurrent_v2(context);
}

CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  if (const CUresult result = InitialisedOrError()) return result;
  ThreadState& thread = ThisThread();
  if (thread.contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = CurrentContext();
  thread.contexts.pop_back();
  return CUDA_SUCCESS;
}

// The form of CUDA 2 leaves a context with further uses where it is, and says that it has succeeded, as NVIDIA's library does.
CUresult cuCtxPopCurrent(CUcontext* context) {
  if (const CUresult result = InitialisedOrError()) return result;
  const Object* current = CurrentContextObject();
  return current != nullptr && HasFurtherUses(current) ? CUDA_SUCCESS : cuCtxPopCurrent_v2(context);
}

CUresult cuCtxGetDevice(CUdevice* device) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Object* current = CurrentContextObject();
  if (current == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *device = ContextOf(current).device;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext context) {
  if (context == nullptr) return cuCtxGetDevice(device);
  if (const CUresult result = InitialisedOrError()) return result;
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Object* object = Find(context);
  if (object == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *device = ContextOf(object).device;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext context, unsigned int* version) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Object* object = context != nullptr ? Find(context) : CurrentContextObject();
  if (object == nullptr || !ContextOf(object).active.load()) return CUDA_ERROR_INVALID_CONTEXT;
  *version = 3020;  // the last to change how contexts work
  return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(unsigned int* flags) {
  // Runtimes before CUDA 12 make an inactive primary context current and ask for its flags.
  const Object* current = CurrentContextObject();
  if (flags == nullptr || current == nullptr || !ContextOf(current).primary ||
      ContextOf(current).active.load())
    return Wait<Op::cuCtxGetFlags>(flags);
  int active = 0;
  return cuDevicePrimaryCtxGetState(ContextOf(current).device, flags, &active);
}

CUresult cuCtxSetFlags(unsigned int flags) {
  const CUresult result = Wait<Op::cuCtxSetFlags>(flags);
  if (result == CUDA_SUCCESS) ContextOf(CurrentContextObject()).flags = flags;
  return result;
}

CUresult cuCtxResetPersistingL2Cache() {
  if (const CUresult result = NeedContext()) return result;
  return Post<Op::cuCtxResetPersistingL2Cache>();
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config) {
  const CUresult result = Wait<Op::cuCtxSetCacheConfig>(config);
  ++context_settings;
  return result;
}

CUresult cuCtxSetSharedMemConfig(CUsharedconfig config) {
  const CUresult result = Wait<Op::cuCtxSetSharedMemConfig>(config);
  ++context_settings;
  return result;
}

// The same for every context of a device.
CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  static std::atomic<uint64_t> known[kMaxDevices];  // 1 << 32 | least << 16 | greatest, as 16 bits each
  if (const CUresult result = InitialisedOrError()) return result;
  const Object* context = CurrentContextObject();
  if (context == nullptr) return Wait<Op::cuCtxGetStreamPriorityRange>(least, greatest);
  auto& range = known[ContextOf(context).device];
  if (range.load() == 0) {
    int l = 0, g = 0;
    if (const CUresult result = Wait<Op::cuCtxGetStreamPriorityRange>(&l, &g)) return result;
    range = uint64_t{1} << 32 | uint64_t{static_cast<uint16_t>(l)} << 16 | static_cast<uint16_t>(g);
  } else if (const CUresult result = CheckSend()) {
    return result;
  }
  if (least != nullptr) *least = static_cast<int16_t>(range.load() >> 16);
  if (greatest != nullptr) *greatest = static_cast<int16_t>(range.load());
  return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext context, unsigned long long* id) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Object* object = context != nullptr ? Find(context) : CurrentContextObject();
  if (object == nullptr || !ContextOf(object).active.load()) return CUDA_ERROR_INVALID_CONTEXT;
  *id = object->id;
  return CUDA_SUCCESS;
}

CUresult cuCtxAttach(CUcontext* context, unsigned int flags) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (CurrentContextObject() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (context == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  *context = CurrentContext();
  Context& detail = ContextOf(CurrentContextObject());
  const std::lock_guard lock(context_mutex);
  if (!detail.primary && detail.green == nullptr) ++detail.references;
  return CUDA_SUCCESS;
}

// A context has one use from its creation on; the last one ends it. Other calls count a primary context's.
CUresult cuCtxDetach(CUcontext context) {
  if (const CUresult result = InitialisedOrError()) return result;
  const Object* object = Find(context);
  if (object == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  Context& detail = ContextOf(object);
  {
    const std::lock_guard lock(context_mutex);
    if (detail.primary || detail.green != nullptr) return CUDA_SUCCESS;
    if (detail.references != 0) {
      --detail.references;
      return CUDA_SUCCESS;
    }
  }
  return cuCtxDestroy_v2(context);
}

CUresult cuCtxSynchronize() {
  if (const CUresult result = InitialisedOrError()) return result;
  if (CurrentContextObject() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  Mark mark;
  return Inquiry::OfContext().Await(
      mark, [&] { return mark.AwaitContext(); },
      [&] {
        const GivingBack giving_back;
        const CUresult result = Wait<Op::cuCtxSynchronize>();
        giving_back.Note(result);
        return result;
      });
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  Object* object = PrimaryContext(device);
  Context& detail = ContextOf(object);
  const std::lock_guard lock(context_mutex);
  if (const CUresult result = Activate(device)) return result;
  ++detail.references;
  *context = HandleOf(object);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  Object* object = PrimaryContext(device);
  Context& detail = ContextOf(object);
  {
    const std::lock_guard lock(context_mutex);
    if (detail.references == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (--detail.references != 0 || detail.holds != 0 || !detail.active.load()) return CUDA_SUCCESS;
  }
  return EndPrimary(device);
}

// The form before CUDA 11 answers that a context which nobody holds was released, as NVIDIA's library does.
CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  const CUresult result = cuDevicePrimaryCtxRelease_v2(device);
  return result == CUDA_ERROR_INVALID_CONTEXT ? CUDA_SUCCESS : result;
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  Object* object = PrimaryContext(device);
  if (!ContextOf(object).active.load()) return CUDA_SUCCESS;
  ContextStorageDestroy(HandleOf(object));
  FreeHeld();
  const std::lock_guard lock(context_mutex);
  const auto ended = Deactivate(object);
  const WithoutContext none;
  const CUresult result = SendPrimary(Op::cuDevicePrimaryCtxReset_v2, device);
  hooks.context_ended(object);
  return result == Session::Made().sticky() ? CUDA_SUCCESS
                                            : result;  // after a fault reset says 0, as natively
}

// Before CUDA 11 a reset took the references along.
CUresult cuDevicePrimaryCtxReset(CUdevice device) {
  if (const CUresult result = cuDevicePrimaryCtxReset_v2(device)) return result;
  const std::lock_guard lock(context_mutex);
  ContextOf(PrimaryContext(device)).references = 0;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int* flags, int* active) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  const Context& detail = ContextOf(PrimaryContext(device));
  *flags = detail.flags;
  *active = detail.active.load() ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags) {
  const WithoutContext none;
  const CUresult result = Wait<Op::cuDevicePrimaryCtxSetFlags_v2>(device, flags);
  if (result == CUDA_SUCCESS) ContextOf(PrimaryContext(device)).flags = flags;
  return result;
}

CUresult cuCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device) {
  return CreateContext(context, flags, device);
}

CUresult cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam* affinities, int count, unsigned int flags,
                        CUdevice device) {
  return CreateContext(context, flags, device, 3, affinities, count);
}

CUresult cuCtxCreate_v4(CUcontext* context, CUctxCreateParams* parameters, unsigned int flags,
                        CUdevice device) {
  if (parameters == nullptr) return CreateContext(context, flags, device, 4);
  // Shared with a graphics interface, of which the guest has none.
  if (parameters->cigParams != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  return CreateContext(context, flags, device, 4, parameters->execAffinityParams,
                       parameters->numExecAffinityParams);
}

CUresult cuCtxDestroy_v2(CUcontext context) {
  if (const CUresult result = InitialisedOrError()) return result;
  Object* object = Find(context);
  if (object == nullptr || ContextOf(object).primary || ContextOf(object).green != nullptr)
    return CUDA_ERROR_INVALID_CONTEXT;
  ContextStorageDestroy(context);
  FreeHeld();
  FreeBlocks();  // while another thread, which frees them now and then, still finds the context
  const WireHandle wire = WireOf(object);
  std::vector<Object*>& stack = ThisThread().contexts;
  if (!stack.empty() && stack.back() == object) stack.pop_back();
  hooks.context_ends(object);
  ContextOf(object).active.store(false);
  const EndedObjects ended(object);
  RetireObject(object);  // other threads may still have it on their stack
  const WithoutContext none;
  const CUresult result = AskHost(Op::cuCtxDestroy_v2, wire);
  hooks.context_ended(object);
  return result;
}

}  // extern "C"
