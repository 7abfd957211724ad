// SPDX-License-Identifier: Apache-2.0
// What the handlers of shared things have in common.
#pragma once
#include "host_backend/worker/process/daemon_link.h"
#include "host_backend/worker/session/session.h"
#include "ivshmem_ring/messages/sharing_messages.h"
#include "ivshmem_ring/protocol/known_values.h"

namespace causeway::host {

// The driver's 64 bytes, which `call` gets from it, become a token in the reply.
template <class Bytes>
CUresult ShareBytes(Session& session, Request& request, SharedKind kind, auto call) {
  if (!request.in.ok()) return request.in.error();
  if (session.daemon() == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  Bytes bytes{};
  SharedToken token{};
  if (const CUresult result = call(&bytes)) return result;
  if (const CUresult result = session.daemon()->Put(kind, &bytes, -1, &token)) return result;
  request.out.Put(token);
  return request.out.error();
}

// The 64 bytes that a token of a message stands for.
CUresult TakeBytes(Session& session, const Request& request, SharedKind kind, const SharedToken& token,
                   auto* bytes) {
  if (!request.in.ok()) return request.in.error();
  if (session.daemon() == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  return session.daemon()->Get(kind, token, bytes, nullptr);
}

// Where memory that was opened begins, and how much of it there is.
inline OpenedMemory Opened(CUdeviceptr address) {
  CUdeviceptr base = address;
  size_t bytes = 0;
  if (TheDriver().cuMemGetAddressRange_v2(&base, &bytes, address) != CUDA_SUCCESS) return {address, 0};
  return {address, bytes - (address - base)};
}

// Shareable handles of allocations and pools: a descriptor, or 64 bytes for a fabric. `export_to` writes one of
// the type that it gets too.
template <class Export>
CUresult ShareHandle(Session& session, Request& request, const ShareableBody& body, bool is_pool,
                     Export export_to) {
  if (!request.in.ok()) return request.in.error();
  if (!OnlyFlags(body.flags, kNoFlags)) return CUDA_ERROR_INVALID_VALUE;
  CUmemAllocationHandleType type;
  if (const CUresult result = TakeKnown(body.type, &type)) return result;
  if (session.daemon() == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    int descriptor = -1;
    if (const CUresult result = export_to(&descriptor, type)) return result;
    const UniqueFd own(descriptor);
    SharedToken token{};
    const SharedKind kind = is_pool ? SharedKind::kPool : SharedKind::kMemory;
    if (const CUresult result = session.daemon()->Put(kind, nullptr, descriptor, &token)) return result;
    request.out.Put(token);
    return request.out.error();
  }
  if (type != CU_MEM_HANDLE_TYPE_FABRIC) return CUDA_ERROR_NOT_SUPPORTED;
  return ShareBytes<CUmemFabricHandle>(session, request,
                                       is_pool ? SharedKind::kFabricPool : SharedKind::kFabricMemory,
                                       [&](void* fabric) { return export_to(fabric, type); });
}

// `import_from` gets what the driver expects as an OS handle: the descriptor as a pointer, or a pointer to 64
// bytes; and its type.
template <class Import>
CUresult OpenHandle(Session& session, const Request& request, const ShareableBody& body, bool is_pool,
                    Import import_from) {
  if (!request.in.ok()) return request.in.error();
  CUmemAllocationHandleType type;
  if (const CUresult result = TakeKnown(body.type, &type)) return result;
  if (session.daemon() == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    UniqueFd descriptor;
    const SharedKind kind = is_pool ? SharedKind::kPool : SharedKind::kMemory;
    if (const CUresult result = session.daemon()->Get(kind, body.token, nullptr, &descriptor)) return result;
    if (!descriptor) return CUDA_ERROR_INVALID_VALUE;
    return import_from(reinterpret_cast<void*>(static_cast<intptr_t>(descriptor.get())), type);
  }
  if (type != CU_MEM_HANDLE_TYPE_FABRIC) return CUDA_ERROR_NOT_SUPPORTED;
  CUmemFabricHandle fabric{};
  const SharedKind kind = is_pool ? SharedKind::kFabricPool : SharedKind::kFabricMemory;
  if (const CUresult result = session.daemon()->Get(kind, body.token, &fabric, nullptr)) return result;
  return import_from(&fabric, type);
}

}  // namespace causeway::host
