// SPDX-License-Identifier: Apache-2.0
// Copies between guest and device. Pinned: the message names addresses in the window, checked against the
// session's arenas, and the driver copies with no step between. Pageable: bytes lie in a bulk buffer or in
// the message.
#include <cstring>

#include "host_backend/completion.h"
#include "host_backend/session.h"
#include "ivshmem_ring/copy_messages.h"

namespace causeway::host {
namespace {

// The host side must be the session's own pinned memory; the device side is for the driver to judge.
CUresult CheckPinned(Session& session, uint64_t host, uint64_t bytes) {
  if (session.ResolveAddress(host, bytes) != nullptr) return CUDA_SUCCESS;
  session.violations.fetch_add(1);
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult CopyPinned(Session& session, Request& request, bool to_device) {
  const auto body = request.in.Get<PinnedBody>();
  auto stream = static_cast<CUstream>(session.ToDriver(HandleKind::kStream, body.stream, request.in));
  if (!request.in.ok()) return request.in.error();
  if (const CUresult result = CheckPinned(session, body.host, body.bytes)) return result;
  auto* host = reinterpret_cast<void*>(body.host);
  const CUresult result = to_device ? TheDriver().cuMemcpyHtoDAsync_v2(body.device, host, body.bytes, stream)
                                    : TheDriver().cuMemcpyDtoHAsync_v2(host, body.device, body.bytes, stream);
  return result == CUDA_SUCCESS && body.mark != 0 ? WriteMark(session, request, stream, body.mark) : result;
}

struct Addresses {
  uint64_t device;
  uint64_t host;
  uint64_t bytes;
};

CUresult TakeAddresses(Session& session, Request& request, Addresses* addresses) {
  *addresses = request.in.Get<Addresses>();
  if (!request.in.ok()) return request.in.error();
  return CheckPinned(session, addresses->host, addresses->bytes);
}

// The source of an asynchronous pageable copy may change as soon as the call has returned, so the driver must
// capture it: it does so for memory that is not registered, as a message, and a copy of a bulk buffer.
CUresult CopyCaptured(const CopyBody& body, const std::byte* from, CUstream stream) {
  thread_local std::vector<std::byte> captured;
  const bool in_region = body.in_message == 0 || body.in_message == kBytesLent;
  if (in_region) captured.assign(from, from + body.bytes);
  const void* source = in_region ? captured.data() : from;
  return TheDriver().cuMemcpyHtoDAsync_v2(body.device, source, body.bytes, stream);
}

// `relied_on`: others may rely on this posted copy, which is waited for before they come; else it comes after
// all such. In a lane nobody does, and the dispatcher has waited already.
void OrderPosted(Session& session, Request& request, bool relied_on) {
  if (request.in_lane) return;
  request.unsettled = relied_on;
  if (!relied_on) session.Settle();  // its stream may be one that does not wait for the others
}

// A posted copy whose guest waits for its mark.
CUresult CopyMarked(Session& session, Request& request, const CopyBody& body, const std::byte* from,
                    CUstream stream, uint64_t mark) {
  if (body.synchronous == 1) stream = nullptr;
  OrderPosted(session, request, false);
  const CUresult result = CopyCaptured(body, from, stream);
  return result == CUDA_SUCCESS ? WriteMark(session, request, stream, mark) : result;
}

// Where the guest has lent the bytes of a copy. Null: nowhere.
std::byte* LentBytes(Session& session, const CopyBody& body, const LentBody& lent) {
  return body.bytes <= kBulkBytes ? session.ResolveOffset(lent.offset, body.bytes) : nullptr;
}

// A posted copy whose bytes lie where the guest has lent them; it leaves them alone until the mark behind the
// copy has come.
CUresult CopyLent(Session& session, Request& request, const CopyBody& body, CUstream stream, bool to_device) {
  const auto lent = request.in.Get<LentBody>();
  if (!request.in.ok()) return request.in.error();
  std::byte* bytes = LentBytes(session, body, lent);
  if (bytes == nullptr) {
    session.violations.fetch_add(1);
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (body.synchronous == 1) stream = nullptr;
  OrderPosted(session, request, to_device && body.synchronous == 1);
  const CUresult result = to_device
                              ? TheDriver().cuMemcpyHtoDAsync_v2(body.device, bytes, body.bytes, stream)
                              : TheDriver().cuMemcpyDtoHAsync_v2(bytes, body.device, body.bytes, stream);
  return result == CUDA_SUCCESS ? WriteMark(session, request, stream, lent.mark) : result;
}

}  // namespace

// Freeing device memory is the one call that waits for everything on the device and yet breaks no other
// thread's capture, as natively the calls do that this stands for (cuMemFreeHost); cuCtxSynchronize breaks
// captures.
CUresult Serve_kDrainDevice(Session&, Request&) {
  CUdeviceptr scratch = 0;
  const CUresult result = TheDriver().cuMemAlloc_v2(&scratch, 1);
  return result == CUDA_SUCCESS ? TheDriver().cuMemFree_v2(scratch) : result;
}

CUresult Serve_kCopyToDevice(Session& session, Request& request) {
  const auto body = request.in.Get<CopyBody>();
  auto stream = static_cast<CUstream>(session.ToDriver(HandleKind::kStream, body.stream, request.in));
  const bool posted = request.channel == kChannelCount;
  if (posted && body.in_message == kBytesLent)
    return request.in.ok() ? CopyLent(session, request, body, stream, true) : request.in.error();
  const std::byte* from = nullptr;
  const uint64_t mark = body.in_message == kBytesMarked ? request.in.Get<uint64_t>() : 0;
  if (body.in_message == kBytesLent) {
    from = LentBytes(session, body, request.in.Get<LentBody>());
  } else if (body.in_message != 0) {
    from = request.in.Take(body.bytes);
  } else if (body.bytes <= request.bulk.size()) {
    from = request.bulk.data();
  }
  if (!request.in.ok() || from == nullptr)
    return request.in.ok() ? CUDA_ERROR_INVALID_VALUE : request.in.error();
  if (request.staged && body.in_message == 0) {
    const CUresult result = TheDriver().cuMemcpyHtoDAsync_v2(body.device, from, body.bytes, stream);
    return result != CUDA_SUCCESS ? result : AnswerWhenDone(request, stream);
  }
  if (posted && mark != 0) return CopyMarked(session, request, body, from, stream, mark);
  if (posted) OrderPosted(session, request, body.synchronous == 1);
  if (request.unsettled) return CopyCaptured(body, from, nullptr);
  if (body.synchronous == 1) return TheDriver().cuMemcpyHtoD_v2(body.device, from, body.bytes);
  if (body.synchronous == 0) return CopyCaptured(body, from, stream);
  const CUresult result = TheDriver().cuMemcpyHtoDAsync_v2(body.device, from, body.bytes, stream);
  return result != CUDA_SUCCESS ? result : TheDriver().cuStreamSynchronize(stream);
}

CUresult Serve_kCopyToHost(Session& session, Request& request) {
  const auto body = request.in.Get<CopyBody>();
  auto stream = static_cast<CUstream>(session.ToDriver(HandleKind::kStream, body.stream, request.in));
  if (!request.in.ok()) return request.in.error();
  if (request.channel == kChannelCount && body.in_message == kBytesLent)
    return CopyLent(session, request, body, stream, false);
  std::byte* to = nullptr;
  if (body.in_message == kBytesLent) {
    to = LentBytes(session, body, request.in.Get<LentBody>());
  } else if (body.in_message != 0) {
    to = body.bytes <= kMaxChannelCopyBytes ? request.out.Reserve(body.bytes) : nullptr;
  } else if (body.bytes <= request.bulk.size()) {
    to = request.bulk.data();
    request.bulk_written = static_cast<uint32_t>(body.bytes);
  }
  if (to == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (body.synchronous == 1 && !request.staged)
    return TheDriver().cuMemcpyDtoH_v2(to, body.device, body.bytes);
  const CUresult result = TheDriver().cuMemcpyDtoHAsync_v2(to, body.device, body.bytes, stream);
  if (result != CUDA_SUCCESS) return result;
  return request.staged ? AnswerWhenDone(request, stream) : TheDriver().cuStreamSynchronize(stream);
}

CUresult Serve_cuMemcpyHtoD_v2(Session& session, Request& request) {
  Addresses at;
  if (const CUresult result = TakeAddresses(session, request, &at)) return result;
  return TheDriver().cuMemcpyHtoD_v2(at.device, reinterpret_cast<void*>(at.host), at.bytes);
}

CUresult Serve_cuMemcpyDtoH_v2(Session& session, Request& request) {
  Addresses at;
  if (const CUresult result = TakeAddresses(session, request, &at)) return result;
  return TheDriver().cuMemcpyDtoH_v2(reinterpret_cast<void*>(at.host), at.device, at.bytes);
}

CUresult Serve_cuMemcpyHtoDAsync_v2(Session& session, Request& request) {
  return CopyPinned(session, request, true);
}

CUresult Serve_cuMemcpyDtoHAsync_v2(Session& session, Request& request) {
  return CopyPinned(session, request, false);
}

// Boxes: CUDA_MEMCPY3D with handles as wire handles; a host side either names pinned memory or lies packed in
// the bulk buffer (its pitch and height then describe the packed box).
namespace {

CUresult ResolveHostSide(Session& session, Request& request, bool in_bulk, uint64_t span_bytes,
                         const void* named, void** resolved) {
  if (in_bulk) {
    if (span_bytes > request.bulk.size()) return CUDA_ERROR_INVALID_VALUE;
    *resolved = request.bulk.data();
    return CUDA_SUCCESS;
  }
  *resolved = session.ResolveAddress(reinterpret_cast<uint64_t>(named), span_bytes);
  return *resolved != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Bytes from a host side's base to the end of the box; false if it overflows what any region could hold.
bool BoxSpan(size_t x, size_t y, size_t z, size_t width, size_t height, size_t depth, size_t pitch,
             size_t rows, uint64_t* span) {
  constexpr uint64_t kLimit = uint64_t{1} << 40;
  if (width == 0 || height == 0 || depth == 0 || pitch > kLimit || rows > kLimit || x > kLimit ||
      y > kLimit || z > kLimit || width > kLimit || height > kLimit || depth > kLimit) {
    return false;
  }
  const auto last_row = (static_cast<unsigned __int128>(z) + depth - 1) * rows + y + height - 1;
  const unsigned __int128 bytes = last_row * pitch + x + width;
  if (bytes > kLimit) return false;
  *span = static_cast<uint64_t>(bytes);
  return true;
}

CUresult ResolveBox(Session& session, Request& request, BoxBody* message) {
  CUDA_MEMCPY3D& box = message->box;
  uint64_t span = 0;
  if (box.srcMemoryType == CU_MEMORYTYPE_UNIFIED || box.dstMemoryType == CU_MEMORYTYPE_UNIFIED) {
    return CUDA_ERROR_INVALID_VALUE;  // the guest resolves these before it sends
  }
  if (box.srcMemoryType == CU_MEMORYTYPE_HOST) {
    void* base = nullptr;
    if (!BoxSpan(box.srcXInBytes, box.srcY, box.srcZ, box.WidthInBytes, box.Height, box.Depth, box.srcPitch,
                 box.srcHeight, &span)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (const CUresult result =
            ResolveHostSide(session, request, message->bulk_side == 1, span, box.srcHost, &base)) {
      return result;
    }
    box.srcHost = base;
  }
  if (box.dstMemoryType == CU_MEMORYTYPE_HOST) {
    void* base = nullptr;
    if (!BoxSpan(box.dstXInBytes, box.dstY, box.dstZ, box.WidthInBytes, box.Height, box.Depth, box.dstPitch,
                 box.dstHeight, &span)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (const CUresult result =
            ResolveHostSide(session, request, message->bulk_side == 2, span, box.dstHost, &base)) {
      return result;
    }
    box.dstHost = base;
    if (message->bulk_side == 2) request.bulk_written = static_cast<uint32_t>(span);
  }
  box.srcArray =
      static_cast<CUarray>(session.ToDriver(HandleKind::kArray, message->source_array, request.in));
  box.dstArray =
      static_cast<CUarray>(session.ToDriver(HandleKind::kArray, message->destination_array, request.in));
  box.reserved0 = nullptr;
  box.reserved1 = nullptr;
  return request.in.error();
}

}  // namespace

namespace {

CUresult CopyBetweenContexts(Session& session, Request& request, const BoxBody& message, CUstream stream) {
  const CUDA_MEMCPY3D& box = message.box;
  CUDA_MEMCPY3D_PEER peer{};
  peer.srcXInBytes = box.srcXInBytes;
  peer.srcY = box.srcY;
  peer.srcZ = box.srcZ;
  peer.srcLOD = box.srcLOD;
  peer.srcMemoryType = box.srcMemoryType;
  peer.srcHost = box.srcHost;
  peer.srcDevice = box.srcDevice;
  peer.srcArray = box.srcArray;
  peer.srcPitch = box.srcPitch;
  peer.srcHeight = box.srcHeight;
  peer.dstXInBytes = box.dstXInBytes;
  peer.dstY = box.dstY;
  peer.dstZ = box.dstZ;
  peer.dstLOD = box.dstLOD;
  peer.dstMemoryType = box.dstMemoryType;
  peer.dstHost = box.dstHost;
  peer.dstDevice = box.dstDevice;
  peer.dstArray = box.dstArray;
  peer.dstPitch = box.dstPitch;
  peer.dstHeight = box.dstHeight;
  peer.WidthInBytes = box.WidthInBytes;
  peer.Height = box.Height;
  peer.Depth = box.Depth;
  peer.srcContext =
      static_cast<CUcontext>(session.ToDriver(HandleKind::kContext, message.source_context, request.in));
  peer.dstContext =
      static_cast<CUcontext>(session.ToDriver(HandleKind::kContext, message.destination_context, request.in));
  if (!request.in.ok()) return request.in.error();
  if (TheDriver().cuMemcpy3DPeer == nullptr || TheDriver().cuMemcpy3DPeerAsync == nullptr)
    return CUDA_ERROR_NOT_SUPPORTED;
  return message.asynchronous == 0 ? TheDriver().cuMemcpy3DPeer(&peer)
                                   : TheDriver().cuMemcpy3DPeerAsync(&peer, stream);
}

// Linear memory that the driver is to read or write by itself must be known to it: anything else could be
// this process's own.
bool IsDriverMemory(uint64_t address) {
  unsigned type = 0;
  return TheDriver().cuPointerGetAttribute != nullptr &&
         TheDriver().cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) == CUDA_SUCCESS;
}

}  // namespace

CUresult Serve_cuMemcpy3D_v2(Session& session, Request& request) {
  auto message = request.in.Get<BoxBody>();
  if (!request.in.ok()) return request.in.error();
  auto stream = static_cast<CUstream>(session.ToDriver(HandleKind::kStream, message.stream, request.in));
  if (const CUresult result = ResolveBox(session, request, &message)) return result;
  CUresult result;
  if (message.source_context != 0 || message.destination_context != 0) {
    result = CopyBetweenContexts(session, request, message, stream);
  } else if (message.asynchronous == 0 && !request.staged) {
    result = TheDriver().cuMemcpy3D_v2(&message.box);
  } else {
    result = TheDriver().cuMemcpy3DAsync_v2(&message.box, stream);
  }
  if (result != CUDA_SUCCESS) return result;
  if (request.staged) return AnswerWhenDone(request, stream);
  if (message.asynchronous != 2) return result;
  return TheDriver().cuStreamSynchronize(stream);
}

CUresult Serve_cuMemBatchDecompressAsync(Session& session, Request& request) {
  const auto body = request.in.Get<DecompressBody>();
  auto stream = static_cast<CUstream>(session.ToDriver(HandleKind::kStream, body.stream, request.in));
  if (body.count == 0 || body.count > kMaxDecompressions) return CUDA_ERROR_INVALID_VALUE;
  CUmemDecompressParams parameters[kMaxDecompressions];
  for (uint32_t i = 0; i < body.count; ++i) {
    const std::byte* from = request.in.Take(sizeof parameters[i]);
    if (from != nullptr) std::memcpy(&parameters[i], from, sizeof parameters[i]);
  }
  if (!request.in.ok()) return request.in.error();
  if (TheDriver().cuMemBatchDecompressAsync == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
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
  if (result == CUDA_SUCCESS)
    result = TheDriver().cuMemBatchDecompressAsync(parameters, body.count, body.flags, &index, stream);
  request.out.Put(static_cast<uint64_t>(index));
  return result;
}

}  // namespace causeway::host
