// SPDX-License-Identifier: Apache-2.0
// Context objects, the per-thread stack of current contexts, and the calls that move it.
#include "tests/software_gpu/context.h"

#include <algorithm>

#include "tests/software_gpu/config.h"
#include "tests/software_gpu/context_lifetime.h"
#include "tests/software_gpu/faults.h"
#include "tests/software_gpu/handles.h"

namespace causeway::software_gpu {
namespace {

// The stack's top is the current context; a null entry is "no context" set by cuCtxSetCurrent(NULL).
struct ContextStack : std::vector<ContextRef> {
  ~ContextStack() {  // empty, not dangling, for a runtime that unloads its modules after the main thread's
                     // end
    clear();
    shrink_to_fit();
  }
};
thread_local ContextStack context_stack;

Registry<CUcontext, Context>& Contexts() {
  static auto* contexts = new Registry<CUcontext, Context>;
  return *contexts;
}

}  // namespace

uint64_t NextHandleValue() {
  static std::atomic<uint64_t> next{0x5347'0000'0000};
  return next.fetch_add(16, std::memory_order_relaxed);
}

bool IsDevice(CUdevice device) {
  return device >= 0 && device < GetConfig().device_count;
}

ContextRef CurrentContext() {
  return context_stack.empty() ? nullptr : context_stack.back();
}

ContextRef FindContext(CUcontext handle) {
  return Contexts().Find(handle);
}

void RegisterContext(const ContextRef& context) {
  context->handle = Contexts().Add(context);
}

void PopIfCurrent(const ContextRef& context) {
  if (CurrentContext() == context) context_stack.pop_back();
}

ContextRef PrimaryContext(CUdevice device) {
  static auto* primaries = [] {
    auto* list = new std::vector<ContextRef>;
    for (int i = 0; i < GetConfig().device_count; ++i) {
      auto context = std::make_shared<Context>();
      context->device = i;
      context->primary = true;
      RegisterContext(context);
      list->push_back(std::move(context));
    }
    return list;
  }();
  return (*primaries)[static_cast<size_t>(device)];
}

void ForEachLiveContext(const std::function<void(const ContextRef&)>& function) {
  std::vector<ContextRef> live;
  Contexts().ForEach([&](const ContextRef& context) {
    if (context->alive.load(std::memory_order_acquire)) live.push_back(context);
  });
  for (const ContextRef& context : live) function(context);
}

void ForgetEndedContexts() {
  Contexts().RemoveIf([](const Context& context) { return !context.primary && !context.alive.load(); });
}

ScopedCurrentContext::ScopedCurrentContext(const ContextRef& context) {
  context_stack.push_back(context);
}
ScopedCurrentContext::~ScopedCurrentContext() {
  context_stack.pop_back();
}

}  // namespace causeway::software_gpu

using namespace causeway::software_gpu;

extern "C" {

CUresult cuCtxSetCurrent(CUcontext ctx) {
  return Initialised(__func__, [&]() -> CUresult {
    ContextRef context = ctx == nullptr ? nullptr : FindContext(ctx);
    if (ctx != nullptr && context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (context == nullptr) {
      if (!context_stack.empty()) context_stack.pop_back();
    } else if (context_stack.empty()) {
      context_stack.push_back(context);
    } else {
      context_stack.back() = context;
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetCurrent(CUcontext* pctx) {
  return Initialised(__func__, [&]() -> CUresult {
    if (pctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
    ContextRef context = CurrentContext();
    *pctx = context == nullptr ? nullptr : context->handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx) {
  return Initialised(__func__, [&]() -> CUresult {
    if (ctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
    ContextRef context = FindContext(ctx);
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    context_stack.push_back(context);
    return CUDA_SUCCESS;
  });
}

// The form of CUDA 2: a context belongs to one thread at a time, and has one use.
CUresult cuCtxPushCurrent(CUcontext ctx) {
  const bool mine = std::any_of(context_stack.begin(), context_stack.end(),
                                [&](const ContextRef& one) { return one != nullptr && one->handle == ctx; });
  const ContextRef context = FindContext(ctx);
  const bool is_shared = context != nullptr && context->further_uses.load() != 0;
  return mine || is_shared ? CUDA_ERROR_INVALID_CONTEXT : cuCtxPushCurrent_v2(ctx);
}

CUresult cuCtxPopCurrent_v2(CUcontext* pctx) {
  return Initialised(__func__, [&]() -> CUresult {
    if (context_stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    if (pctx != nullptr) *pctx = context_stack.back() == nullptr ? nullptr : context_stack.back()->handle;
    context_stack.pop_back();
    return CUDA_SUCCESS;
  });
}

// The form of CUDA 2 leaves a context with further uses where it is.
CUresult cuCtxPopCurrent(CUcontext* pctx) {
  const ContextRef current = CurrentContext();
  return current != nullptr && current->further_uses.load() != 0 ? CUDA_SUCCESS : cuCtxPopCurrent_v2(pctx);
}

CUresult cuCtxGetDevice(CUdevice* device) {
  return Initialised(__func__, [&]() -> CUresult {
    ContextRef context = CurrentContext();
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *device = context->device;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext ctx) {
  return Initialised(__func__, [&]() -> CUresult {
    ContextRef context = ctx == nullptr ? CurrentContext() : FindContext(ctx);
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *device = context->device;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned int* version) {
  return Initialised(__func__, [&]() -> CUresult {
    if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
    ContextRef context = ctx == nullptr ? CurrentContext() : FindContext(ctx);
    if (context == nullptr || !context->alive.load()) return CUDA_ERROR_INVALID_CONTEXT;
    *version = 3020;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetId(CUcontext ctx, unsigned long long* ctxId) {
  return Initialised(__func__, [&]() -> CUresult {
    if (ctxId == nullptr) return CUDA_ERROR_INVALID_VALUE;
    ContextRef context = ctx == nullptr ? CurrentContext() : FindContext(ctx);
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (!context->alive.load()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *ctxId = context->id.load();
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
