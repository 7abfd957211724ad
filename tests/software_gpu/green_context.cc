// SPDX-License-Identifier: Apache-2.0
// Device resources and green contexts. A group of multiprocessors is a number here; a green context is a
// context of its own that keeps the primary one active.
#include <algorithm>
#include <cstring>

#include "tests/software_gpu/context_lifetime.h"
#include "tests/software_gpu/event.h"
#include "tests/software_gpu/handles.h"
#include "tests/software_gpu/occupancy.h"
#include "tests/software_gpu/stream.h"

namespace causeway::software_gpu {
namespace {

constexpr unsigned kLeastGroup = 8;  // as on compute capability 9.0

// What stands in the words that are the driver's own.
struct Mark {
  char magic[8];
  int32_t device;
  uint32_t processors;
};
constexpr char kMagic[8] = {'s', 'w', 'g', 'p', 'u', 'r', 'e', 's'};

struct Green {
  CUdevice device = 0;
  unsigned processors = 0;
  CUcontext context = nullptr;
  CUgreenCtx handle = nullptr;
};
struct Description {
  CUdevice device = 0;
  unsigned processors = 0;
};

Registry<CUgreenCtx, Green>& Greens() {
  static auto* greens = new Registry<CUgreenCtx, Green>;
  return *greens;
}
Registry<CUdevResourceDesc, Description>& Descriptions() {
  static auto* descriptions = new Registry<CUdevResourceDesc, Description>;
  return *descriptions;
}

CUgreenCtx GreenOf(CUcontext context) {
  CUgreenCtx found = nullptr;
  Greens().ForEach([&](const std::shared_ptr<Green>& green) {
    if (green->context == context) found = green->handle;
  });
  return found;
}

void Fill(CUdevResource* resource, CUdevice device, unsigned processors) {
  std::memset(resource, 0, sizeof *resource);
  resource->type = CU_DEV_RESOURCE_TYPE_SM;
  Mark mark{};
  std::memcpy(mark.magic, kMagic, sizeof mark.magic);
  mark.device = device;
  mark.processors = processors;
  std::memcpy(resource->_internal_padding, &mark, sizeof mark);
  resource->sm.smCount = processors;
  resource->sm.minSmPartitionSize = kLeastGroup;
  resource->sm.smCoscheduledAlignment = kLeastGroup;
}

bool Read(const CUdevResource& resource, Mark* mark) {
  std::memcpy(mark, resource._internal_padding, sizeof *mark);
  return resource.type == CU_DEV_RESOURCE_TYPE_SM && std::memcmp(mark->magic, kMagic, sizeof kMagic) == 0;
}

CUresult GetResource(CUdevice device, unsigned processors, CUdevResource* resource, CUdevResourceType type) {
  if (resource == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  Fill(resource, device, processors);
  return CUDA_SUCCESS;
}

template <typename Body>
CUresult OnGreen(const char* function, CUgreenCtx handle, const Body& body) {
  return OnDevice(function, [&]() -> CUresult {
    auto green = Greens().Find(handle);
    return green == nullptr ? CUDA_ERROR_INVALID_CONTEXT : body(*green);
  });
}

}  // namespace
}  // namespace causeway::software_gpu

using namespace causeway::software_gpu;

extern "C" {

CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource* resource, CUdevResourceType type) {
  return OnDevice(__func__, [&]() -> CUresult {
    if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
    return GetResource(device, kMultiprocessors, resource, type);
  });
}

CUresult cuCtxGetDevResource(CUcontext hCtx, CUdevResource* resource, CUdevResourceType type) {
  return OnDevice(__func__, [&]() -> CUresult {
    ContextRef context = FindContext(hCtx);
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    auto green = Greens().Find(GreenOf(hCtx));
    return GetResource(context->device, green != nullptr ? green->processors : kMultiprocessors, resource,
                       type);
  });
}

CUresult cuGreenCtxGetDevResource(CUgreenCtx hCtx, CUdevResource* resource, CUdevResourceType type) {
  return OnGreen(__func__, hCtx, [&](const Green& green) {
    return GetResource(green.device, green.processors, resource, type);
  });
}

CUresult cuDevSmResourceSplitByCount(CUdevResource* result, unsigned int* nbGroups,
                                     const CUdevResource* input, CUdevResource* remaining,
                                     unsigned int useFlags, unsigned int minCount) {
  return OnDevice(__func__, [&]() -> CUresult {
    Mark mark;
    if (nbGroups == nullptr || input == nullptr || useFlags > 3) return CUDA_ERROR_INVALID_VALUE;
    if (!Read(*input, &mark)) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    const unsigned least = std::max(minCount, kLeastGroup);
    const unsigned size = (least + kLeastGroup - 1) / kLeastGroup * kLeastGroup;
    if (minCount > mark.processors || size > mark.processors)
      return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    unsigned groups = mark.processors / size;
    if (result != nullptr) groups = std::min(groups, *nbGroups);
    for (unsigned i = 0; result != nullptr && i < groups; ++i) Fill(&result[i], mark.device, size);
    if (remaining != nullptr) Fill(remaining, mark.device, mark.processors - groups * size);
    *nbGroups = groups;
    return CUDA_SUCCESS;
  });
}

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc* phDesc, CUdevResource* resources,
                                   unsigned int nbResources) {
  return OnDevice(__func__, [&]() -> CUresult {
    if (phDesc == nullptr || resources == nullptr || nbResources == 0) return CUDA_ERROR_INVALID_VALUE;
    auto description = std::make_shared<Description>();
    for (unsigned i = 0; i < nbResources; ++i) {
      Mark mark;
      if (!Read(resources[i], &mark)) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
      description->device = mark.device;
      description->processors += mark.processors;
    }
    *phDesc = Descriptions().Add(description);
    return CUDA_SUCCESS;
  });
}

