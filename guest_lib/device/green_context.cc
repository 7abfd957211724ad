// SPDX-License-Identifier: Apache-2.0
// Device resources and green contexts. A green context belongs to its device's primary context, which it
// keeps active; the context that stands for it (cuCtxFromGreenCtx) is made with it.
#include <cstring>

#include "guest_lib/device/context_calls.h"
#include "guest_lib/stream/completion.h"
#include "guest_lib/stream/remote.h"
#include "ivshmem_ring/messages/sharing_messages.h"

using namespace causeway;
using namespace causeway::guest;

namespace {

static_assert(sizeof(DevResourceReply::sm) == sizeof(CUdevResource) - offsetof(CUdevResource, sm));

// The number stands where the driver keeps words of its own.
bool TakeResource(Reader& r, CUdevResource* resource) {
  const auto reply = r.Get<DevResourceReply>();
  if (!r.ok()) return false;
  std::memset(resource, 0, sizeof *resource);
  resource->type = static_cast<CUdevResourceType>(reply.type);
  const DevResourceName name{kDevResourceMagic, reply.number};
  std::memcpy(resource->_internal_padding, &name, sizeof name);
  std::memcpy(&resource->sm, reply.sm, sizeof reply.sm);
  return true;
}

bool NumberOf(const CUdevResource& resource, uint64_t* number) {
  DevResourceName name;
  std::memcpy(&name, resource._internal_padding, sizeof name);
  *number = name.number;
  return name.magic == kDevResourceMagic && resource.type == CU_DEV_RESOURCE_TYPE_SM;
}

CUresult GetResource(Op op, WireHandle object, CUdevice device, CUdevResource* resource,
                     CUdevResourceType type) {
  PendingCall call(op);
  call.writer().Put(GetDevResourceBody{object, device, static_cast<uint32_t>(type)});
  if (const CUresult result = call.Finish()) return result;
  return TakeResource(call.reader(), resource) ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

// What a green context's calls make belongs to the primary context, whatever is current.
class InPrimary {
 public:
  explicit InPrimary(CUdevice device) { ThisThread().contexts.push_back(Find(PrimaryContextHandle(device))); }
  ~InPrimary() { ThisThread().contexts.pop_back(); }
  InPrimary(const InPrimary&) = delete;
  InPrimary& operator=(const InPrimary&) = delete;
};

// The green context's context, which lies in its detail.
Object* ContextObject(const Object* green) {
  return static_cast<Object*>(green->detail);
}

CUresult MakeContext(Object* green, CUdevice device) {
  CUcontext context = nullptr;
  const CUresult result = Wait<Op::cuCtxFromGreenCtx>(&context, reinterpret_cast<CUgreenCtx>(green));
  if (result != CUDA_SUCCESS) return result;
  Object* object = Find(context);
  if (object == nullptr) return CUDA_ERROR_UNKNOWN;
  AdoptGreenContext(object, green, device);
  green->id = object->id;
  green->detail = object;
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource* resource, CUdevResourceType type) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (resource == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  return GetResource(Op::cuDeviceGetDevResource, 0, device, resource, type);
}

CUresult cuCtxGetDevResource(CUcontext context, CUdevResource* resource, CUdevResourceType type) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (resource == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Object* object = Find(context);
  if (object == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return GetResource(Op::cuCtxGetDevResource, WireOf(object), 0, resource, type);
}

CUresult cuGreenCtxGetDevResource(CUgreenCtx green, CUdevResource* resource, CUdevResourceType type) {
  if (const CUresult result = InitialisedOrError()) return result;
  const Object* object = Find(green);
  if (resource == nullptr || green == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (object == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return GetResource(Op::cuGreenCtxGetDevResource, WireOf(object), 0, resource, type);
}

CUresult cuDevSmResourceSplitByCount(CUdevResource* groups, unsigned int* count, const CUdevResource* input,
                                     CUdevResource* rest, unsigned int flags, unsigned int minimum) {
  if (const CUresult result = InitialisedOrError()) return result;
  SplitResourceBody body{};
  if (count == nullptr || input == nullptr || !NumberOf(*input, &body.input)) return CUDA_ERROR_INVALID_VALUE;
  body.groups = *count < kMaxResourceGroups ? *count : kMaxResourceGroups;
  body.wants_groups = groups != nullptr ? 1 : 0;
  body.wants_rest = rest != nullptr ? 1 : 0;
  body.flags = flags;
  body.minimum = minimum;
  PendingCall call(Op::cuDevSmResourceSplitByCount);
  call.writer().Put(body);
  if (const CUresult result = call.Finish()) return result;
  Reader& r = call.reader();
  const auto made = r.Get<uint32_t>();
  for (uint32_t i = 0; groups != nullptr && i < made && i < body.groups; ++i) {
    if (!TakeResource(r, &groups[i])) return CUDA_ERROR_UNKNOWN;
  }
  if (rest != nullptr && !TakeResource(r, rest)) return CUDA_ERROR_UNKNOWN;
  *count = made;
  return r.ok() ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc* description, CUdevResource* resources,
                                   unsigned int count) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (description == nullptr || resources == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  if (count > kMaxResourceGroups) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  PendingCall call(Op::cuDevResourceGenerateDesc);
  Writer& w = call.writer();
  Remote remote;
  const auto made = remote.Make<CUdevResourceDesc>(w);
  w.Put(GenerateDescriptionBody{remote.ToWire(made, w), count, 0});
  for (unsigned i = 0; i < count; ++i) {
    uint64_t number = 0;
    if (!NumberOf(resources[i], &number)) w.Fail(CUDA_ERROR_INVALID_VALUE);
    w.Put(number);
  }
  const CUresult result = call.Finish();
  if (result != CUDA_SUCCESS) {
    remote.Forget(made);
    return result;
  }
  *description = made;
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxCreate(CUgreenCtx* green, CUdevResourceDesc description, CUdevice device,
                          unsigned int flags) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (green == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  // NVIDIA's driver takes no description as the whole device.
  if (description != nullptr && Find(description) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = HoldPrimary(device)) return result;
  CUgreenCtx made = nullptr;
  CUresult result;
  {
    const InPrimary primary(device);
    result = Wait<Op::cuGreenCtxCreate>(&made, description, device, flags);
    if (result == CUDA_SUCCESS) {
      result = MakeContext(Find(made), device);
      if (result != CUDA_SUCCESS) Wait<Op::cuGreenCtxDestroy>(made);
    }
  }
  if (result != CUDA_SUCCESS) {
    DropPrimary(device);
    return result;
  }
  *green = made;
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxDestroy(CUgreenCtx green) {
  if (const CUresult result = InitialisedOrError()) return result;
  const Object* object = Find(green);
  if (object == nullptr) return green == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT;
  Object* context = ContextObject(object);
  const CUdevice device = ContextOf(context).device;
  CUresult result;
  {
    const InPrimary primary(device);
    result = Wait<Op::cuGreenCtxDestroy>(green);
  }
  if (result != CUDA_SUCCESS) return result;
  EndGreenContext(context);
  return DropPrimary(device);
}

CUresult cuCtxFromGreenCtx(CUcontext* context, CUgreenCtx green) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Object* object = green != nullptr ? Find(green) : nullptr;
  if (object == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *context = reinterpret_cast<CUcontext>(ContextObject(object));
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxGetId(CUgreenCtx green, unsigned long long* id) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (id == nullptr || green == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Object* object = Find(green);
  if (object == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *id = object->id;
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxStreamCreate(CUstream* stream, CUgreenCtx green, unsigned int flags, int priority) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (stream == nullptr || green == nullptr || flags != CU_STREAM_NON_BLOCKING)
    return CUDA_ERROR_INVALID_VALUE;
  const Object* object = Find(green);
  if (object == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  Object* context = ContextObject(object);
  const InPrimary primary(ContextOf(context).device);
  if (const CUresult result = Wait<Op::cuGreenCtxStreamCreate>(stream, green, flags, priority)) return result;
  constexpr int kGreatestPriority = -5;
  Object* made = Find(*stream);
  made->context = context;
  made->flags = flags;
  made->number = priority > 0 ? 0 : priority < kGreatestPriority ? kGreatestPriority : priority;
  made->id = NextId();
  NoteStream(false);
  return CUDA_SUCCESS;
}

CUresult cuStreamGetGreenCtx(CUstream stream, CUgreenCtx* green) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (green == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUcontext context = nullptr;
  if (const CUresult result = ContextOfStream(stream, &context)) return result;
  if (const CUresult refused = CaptureRefusal(CaptureRule::kInStream, stream)) return refused;
  const Object* object = Find(context);
  *green = object != nullptr ? reinterpret_cast<CUgreenCtx>(ContextOf(object).green) : nullptr;
  return CUDA_SUCCESS;
}

}  // extern "C"
