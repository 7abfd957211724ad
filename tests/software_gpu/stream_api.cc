// SPDX-License-Identifier: Apache-2.0
// Stream calls, except capture (graph_capture.cc) and memory operations (stream_memops.cc).
#include <algorithm>

#include "tests/software_gpu/faults.h"
#include "tests/software_gpu/graph.h"
#include "tests/software_gpu/stream.h"
#include "tests/software_gpu/stream_handles.h"

namespace causeway::software_gpu {
namespace {

CUresult CreateStream(const ContextRef& context, CUstream* handle, unsigned flags, int priority) {
  if (handle == nullptr || (flags & ~unsigned{CU_STREAM_NON_BLOCKING}) != 0) return CUDA_ERROR_INVALID_VALUE;
  int clamped = std::clamp(priority, kGreatestStreamPriority, kLeastStreamPriority);
  auto stream = std::make_shared<Stream>(context, Stream::Kind::kCreated, flags, clamped);
  stream->handle = Streams().Add(stream);
  *handle = stream->handle;
  std::lock_guard lock(context->order_mutex);
  context->all_streams.push_back(stream);
  return CUDA_SUCCESS;
}

// The calls that ask something about a stream.
template <typename Body>
CUresult OnStream(const char* function, CUstream handle, const Body& body) {
  return InContext(function, [&](const ContextRef& context) -> CUresult {
    StreamRef stream = FindStream(context, handle);
    return stream == nullptr ? CUDA_ERROR_INVALID_HANDLE : body(stream);
  });
}

template <typename Body>
CUresult AboutStream(const char* function, CUstream handle, const Body& body) {
  return InContextOfStream(function, handle, [&](const ContextRef& context) -> CUresult {
    StreamRef stream = FindStream(context, handle);
    return stream == nullptr ? CUDA_ERROR_INVALID_HANDLE : body(stream);
  });
}

}  // namespace
}  // namespace causeway::software_gpu

using namespace causeway::software_gpu;

extern "C" {

CUresult cuStreamCreate(CUstream* phStream, unsigned int Flags) {
  return InContext(__func__,
                   [&](const ContextRef& context) { return CreateStream(context, phStream, Flags, 0); });
}

CUresult cuStreamCreateWithPriority(CUstream* phStream, unsigned int flags, int priority) {
  if (flags > CU_STREAM_NON_BLOCKING) return OnDevice(__func__, [] { return CUDA_ERROR_INVALID_VALUE; });
  return InContext(
      __func__, [&](const ContextRef& context) { return CreateStream(context, phStream, flags, priority); });
}

CUresult cuStreamDestroy_v2(CUstream hStream) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    StreamRef stream = Streams().Find(hStream);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    Streams().Remove(hStream);
    stream->Close();
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamQuery(CUstream hStream) {
  return OnStream(__func__, hStream, [](const StreamRef& stream) -> CUresult {
    if (CUresult refused = RefuseWhileStreamCaptures(stream); refused != CUDA_SUCCESS) return refused;
    if (CUresult refused = RefuseWhileCapturing(); refused != CUDA_SUCCESS) return refused;
    if (!PendingOn(stream).empty()) return CUDA_ERROR_NOT_READY;
    return StickyError();
  });
}

CUresult cuStreamSynchronize(CUstream hStream) {
  return OnStream(__func__, hStream, [](const StreamRef& stream) -> CUresult {
    if (CUresult refused = RefuseWhileStreamCaptures(stream); refused != CUDA_SUCCESS) return refused;
    if (CUresult refused = RefuseWhileCapturing(); refused != CUDA_SUCCESS) return refused;
    return SynchronizeStream(stream);
  });
}

CUresult cuStreamGetPriority(CUstream hStream, int* priority) {
  return AboutStream(__func__, hStream, [&](const StreamRef& stream) -> CUresult {
    if (IsCaptureBroken(stream)) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (priority == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *priority = stream->priority;
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamGetFlags(CUstream hStream, unsigned int* flags) {
  return AboutStream(__func__, hStream, [&](const StreamRef& stream) -> CUresult {
    if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *flags = stream->flags;
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamGetId(CUstream hStream, unsigned long long* streamId) {
  return AboutStream(__func__, hStream, [&](const StreamRef& stream) -> CUresult {
    if (streamId == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *streamId = stream->id;
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamGetCtx(CUstream hStream, CUcontext* pctx) {
  return AboutStream(__func__, hStream, [&](const StreamRef& stream) -> CUresult {
    if (IsCaptureBroken(stream)) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    ContextRef context = stream->context.lock();
    if (pctx == nullptr || context == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *pctx = context->handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamGetCtx_v2(CUstream hStream, CUcontext* pCtx, CUgreenCtx* pGreenCtx) {
  if (pGreenCtx != nullptr) *pGreenCtx = nullptr;
  CUcontext unwanted = nullptr;  // NVIDIA's driver takes a null pCtx
  return cuStreamGetCtx(hStream, pCtx != nullptr ? pCtx : &unwanted);
}

CUresult cuStreamGetDevice(CUstream hStream, CUdevice* device) {
  return AboutStream(__func__, hStream, [&](const StreamRef& stream) -> CUresult {
    ContextRef context = stream->context.lock();
    if (device == nullptr || context == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *device = context->device;
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamAddCallback(CUstream hStream, CUstreamCallback callback, void* userData,
                             unsigned int flags) {
  return AboutStream(__func__, hStream, [&](const StreamRef& stream) -> CUresult {
    if (callback == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult refused = RefuseWhileStreamCaptures(stream); refused != CUDA_SUCCESS) return refused;
    Operation operation;
    operation.always = true;
    operation.run = [callback, userData, handle = hStream] {
      ScopedHostFunction scope;
      callback(handle, StickyError(), userData);
    };
    return Submit(stream, std::move(operation));
  });
}

CUresult cuStreamAttachMemAsync(CUstream hStream, CUdeviceptr dptr, size_t, unsigned int flags) {
  return OnStream(__func__, hStream, [&](const StreamRef&) -> CUresult {
    AllocationRef allocation = FindAllocation(dptr);
    bool managed = allocation != nullptr && allocation->kind == MemoryKind::kManaged;
    // Managed memory is coherent here whatever it is attached to.
    return managed && flags <= 7 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

}  // extern "C"
