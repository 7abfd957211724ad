// SPDX-License-Identifier: Apache-2.0
// Linear copies, in one straight line: the arguments are checked, the kinds of memory on both sides decide, and
// for ordinary memory the plan of guest_lib/staging/copy_plan.h says which ways are tried in which order. Of
// pinned memory the message names the address, and the device works on it.
#include "guest_lib/copy/copy.h"
#include "ivshmem_ring/protocol/maybe_result.h"

#include <cstring>

#include "guest_lib/addresses/private_host.h"
#include "guest_lib/callbacks/callbacks.h"
#include "guest_lib/graph/graph_copy.h"
#include "guest_lib/memory/memory.h"
#include "guest_lib/session/captures.h"
#include "guest_lib/staging/copy_plan.h"
#include "guest_lib/staging/posted_copy.h"
#include "guest_lib/staging/staged_copy.h"
#include "guest_lib/staging/waited_copy.h"
#include "guest_lib/stream/inquiry.h"
#include "guest_lib/stream/remote.h"

namespace causeway::guest {
namespace {

constexpr bool kToDevice = true, kToHost = false;

// Of no bytes nothing is wrong.
CUresult CheckRanges(CUdeviceptr to, CUdeviceptr from, uint64_t bytes, bool* to_known, bool* from_known) {
  if (bytes == 0) return CUDA_SUCCESS;
  if (const CUresult result = CheckDeviceRange(to, bytes, to_known)) return result;
  return CheckDeviceRange(from, bytes, from_known);
}

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
  return result == CUDA_SUCCESS && copy.form == CopyForm::kStreamThenWait ? AwaitCopied(copy.stream) : result;
}

CUresult Ask(const LinearCopy& copy, const ResolvedStream& stream) {
  const Submission submission = stream.submission();
  PendingCall call(copy.to_device ? Op::kCopyToDevice : Op::kCopyToHost, submission);
  Writer& w = call.writer();
  w.Put(CopyBody{copy.device, copy.bytes, stream.wire(), copy.form, BytesIn::kMessage});
  if (copy.to_device) w.PutBytes(copy.host, copy.bytes);
  const CUresult result = call.Finish();
  if (result != CUDA_SUCCESS || copy.to_device) return result;
  const std::byte* data = call.reader().Take(copy.bytes);
  if (data == nullptr) return CUDA_ERROR_UNKNOWN;
  std::memcpy(copy.host, data, copy.bytes);
  return CUDA_SUCCESS;
}

CUresult AskInPieces(const LinearCopy& copy, const ResolvedStream& stream) {
  CopyBody body{copy.device, copy.bytes, stream.wire(), copy.form, BytesIn::kRequestBuffer};
  const HostRows rows{copy.host, copy.bytes, 1, 1, copy.bytes, copy.bytes};
  const Op op = copy.to_device ? Op::kCopyToDevice : Op::kCopyToHost;
  return CopyStaged(rows, copy.to_device, copy.form, op, stream.submission(),
                    [&](Writer& w, const Piece& piece) {
                      body.device = copy.device + piece.column;
                      body.bytes = piece.width;
                      w.Put(body);
                    });
}

// What is not posted: the caller waits, for the fence behind the copy or for the host's answer. `ordered`: the
// plain call to the device, which the legacy stream orders.
CUresult Await(LinearCopy copy, const ResolvedStream& stream, const CopyPlan& plan, bool ordered) {
  const RelaxedCaptures relaxed;  // the host may wait where the driver's own copy does
  Inquiry inquiry = ordered ? Inquiry::BeforeCopy() : Inquiry::OfStream(stream.handle());
  inquiry.Begin();
  const bool captures = CapturesSource(copy.to_device, copy.form, copy.bytes);
  if (copy.form == CopyForm::kAsynchronous && !captures) copy.form = CopyForm::kStreamThenWait;
  if (plan.fence == CopyPlan::Fence::kWhole) {
    if (const auto result = CopyByFence(copy, stream)) return *result;
  } else if (plan.fence == CopyPlan::Fence::kPieces) {
    copy.idle = !copy.to_device && inquiry.IsDone();
    if (const auto result = CopyPiecesByFences(&copy, stream)) return inquiry.NoteWord(*result, copy.posts);
  }
  const CUresult result = plan.ask == CopyPlan::Ask::kRequest ? Ask(copy, stream) : AskInPieces(copy, stream);
  if (ordered) return inquiry.NoteCopy(result);
  return copy.to_device ? result : inquiry.Note(result);
}

CUresult PostInRecord(const LinearCopy& copy, const ResolvedStream& stream) {
  const CopyBody body{copy.device, copy.bytes, stream.wire(), copy.form, BytesIn::kMessage};
  Submission submission = stream.submission();
  submission.is_copy = copy.form == CopyForm::kSynchronous;
  submission.is_apart = IsApart(copy.device);
  PendingPost post(Op::kCopyToDevice, submission, sizeof body + copy.bytes);
  post.writer().Put(body);
  post.writer().PutBytes(copy.host, copy.bytes);
  return post.Finish();
}

// The synchronous form waits for the legacy stream's order, takes the source, and may return before the
// device has the bytes (the driver's manual, "API synchronization behavior": pageable memory to the device).
// Not where others could look before the posted copy is executed: the program at memory of the host, another
// process at shared memory.
bool MayReturnEarly(CUdeviceptr device) {
  return KindOfPointer(device) == PointerKind::kDevice && !SharesDeviceMemory() && !SyncsMemops(device);
}

// Ordinary memory of the program. `known`: this process made the allocation and has checked the range, so the
// call need not wait for the host's check.
CUresult CopyPageable(const LinearCopy& copy, bool known) {
  const ResolvedStream stream(copy.stream);
  if (const CUresult error = stream.error()) return error;
  const bool ordered = copy.to_device && copy.form == CopyForm::kSynchronous;
  CopyFacts facts{copy.to_device, copy.form, copy.bytes, known, false, false};
  if (ordered && known && MayReturnEarly(copy.device)) {
    const auto done = Inquiry::BeforeCopy().Answer();
    if (done && *done != CUDA_SUCCESS) return *done;
    facts.quiet = done.has_value();
  }
  if (!ordered && copy.to_device && copy.bytes > kMostInRecord) facts.syncs_memops = SyncsMemops(copy.device);
  const CopyPlan plan = PlanCopy(facts);
  switch (plan.post) {
    case CopyPlan::Post::kNot:
      break;
    case CopyPlan::Post::kRecord:
      return PostInRecord(copy, stream);
    case CopyPlan::Post::kLoneBuffer:
    case CopyPlan::Post::kBufferOrRecord:
      if (const auto posted = PostFromBuffer(copy, stream, plan.post == CopyPlan::Post::kLoneBuffer))
        return *posted;
      return PostInRecord(copy, stream);
    case CopyPlan::Post::kBuffer:
      if (const auto posted = PostFromBuffer(copy, stream, false)) return *posted;
      break;
    case CopyPlan::Post::kPieces: {
      LinearCopy pieces = copy;
      pieces.leaves = true;
      if (const auto posted = CopyPiecesByFences(&pieces, stream)) return *posted;
    }
  }
  return Await(copy, stream, plan, ordered);
}

// Between memory of the host and of the device; `host` is written by copies to the host.
CUresult CopyLinear(CUdeviceptr device, const void* host, uint64_t bytes, CUstream stream, CopyForm form,
                    bool to_device) {
  const WithContextOf scope(stream);
  if (const CUresult result = BeginCopy(stream, form)) return result;
  bool known = false, pinned_known = false;
  const CUresult wrong = bytes == 0        ? CUDA_SUCCESS
                         : host == nullptr ? CUDA_ERROR_INVALID_VALUE
                                           : CheckDeviceRange(device, bytes, &known);
  if (bytes == 0 || wrong != CUDA_SUCCESS) return AnswerCopy(wrong, stream, form);
  const auto address = reinterpret_cast<uint64_t>(host);
  const CUdeviceptr to = to_device ? device : address, from = to_device ? address : device;
  // A captured copy is made at each launch of the graph, without this library, so the device must reach the memory.
  if (form == CopyForm::kAsynchronous && AnyCapture()) NameOnDevice(address);
  if (to_device) NameBehindFunctions(address);
  const PointerKind kind = KindOfPointer(address);
  // It is read, or written, when its turn in the stream comes.
  if (kind == PointerKind::kManaged) return CopyOnDevice(to, from, bytes, stream, form);
  if (form == CopyForm::kAsynchronous && AnyCapture()) {
    if (const auto captured = CaptureLinearCopy(stream, to, from, bytes)) return *captured;
  }
  const LinearCopy copy{device,   static_cast<std::byte*>(const_cast<void*>(host)), bytes, stream, form,
                        to_device};
  if (kind != PointerKind::kPinned) {
    if (const CUresult result = to_device ? AwaitFunctionsBefore(stream, address) : CUDA_SUCCESS)
      return result;
    return CopyPageable(copy, known);
  }
  if (const CUresult result = CheckDeviceRange(address, bytes, &pinned_known))
    return AnswerCopy(result, stream, form);
  const CUresult result = Pinned(copy, known && pinned_known);
  // Memory whose operations synchronise (CU_POINTER_ATTRIBUTE_SYNC_MEMOPS).
  return result == CUDA_SUCCESS && SyncsMemops(device) ? AwaitCopied(stream) : result;
}

}  // namespace

