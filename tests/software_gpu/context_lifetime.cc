// SPDX-License-Identifier: Apache-2.0
// Creating and destroying contexts, the primary contexts, and the settings of a context.
#include "tests/software_gpu/context_lifetime.h"

#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "tests/software_gpu/array.h"
#include "tests/software_gpu/config.h"
#include "tests/software_gpu/event.h"
#include "tests/software_gpu/faults.h"
#include "tests/software_gpu/graph.h"
#include "tests/software_gpu/memory.h"
#include "tests/software_gpu/module.h"
#include "tests/software_gpu/shared_names.h"
#include "tests/software_gpu/stream.h"
#include "tests/software_gpu/texture.h"

namespace causeway::software_gpu {
namespace {

constexpr unsigned kKnownContextFlags = 0x1ff;

struct PrimaryState {
  std::mutex mutex;
  unsigned references = 0;
  unsigned flags = 0;
};

PrimaryState& Primary(CUdevice device) {
  static auto* states = new std::array<PrimaryState, 16>;
  return (*states)[static_cast<size_t>(device)];
}

// One of the places that all processes share (SOFTWARE_GPU_CONTEXT_PLACES): a lock on a byte of the file,
// which ends with the process. False: all are taken.
bool TakePlace(Context& context) {
  const std::string& path = GetConfig().context_places;
  if (path.empty()) return true;
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  const off_t places = file >= 0 ? lseek(file, 0, SEEK_END) : 0;
  for (off_t place = 0; place < places; ++place) {
    struct flock one {};
    one.l_type = F_WRLCK;
    one.l_start = place;
    one.l_len = 1;
    if (fcntl(file, F_OFD_SETLK, &one) != 0) continue;
    context.place = file;
    return true;
  }
  if (file >= 0) close(file);
  return false;
}

bool StartContext(Context& context, unsigned flags) {
  if (!TakePlace(context)) return false;
  NoteUse();
  static std::atomic<uint64_t> next_id{1};
  context.id.store(next_id.fetch_add(1));
  context.flags.store(flags);
  context.cache_config.store(0);
  context.limits[CU_LIMIT_STACK_SIZE].store(1024);
  context.limits[CU_LIMIT_PRINTF_FIFO_SIZE].store(8650752);
  context.limits[CU_LIMIT_MALLOC_HEAP_SIZE].store(8388608);
  context.limits[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT].store(2048);
  context.limits[CU_LIMIT_MAX_L2_FETCH_GRANULARITY].store(64);
  context.limits[CU_LIMIT_PERSISTING_L2_CACHE_SIZE].store(11796480);
  context.limits[CU_LIMIT_SHMEM_SIZE].store(232448);
  context.alive.store(true, std::memory_order_release);
  return true;
}

CUresult CreateContext(CUcontext* pctx, unsigned flags, CUdevice device) {
  if (pctx == nullptr || (flags & ~kKnownContextFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  auto context = std::make_shared<Context>();
  context->device = device;
  if (!StartContext(*context, flags)) return CUDA_ERROR_OUT_OF_MEMORY;
  RegisterContext(context);
  *pctx = context->handle;
  return cuCtxPushCurrent_v2(context->handle);
}

// Returns the primary's state locked, for calls that change it.
CUresult ReleasePrimary(CUdevice device, bool reset) {
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  PrimaryState& state = Primary(device);
  std::lock_guard lock(state.mutex);
  ContextRef context = PrimaryContext(device);
  if (!reset) {
    if (state.references == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (--state.references != 0) return CUDA_SUCCESS;
  }
  // After a reset, references stay: one release for each earlier retain still succeeds, and a context that is
  // retained again ends with the last of them all.
  if (context->alive.load()) EndContext(context);
  return CUDA_SUCCESS;
}

// Newest first, on this thread, with the context current, as NVIDIA's driver does.
void DestroyStorage(const ContextRef& context) {
  std::vector<StorageEntry> entries;
  {
    std::lock_guard lock(context->storage_mutex);
    entries.swap(context->storage);
  }
  ScopedCurrentContext current(context);
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    if (entry->destructor != nullptr) entry->destructor(context->handle, entry->key, entry->value);
  }
}

}  // namespace

void EndContext(const ContextRef& context) {
  SynchronizeContext(*context);
  FlushDeviceOutput();
  DestroyStorage(context);
  context->alive.store(false, std::memory_order_release);
  const bool is_primary = PrimaryContext(context->device) == context;
  (is_primary ? &NoteContentsEnd : &NoteEnd)(reinterpret_cast<uint64_t>(context->handle));
  EndCapturesOf(*context);
  CloseStreamsOf(*context);
  DestroyEventsOf(*context);
  UnloadModulesOf(*context);
  DestroyTexturesOf(*context);
  DestroyArraysOf(*context);
  FreeMemoryOf(*context);
  if (context->place >= 0) close(std::exchange(context->place, -1));
}

}  // namespace causeway::software_gpu

using namespace causeway::software_gpu;

extern "C" {

// For a process that stands for many, one after the other (tests/fuzz): all contexts end, as with a process.
__attribute__((visibility("default"))) void cuSoftwareGpuEndContexts() {
  ForEachLiveContext([](const ContextRef& context) {
    if (context->primary) {
      ReleasePrimary(context->device, true);
    } else {
      EndContext(context);
    }
  });
  AwaitUserObjects();
  ForgetEndedContexts();
}

CUresult cuCtxCreate_v2(CUcontext* pctx, unsigned int flags, CUdevice dev) {
  return OnDevice(__func__, [&] { return CreateContext(pctx, flags, dev); });
}

CUresult cuCtxCreate_v3(CUcontext* pctx, CUexecAffinityParam*, int numParams, unsigned int flags,
                        CUdevice dev) {
  return OnDevice(__func__, [&]() -> CUresult {
    if (numParams != 0) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    return CreateContext(pctx, flags, dev);
  });
}

CUresult cuCtxCreate_v4(CUcontext* pctx, CUctxCreateParams* params, unsigned int flags, CUdevice dev) {
  return OnDevice(__func__, [&]() -> CUresult {
    if (params != nullptr && (params->numExecAffinityParams != 0 || params->cigParams != nullptr)) {
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CreateContext(pctx, flags, dev);
  });
}

CUresult cuCtxDestroy_v2(CUcontext ctx) {
  return OnDevice(__func__, [&]() -> CUresult {
    ContextRef context = FindContext(ctx);
    if (context == nullptr || context->primary) return CUDA_ERROR_INVALID_CONTEXT;
    if (!context->alive.load()) {
      return CurrentContext() == context ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_CONTEXT;
    }
    EndContext(context);
    PopIfCurrent(context);
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxAttach(CUcontext* pctx, unsigned int flags) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    if (pctx == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (!context->primary) ++context->further_uses;
    *pctx = context->handle;
    return CUDA_SUCCESS;
  });
}

// The last use ends the context.
CUresult cuCtxDetach(CUcontext ctx) {
  const ContextRef context = FindContext(ctx);
  if (context == nullptr || (!context->primary && context->further_uses.load() == 0))
    return cuCtxDestroy_v2(ctx);
  return OnDevice(__func__, [&] {
    if (!context->primary) --context->further_uses;
    return CUDA_SUCCESS;
  });
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* pctx, CUdevice dev) {
  return OnDevice(__func__, [&]() -> CUresult {
    if (pctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!IsDevice(dev)) return CUDA_ERROR_INVALID_DEVICE;
    PrimaryState& state = Primary(dev);
    std::lock_guard lock(state.mutex);
    ContextRef context = PrimaryContext(dev);
    if (!context->alive.load() && !StartContext(*context, state.flags | CU_CTX_MAP_HOST))
      return CUDA_ERROR_OUT_OF_MEMORY;
    ++state.references;
    *pctx = context->handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
  return Initialised(__func__, [&] { return ReleasePrimary(dev, false); });
}

// The form before CUDA 11 takes a context that nobody holds for one that is released.
CUresult cuDevicePrimaryCtxRelease(CUdevice dev) {
  const CUresult result = cuDevicePrimaryCtxRelease_v2(dev);
  return result == CUDA_ERROR_INVALID_CONTEXT ? CUDA_SUCCESS : result;
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) {
  return Initialised(__func__, [&] { return ReleasePrimary(dev, true); });
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags) {
  return Initialised(__func__, [&]() -> CUresult {
    if (!IsDevice(dev)) return CUDA_ERROR_INVALID_DEVICE;
    if ((flags & ~kKnownContextFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
    PrimaryState& state = Primary(dev);
    std::lock_guard lock(state.mutex);
    state.flags = flags;
    PrimaryContext(dev)->flags.store(flags | CU_CTX_MAP_HOST);
    return CUDA_SUCCESS;
  });
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int* flags, int* active) {
  return Initialised(__func__, [&]() -> CUresult {
    if (!IsDevice(dev)) return CUDA_ERROR_INVALID_DEVICE;
    if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
    PrimaryState& state = Primary(dev);
    std::lock_guard lock(state.mutex);
    *flags = state.flags;
    *active = PrimaryContext(dev)->alive.load() ? 1 : 0;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSynchronize(void) {
  return InContext(
      __func__, [&](const ContextRef& context) -> CUresult { return SynchronizeContextFromApi(*context); });
}

CUresult cuCtxSynchronize_v2(CUcontext ctx) {
  return InContext(__func__, [&](const ContextRef& current) -> CUresult {
    ContextRef context = ctx == nullptr ? current : FindContext(ctx);
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (!context->alive.load()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return SynchronizeContextFromApi(*context);
  });
}

CUresult cuCtxGetFlags(unsigned int* flags) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *flags = context->flags.load();
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSetFlags(unsigned int flags) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    if ((flags & ~kKnownContextFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
    context->flags.store(flags);
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetLimit(size_t* pvalue, CUlimit limit) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    if (pvalue == nullptr || limit < 0 || limit >= CU_LIMIT_MAX) return CUDA_ERROR_INVALID_VALUE;
    if (limit == CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH || limit > CU_LIMIT_CIG_ENABLED)
      return CUDA_ERROR_UNSUPPORTED_LIMIT;
    *pvalue = context->limits[limit].load();
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    if (limit < 0 || limit >= CU_LIMIT_MAX) return CUDA_ERROR_INVALID_VALUE;
    if (limit == CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH || limit > CU_LIMIT_PERSISTING_L2_CACHE_SIZE) {
      return CUDA_ERROR_UNSUPPORTED_LIMIT;
    }
    context->limits[limit].store(value);
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetCacheConfig(CUfunc_cache* pconfig) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    if (pconfig == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *pconfig = static_cast<CUfunc_cache>(context->cache_config.load());
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    if (config < CU_FUNC_CACHE_PREFER_NONE || config > CU_FUNC_CACHE_PREFER_EQUAL)
      return CUDA_ERROR_INVALID_VALUE;
    context->cache_config.store(config);
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetStreamPriorityRange(int* leastPriority, int* greatestPriority) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    if (leastPriority != nullptr) *leastPriority = kLeastStreamPriority;
    if (greatestPriority != nullptr) *greatestPriority = kGreatestStreamPriority;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxResetPersistingL2Cache(void) {
  return InContext(__func__, [](const ContextRef&) { return CUDA_SUCCESS; });
}

CUresult cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    ContextRef peer = FindContext(peerContext);
    if (peer == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (Flags != 0) return CUDA_ERROR_INVALID_VALUE;
    // All devices share one address space here, so there is nothing to map.
    return peer->device == context->device ? CUDA_ERROR_PEER_ACCESS_UNSUPPORTED : CUDA_SUCCESS;
  });
}

CUresult cuCtxDisablePeerAccess(CUcontext peerContext) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    return FindContext(peerContext) == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
  });
}

}  // extern "C"
