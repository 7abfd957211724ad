// SPDX-License-Identifier: Apache-2.0
// Memory pools that processes share, and pointers into them.
#include "host_backend/worker/memory/sharing.h"
#include "ivshmem_ring/protocol/known_values.h"

namespace causeway::host {

CUresult Serve_cuMemPoolExportToShareableHandle(Session& session, Request& request) {
  const auto body = request.in.Get<ShareableBody>();
  auto pool = session.objects().ToDriver<CUmemoryPool>(body.object, request.in);
  if (!request.in.ok()) return request.in.error();
  if (!OnlyFlags(body.flags, kNoFlags)) return CUDA_ERROR_INVALID_VALUE;
  CUmemAllocationHandleType type;
  if (const CUresult result = TakeKnown(body.type, &type)) return result;
  if (session.daemon() == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  return ShareHandle(session, request, body.type, true, [&](void* handle) {
    return TheDriver().cuMemPoolExportToShareableHandle(handle, pool, type, body.flags);
  });
}

CUresult Serve_cuMemPoolImportFromShareableHandle(Session& session, Request& request) {
  const auto body = request.in.Get<ShareableBody>();
  if (!request.in.ok()) return request.in.error();
  if (!OnlyFlags(body.flags, kNoFlags)) return CUDA_ERROR_INVALID_VALUE;
  CUmemAllocationHandleType type;
  if (const CUresult result = TakeKnown(body.type, &type)) return result;
  if (session.daemon() == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  CUmemoryPool pool = nullptr;
  const CUresult result = OpenHandle(session, body, true, [&](void* handle) {
    return TheDriver().cuMemPoolImportFromShareableHandle(&pool, handle, type, body.flags);
  });
  if (result != CUDA_SUCCESS) return result;
  WireHandle known = session.objects().Known(HandleKind::kMemoryPool, pool);
  if (known == 0) session.objects().Bind(HandleKind::kMemoryPool, known = body.object, pool, request.out);
  request.out.Put(known);
  return request.out.error();
}

CUresult Serve_cuMemPoolExportPointer(Session& session, Request& request) {
  const auto body = request.in.Get<ShareAddressBody>();
  if (!request.in.ok()) return request.in.error();
  if (session.daemon() == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  CUmemPoolPtrExportData data{};
  if (const CUresult result = TheDriver().cuMemPoolExportPointer(&data, body.address)) return result;
  return ShareBytes(session, request, SharedKind::kPoolPointer, &data);
}

CUresult Serve_cuMemPoolImportPointer(Session& session, Request& request) {
  const auto body = request.in.Get<OpenSharedBody>();
  auto pool = session.objects().ToDriver<CUmemoryPool>(body.object, request.in);
  if (!request.in.ok()) return request.in.error();
  if (session.daemon() == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  CUmemPoolPtrExportData data{};
  if (const CUresult result = session.daemon()->Get(SharedKind::kPoolPointer, body.token, &data, nullptr))
    return result;
  CUdeviceptr address = 0;
  if (const CUresult result = TheDriver().cuMemPoolImportPointer(&address, pool, &data)) return result;
  request.out.Put(Opened(address));
  return request.out.error();
}

}  // namespace causeway::host
