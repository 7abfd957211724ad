// SPDX-License-Identifier: Apache-2.0
// What can be asked of and set on functions and kernels.
#include "tests/software_gpu/fatbin.h"
#include "tests/software_gpu/module.h"

namespace causeway::software_gpu {
namespace {

constexpr int kRegistersPerThread = 32;  // the interpreter has no register allocation: a typical number
constexpr int kMaxSharedBytesOptIn = 232448;

}  // namespace

CUresult GetKernelAttribute(const Kernel& kernel, const FunctionSettings& settings, unsigned ptx_architecture,
                            CUfunction_attribute attribute, int* value) {
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *value = static_cast<int>(kernel.max_threads_per_block);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      *value = static_cast<int>(kernel.static_shared_bytes);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
      *value = static_cast<int>(kernel.local_bytes);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      *value = kRegistersPerThread;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
      *value = static_cast<int>(ptx_architecture);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      *value = static_cast<int>(kArchitecture);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = settings.max_dynamic_shared_bytes.load();
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      *value = settings.shared_carveout.load();
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
    case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA:
    case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      *value = 0;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult SetKernelAttribute(const Kernel& kernel, FunctionSettings& settings, CUfunction_attribute attribute,
                            int value) {
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      if (value < 0 || value > kMaxSharedBytesOptIn - static_cast<int>(kernel.static_shared_bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      settings.max_dynamic_shared_bytes.store(value);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      if (value < -1 || value > 100) return CUDA_ERROR_INVALID_VALUE;
      settings.shared_carveout.store(value);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult GetParameterInfo(const Kernel& kernel, size_t index, size_t* offset, size_t* bytes) {
  if (offset == nullptr || index >= kernel.parameters.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = kernel.parameters[index].offset;
  if (bytes != nullptr) *bytes = kernel.parameters[index].bytes;
  return CUDA_SUCCESS;
}

namespace {

// A kernel handle with what its library knows of it. Also accepts what cuKernelGetFunction returned.
struct KernelView {
  LibraryRef library;
  size_t index = 0;
  const Kernel& kernel() const { return library->kernels[index]; }
};

bool FindKernelView(CUkernel handle, KernelView* view) {
  LibraryKernelRef kernel = FindLibraryKernel(handle);
  if (kernel == nullptr) return false;
  view->library = kernel->library.lock();
  view->index = kernel->index;
  return view->library != nullptr;
}

// The function behind a kernel on a device, whose primary context must be active if it is not the current
// one.
CUresult FunctionOnDevice(CUkernel kernel, CUdevice device, FunctionRef* function) {
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  ContextRef context = CurrentContext();
  if (context == nullptr || context->device != device) context = PrimaryContext(device);
  if (!context->alive.load()) return CUDA_ERROR_INVALID_CONTEXT;
  return ResolveFunction(context, reinterpret_cast<CUfunction>(kernel), function);
}

}  // namespace
}  // namespace causeway::software_gpu

using namespace causeway::software_gpu;

extern "C" {

CUresult cuFuncGetAttribute(int* pi, CUfunction_attribute attrib, CUfunction hfunc) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    if (pi == nullptr) return CUDA_ERROR_INVALID_VALUE;
    FunctionRef function;
    CUresult result = ResolveFunction(context, hfunc, &function);
    if (result != CUDA_SUCCESS) return result;
    ModuleRef module = function->module.lock();
    if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    return GetKernelAttribute(*function->kernel, function->settings, module->ptx_architecture, attrib, pi);
  });
}

CUresult cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    FunctionRef function;
    CUresult result = ResolveFunction(context, hfunc, &function);
    if (result != CUDA_SUCCESS) return result;
    ModuleRef module = function->module.lock();
    if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    return SetKernelAttribute(*function->kernel, function->settings, attrib, value);
  });
}

CUresult cuFuncSetCacheConfig(CUfunction hfunc, CUfunc_cache config) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    if (config < CU_FUNC_CACHE_PREFER_NONE || config > CU_FUNC_CACHE_PREFER_EQUAL)
      return CUDA_ERROR_INVALID_VALUE;
    FunctionRef function;
    return ResolveFunction(context, hfunc, &function);
  });
}

