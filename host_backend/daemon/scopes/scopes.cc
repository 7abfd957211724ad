// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/scopes/scopes.h"

#include <algorithm>
#include <set>
#include <utility>

#include "host_backend/daemon/scopes/local_peer.h"

namespace causeway::daemon {
namespace {

constexpr size_t kMaxScopes = 4096;             // that are remembered
constexpr uint32_t kUnconfiguredGuarantee = 1;  // of each user and peer, out of reserved_sessions
constexpr uint32_t kMaxConnections = 64;        // of a scope, and of a family, without a session
constexpr uint32_t kMaxScopesOfFamily = 64;

}  // namespace

Scopes::Scopes(const Config& config) : config_(config) {}

ScopeRef Scopes::Find(const std::string& name, const std::string& who, const std::string& limit_key,
                      uint32_t max_sessions, size_t most, std::shared_ptr<ScopeFamily> family) {
  const auto found = scopes_.find(name);
  if (found != scopes_.end()) return found->second;
  const auto is_full = [&] {
    return scopes_.size() >= most || (family != nullptr && family->scopes >= kMaxScopesOfFamily);
  };
  if (is_full()) Forget();
  if (is_full()) return nullptr;
  auto scope = std::make_shared<Scope>();
  if (family != nullptr) {
    ++family->scopes;
    scope->family = std::move(family);
  }
  scope->name = name;
  scope->who = who;
  scope->limit_key = limit_key;
  scope->max_sessions = max_sessions;
  scope->guaranteed = kUnconfiguredGuarantee;
  return scopes_[name] = scope;
}

ScopeRef Scopes::OfVm(const VmConfig& vm) {
  const ScopeRef scope = Find("vm:" + vm.name, "VM " + vm.name, "its max_sessions", vm.max_sessions, SIZE_MAX,
                              nullptr);  // the configuration bounds them
  scope->configured = true;
  scope->max_sessions = vm.max_sessions;
  scope->guaranteed = std::min(vm.guaranteed_sessions, vm.max_sessions);
  return scope;
}

void Scopes::ForgetVm(const VmConfig& vm) {
  const ScopeRef scope = OfVm(vm);
  scope->configured = false;
  scope->guaranteed = 0;
}

ScopeRef Scopes::OfUser(const std::string& name, const std::string& family) {
  std::shared_ptr<ScopeFamily> known = families_[family].lock();
  if (known == nullptr)
    families_[family] = known = std::make_shared<ScopeFamily>(ScopeFamily{.name = family});
  const std::string who =
      (name.starts_with(kContainerScope) ? "Container " : "User ") + name.substr(name.find(':') + 1);
  return Find(name, who, "local_max_sessions", config_.local_max_sessions, kMaxScopes, std::move(known));
}

ScopeRef Scopes::OfPeer(const std::string& address) {
  return Find("tcp:" + address, "Peer " + address, "[tcp] max_sessions", config_.tcp.max_sessions, kMaxScopes,
              nullptr);
}

void Scopes::Reconfigured() {
  for (const auto& [name, scope] : scopes_) {
    if (name.starts_with("uid:") || name.starts_with(kContainerScope))
      scope->max_sessions = config_.local_max_sessions;
    if (name.starts_with("tcp:")) scope->max_sessions = config_.tcp.max_sessions;
  }
}

// Scopes that nothing refers to and that have nothing to say.
void Scopes::Forget() {
  std::erase_if(scopes_, [](const auto& entry) {
    const ScopeRef& scope = entry.second;
    return !scope->configured && scope.use_count() == 1 && scope->log->idle();
  });
  std::erase_if(families_, [](const auto& entry) { return entry.second.expired(); });
}

// A configured scope's part is kept by name. Users and peers are not known before they come:
// reserved_sessions is kept for those of them that have no session.
uint32_t Scopes::KeptForOthers(const Scope& asker) const {
  uint32_t kept = 0, used_of_reserve = 0;
  std::set<const ScopeFamily*> counted;
  for (const auto& [name, scope] : scopes_) {
    if (!scope->configured) {
      if (counted.insert(scope->family.get()).second)
        used_of_reserve += std::min(scope->family->sessions, scope->guaranteed);
    } else if (scope.get() != &asker && scope->sessions < scope->guaranteed) {
      kept += scope->guaranteed - scope->sessions;
    }
  }
  const bool of_reserve = !asker.configured && asker.family->sessions < asker.guaranteed;
  if (!of_reserve && config_.reserved_sessions > used_of_reserve)
    kept += config_.reserved_sessions - used_of_reserve;
  return kept;
}

Result<SessionSeat> Scopes::TakeSession(const ScopeRef& scope) {
  if (const std::string& why = closed_.empty() ? scope->closed : closed_; !why.empty()) return Error{why};
  if (live_ < config_.max_sessions && scope->family->sessions >= scope->max_sessions) {
    const bool alone = scope->family->sessions == scope->sessions;
    return Error{scope->who + (alone ? " has " : " and its other namespaces have ") +
                 std::to_string(scope->family->sessions) + " sessions, as many as " + scope->limit_key +
                 " in the configuration of causewayd allows; try again later or raise it."};
  }
  const uint32_t kept = scope->configured && scope->sessions < scope->guaranteed ? 0 : KeptForOthers(*scope);
  if (live_ + kept >= config_.max_sessions) {
    const std::string others = kept == 0 ? "" : " and keeps " + std::to_string(kept) + " for others";
    return Error{"The host serves " + std::to_string(live_) + " sessions" + others +
                 ", as many as max_sessions in the configuration of causewayd allows; try again later or "
                 "raise it."};
  }
  return ResumeSession(scope);
}

SessionSeat Scopes::ResumeSession(const ScopeRef& scope) {
  ++live_;
  ++scope->sessions;
  ++scope->family->sessions;
  return SessionSeat(static_cast<void*>(scope.get()), [this, scope](void*) {
    --live_;
    --scope->sessions;
    --scope->family->sessions;
  });
}

bool Scopes::MayConnect(const Scope& scope) const {
  return scope.family->connections < kMaxConnections && !scope.family->closing->is_full();
}

bool Scopes::FlushLogs() {
  bool any = false;
  for (const auto& [name, scope] : scopes_) {
    scope->log->Flush(scope->who);
    any = any || !scope->log->idle();
  }
  return any;
}

}  // namespace causeway::daemon
