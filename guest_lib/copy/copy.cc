// SPDX-License-Identifier: Apache-2.0
// Linear copies by the kinds of memory on both sides. Of pinned memory the message names the address, and the device works
// on it; ordinary memory is guest_lib/copy/pageable_copy.h's.
#include "guest_lib/copy/copy.h"

#include <cstring>

#include "guest_lib/copy/pageable_copy.h"
#include "guest_lib/graph/graph_copy.h"
#include "guest_lib/memory/memory.h"
#include "guest_lib/staging/waited_copy.h"
#include "guest_lib/stream/inquiry.h"
#include "guest_lib/stream/remote.h"
#include "ivshmem_ring/messages/copy_messages.h"

namespace causeway::guest {
namespace {

// Pinned: the device works on the caller's own bytes. Unless both sides are known, the host must have its say
// before the call returns.
CUresult Pinned(const LinearCopy& copy, bool known) {
  const bool synchronous = copy.form == CopyForm::kSynchronous;
  const Op op = copy.to_device ? (synchronous ? Op::cuMemcpyHtoD_v2 : Op::cuMemcpyHtoDAsync_v2)
                               : (synchronous ? Op::cuMemcpyDtoH_v2 : Op::cuMemcpyDtoHAsync_v2);
  const ResolvedStream resolved(copy.stream);
  if (copy.form != CopyForm::kAsynchronous && known) {
    if (const auto copied = CopyPinnedByFence(copy, resolved)) return *copied;
  }
  const auto host = reinterpret_cast<uint64_t>(copy.host);
  auto fill = [&](Writer& w) {
    if (!synchronous) {
      w.Put(PinnedBody{copy.device, host, copy.bytes, resolved.Put(w), 0});
    } else {
      w.Put(copy.device);
      w.Put(host);
      w.Put(copy.bytes);
    }
  };
  const Submission submission = resolved.submission();
  CUresult result;
  if (synchronous || !known) {
    PendingCall call(op, submission);
    fill(call.writer());
    call.NoteSize(copy.bytes);
    result = call.Finish();
  } else {
    PendingPost post(op, submission);
    fill(post.writer());
    result = post.Finish();
  }
  return result == CUDA_SUCCESS && copy.form == CopyForm::kStreamThenWait ? cuStreamSynchronize(copy.stream)
                                                                          : result;
}

CUresult CopyLinear(const LinearCopy& copy) {
  const WithContextOf scope(copy.stream);
  if (const CUresult result = NeedContext()) return result;
  if (copy.bytes == 0) return CUDA_SUCCESS;
  bool known = false, pinned_known = false;
  if (copy.host == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = CheckDeviceRange(copy.device, copy.bytes, &known)) return result;
  const auto host = reinterpret_cast<uint64_t>(copy.host);
  const CUdeviceptr to = copy.to_device ? copy.device : host, from = copy.to_device ? host : copy.device;
  const PointerKind kind = KindOfPointer(host);
  // It is read, or written, when its turn in the stream comes.
  if (kind == PointerKind::kManaged) return CopyOnDevice(to, from, copy.bytes, copy.stream, copy.form);
  if (copy.form == CopyForm::kAsynchronous) {
    if (const auto captured = CaptureLinearCopy(copy.stream, to, from, copy.bytes)) return *captured;
  }
  if (kind != PointerKind::kPinned) return CopyPageable(copy, known);
  if (const CUresult result = CheckDeviceRange(host, copy.bytes, &pinned_known)) return result;
  const CUresult result = Pinned(copy, known && pinned_known);
  // Memory whose operations synchronise (CU_POINTER_ATTRIBUTE_SYNC_MEMOPS).
  return result == CUDA_SUCCESS && SyncsMemops(copy.device) ? cuStreamSynchronize(copy.stream) : result;
}

}  // namespace

CUresult CopyToDevice(CUdeviceptr to, const void* from, uint64_t bytes, CUstream stream, CopyForm form) {
  return CopyLinear({to, static_cast<std::byte*>(const_cast<void*>(from)), bytes, stream, form, true});
}

CUresult CopyToHost(void* to, CUdeviceptr from, uint64_t bytes, CUstream stream, CopyForm form) {
  return CopyLinear({from, static_cast<std::byte*>(to), bytes, stream, form, false});
}

CUresult CopyOnDevice(CUdeviceptr to, CUdeviceptr from, uint64_t bytes, CUstream stream, CopyForm form) {
  const WithContextOf scope(stream);
  if (const CUresult result = NeedContext()) return result;
  if (bytes == 0) return CUDA_SUCCESS;
  bool to_known = false, from_known = false;
  if (const CUresult result = CheckDeviceRange(to, bytes, &to_known)) return result;
  if (const CUresult result = CheckDeviceRange(from, bytes, &from_known)) return result;
  CUresult result;
  if (form == CopyForm::kSynchronous) {
    result = to_known && from_known ? Post<Op::cuMemcpyDtoD_v2>(to, from, bytes)
                                    : Wait<Op::cuMemcpyDtoD_v2>(to, from, bytes);
  } else {
    result = to_known && from_known
                 ? PostWork<Op::cuMemcpyDtoDAsync_v2>(SubmissionOn(stream), to, from, bytes, stream)
                 : Wait<Op::cuMemcpyDtoDAsync_v2>(to, from, bytes, stream);
  }
  if (form == CopyForm::kAsynchronous || result != CUDA_SUCCESS) return result;
  // With memory of the host on a side the synchronous forms wait; on device memory they do not.
  const bool host = KindOfPointer(to) != PointerKind::kDevice || KindOfPointer(from) != PointerKind::kDevice;
  return host || SyncsMemops(to) || SyncsMemops(from) ? cuStreamSynchronize(stream) : CUDA_SUCCESS;
}

CUresult CopyUnified(CUdeviceptr to, CUdeviceptr from, uint64_t bytes, CUstream stream, CopyForm form) {
  const WithContextOf scope(stream);
  if (const CUresult result = NeedContext()) return result;
  if (bytes == 0) return CUDA_SUCCESS;
  if (to == 0 || from == 0) return CUDA_ERROR_INVALID_VALUE;
  const PointerKind from_kind = KindOfPointer(from), to_kind = KindOfPointer(to);
  if (from_kind != PointerKind::kPageable && to_kind != PointerKind::kPageable)
    return CopyOnDevice(to, from, bytes, stream, form);
  if (to_kind != PointerKind::kPageable)
    return CopyToDevice(to, reinterpret_cast<const void*>(from), bytes, stream, form);
  if (from_kind != PointerKind::kPageable)
    return CopyToHost(reinterpret_cast<void*>(to), from, bytes, stream, form);
  if (form == CopyForm::kAsynchronous) {
    if (const auto captured = CaptureLinearCopy(stream, to, from, bytes)) return *captured;
  }
  // Host to host: after everything that the stream has to do before it.
  const CUresult result = cuStreamSynchronize(form == CopyForm::kSynchronous ? nullptr : stream);
  if (result == CUDA_SUCCESS)
    std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  return result;
}

}  // namespace causeway::guest