void NameBehindFunctions(uint64_t source) {
  if (callbacks::in_streams.load() != 0) NameOnDevice(source);
}

CUresult AwaitFunctionsBefore(CUstream stream, uint64_t source) {
  HostAllocation known;
  return callbacks::in_streams.load() != 0 && FindPrivateHost(source, &known) ? AwaitCopied(stream)
                                                                              : CUDA_SUCCESS;
}

CUresult CopyOnDevice(CUdeviceptr to, CUdeviceptr from, uint64_t bytes, CUstream stream, CopyForm form) {
  const WithContextOf scope(stream);
  if (const CUresult result = BeginCopy(stream, form)) return result;
  bool to_known = false, from_known = false;
  const CUresult wrong = CheckRanges(to, from, bytes, &to_known, &from_known);
  if (bytes == 0 || wrong != CUDA_SUCCESS) return AnswerCopy(wrong, stream, form);
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
  return host || SyncsMemops(to) || SyncsMemops(from) ? AwaitCopied(stream) : CUDA_SUCCESS;
}

CUresult CopyUnified(CUdeviceptr to, CUdeviceptr from, uint64_t bytes, CUstream stream, CopyForm form) {
  const WithContextOf scope(stream);
  if (const CUresult result = BeginCopy(stream, form)) return result;
  if (bytes == 0) return AnswerCopy(CUDA_SUCCESS, stream, form);
  if (to == 0 || from == 0) return AnswerCopy(CUDA_ERROR_INVALID_VALUE, stream, form);
  const PointerKind from_kind = KindOfPointer(from), to_kind = KindOfPointer(to);
  if (from_kind != PointerKind::kPageable && to_kind != PointerKind::kPageable)
    return CopyOnDevice(to, from, bytes, stream, form);
  if (to_kind != PointerKind::kPageable)
    return CopyLinear(to, reinterpret_cast<const void*>(from), bytes, stream, form, kToDevice);
  if (from_kind != PointerKind::kPageable)
    return CopyLinear(from, reinterpret_cast<void*>(to), bytes, stream, form, kToHost);
  if (form == CopyForm::kAsynchronous && AnyCapture()) {
    if (const auto captured = CaptureLinearCopy(stream, to, from, bytes)) return *captured;
  }
  // Host to host: after everything that the stream has to do before it.
  const CUresult result = AwaitCopied(form == CopyForm::kSynchronous ? nullptr : stream);
  if (result == CUDA_SUCCESS)
    std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  return result;
}

}  // namespace causeway::guest

