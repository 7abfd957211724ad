// SPDX-License-Identifier: Apache-2.0
// Contexts. The guest counts its references to primary contexts and sends only the first and the last.
#include "host_backend/session.h"

namespace causeway::host {

std::atomic<CUcontext> warm_context{nullptr};

namespace {

struct PrimaryBody {
  int32_t device;
  uint32_t reserved;
  WireHandle context;
};

// The last reference went, or a reset: all that was in the context is gone.
void EndPrimary(Session& session, const PrimaryBody& body) {
  session.NoteContextChange();
  if (warm_context.load() != nullptr) return;  // the worker's own reference keeps it
  session.UnbindContents(body.context);
  session.ForgetRegistrations();
}

}  // namespace

CUresult Serve_cuDevicePrimaryCtxRetain(Session& session, Request& request) {
  const auto body = request.in.Get<PrimaryBody>();
  if (!request.in.ok()) return request.in.error();
  CUcontext context = nullptr;
  if (const CUresult result = TheDriver().cuDevicePrimaryCtxRetain(&context, body.device)) return result;
  session.Bind(HandleKind::kContext, body.context, context, request.out);
  // The guest's reference takes the place of the worker's, so that the guest's last release ends the context.
  if (body.device == 0 && warm_context.exchange(nullptr) != nullptr)
    TheDriver().cuDevicePrimaryCtxRelease_v2(0);
  if (const CUresult result = TheDriver().cuCtxSetCurrent(context)) return result;
  const CUresult restored = session.RestoreRegistrations();
  TheDriver().cuCtxSetCurrent(nullptr);
  session.NoteContextChange();
  return restored != CUDA_SUCCESS ? restored : request.out.error();
}

CUresult Serve_cuDevicePrimaryCtxRelease_v2(Session& session, Request& request) {
  const auto body = request.in.Get<PrimaryBody>();
  if (!request.in.ok()) return request.in.error();
  const CUresult result = TheDriver().cuDevicePrimaryCtxRelease_v2(body.device);
  if (result == CUDA_SUCCESS) EndPrimary(session, body);
  return result;
}

CUresult Serve_cuDevicePrimaryCtxReset_v2(Session& session, Request& request) {
  const auto body = request.in.Get<PrimaryBody>();
  if (!request.in.ok()) return request.in.error();
  const CUresult result = TheDriver().cuDevicePrimaryCtxReset_v2(body.device);
  if (result == CUDA_SUCCESS) EndPrimary(session, body);
  return result;
}

CUresult Serve_cuCtxCreate_v2(Session& session, Request& request) {
  struct Body {
    WireHandle context;
    uint32_t flags;
    int32_t device;
  };
  const auto body = request.in.Get<Body>();
  if (!request.in.ok()) return request.in.error();
  CUcontext context = nullptr, previous = nullptr;
  Driver& driver = TheDriver();
  driver.cuCtxGetCurrent(&previous);
  if (const CUresult result = driver.cuCtxCreate_v2(&context, body.flags, body.device)) return result;
  driver.cuCtxSetCurrent(previous);  // each message brings its own current context
  session.Bind(HandleKind::kContext, body.context, context, request.out);
  return request.out.error();
}

CUresult Serve_cuCtxDestroy_v2(Session& session, Request& request) {
  const auto wire = request.in.Get<WireHandle>();
  auto context = static_cast<CUcontext>(session.ToDriver(HandleKind::kContext, wire, request.in));
  if (!request.in.ok()) return request.in.error();
  const CUresult result = TheDriver().cuCtxDestroy_v2(context);
  session.NoteContextChange();
  if (result == CUDA_SUCCESS) session.Unbind(wire);
  return result;
}

}  // namespace causeway::host
