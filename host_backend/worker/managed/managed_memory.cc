// SPDX-License-Identifier: Apache-2.0
// Managed memory of the driver's: bytes to and from the pages that the guest has at the same addresses. They
// are copied by the driver on a stream of the guest's, so a copy neither waits for other work nor moves pages
// that the device uses. Variables may be looked at before there is a context to copy in: those are copied on
// a stream of the worker's own, in the primary context if the guest has none. This process never touches such
// an address itself: the block or module may end at any moment, and the address may then be the worker's. The
// driver's typed copies look it up and refuse what is not wholly the driver's.
//
// Pinned and registered memory of a guest that shares none is exchanged by the same messages. It is this process's own memory at
// an address that stays the guest's (host_backend/worker/host_register/host_register.h), so the calling thread
// copies it, and needs neither a stream nor a context.
#include <cstring>
#include <optional>

#include "host_backend/worker/accounting/managed_copies.h"
#include "host_backend/worker/addresses/arenas.h"
#include "host_backend/worker/driver/logs.h"
#include "host_backend/worker/session/session.h"
#include "ivshmem_ring/messages/managed_messages.h"
#include "ivshmem_ring/protocol/known_values.h"

namespace causeway::host {
namespace {

// The driver answers questions about pointers in a context, which a program's first look at a managed
// variable comes without.
class SomeContext {
 public:
  SomeContext() {
    CUcontext current = nullptr, primary = nullptr;
    if (TheDriver().cuCtxGetCurrent(&current) != CUDA_SUCCESS || current != nullptr) return;
    if (TheDriver().cuDevicePrimaryCtxRetain(&primary, 0) != CUDA_SUCCESS) return;
    retained_ = true;
    TheDriver().cuCtxSetCurrent(primary);
  }
  ~SomeContext() {
    if (!retained_) return;
    TheDriver().cuCtxSetCurrent(nullptr);
    TheDriver().cuDevicePrimaryCtxRelease_v2(0);
  }
  SomeContext(const SomeContext&) = delete;
  SomeContext& operator=(const SomeContext&) = delete;

 private:
  bool retained_ = false;
};

// Asked anew each time: a module that is unloaded takes its variables with it.
bool IsManaged(const ManagedPiece& body) {
  const OwnCalls own_calls;
  const SomeContext context;
  const auto is_managed = [](CUdeviceptr address) {
    int managed = 0;
    const CUresult result =
        TheDriver().cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address);
    return result == CUDA_SUCCESS && managed != 0;
  };
  return body.bytes != 0 && body.bytes <= kMaxManagedVariableBytes && body.address <= ~body.bytes &&
         is_managed(body.address) && is_managed(body.address + body.bytes - 1);
}

// The pieces of a message: all of them fit the bulk buffer together.
struct Copy {
  CUstream stream = nullptr;
  bool by_driver = false;
  uint32_t count = 0;
  ManagedPiece piece[kMaxManagedPieces];
};

CUresult TakeCopy(Session& session, Request& request, Copy* copy) {
  const auto body = request.in.Get<ManagedCopyBody>();
  copy->by_driver = body.stream != 0;
  copy->stream = session.objects().ToDriver<CUstream>(body.stream, request.in);
  if (body.count > kMaxManagedPieces) return CUDA_ERROR_INVALID_VALUE;
  copy->count = body.count;
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < body.count; ++i) {
    copy->piece[i] = request.in.Get<ManagedPiece>();
    if (copy->piece[i].bytes > request.bulk.size() - bytes) return CUDA_ERROR_INVALID_VALUE;
    bytes += copy->piece[i].bytes;
  }
  return request.in.error();
}

// The stream that a message names, or one that waits for nothing, for as long as this lives.
class CopyStream {
 public:
  explicit CopyStream(const Copy& copy) : stream_(copy.stream) {
    if (copy.by_driver) return;
    context_.emplace();
    result_ = TheDriver().cuStreamCreate(&own_, CU_STREAM_NON_BLOCKING);
    stream_ = own_;
  }
  ~CopyStream() {
    if (own_ != nullptr) TheDriver().cuStreamDestroy_v2(own_);
  }
  CopyStream(const CopyStream&) = delete;
  CopyStream& operator=(const CopyStream&) = delete;

  CUresult result() const { return result_; }
  CUstream get() const { return stream_; }
  // Whatever was queued is done when this returns, also after an error: the buffer is the guest's again.
  CUresult Settle(CUresult result) const {
    if (result_ != CUDA_SUCCESS) return result_;
    const CUresult settled = TheDriver().cuStreamSynchronize(stream_);
    return result != CUDA_SUCCESS ? result : settled;
  }

 private:
  CUstream stream_ = nullptr, own_ = nullptr;
  CUresult result_ = CUDA_SUCCESS;
  std::optional<SomeContext> context_;
};