using namespace causeway;
using namespace causeway::guest;

extern "C" {

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  return CopyToDevice(to, from, bytes, nullptr, CopyForm::kSynchronous);
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  return CopyToDevice(to, from, bytes, stream, CopyForm::kAsynchronous);
}
CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
  return CopyToHost(to, from, bytes, nullptr, CopyForm::kSynchronous);
}
CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return CopyToHost(to, from, bytes, stream, CopyForm::kAsynchronous);
}
CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return CopyOnDevice(to, from, bytes, nullptr, CopyForm::kSynchronous);
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return CopyOnDevice(to, from, bytes, stream, CopyForm::kAsynchronous);
}
CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return CopyUnified(to, from, bytes, nullptr, CopyForm::kSynchronous);
}
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return CopyUnified(to, from, bytes, stream, CopyForm::kAsynchronous);
}

// The per-thread forms of the synchronous copies: on the thread's own stream, done when they return.
CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void* from, size_t bytes) {
  return CopyToDevice(to, from, bytes, CU_STREAM_PER_THREAD, CopyForm::kStreamThenWait);
}
CUresult cuMemcpyDtoH_v2_ptds(void* to, CUdeviceptr from, size_t bytes) {
  return CopyToHost(to, from, bytes, CU_STREAM_PER_THREAD, CopyForm::kStreamThenWait);
}
CUresult cuMemcpy_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return CopyUnified(to, from, bytes, CU_STREAM_PER_THREAD, CopyForm::kStreamThenWait);
}
// Device to device the synchronous form does not wait either.
CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return CopyOnDevice(to, from, bytes, CU_STREAM_PER_THREAD, CopyForm::kStreamThenWait);
}

// Between the memories of two contexts: one address space, so the addresses say it all.
CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                      size_t bytes) {
  if (const CUresult result = NeedContext()) return result;
  bool known = false;
  if (bytes == 0) return CUDA_SUCCESS;
  if (const CUresult result = CheckDeviceRange(to, bytes, &known)) return result;
  if (const CUresult result = CheckDeviceRange(from, bytes, &known)) return result;
  return Wait<Op::cuMemcpyPeer>(to, to_context, from, from_context, bytes);
}
CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                           size_t bytes, CUstream stream) {
  const WithContextOf scope(stream);
  if (const CUresult result = NeedContext()) return result;
  bool to_known = false, from_known = false;
  if (bytes == 0) return CUDA_SUCCESS;
  if (const CUresult result = CheckDeviceRange(to, bytes, &to_known)) return result;
  if (const CUresult result = CheckDeviceRange(from, bytes, &from_known)) return result;
  return to_known && from_known
             ? PostWork<Op::cuMemcpyPeerAsync>(SubmissionOn(stream), to, to_context, from, from_context,
                                               bytes, stream)
             : Wait<Op::cuMemcpyPeerAsync>(to, to_context, from, from_context, bytes, stream);
}
CUresult cuMemcpyPeer_ptds(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                           size_t bytes) {
  return cuMemcpyPeerAsync(to, to_context, from, from_context, bytes, CU_STREAM_PER_THREAD);
}

}  // extern "C"