using namespace causeway;
using namespace causeway::guest;

extern "C" {

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  return CopyLinear(to, from, bytes, nullptr, CopyForm::kSynchronous, kToDevice);
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  return CopyLinear(to, from, bytes, stream, CopyForm::kAsynchronous, kToDevice);
}
CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
  return CopyLinear(from, to, bytes, nullptr, CopyForm::kSynchronous, kToHost);
}
CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return CopyLinear(from, to, bytes, stream, CopyForm::kAsynchronous, kToHost);
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
  return CopyLinear(to, from, bytes, CU_STREAM_PER_THREAD, CopyForm::kStreamThenWait, kToDevice);
}
CUresult cuMemcpyDtoH_v2_ptds(void* to, CUdeviceptr from, size_t bytes) {
  return CopyLinear(from, to, bytes, CU_STREAM_PER_THREAD, CopyForm::kStreamThenWait, kToHost);
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
  if (const CUresult result = BeginCopy(nullptr, CopyForm::kSynchronous)) return result;
  bool to_known = false, from_known = false;
  const CUresult wrong = CheckRanges(to, from, bytes, &to_known, &from_known);
  if (bytes == 0 || wrong != CUDA_SUCCESS) return wrong;
  return Wait<Op::cuMemcpyPeer>(to, to_context, from, from_context, bytes);
}
CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                           size_t bytes, CUstream stream) {
  const WithContextOf scope(stream);
  if (const CUresult result = BeginPeerCopy(stream)) return result;
  bool to_known = false, from_known = false;
  const CUresult wrong = CheckRanges(to, from, bytes, &to_known, &from_known);
  if (bytes == 0 || wrong != CUDA_SUCCESS) return AnswerCopy(wrong, stream, CopyForm::kAsynchronous);
  return to_known && from_known
             ? PostWork<Op::cuMemcpyPeerAsync>(SubmissionOn(stream), to, to_context, from, from_context,
                                               bytes, stream)
             : Wait<Op::cuMemcpyPeerAsync>(to, to_context, from, from_context, bytes, stream);
}
CUresult cuMemcpyPeer_ptds(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                           size_t bytes) {
  if (const CUresult result = BeginCopy(CU_STREAM_PER_THREAD, CopyForm::kStreamThenWait)) return result;
  return cuMemcpyPeerAsync(to, to_context, from, from_context, bytes, CU_STREAM_PER_THREAD);
}

}  // extern "C"