// Takes a message's pieces and copies one after the other from or to its bulk buffer: `copy_piece` is told whether
// the memory is there, and where in the buffer the piece lies; `copy_pinned` gets what is pinned.
CUresult CopyPieces(Session& session, Request& request, auto copy_piece, auto copy_pinned) {
  Copy copy;
  if (const CUresult result = TakeCopy(session, request, &copy)) return result;
  if (const CUresult result = session.objects().Prepare()) return result;
  const ManagedCopy copied(std::span(copy.piece, copy.count));
  std::optional<CopyStream> stream;
  CUresult result = CUDA_SUCCESS;
  std::byte* at = request.bulk.data();
  for (uint32_t i = 0; i < copy.count && result == CUDA_SUCCESS; ++i) {
    const ManagedPiece& piece = copy.piece[i];
    HostSpan pinned;
    if (!copy.by_driver && !session.shares_memory())
      pinned = session.part<Arenas>().ResolveAddress(piece.address, piece.bytes);
    if (pinned) {
      if (stream) result = stream->Settle(result);  // pieces are copied in the message's order
      copy_pinned(pinned, at);
    } else {
      if (!stream) result = stream.emplace(copy).result();
      if (result == CUDA_SUCCESS)
        result = copy_piece(piece, copy.by_driver || IsManaged(piece), at, stream->get());
    }
    at += piece.bytes;
  }
  session.objects().Yield();
  return stream ? stream->Settle(result) : result;
}

}  // namespace

CUresult Serve_kFindManaged(Session&, Request& request) {
  const auto body = request.in.Get<ManagedPiece>();
  if (!request.in.ok()) return request.in.error();
  request.out.Put(static_cast<uint32_t>(IsManaged(body)));
  return request.out.error();
}

CUresult Serve_kWriteManaged(Session& session, Request& request) {
  return CopyPieces(
      session, request,
      [](const ManagedPiece& piece, bool is_there, const std::byte* from, CUstream stream) {
        // A variable that is not there went with its module, as the program's write would have.
        return is_there ? TheDriver().cuMemcpyHtoDAsync_v2(piece.address, from, piece.bytes, stream)
                        : CUDA_SUCCESS;
      },
      [](HostSpan to, const std::byte* from) { std::memcpy(to.data(), from, to.bytes()); });
}

CUresult Serve_kReadManaged(Session& session, Request& request) {
  uint64_t bytes = 0;
  const CUresult result = CopyPieces(
      session, request,
      [&](const ManagedPiece& piece, bool is_there, std::byte* to, CUstream stream) {
        bytes += piece.bytes;
        return is_there ? TheDriver().cuMemcpyDtoHAsync_v2(to, piece.address, piece.bytes, stream)
                        : CUDA_ERROR_INVALID_VALUE;
      },
      [&](HostSpan from, std::byte* to) {
        bytes += from.bytes();
        std::memcpy(to, from.data(), from.bytes());
      });
  if (result == CUDA_SUCCESS) request.bulk_written = static_cast<uint32_t>(bytes);
  return result;
}

namespace {

// Any location will do: the guest reaches managed memory wherever it is.
CUresult TakeLocation(const ManagedHintBody& body, CUmemLocation* location) {
  location->id = body.location_id;
  return TakeKnown(body.location_type, &location->type);
}

}  // namespace

CUresult Serve_cuMemPrefetchAsync_v2(Session& session, Request& request) {
  const auto body = request.in.Get<ManagedHintBody>();
  auto stream = session.objects().ToDriver<CUstream>(body.stream, request.in);
  if (!request.in.ok()) return request.in.error();
  CUmemLocation location{};
  if (const CUresult result = TakeLocation(body, &location)) return result;
  if (const CUresult result = session.objects().Prepare()) return result;
  return TheDriver().cuMemPrefetchAsync_v2(body.address, body.bytes, location, 0, stream);
}

CUresult Serve_cuMemAdvise_v2(Session&, Request& request) {
  const auto body = request.in.Get<ManagedHintBody>();
  if (!request.in.ok()) return request.in.error();
  CUmemLocation location{};
  CUmem_advise advice;
  if (const CUresult result = TakeKnown(body.advice, &advice)) return result;
  if (const CUresult result = TakeLocation(body, &location)) return result;
  return TheDriver().cuMemAdvise_v2(body.address, body.bytes, advice, location);
}

CUresult Serve_cuMemRangeGetAttribute(Session&, Request& request) {
  const auto body = request.in.Get<RangeAttributeBody>();
  if (!request.in.ok()) return request.in.error();
  if (body.data_bytes == 0 || body.data_bytes > kMaxRangeAttributeBytes) return CUDA_ERROR_INVALID_VALUE;
  CUmem_range_attribute attribute;
  if (const CUresult result = TakeKnown(body.attribute, &attribute)) return result;
  alignas(8) std::byte data[kMaxRangeAttributeBytes] = {};
  const CUresult result =
      TheDriver().cuMemRangeGetAttribute(data, body.data_bytes, attribute, body.address, body.bytes);
  if (result == CUDA_SUCCESS) request.out.PutBytes(data, body.data_bytes);
  return result != CUDA_SUCCESS ? result : request.out.error();
}

}  // namespace causeway::host
