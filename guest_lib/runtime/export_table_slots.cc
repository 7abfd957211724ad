// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/runtime/export_table_slots.h"

#include <vector>

#include "guest_lib/code/function.h"
#include "guest_lib/session/guest_state.h"

namespace causeway::guest::slots {
namespace {

// Makes a context current for a while, where it is not already; null means the current one.
class ScopedContext {
 public:
  explicit ScopedContext(CUcontext context) : previous_(CurrentContext()) {
    swapped_ = context != nullptr && context != previous_;
    if (swapped_) SwapCurrentContext(context);
  }
  ~ScopedContext() {
    if (swapped_) SwapCurrentContext(previous_);
  }
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;

 private:
  CUcontext previous_;
  bool swapped_;
};

// CUDA_SUCCESS for a context that exists; null means the current one.
CUresult CheckContext(CUcontext context) {
  if (const CUresult result = SessionOrError(); result != CUDA_SUCCESS) return result;
  if (context == nullptr) return CurrentContext() == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
  return IsContext(context) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

}  // namespace

CUresult NotSupported() {
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult Ignore() {
  return CUDA_SUCCESS;
}

CUresult PrimaryContext(CUcontext* context, CUdevice device) {
  if (const CUresult result = SessionOrError(); result != CUDA_SUCCESS) return result;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUcontext handle = PrimaryContextHandle(device);
  if (handle == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *context = handle;
  return CUDA_SUCCESS;
}

// The runtime refuses to start when an array is shorter than its own list of callbacks; 13.0 knows 522 and
// 13. Later runtimes know more. The arrays are writable because the interface says so; nobody sets a flag.
CUresult CallbackFlags(int** flags, size_t* count) {
  static int all_disabled[4096];
  if (flags == nullptr || count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = all_disabled;
  *count = std::size(all_disabled);
  return CUDA_SUCCESS;
}

CUresult ResourceFlags(int** flags, size_t* count) {
  static int all_disabled[64];
  if (flags == nullptr || count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = all_disabled;
  *count = std::size(all_disabled);
  return CUDA_SUCCESS;
}

CUresult ThreadContext(CUcontext* context) {
  if (const CUresult result = SessionOrError(); result != CUDA_SUCCESS) return result;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *context = CurrentContext();
  return CUDA_SUCCESS;
}

CUresult ContextCheck(CUcontext context, int* redirected, CUcontext* /*other*/) {
  if (const CUresult result = CheckContext(context); result != CUDA_SUCCESS) return result;
  if (redirected == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *redirected = 0;
  return CUDA_SUCCESS;
}

CUresult ContextIdentity(CUcontext context, uint64_t* id) {
  if (const CUresult result = CheckContext(context); result != CUDA_SUCCESS) return result;
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return ContextId(context == nullptr ? CurrentContext() : context, id);
}

CUresult StreamObject(CUcontext context, CUstream stream, void** object, int zero_is_per_thread) {
  if (const CUresult result = CheckContext(context); result != CUDA_SUCCESS) return result;
  if (object == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const ScopedContext scoped(context);
  if (stream == CU_STREAM_PER_THREAD || (stream == nullptr && zero_is_per_thread != 0)) {
    *object = PerThreadStream();
    return CUDA_SUCCESS;
  }
  if (stream == nullptr || stream == CU_STREAM_LEGACY) {
    *object = CU_STREAM_LEGACY;  // StreamId knows it, together with the current context
    return CUDA_SUCCESS;
  }
  uint64_t id = 0;
  if (StreamId(stream, &id) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_HANDLE;
  *object = stream;
  return CUDA_SUCCESS;
}

CUresult StreamObjectIdentity(CUcontext context, void* object, uint64_t* id) {
  if (const CUresult result = CheckContext(context); result != CUDA_SUCCESS) return result;
  if (object == nullptr || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const ScopedContext scoped(context);
  return StreamId(static_cast<CUstream>(object), id);
}

int ForEachFunction(CUcontext context, CUmodule module, FunctionVisitor visit, void* user) {
  if (CheckContext(context) != CUDA_SUCCESS || visit == nullptr) return 0;
  const ScopedContext scoped(context);
  std::vector<CUfunction> functions;
  if (FunctionsOf(module, &functions) != CUDA_SUCCESS) return 0;
  for (const CUfunction function : functions) visit(user, function, module);
  return 1;
}

CUresult ExtendedDeviceAttribute(CUdevice device, CUdevice_attribute attribute, int /*unused*/,
                                 size_t value[2]) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  int attribute_value = 0;
  if (const CUresult result = cuDeviceGetAttribute(&attribute_value, attribute, device)) return result;
  value[0] = static_cast<size_t>(attribute_value);
  value[1] = 0;
  return CUDA_SUCCESS;
}

CUresult ExtendedDeviceFlag(uint8_t* flag, CUdevice /*device*/) {
  if (flag == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flag = 0;
  return CUDA_SUCCESS;
}

CUresult RepliesAwaited(uint64_t* count) {
  *count = guest::RepliesAwaited();
  return CUDA_SUCCESS;
}

}  // namespace causeway::guest::slots
