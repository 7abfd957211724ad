// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/xen/granting.h"

#include <optional>
#include <utility>

namespace causeway::daemon {
namespace {
constexpr std::chrono::seconds kLettingGo{
    3};  // with a guest that is asked to let go; the end of a Granting waits for it
}

Granting::Source Granting::Now(const VmConfig& vm) {
  if (auto left = GrantedRegion::Resume(loop_, vault_, vm)) return left;
  auto memory = GrantedRegion::Grant(vm, {});
  if (!memory.ok()) return Error{memory.error()};
  return GrantedRegion::Open(loop_, vault_, vm, std::move(memory.value()));
}

void Granting::Begin(const VmConfig& vm, std::function<void(Source)> done) {
  if (busy_) return;
  busy_ = true;
  if (aside_ == nullptr) aside_ = std::make_unique<Aside>(loop_);
  const auto given = std::make_shared<std::optional<Result<GrantedRegion::Memory>>>();
  aside_->Do([vm, given] { given->emplace(GrantedRegion::Grant(vm, kLettingGo)); },
             [this, vm, given, done = std::move(done)] {
               Result<GrantedRegion::Memory>& memory = **given;
               busy_ = false;
               done(memory.ok() ? GrantedRegion::Open(loop_, vault_, vm, std::move(memory.value()))
                                : Source(Error{memory.error()}));
               if (idle_) std::exchange(idle_, nullptr)();
             });
}

void Granting::WhenIdle(std::function<void()> idle) {
  if (!busy_) return idle();
  idle_ = std::move(idle);
}

void Granting::Stop() {
  aside_.reset();
  busy_ = true;
}

}  // namespace causeway::daemon
