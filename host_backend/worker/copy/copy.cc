// SPDX-License-Identifier: Apache-2.0
// Copies between guest and device. Pinned: the message names addresses in the window, checked against the
// session's arenas, and the driver copies with no step between. Pageable: in a bulk buffer or the message.
#include <bit>
#include <cstring>

#include "host_backend/worker/accounting/accounting.h"
#include "host_backend/worker/addresses/arenas.h"
#include "host_backend/worker/copy/box_copy.h"
#include "host_backend/worker/copy/captured_bytes.h"
#include "host_backend/worker/driver/logs.h"
#include "host_backend/worker/session/deferred_replies.h"
#include "host_backend/worker/session/dispatcher.h"
#include "host_backend/worker/session/session.h"
#include "host_backend/worker/stream/completion.h"
#include "ivshmem_ring/messages/copy_messages.h"
#include "ivshmem_ring/protocol/admit.h"

namespace causeway::host {
namespace {

CUresult ToDevice(Session& session, CUdeviceptr device, const std::byte* host, uint64_t bytes,
                  CUstream stream) {
  return session.CopyInPieces(true, bytes, stream, false, [&](uint64_t at, uint64_t piece) {
    return TheDriver().cuMemcpyHtoDAsync_v2(device + at, host + at, piece, stream);
  });
}
// Others may add to what is captured meanwhile.
CUresult Synchronize(Session& session, CUstream stream) {
  session.objects().Yield();
  return TheDriver().cuStreamSynchronize(stream);
}
CUresult ToHost(Session& session, std::byte* host, CUdeviceptr device, uint64_t bytes, CUstream stream) {
  return session.CopyInPieces(false, bytes, stream, false, [&](uint64_t at, uint64_t piece) {
    return TheDriver().cuMemcpyDtoHAsync_v2(host + at, device + at, piece, stream);
  });
}
// The same for copies that the driver itself waits for.
CUresult ToDeviceAndWait(Session& session, CUdeviceptr device, const std::byte* host, uint64_t bytes) {
  return session.CopyInPieces(true, bytes, nullptr, true, [&](uint64_t at, uint64_t piece) {
    return TheDriver().cuMemcpyHtoD_v2(device + at, host + at, piece);
  });
}
CUresult ToHostAndWait(Session& session, std::byte* host, CUdeviceptr device, uint64_t bytes) {
  return session.CopyInPieces(false, bytes, nullptr, true, [&](uint64_t at, uint64_t piece) {
    return TheDriver().cuMemcpyDtoH_v2(host + at, device + at, piece);
  });
}
CUresult Copy(Session& session, bool to_device, CUdeviceptr device, const HostSpan& host, CUstream stream) {
  return to_device ? ToDevice(session, device, host.data(), host.bytes(), stream)
                   : ToHost(session, host.data(), device, host.bytes(), stream);
}

// Addresses of user space end here; a library knows pinned memory by ranges below.
constexpr uint64_t kEndOfAddresses = uint64_t{1} << 47;

// The host side must be the session's own pinned memory; a program that frees it meanwhile gets an error. the
// device side is for the driver to judge, whose typed calls refuse addresses of ordinary memory of this
// process (docs/hostile_rows.md).
CUresult FindPinned(Session& session, uint64_t host, uint64_t bytes, HostSpan* span) {
  *span = session.part<Arenas>().ResolveAddress(host, bytes);
  if (*span) return CUDA_SUCCESS;
  if (host >= kEndOfAddresses || bytes > kEndOfAddresses - host)
    session.Violation("it copies at an address that no process has");
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult CopyPinned(Session& session, Request& request, bool to_device) {
  const auto body = request.in.Get<PinnedBody>();
  auto stream = session.objects().ToDriver<CUstream>(body.stream, request.in);
  if (!request.in.ok()) return request.in.error();
  session.CountCopied(to_device, body.bytes);
  HostSpan host;
  if (const CUresult result = FindPinned(session, body.host, body.bytes, &host)) return result;
  if (const CUresult prepared = session.objects().Prepare()) return prepared;
  const CUresult result = Copy(session, to_device, body.device, host, stream);
  return result == CUDA_SUCCESS && body.mark != 0 ? WriteMark(session, request, stream, body.mark) : result;
}

struct Addresses {
  uint64_t device;
  uint64_t host;
  uint64_t bytes;
};

CUresult TakeAddresses(Session& session, Request& request, uint64_t* device, HostSpan* host) {
  const auto addresses = request.in.Get<Addresses>();
  if (!request.in.ok()) return request.in.error();
  *device = addresses.device;
  return FindPinned(session, addresses.host, addresses.bytes, host);
}

bool IsKnown(CopyForm form) {
  return form <= CopyForm::kStreamThenWait;
}

// What the guest says of a copy. An unknown form or place ends the reading.
CopyBody TakeCopy(Request& request) {
  const auto body = request.in.Get<CopyBody>();
  if (!IsKnown(body.form) || body.bytes_in > BytesIn::kFencedMessage)
    request.in.Fail(CUDA_ERROR_INVALID_VALUE);
  return body;
}

bool IsInRegion(const CopyBody& body) {
  return body.bytes_in == BytesIn::kRequestBuffer || body.bytes_in == BytesIn::kRegion;
}

// The source of an asynchronous pageable copy may change as soon as the call has returned, so the driver must
// capture it: it does so for memory that is not registered. A posted record lies in such memory, which holds
// only records of the guest's as long as the session lives; all else is copied to where that holds too.
CUresult CopyCaptured(Session& session, const Request& request, const CopyBody& body, const std::byte* from,
                      CUstream stream) {
  const bool in_region = IsInRegion(body);
  const bool in_ring = !in_region && request.channel == kChannelCount && session.shares_memory();
  const std::byte* source = in_ring ? from : KeepCaptured(from, body.bytes);
  if (source == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  return ToDevice(session, body.device, source, body.bytes, stream);
}

// `relied_on`: others may rely on this posted copy, which is waited for before they come; else it comes after
// all such. In a lane nobody does, and the dispatcher has waited already.
void OrderPosted(Session& session, Request& request, bool relied_on) {
  if (request.in_lane) return;
  request.unsettled = relied_on;
  if (!relied_on)
    session.part<Dispatcher>().Settle();  // its stream may be one that does not wait for the others
}

// A posted copy whose guest waits for its mark.
CUresult CopyMarked(Session& session, Request& request, const CopyBody& body, const std::byte* from,
                    CUstream stream, uint64_t mark) {
  if (body.form == CopyForm::kSynchronous) stream = nullptr;
  OrderPosted(session, request, false);
  if (const CUresult prepared = session.objects().Prepare()) return prepared;
  const CUresult result = CopyCaptured(session, request, body, from, stream);
  return result == CUDA_SUCCESS ? WriteMark(session, request, stream, mark) : result;
}

// Where the guest has lent the bytes of a copy. None: nowhere.
HostSpan LentBytes(Session& session, const CopyBody& body, const LentBody& lent) {
  return body.bytes <= kBulkBytes ? session.part<Arenas>().ResolveOffset(lent.offset, body.bytes)
                                  : HostSpan();
}

// A posted copy whose bytes lie where the guest has lent them; it leaves them alone until the mark has come.
CUresult CopyLent(Session& session, Request& request, const CopyBody& body, CUstream stream, bool to_device) {
  const auto lent = request.in.Get<LentBody>();
  if (!request.in.ok()) return request.in.error();
  const HostSpan bytes = LentBytes(session, body, lent);
  if (!bytes) {
    session.Violation("it lends bytes that are not its own");
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (body.form == CopyForm::kSynchronous) stream = nullptr;
  OrderPosted(session, request, to_device && body.form == CopyForm::kSynchronous);
  if (const CUresult prepared = session.objects().Prepare()) return prepared;
  const CUresult result = Copy(session, to_device, body.device, bytes, stream);
  // Of a copy to the device the mark only says that the bytes may be used again.
  return result == CUDA_SUCCESS ? WriteMark(session, request, stream, lent.mark, !to_device) : result;
}

// The driver itself waits for the stream when it copies into memory that it does not know. While anything is captured, a
// request that does so keeps others from their turn, and what the stream waits for may be one of them: so the wait comes
// first, without the turn. A stream that is captured waits for nothing.
CUresult AwaitWithoutTurn(Session& session, CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (!session.objects().HasAny() || stream == nullptr || stream == CU_STREAM_LEGACY) return CUDA_SUCCESS;
  {
    const OwnCalls own_calls;
    if (TheDriver().cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS ||
        status != CU_STREAM_CAPTURE_STATUS_NONE)
      return CUDA_SUCCESS;
  }
  if (const CUresult result = Synchronize(session, stream)) return result;
  return session.objects().Prepare();
}

}  // namespace

// Freeing device memory is the one call that waits for everything on the device and yet breaks no other
// thread's capture, as do natively the calls for which it stands (cuMemFreeHost); cuCtxSynchronize breaks it.
CUresult Serve_kDrainDevice(Session&, Request&) {
  return Uncounted::AllocateAndFree();
}

CUresult Serve_kCopyToDevice(Session& session, Request& request) {
  const CopyBody body = TakeCopy(request);
  auto stream = session.objects().ToDriver<CUstream>(body.stream, request.in);
  session.CountCopied(true, body.bytes);
  const bool posted = request.channel == kChannelCount;
  if (posted && body.bytes_in == BytesIn::kRegion)
    return request.in.ok() ? CopyLent(session, request, body, stream, true) : request.in.error();
  const std::byte* from = nullptr;
  const uint64_t mark = body.bytes_in == BytesIn::kFencedMessage ? request.in.Get<uint64_t>() : 0;
  if (body.bytes_in == BytesIn::kRegion) {
    from = LentBytes(session, body, request.in.Get<LentBody>()).data();
  } else if (body.bytes_in != BytesIn::kRequestBuffer) {
    from = request.in.Take(body.bytes);
  } else if (body.bytes <= request.bulk.size()) {
    from = request.bulk.data();
  }
  if (!request.in.ok() || from == nullptr)
    return request.in.ok() ? CUDA_ERROR_INVALID_VALUE : request.in.error();
  if (posted && mark != 0) return CopyMarked(session, request, body, from, stream, mark);
  if (posted) OrderPosted(session, request, body.form == CopyForm::kSynchronous);
  if (const CUresult prepared = session.objects().Prepare()) return prepared;
  if (request.staged && body.bytes_in == BytesIn::kRequestBuffer) {
    const CUresult result = ToDevice(session, body.device, from, body.bytes, stream);
    return result != CUDA_SUCCESS ? result : AnswerWhenDone(request, stream);
  }
  if (request.unsettled) return CopyCaptured(session, request, body, from, nullptr);
  if (body.form == CopyForm::kSynchronous) {
    session.objects().Yield();
    return ToDeviceAndWait(session, body.device, from, body.bytes);
  }
  if (body.form == CopyForm::kAsynchronous) return CopyCaptured(session, request, body, from, stream);
  const bool in_region = IsInRegion(body);
  const CUresult result = in_region ? ToDevice(session, body.device, from, body.bytes, stream)
                                    : CopyCaptured(session, request, body, from, stream);
  return result != CUDA_SUCCESS ? result : Synchronize(session, stream);
}

CUresult Serve_kCopyToHost(Session& session, Request& request) {
  const CopyBody body = TakeCopy(request);
  auto stream = session.objects().ToDriver<CUstream>(body.stream, request.in);
  if (!request.in.ok()) return request.in.error();
  session.CountCopied(false, body.bytes);
  if (request.channel == kChannelCount && body.bytes_in == BytesIn::kRegion)
    return CopyLent(session, request, body, stream, false);
  std::byte* to = nullptr;
  if (body.bytes_in == BytesIn::kRegion) {
    to = LentBytes(session, body, request.in.Get<LentBody>()).data();
  } else if (body.bytes_in != BytesIn::kRequestBuffer) {
    // No library asks for a large reply here, which lies in a buffer for bytes that the driver does not know.
    if (request.channel == kChannelCount || (request.header.flags & kLargeReply) != 0)
      return CUDA_ERROR_INVALID_VALUE;
    to = body.bytes <= kMaxChannelCopyBytes ? request.out.Reserve(body.bytes) : nullptr;
  } else if (body.bytes <= request.bulk.size()) {
    to = request.bulk.data();
    request.bulk_written = static_cast<uint32_t>(body.bytes);
  }
  if (to == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // Bytes that come in the reply are there before it is sent.
  const bool staged = request.staged && IsInRegion(body);
  if (body.form == CopyForm::kSynchronous && !staged)
    return ToHostAndWait(session, to, body.device, body.bytes);
  if (const CUresult prepared = session.objects().Prepare()) return prepared;
  if (!staged) {
    if (const CUresult waited = AwaitWithoutTurn(session, stream)) return waited;
  }
  const CUresult result = ToHost(session, to, body.device, body.bytes, stream);
  if (result != CUDA_SUCCESS) return result;
  return staged ? AnswerWhenDone(request, stream) : Synchronize(session, stream);
}

CUresult Serve_cuMemcpyHtoD_v2(Session& session, Request& request) {
  uint64_t device = 0;
  HostSpan host;
  if (const CUresult result = TakeAddresses(session, request, &device, &host)) return result;
  session.CountCopied(true, host.bytes());
  return ToDeviceAndWait(session, device, host.data(), host.bytes());
}

CUresult Serve_cuMemcpyDtoH_v2(Session& session, Request& request) {
  uint64_t device = 0;
  HostSpan host;
  if (const CUresult result = TakeAddresses(session, request, &device, &host)) return result;
  session.CountCopied(false, host.bytes());
  return ToHostAndWait(session, host.data(), device, host.bytes());
}

CUresult Serve_cuMemcpyHtoDAsync_v2(Session& session, Request& request) {
  return CopyPinned(session, request, true);
}

CUresult Serve_cuMemcpyDtoHAsync_v2(Session& session, Request& request) {
  return CopyPinned(session, request, false);
}

namespace {

CUresult CopyBetweenContexts(Session& session, Request& request, const BoxBody& message,
                             const CheckedBox& checked, CUstream stream) {
  static_assert(sizeof(CUDA_MEMCPY3D) == sizeof(CUDA_MEMCPY3D_PEER) &&
                offsetof(CUDA_MEMCPY3D, reserved0) == offsetof(CUDA_MEMCPY3D_PEER, srcContext) &&
                offsetof(CUDA_MEMCPY3D, reserved1) == offsetof(CUDA_MEMCPY3D_PEER, dstContext));
  auto peer = std::bit_cast<CUDA_MEMCPY3D_PEER>(checked.get());  // the same but for the contexts
  peer.srcContext = session.objects().ToDriver<CUcontext>(message.source_context, request.in);
  peer.dstContext = session.objects().ToDriver<CUcontext>(message.destination_context, request.in);
  if (!request.in.ok()) return request.in.error();
  return message.form == CopyForm::kSynchronous ? TheDriver().cuMemcpy3DPeer(&peer)
                                                : TheDriver().cuMemcpy3DPeerAsync(&peer, stream);
}

// Handles inside the box travel beside it; a host side either names pinned memory or lies packed in the bulk
// buffer (its pitch and height then describe the packed box).
CUresult TakeBox(Session& session, Request& request, const BoxBody& message, CheckedBox* checked) {
  CUDA_MEMCPY3D box = message.box;
  box.srcArray = session.objects().ToDriver<CUarray>(message.source_array, request.in);
  box.dstArray = session.objects().ToDriver<CUarray>(message.destination_array, request.in);
  if (!request.in.ok()) return request.in.error();
  const PackedSide packed_side = message.packed_side;
  if (const CUresult result = CheckedBox::Check(session, box, packed_side, request.bulk, checked))
    return result;
  if (checked->bulk_written() != 0) request.bulk_written = static_cast<uint32_t>(checked->bulk_written());
  return CUDA_SUCCESS;
}

// Linear memory that the driver itself reads or writes must be known to it: else it could be the worker's.
bool IsDriverMemory(uint64_t address) {
  const OwnCalls own_calls;
  unsigned type = 0;
  return TheDriver().cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) == CUDA_SUCCESS;
}

}  // namespace

CUresult Serve_cuMemcpy3D_v2(Session& session, Request& request) {
  const auto message = request.in.Get<BoxBody>();
  if (!request.in.ok()) return request.in.error();
  if (!IsKnown(message.form)) return CUDA_ERROR_INVALID_VALUE;
  auto stream = session.objects().ToDriver<CUstream>(message.stream, request.in);
  CheckedBox checked;
  if (const CUresult result = TakeBox(session, request, message, &checked)) return result;
  if (const CUresult prepared = session.objects().Prepare()) return prepared;
  if (message.form == CopyForm::kSynchronous && !request.staged) session.objects().Yield();
  const bool waits = message.form == CopyForm::kSynchronous && !request.staged;
  const auto copy = [&] {
    if (message.source_context != 0 || message.destination_context != 0)
      return CopyBetweenContexts(session, request, message, checked, stream);
    return waits ? TheDriver().cuMemcpy3D_v2(&checked.get())
                 : TheDriver().cuMemcpy3DAsync_v2(&checked.get(), stream);
  };
  const CUDA_MEMCPY3D& box = checked.get();
  const bool to_device = box.srcMemoryType == CU_MEMORYTYPE_HOST;
  const uint64_t bytes = box.WidthInBytes * box.Height * box.Depth;
  const CUresult result = to_device != (box.dstMemoryType == CU_MEMORYTYPE_HOST)
                              ? session.CopyAtOnce(to_device, bytes, stream, waits, copy)
                              : copy();
  if (result != CUDA_SUCCESS) return result;
  if (request.staged) return AnswerWhenDone(request, stream);
  if (message.form != CopyForm::kStreamThenWait) return result;
  return Synchronize(session, stream);
}

CUresult Serve_cuMemBatchDecompressAsync(Session& session, Request& request) {
  const auto body = request.in.Get<DecompressBody>();
  auto stream = session.objects().ToDriver<CUstream>(body.stream, request.in);
  if (body.count == 0 || body.count > kMaxDecompressions) return CUDA_ERROR_INVALID_VALUE;
  CUmemDecompressParams parameters[kMaxDecompressions];
  for (uint32_t i = 0; i < body.count; ++i) {
    const std::byte* from = request.in.Take(sizeof parameters[i]);
    if (from == nullptr) return request.in.error();
    CUmemDecompressParams given;
    std::memcpy(&given, from, sizeof given);
    parameters[i] = {};  // nothing of the guest's in its padding
    parameters[i].srcNumBytes = given.srcNumBytes;
    parameters[i].dstNumBytes = given.dstNumBytes;
    parameters[i].dstActBytes = given.dstActBytes;
    parameters[i].src = given.src;
    parameters[i].dst = given.dst;
    parameters[i].algo = given.algo;
    if (const CUresult result = Admit(parameters[i].algo)) return result;
  }
  if (!request.in.ok()) return request.in.error();
  if (!OnlyFlags(body.flags, kNoFlags)) return CUDA_ERROR_INVALID_VALUE;
  size_t index = SIZE_MAX;
  CUresult result = CUDA_SUCCESS;
  for (uint32_t i = 0; i < body.count && result == CUDA_SUCCESS; ++i) {
    for (const void* named :
         {static_cast<const void*>(parameters[i].src), static_cast<const void*>(parameters[i].dst),
          static_cast<const void*>(parameters[i].dstActBytes)}) {
      if (IsDriverMemory(reinterpret_cast<uint64_t>(named))) continue;
      result = CUDA_ERROR_INVALID_VALUE;
      index = i;
    }
  }
  if (result == CUDA_SUCCESS) result = session.objects().Prepare();
  if (result == CUDA_SUCCESS)
    result = TheDriver().cuMemBatchDecompressAsync(parameters, body.count, body.flags, &index, stream);
  request.out.Put(static_cast<uint64_t>(index));
  return result;
}

}  // namespace causeway::host
