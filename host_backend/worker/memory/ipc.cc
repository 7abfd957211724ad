// SPDX-License-Identifier: Apache-2.0
// IPC handles of memory and events: the driver's own go to the daemon, the guest gets a token
// (ivshmem_ring/messages/sharing_messages.h). What one worker opens another worker has made; in its own the
// driver refuses it, as natively in the process that made it.
#include "host_backend/worker/memory/sharing.h"
#include "ivshmem_ring/protocol/known_values.h"

namespace causeway::host {

CUresult Serve_cuIpcGetMemHandle(Session& session, Request& request) {
  const auto body = request.in.Get<ShareAddressBody>();
  if (!request.in.ok()) return request.in.error();
  if (session.daemon() == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  CUipcMemHandle handle{};
  if (const CUresult result = TheDriver().cuIpcGetMemHandle(&handle, body.address)) return result;
  return ShareBytes(session, request, SharedKind::kIpcMemory, &handle);
}

CUresult Serve_cuIpcOpenMemHandle_v2(Session& session, Request& request) {
  const auto body = request.in.Get<OpenSharedBody>();
  if (!request.in.ok()) return request.in.error();
  if (!OnlyFlags(body.flags, kOpenMemoryFlags)) return CUDA_ERROR_INVALID_VALUE;
  if (session.daemon() == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  CUipcMemHandle handle{};
  if (const CUresult result = session.daemon()->Get(SharedKind::kIpcMemory, body.token, &handle, nullptr))
    return result;
  CUdeviceptr address = 0;
  if (const CUresult result = TheDriver().cuIpcOpenMemHandle_v2(&address, handle, body.flags)) return result;
  request.out.Put(Opened(address));
  return request.out.error();
}

CUresult Serve_cuIpcGetEventHandle(Session& session, Request& request) {
  auto event = session.objects().ToDriver<CUevent>(request.in.Get<WireHandle>(), request.in);
  if (!request.in.ok()) return request.in.error();
  if (session.daemon() == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  CUipcEventHandle handle{};
  if (const CUresult result = TheDriver().cuIpcGetEventHandle(&handle, event)) return result;
  return ShareBytes(session, request, SharedKind::kIpcEvent, &handle);
}

CUresult Serve_cuIpcOpenEventHandle(Session& session, Request& request) {
  const auto body = request.in.Get<OpenSharedBody>();
  if (!request.in.ok()) return request.in.error();
  if (session.daemon() == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  CUipcEventHandle handle{};
  if (const CUresult result = session.daemon()->Get(SharedKind::kIpcEvent, body.token, &handle, nullptr))
    return result;
  CUevent event = nullptr;
  if (const CUresult result = TheDriver().cuIpcOpenEventHandle(&event, handle)) return result;
  session.objects().Bind(HandleKind::kEvent, body.object, event, request.out);
  return request.out.error();
}

}  // namespace causeway::host
