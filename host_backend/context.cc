// SPDX-License-Identifier: Apache-2.0
// Contexts. The guest counts its references to primary contexts and sends only the first and the last.
#include "host_backend/accounting.h"
#include "host_backend/session.h"
#include "ivshmem_ring/admit.h"
#include "ivshmem_ring/sharing_messages.h"

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
  TheAccounting().PrimaryEnds(body.device);
  session.ContextEnds(static_cast<CUcontext>(session.Find(HandleKind::kContext, body.context)));
}

// By the form that the program called: they differ in what they answer for parameters that a device cannot
// honour.
CUresult Create(const CreateContextBody& body, CUexecAffinityParam* affinities, CUcontext* context) {
  Driver& driver = TheDriver();
  const auto count = static_cast<int>(body.affinities);
  if (body.form == 3 && driver.cuCtxCreate_v3 != nullptr) {
    return driver.cuCtxCreate_v3(context, count != 0 ? affinities : nullptr, count, body.flags, body.device);
  }
  if (body.form == 4 && count != 0) {
    if (driver.cuCtxCreate_v4 == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
    CUctxCreateParams parameters{affinities, count, nullptr};
    return driver.cuCtxCreate_v4(context, &parameters, body.flags, body.device);
  }
  return driver.cuCtxCreate_v2(context, body.flags, body.device);
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
  const CUresult restored = session.ContextBegins(context);
  TheDriver().cuCtxSetCurrent(nullptr);
  session.NoteContextChange();
  return restored != CUDA_SUCCESS ? restored : request.out.error();
}

CUresult Serve_cuDevicePrimaryCtxRelease_v2(Session& session, Request& request) {
  const auto body = request.in.Get<PrimaryBody>();
  if (!request.in.ok()) return request.in.error();
  Driver& driver = TheDriver();
  if (const CUresult result = driver.cuDevicePrimaryCtxRelease_v2(body.device)) return result;
  // The guest has ended it. Green contexts that a reset ended may have left references of theirs.
  unsigned flags = 0;
  int active = 0;
  if (warm_context.load() == nullptr &&
      driver.cuDevicePrimaryCtxGetState(body.device, &flags, &active) == CUDA_SUCCESS && active != 0) {
    driver.cuDevicePrimaryCtxReset_v2(body.device);
  }
  EndPrimary(session, body);
  return CUDA_SUCCESS;
}

// A reset ends the context and leaves the references to it, the worker's among them: with that one kept, the
// guest's next last release would end nothing.

CUresult Serve_cuDevicePrimaryCtxReset_v2(Session& session, Request& request) {
  const auto body = request.in.Get<PrimaryBody>();
  if (!request.in.ok()) return request.in.error();
  const CUresult result = TheDriver().cuDevicePrimaryCtxReset_v2(body.device);
  if (result != CUDA_SUCCESS) return result;
  TheDriver().cuDevicePrimaryCtxRelease_v2(body.device);
  EndPrimary(session, body);
  return CUDA_SUCCESS;
}

CUresult Serve_cuCtxCreate_v2(Session& session, Request& request) {
  const auto body = request.in.Get<CreateContextBody>();
  if (!request.in.ok()) return request.in.error();
  if (body.affinities > kMaxExecAffinities || !OnlyFlags(body.flags, kContextFlags))
    return CUDA_ERROR_INVALID_VALUE;
  CUexecAffinityParam affinities[kMaxExecAffinities] = {};
  for (uint32_t i = 0; i < body.affinities; ++i) {
    affinities[i] = request.in.Get<CUexecAffinityParam>();
    if (const CUresult result = Admit(affinities[i])) return result;
  }
  if (!request.in.ok()) return request.in.error();
  CUcontext context = nullptr, previous = nullptr;
  Driver& driver = TheDriver();
  driver.cuCtxGetCurrent(&previous);
  ChargeRef charge;
  const CUresult created = CreateMeasured(
      body.device, [&] { return Create(body, affinities, &context); },
      [&] { driver.cuCtxDestroy_v2(context); }, &charge);
  if (created != CUDA_SUCCESS) {
    driver.cuCtxSetCurrent(previous);
    return created;
  }
  TheAccounting().ContextBegins(context);
  // It ends with the context, which is current.
  if (charge != nullptr)
    TheAccounting().Hold(ChargeSpace::kContext, reinterpret_cast<uint64_t>(context), std::move(charge), true);
  driver.cuCtxSetCurrent(previous);  // each message brings its own current context
  session.Bind(HandleKind::kContext, body.context, context, request.out);
  if (const CUresult restored = session.ContextBegins(context)) return restored;
  return request.out.error();
}

CUresult Serve_cuCtxDestroy_v2(Session& session, Request& request) {
  const auto wire = request.in.Get<WireHandle>();
  auto context = static_cast<CUcontext>(session.ToDriver(HandleKind::kContext, wire, request.in));
  if (!request.in.ok()) return request.in.error();
  const CUresult result = TheDriver().cuCtxDestroy_v2(context);
  session.NoteContextChange();
  if (result == CUDA_SUCCESS) {
    session.Unbind(wire);
    session.ContextEnds(context);
    TheAccounting().ContextEnds(context);
  }
  return result;
}

}  // namespace causeway::host
