// SPDX-License-Identifier: Apache-2.0
// Memory pools that processes share, and pointers into them.
#include "host_backend/worker/memory/sharing.h"

namespace causeway::host {

CUresult Serve_cuMemPoolExportToShareableHandle(Session& session, Request& request) {
  const auto body = request.in.Get<ShareableBody>();
  auto pool = session.objects().ToDriver<CUmemoryPool>(body.object, request.in);
  return ShareHandle(session, request, body, true, [&](void* handle, CUmemAllocationHandleType type) {
    return TheDriver().cuMemPoolExportToShareableHandle(handle, pool, type, body.flags);
  });
}

CUresult Serve_cuMemPoolImportFromShareableHandle(Session& session, Request& request) {
  const auto body = request.in.Get<ShareableBody>();
  if (request.in.ok() && !OnlyFlags(body.flags, kNoFlags)) return CUDA_ERROR_INVALID_VALUE;
  if (request.in.ok()) {
    if (const CUresult result = RequireNumber(HandleKind::kMemoryPool, body.object)) return result;
  }
  CUmemoryPool pool = nullptr;
  const auto import = [&](void* handle, CUmemAllocationHandleType type) {
    return TheDriver().cuMemPoolImportFromShareableHandle(&pool, handle, type, body.flags);
  };
  if (const CUresult result = OpenHandle(session, request, body, true, import)) return result;
  request.out.Put(session.objects().BindOrKnown(HandleKind::kMemoryPool, body.object, pool, request.out));
  return request.out.error();
}

CUresult Serve_cuMemPoolExportPointer(Session& session, Request& request) {
  const auto body = request.in.Get<ShareAddressBody>();
  return ShareBytes<CUmemPoolPtrExportData>(session, request, SharedKind::kPoolPointer, [&](auto* data) {
    return TheDriver().cuMemPoolExportPointer(data, body.address);
  });
}

CUresult Serve_cuMemPoolImportPointer(Session& session, Request& request) {
  const auto body = request.in.Get<OpenSharedBody>();
  auto pool = session.objects().ToDriver<CUmemoryPool>(body.object, request.in);
  CUmemPoolPtrExportData data{};
  if (const CUresult result = TakeBytes(session, request, SharedKind::kPoolPointer, body.token, &data))
    return result;
  CUdeviceptr address = 0;
  if (const CUresult result = TheDriver().cuMemPoolImportPointer(&address, pool, &data)) return result;
  request.out.Put(Opened(address));
  return request.out.error();
}

}  // namespace causeway::host
