// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/session/session.h"

#include "host_backend/worker/driver/logs.h"
#include "ivshmem_ring/protocol/operation.h"

namespace causeway::host {
namespace {

// A function of its own, so that its text lies outside of Execute, through which each launch passes.
[[gnu::cold, gnu::noinline]] CUresult NoMeaning(Session& session, size_t op) {
  return session.Breach("a message has no meaning: opcode " + std::to_string(op));
}

}  // namespace

Session::Session(std::unique_ptr<ServerTransport> transport, std::span<const Handler> handlers)
    : transport_(std::move(transport)), handlers_(handlers) {
  objects_.on_context_end = [this](CUcontext context) { ContextEnds(context); };
}

Session::~Session() {
  Stop();
  for (const auto& part : owned_) part->Join();
}

void Session::Stop() {
  stop_.store(true, std::memory_order_release);
  transport_->Stop();
  objects_.Stop();
  for (const auto& part : owned_) part->Stop();
}

std::string Session::reason() {
  const std::lock_guard lock(reason_mutex_);
  return reason_;
}

// Functions through which each launch or each synchronous call passes are marked `gnu::hot`, here and elsewhere. The linker places them
// side by side, so that they take fewer pages and cache lines, which the driver evicts between two calls.
[[gnu::hot]] CUresult Session::Execute(Request& request) {
  objects_.BeginRequest();
  calls.Note();  // also the locked instruction that BeginRequest wants behind it
  if (const CUresult result = objects_.Enter(request.header)) return result;
  const size_t op = request.header.op;
  const bool submits = TraitsOf(static_cast<Op>(op)).Has(traits::kSubmits);
  DeviceGates::Entrance* const entrance = submits ? gates_.Find() : nullptr;
  if (entrance != nullptr && !(request.in_lane ? gates_.EnterLate(*entrance, objects_, stop_)
                                               : gates_.Enter(*entrance, objects_, stop_)))
    return CUDA_ERROR_DEINITIALIZED;
  const Handler handler = op < handlers_.size() ? handlers_[op] : nullptr;
  const CUresult result = handler != nullptr ? handler(*this, request) : NoMeaning(*this, op);
  if (request.in.is_cut()) [[unlikely]]
    Breach("a message is cut: " + std::string(OpName(request.header.op)));
  objects_.Leave(result);
  // The dispatcher goes on: it is no channel and no lane.
  if (entrance != nullptr)
    gates_.Leave(*entrance, objects_, request.channel == kChannelCount && !request.in_lane, result,
                 request.is_over);
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY)
    errors.fetch_add(1, std::memory_order_relaxed);
  return request.in.is_cut() ? CUDA_ERROR_INVALID_VALUE : result;
}

void Session::ContextEnds(CUcontext context) {
  gates_.ContextEnds(context);
  for (const auto& part : owned_) part->ContextEnds(context);
}

void Session::Violation(const std::string& what) {
  violations.fetch_add(1);
  Fail("the guest broke the protocol: " + what);
}

void Session::Fail(const std::string& reason) {
  {
    const std::lock_guard lock(reason_mutex_);
    if (reason_.empty()) reason_ = reason;
  }
  Stop();
}

}  // namespace causeway::host
