// SPDX-License-Identifier: Apache-2.0
// IPC handles of memory and events: the driver's own go to the daemon, the guest gets a token
// (ivshmem_ring/messages/sharing_messages.h). What one worker opens another worker has made; in its own the
// driver refuses it, as natively in the process that made it.
#include "host_backend/worker/memory/sharing.h"
#include "ivshmem_ring/protocol/known_values.h"

namespace causeway::host {

CUresult Serve_cuIpcGetMemHandle(Session& session, Request& request) {
  const auto body = request.in.Get<ShareAddressBody>();
  return ShareBytes<CUipcMemHandle>(session, request, SharedKind::kIpcMemory, [&](auto* handle) {
    return TheDriver().cuIpcGetMemHandle(handle, body.address);
  });
}

CUresult Serve_cuIpcOpenMemHandle_v2(Session& session, Request& request) {
  const auto body = request.in.Get<OpenSharedBody>();
  if (request.in.ok() && !OnlyFlags(body.flags, kOpenMemoryFlags)) return CUDA_ERROR_INVALID_VALUE;
  CUipcMemHandle handle{};
  if (const CUresult result = TakeBytes(session, request, SharedKind::kIpcMemory, body.token, &handle))
    return result;
  CUdeviceptr address = 0;
  if (const CUresult result = TheDriver().cuIpcOpenMemHandle_v2(&address, handle, body.flags)) return result;
  request.out.Put(Opened(address));
  return request.out.error();
}

CUresult Serve_cuIpcGetEventHandle(Session& session, Request& request) {
  auto event = session.objects().ToDriver<CUevent>(request.in.Get<WireHandle>(), request.in);
  return ShareBytes<CUipcEventHandle>(session, request, SharedKind::kIpcEvent, [&](auto* handle) {
    return TheDriver().cuIpcGetEventHandle(handle, event);
  });
}

CUresult Serve_cuIpcOpenEventHandle(Session& session, Request& request) {
  const auto body = request.in.Get<OpenSharedBody>();
  CUipcEventHandle handle{};
  if (const CUresult result = TakeBytes(session, request, SharedKind::kIpcEvent, body.token, &handle))
    return result;
  if (const CUresult result = RequireNumber(HandleKind::kEvent, body.object)) return result;
  CUevent event = nullptr;
  if (const CUresult result = TheDriver().cuIpcOpenEventHandle(&event, handle)) return result;
  session.objects().Bind(HandleKind::kEvent, body.object, event, request.out);
  return request.out.error();
}

}  // namespace causeway::host
