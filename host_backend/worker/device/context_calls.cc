// SPDX-License-Identifier: Apache-2.0
// Contexts. The guest counts its references to primary contexts and sends only the first and the last.
#include "host_backend/worker/device/context_calls.h"

#include "host_backend/worker/accounting/accounting.h"
#include "host_backend/worker/addresses/arenas.h"
#include "ivshmem_ring/messages/sharing_messages.h"
#include "ivshmem_ring/protocol/admit.h"

namespace causeway::host {
namespace {

struct PrimaryBody {
  int32_t device;
  uint32_t reserved;
  WireHandle context;
};

// The last reference goes, or a reset: all that was in the context is gone. A guest that holds none has
// nothing there to end; what the worker holds is its own.
CUresult EndPrimary(Session& session, const PrimaryBody& body, bool resets) {
  Primaries& primaries = session.part<Primaries>();
  const std::lock_guard lock(primaries.mutex);
  const auto held = primaries.held.find(body.device);
  if (held == primaries.held.end() || primaries.numbers[body.device] != body.context)
    return resets ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
  const CUcontext context = held->second;
  // What the guest has given its number to is another context.
  if (session.objects().Find(HandleKind::kContext, body.context) != context)
    return CUDA_ERROR_INVALID_CONTEXT;
  const Driver& driver = TheDriver();
  const CUresult result = session.objects().EndContents({body.context, context}, [&] {
    const CUresult ended = resets ? driver.cuDevicePrimaryCtxReset_v2(body.device)
                                  : driver.cuDevicePrimaryCtxRelease_v2(body.device);
    if (ended != CUDA_SUCCESS) return ended;
    unsigned flags = 0;
    int active = 0;
    if (resets) {
      // It leaves the references to it: with one kept, the guest's next last release would end nothing.
      driver.cuDevicePrimaryCtxRelease_v2(body.device);
    } else if (driver.cuDevicePrimaryCtxGetState(body.device, &flags, &active) == CUDA_SUCCESS &&
               active != 0) {
      // The guest has ended it. Green contexts that a reset ended may have left references of theirs.
      driver.cuDevicePrimaryCtxReset_v2(body.device);
    }
    driver.cuCtxSetCurrent(nullptr);
    TheAccounting().PrimaryEnds(body.device);
    return CUDA_SUCCESS;
  });
  if (result == CUDA_SUCCESS) primaries.held.erase(held);
  return result;
}

// By the form that the program called: they differ in the answer for what a device cannot honour.
CUresult Create(const CreateContextBody& body, CUexecAffinityParam* affinities, CUcontext* context) {
  const Driver& driver = TheDriver();
  const auto count = static_cast<int>(body.affinities);
  if (body.form == 3 && Has(driver.cuCtxCreate_v3)) {
    return driver.cuCtxCreate_v3(context, count != 0 ? affinities : nullptr, count, body.flags, body.device);
  }
  if (body.form == 4 && count != 0) {
    CUctxCreateParams parameters{affinities, count, nullptr};
    return driver.cuCtxCreate_v4(context, &parameters, body.flags, body.device);
  }
  return driver.cuCtxCreate_v2(context, body.flags, body.device);
}

}  // namespace

CUresult Serve_cuDevicePrimaryCtxRetain(Session& session, Request& request) {
  const auto body = request.in.Get<PrimaryBody>();
  if (!request.in.ok()) return request.in.error();
  Primaries& primaries = session.part<Primaries>();
  const std::lock_guard lock(primaries.mutex);
  // The guest counts its references; and the context lives on under the number that it had when it was
  // released. Asked first: one that is retained and given back at once ends under those that name it.
  if (primaries.held.contains(body.device)) return CUDA_ERROR_INVALID_VALUE;
  if (const auto number = primaries.numbers.find(body.device);
      number != primaries.numbers.end() && number->second != body.context)
    return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = RequireNumber(HandleKind::kContext, body.context)) return result;
  CUcontext context = nullptr;
  if (const CUresult result = TheDriver().cuDevicePrimaryCtxRetain(&context, body.device)) return result;
  session.objects().Bind(HandleKind::kContext, body.context, context, request.out);
  if (!request.out.ok()) {
    TheDriver().cuDevicePrimaryCtxRelease_v2(body.device);
    return request.out.error();
  }
  primaries.held[body.device] = context;
  primaries.numbers[body.device] = body.context;
  // The guest's reference takes the place of the worker's, so that the guest's last release ends the context.
  if (body.device == 0 && session.part<Arenas>().TakeWarmContext())
    TheDriver().cuDevicePrimaryCtxRelease_v2(0);
  if (const CUresult result = TheDriver().cuCtxSetCurrent(context)) return result;
  const CUresult restored = session.part<Arenas>().ContextBegins(context, body.context);
  TheDriver().cuCtxSetCurrent(nullptr);
  session.objects().NoteContextChange();
  return restored != CUDA_SUCCESS ? restored : request.out.error();
}

CUresult Serve_cuDevicePrimaryCtxRelease_v2(Session& session, Request& request) {
  const auto body = request.in.Get<PrimaryBody>();
  return request.in.ok() ? EndPrimary(session, body, false) : request.in.error();
}

CUresult Serve_cuDevicePrimaryCtxReset_v2(Session& session, Request& request) {
  const auto body = request.in.Get<PrimaryBody>();
  return request.in.ok() ? EndPrimary(session, body, true) : request.in.error();
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
  if (const CUresult result = RequireNumber(HandleKind::kContext, body.context)) return result;
  CUcontext context = nullptr, previous = nullptr;
  const Driver& driver = TheDriver();
  driver.cuCtxGetCurrent(&previous);
  ChargeRef charge;
  const CUresult created = CreateMeasured(
      body.device, [&] { return Create(body, affinities, &context); },
      [&] { driver.cuCtxDestroy_v2(context); }, &charge);
  if (created != CUDA_SUCCESS) {
    driver.cuCtxSetCurrent(previous);
    return created;
  }
  // First: what is kept by its pointer may still be that of one that is just ending.
  session.objects().Bind(HandleKind::kContext, body.context, context, request.out);
  if (!request.out.ok()) {
    driver.cuCtxDestroy_v2(context);
    driver.cuCtxSetCurrent(previous);
    return request.out.error();
  }
  TheAccounting().ContextBegins(context);
  // It ends with the context, which is current.
  if (charge != nullptr)
    TheAccounting().Hold(ChargeSpace::kContext, reinterpret_cast<uint64_t>(context), std::move(charge), true);
  driver.cuCtxSetCurrent(previous);  // each message brings its own current context
  if (const CUresult restored = session.part<Arenas>().ContextBegins(context, body.context)) return restored;
  return request.out.error();
}

CUresult Serve_cuCtxDestroy_v2(Session& session, Request& request) {
  const auto wire = request.in.Get<WireHandle>();
  auto context = static_cast<CUcontext>(session.objects().ToEnd(HandleKind::kContext, wire, request.in));
  if (!request.in.ok()) return request.in.error();
  return session.objects().End(HandleKind::kContext, wire, context, [context] {
    const CUresult result = TheDriver().cuCtxDestroy_v2(context);
    if (result == CUDA_SUCCESS) TheAccounting().ContextEnds(context);
    return result;
  });
}

}  // namespace causeway::host