CUresult cuGreenCtxCreate(CUgreenCtx* phCtx, CUdevResourceDesc desc, CUdevice dev, unsigned int flags) {
  return OnDevice(__func__, [&]() -> CUresult {
    auto description = Descriptions().Find(desc);
    if (phCtx == nullptr || (desc != nullptr && description == nullptr) ||
        flags != CU_GREEN_CTX_DEFAULT_STREAM)
      return CUDA_ERROR_INVALID_VALUE;
    if (!IsDevice(dev)) return CUDA_ERROR_INVALID_DEVICE;
    CUcontext primary = nullptr;
    if (CUresult bad = cuDevicePrimaryCtxRetain(&primary, dev); bad != CUDA_SUCCESS) return bad;
    auto green = std::make_shared<Green>();
    green->device = dev;
    green->processors = description != nullptr ? description->processors : kMultiprocessors;
    if (CUresult bad = cuCtxCreate_v2(&green->context, 0, dev); bad != CUDA_SUCCESS) return bad;
    cuCtxPopCurrent_v2(nullptr);
    *phCtx = green->handle = Greens().Add(green);
    return CUDA_SUCCESS;
  });
}

CUresult cuGreenCtxDestroy(CUgreenCtx hCtx) {
  return OnGreen(__func__, hCtx, [&](const Green& green) -> CUresult {
    const CUdevice device = green.device;
    const CUcontext context = green.context;
    Greens().Remove(hCtx);
    cuCtxDestroy_v2(context);
    return cuDevicePrimaryCtxRelease_v2(device);
  });
}

CUresult cuCtxFromGreenCtx(CUcontext* pContext, CUgreenCtx hCtx) {
  return OnGreen(__func__, hCtx, [&](const Green& green) -> CUresult {
    if (pContext == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *pContext = green.context;
    return CUDA_SUCCESS;
  });
}

CUresult cuGreenCtxGetId(CUgreenCtx greenCtx, unsigned long long* greenCtxId) {
  return OnGreen(__func__, greenCtx, [&](const Green& green) -> CUresult {
    return greenCtxId == nullptr ? CUDA_ERROR_INVALID_VALUE : cuCtxGetId(green.context, greenCtxId);
  });
}

CUresult cuGreenCtxRecordEvent(CUgreenCtx hCtx, CUevent hEvent) {
  return OnGreen(__func__, hCtx, [&](const Green& green) -> CUresult {
    EventRef event = FindEvent(hEvent);
    if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    SynchronizeContext(*FindContext(green.context));  // simple, and never too early
    MarkEvent(*event);
    return CUDA_SUCCESS;
  });
}

CUresult cuGreenCtxWaitEvent(CUgreenCtx hCtx, CUevent hEvent) {
  return OnGreen(__func__, hCtx, [&](const Green&) -> CUresult {
    EventRef event = FindEvent(hEvent);
    if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    WaitForEvent(*event);
    return CUDA_SUCCESS;
  });
}

CUresult cuGreenCtxStreamCreate(CUstream* phStream, CUgreenCtx greenCtx, unsigned int flags, int priority) {
  return OnGreen(__func__, greenCtx, [&](const Green& green) -> CUresult {
    if (phStream == nullptr || flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    ScopedCurrentContext current(FindContext(green.context));
    return cuStreamCreateWithPriority(phStream, flags, priority);
  });
}

CUresult cuStreamGetGreenCtx(CUstream hStream, CUgreenCtx* phCtx) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    StreamRef stream = FindStream(context, hStream);
    if (phCtx == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    ContextRef owner = stream->context.lock();
    *phCtx = owner != nullptr ? GreenOf(owner->handle) : nullptr;
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