CUresult cuFuncGetModule(CUmodule* hmod, CUfunction hfunc) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    if (hmod == nullptr) return CUDA_ERROR_INVALID_VALUE;
    FunctionRef function;
    CUresult result = ResolveFunction(context, hfunc, &function);
    if (result != CUDA_SUCCESS) return result;
    ModuleRef module = function->module.lock();
    if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    *hmod = module->handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuFuncGetName(const char** name, CUfunction hfunc) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    if (name == nullptr || hfunc == nullptr) return CUDA_ERROR_INVALID_VALUE;
    FunctionRef function;
    CUresult result = ResolveFunction(context, hfunc, &function);
    if (result == CUDA_SUCCESS) *name = function->kernel->name.c_str();
    return result;
  });
}

CUresult cuFuncGetParamInfo(CUfunction func, size_t paramIndex, size_t* paramOffset, size_t* paramSize) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    if (func == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (FindLibraryKernel(reinterpret_cast<CUkernel>(func)) != nullptr) return CUDA_ERROR_INVALID_HANDLE;
    FunctionRef function;
    CUresult result = ResolveFunction(context, func, &function);
    if (result != CUDA_SUCCESS) return result;
    return GetParameterInfo(*function->kernel, paramIndex, paramOffset, paramSize);
  });
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction hfunc) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
    FunctionRef function;
    CUresult result = ResolveFunction(context, hfunc, &function);
    if (result == CUDA_SUCCESS) *state = CU_FUNCTION_LOADING_STATE_LOADED;
    return result;
  });
}

CUresult cuFuncLoad(CUfunction hfunc) {
  return InContext(__func__, [&](const ContextRef& context) {
    FunctionRef function;
    return ResolveFunction(context, hfunc, &function);
  });
}

CUresult cuKernelGetFunction(CUfunction* pFunc, CUkernel kernel) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    if (pFunc == nullptr) return CUDA_ERROR_INVALID_VALUE;
    FunctionRef function;
    CUresult result = ResolveFunction(context, reinterpret_cast<CUfunction>(kernel), &function);
    if (result == CUDA_SUCCESS) *pFunc = function->handle;
    return result;
  });
}

CUresult cuKernelGetLibrary(CUlibrary* pLib, CUkernel kernel) {
  return OnDevice(__func__, [&]() -> CUresult {
    if (pLib == nullptr) return CUDA_ERROR_INVALID_VALUE;
    KernelView view;
    if (!FindKernelView(kernel, &view)) return CUDA_ERROR_INVALID_HANDLE;
    *pLib = view.library->handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuKernelGetName(const char** name, CUkernel kernel) {
  return OnDevice(__func__, [&]() -> CUresult {
    if (name == nullptr || kernel == nullptr) return CUDA_ERROR_INVALID_VALUE;
    KernelView view;
    if (!FindKernelView(kernel, &view)) return CUDA_ERROR_INVALID_HANDLE;
    *name = view.kernel().name.c_str();
    return CUDA_SUCCESS;
  });
}

CUresult cuKernelGetParamInfo(CUkernel kernel, size_t paramIndex, size_t* paramOffset, size_t* paramSize) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    KernelView view;
    if (!FindKernelView(kernel, &view)) return CUDA_ERROR_INVALID_HANDLE;
    return GetParameterInfo(view.kernel(), paramIndex, paramOffset, paramSize);
  });
}

CUresult cuKernelGetAttribute(int* pi, CUfunction_attribute attrib, CUkernel kernel, CUdevice dev) {
  return OnDevice(__func__, [&]() -> CUresult {
    if (pi == nullptr) return CUDA_ERROR_INVALID_VALUE;
    FunctionRef function;
    CUresult result = FunctionOnDevice(kernel, dev, &function);
    if (result != CUDA_SUCCESS) return result;
    ModuleRef module = function->module.lock();
    if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    return GetKernelAttribute(*function->kernel, function->settings, module->ptx_architecture, attrib, pi);
  });
}

CUresult cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel, CUdevice dev) {
  return OnDevice(__func__, [&]() -> CUresult {
    FunctionRef function;
    CUresult result = FunctionOnDevice(kernel, dev, &function);
    if (result != CUDA_SUCCESS) return result;
    return SetKernelAttribute(*function->kernel, function->settings, attrib, val);
  });
}

CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice dev) {
  return OnDevice(__func__, [&]() -> CUresult {
    if (config < CU_FUNC_CACHE_PREFER_NONE || config > CU_FUNC_CACHE_PREFER_EQUAL)
      return CUDA_ERROR_INVALID_VALUE;
    FunctionRef function;
    return FunctionOnDevice(kernel, dev, &function);
  });
}

}  // extern "C"
