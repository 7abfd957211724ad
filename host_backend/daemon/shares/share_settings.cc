// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/shares/share_settings.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "host_backend/common/shares/account_page.h"
#include "host_backend/daemon/process/log.h"
#include "host_backend/daemon/toml/share_keys.h"
#include "ivshmem_ring/system/gpu_uuid.h"

namespace causeway::daemon {
namespace {

constexpr size_t kMostSet = 4096;  // scopes that are set or paused: nobody needs more
constexpr std::string_view kVm = "vm:", kUser = "uid:", kContainer = "container:uid:", kPeer = "tcp:",
                           kNamespace = "namespace:", kContainers = "container:namespace:";

// The scope of the user whose namespaces have scopes of their own ("uid:1000" of "uid:1000:42.43"): what it is to have as a
// whole holds for each of them, for a user makes as many as it likes. Other scopes are their own.
std::string UserOf(const std::string& scope) {
  const std::string_view kind = scope.starts_with(kUser)        ? kUser
                                : scope.starts_with(kContainer) ? kContainer
                                                                : "";
  if (kind.empty()) return scope;
  return scope.substr(0, std::min(scope.size(), scope.find(':', kind.size())));
}

bool IsUserNumber(std::string_view text) {
  uint32_t number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  return read.ec == std::errc() && read.ptr == text.data() + text.size() &&
         number < std::numeric_limits<uint32_t>::max();
}

// "1000", and "1000:42.43" or "1000:elsewhere" as local_peer.h makes them.
bool IsUser(std::string_view text) {
  const size_t colon = text.find(':');
  if (!IsUserNumber(text.substr(0, colon))) return false;
  if (colon == std::string_view::npos) return true;
  const std::string_view rest = text.substr(colon + 1);
  return rest == "elsewhere" || (!rest.empty() && rest.size() < 48 &&
                                 rest.find_first_not_of("0123456789.") == std::string_view::npos);
}

// A numeric address; over the loopback interface ":uidNUMBER" or ":unknown" follows.
bool IsPeer(std::string_view text) {
  for (const std::string_view mark : {":uid", ":unknown"}) {
    const size_t at = text.rfind(mark);
    if (at == std::string_view::npos) continue;
    const std::string_view rest = text.substr(at + mark.size());
    if (mark == ":unknown" ? !rest.empty() : !IsUserNumber(rest)) return false;
    text = text.substr(0, at);
    break;
  }
  const std::string address(text);
  in6_addr any{};
  return inet_pton(AF_INET, address.c_str(), &any) == 1 || inet_pton(AF_INET6, address.c_str(), &any) == 1;
}

// As sentences name it.
std::string Shown(const std::string& scope) {
  return scope.starts_with(kVm) ? "VM " + scope.substr(kVm.size()) : scope;
}

TurnTerms TurnsOfLength(double turn_ms) {
  constexpr double kFullTurns = 4, kNsPerMs = 1e6;
  TurnTerms terms;
  terms.turn_ns = uint64_t(turn_ms * kNsPerMs);
  terms.full_turn_ns = uint64_t(std::min(kFullTurns * turn_ms, kMostTurnMs) * kNsPerMs);
  return terms;
}

}  // namespace

ShareTerms ShareChange::On(ShareTerms terms) const {
  terms.weight = weight.value_or(terms.weight);
  terms.cap_percent = cap_percent.value_or(terms.cap_percent);
  terms.reserve_percent = reserve_percent.value_or(terms.reserve_percent);
  terms.share_class = share_class.value_or(terms.share_class);
  terms.pcie_mib_per_s = pcie_mib_per_s.value_or(terms.pcie_mib_per_s);
  return terms;
}

void ShareChange::Take(const ShareChange& later) {
  if (later.weight) weight = later.weight;
  if (later.cap_percent) cap_percent = later.cap_percent;
  if (later.reserve_percent) reserve_percent = later.reserve_percent;
  if (later.share_class) share_class = later.share_class;
  if (later.pcie_mib_per_s) pcie_mib_per_s = later.pcie_mib_per_s;
}

void ShareChange::Drop(const ShareChange& other) {
  if (other.weight) weight.reset();
  if (other.cap_percent) cap_percent.reset();
  if (other.reserve_percent) reserve_percent.reset();
  if (other.share_class) share_class.reset();
  if (other.pcie_mib_per_s) pcie_mib_per_s.reset();
}

std::string ShareChange::Keys() const {
  std::string text;
  const auto add = [&](const char* key, const std::string& value) {
    text += (text.empty() ? "`" : ", `") + std::string(key) + " = " + value + "`";
  };
  if (weight) add("weight", std::to_string(*weight));
  if (cap_percent) add("cap", std::to_string(*cap_percent));
  if (reserve_percent) add("reserve", std::to_string(*reserve_percent));
  if (share_class) add("class", "\"" + std::string(NameOf(*share_class)) + "\"");
  if (pcie_mib_per_s) add("pcie_mib_per_s", std::to_string(*pcie_mib_per_s));
  return text;
}

// What was kept comes first: where the configuration names it as well, it is another VM that is served later.
const VmConfig* ShareSettings::FindVm(const Config& config, const std::string& scope) const {
  if (!scope.starts_with(kVm)) return nullptr;
  if (const auto found = kept_.find(scope); found != kept_.end()) return &found->second;
  for (const auto* list : {&config.vms, &config.remotes}) {
    for (const VmConfig& vm : *list) {
      if (scope.compare(kVm.size(), std::string::npos, vm.name) == 0) return &vm;
    }
  }
  return nullptr;
}

ShareTerms ShareSettings::ConfiguredIn(const Config& config, const std::string& scope) const {
  if (const VmConfig* vm = FindVm(config, scope)) return vm->share.terms;
  if (scope.starts_with(kPeer)) return config.tcp.share.terms;
  if (!scope.starts_with(kUser)) return scope.starts_with(kVm) ? ShareTerms{} : config.local_share.terms;
  const auto found = config.user_terms.find(UserOf(scope));
  if (found == config.user_terms.end()) return config.local_share.terms;
  ShareTerms terms = found->second;
  if (found->first != scope) terms.reserve_percent = 0;  // that is the user's, once
  return terms;
}

ShareTerms ShareSettings::Unpaused(const std::string& scope) const {
  ShareTerms terms = ConfiguredIn(config_, scope);
  const std::string user = UserOf(scope);
  const auto of_user = set_.find(user);
  if (user != scope && of_user != set_.end()) {
    ShareChange change = of_user->second;
    change.reserve_percent.reset();
    terms = change.On(terms);
  }
  if (const auto own = set_.find(scope); own != set_.end()) terms = own->second.On(terms);
  return terms;
}

ShareTerms ShareSettings::TermsOf(const std::string& scope) const {
  ShareTerms terms = Unpaused(scope);
  terms.paused = paused_.contains(scope) || paused_.contains(UserOf(scope));
  return terms;
}

std::function<TurnTerms(uint64_t device)> ShareSettings::Turns() const {
  std::map<uint64_t, TurnTerms> of_gpus;
  for (const auto* list : {&config_.gpu_turn_ms, &turn_ms_}) {
    for (const auto& [uuid, turn_ms] : *list)
      of_gpus[DeviceHash(UuidOf(uuid).data())] = TurnsOfLength(turn_ms);
  }
  return [of_gpus = std::move(of_gpus), of_others = TurnsOfLength(config_.turn_ms)](uint64_t device) {
    const auto found = of_gpus.find(device);
    return found == of_gpus.end() ? of_others : found->second;
  };
}

const std::vector<std::string>& ShareSettings::GpusIn(const Config& config, const std::string& scope) const {
  if (const VmConfig* vm = FindVm(config, scope)) return vm->share.gpus;
  return scope.starts_with(kPeer) ? config.tcp.share.gpus : config.local_share.gpus;
}

std::set<std::string> ShareSettings::NamedIn(const Config& config) const {
  std::set<std::string> scopes;
  for (const auto& [scope, vm] : kept_) scopes.insert(scope);
  for (const auto* list : {&config.vms, &config.remotes}) {
    for (const VmConfig& vm : *list) scopes.insert(std::string(kVm) + vm.name);
  }
  for (const auto& [scope, terms] : config.user_terms) scopes.insert(scope);
  return scopes;
}

// Those of the configuration alone have been summed up when it was read: what was added comes after them.
std::string ShareSettings::WhyNot(const Config& next) const {
  Reservations sum;
  for (const bool kept : {false, true}) {
    for (const std::string& scope : NamedIn(next)) {
      if (kept_.contains(scope) != kept) continue;
      const ShareTerms terms = ConfiguredIn(next, scope);
      const std::string why = sum.Add(Shown(scope), terms.reserve_percent, GpusIn(next, scope));
      if (!why.empty())
        return "The reserve of " + Shown(scope) + ", which `causeway attach` has added, " + why +
               "; lower one of them.";
    }
  }
  return {};
}

void ShareSettings::Reconfigured() {
  set_.clear();
  turn_ms_.clear();
  Changed();
}

void ShareSettings::Keep(const VmConfig& vm) {
  kept_[std::string(kVm) + vm.name] = vm;
  Changed();
}

void ShareSettings::Forget(const std::string& vm) {
  const std::string scope = std::string(kVm) + vm;
  kept_.erase(scope);
  set_.erase(scope);
  paused_.erase(scope);
  Changed();
}

void ShareSettings::Release(const std::string& vm) {
  kept_.erase(std::string(kVm) + vm);
  Changed();
}

Result<std::string> ShareSettings::ScopeOf(const std::string& name) const {
  for (const std::string& scope : {std::string(kVm) + name, name}) {
    if (FindVm(config_, scope) != nullptr) return scope;
  }
  const auto follows = [&](std::string_view kind) { return std::string_view(name).substr(kind.size()); };
  const bool known = (name.starts_with(kUser) && IsUser(follows(kUser))) ||
                     (name.starts_with(kContainer) && IsUser(follows(kContainer))) ||
                     (name.starts_with(kNamespace) && IsUserNumber(follows(kNamespace))) ||
                     (name.starts_with(kContainers) && IsUserNumber(follows(kContainers))) ||
                     (name.starts_with(kPeer) && IsPeer(follows(kPeer)));
  if (known) return name;
  return Error{"causewayd serves no VM " + name +
               "; see `causeway status`, which also names users (uid:NUMBER) and peers."};
}

Result<ShareTerms> ShareSettings::Checked(const std::string& scope, const ShareChange& change) const {
  const ShareTerms terms = change.On(TermsOf(scope));
  if (terms.reserve_percent > terms.cap_percent) {
    return Error{Shown(scope) + " would have a reserve of " + std::to_string(terms.reserve_percent) +
                 " % above its cap of " + std::to_string(terms.cap_percent) + " %; change both."};
  }
  Reservations sum;
  for (const std::string& other : Named()) {
    // What is too much without this scope is no reason to refuse it.
    if (other != scope)
      static_cast<void>(sum.Add(Shown(other), TermsOf(other).reserve_percent, GpusIn(config_, other)));
  }
  const std::string why =
      change.reserve_percent ? sum.Add(Shown(scope), terms.reserve_percent, GpusIn(config_, scope)) : "";
  if (!why.empty()) return Error{"The reserve of " + Shown(scope) + " " + why + "; lower one of them."};
  return terms;
}

std::string ShareSettings::Set(const std::string& scope, const ShareChange& change) {
  if (const auto checked = Checked(scope, change); !checked.ok()) return checked.error();
  if (!set_.contains(scope) && set_.size() >= kMostSet)
    return "There are " + std::to_string(kMostSet) + " VMs, users and peers with settings; reload.";
  set_[scope].Take(change);
  Changed();
  return {};
}

void ShareSettings::Persisted(const VmConfig& vm, const ShareChange& change) {
  const std::string scope = std::string(kVm) + vm.name;
  kept_[scope] = vm;
  if (const auto found = set_.find(scope); found != set_.end()) {
    found->second.Drop(change);
    if (found->second.empty()) set_.erase(found);
  }
  Changed();
}

std::string ShareSettings::SetTurn(const std::string& gpu, double turn_ms) {
  if (!turn_ms_.contains(gpu) && turn_ms_.size() >= kMostSet) return "There are too many GPUs with settings.";
  turn_ms_[gpu] = turn_ms;
  Changed();
  return {};
}

std::string ShareSettings::Pause(const std::string& scope, bool paused) {
  if (paused && !paused_.contains(scope) && paused_.size() >= kMostSet)
    return "There are " + std::to_string(kMostSet) + " VMs, users and peers paused already.";
  if (paused) {
    paused_.insert(scope);
  } else {
    paused_.erase(scope);
  }
  Changed();
  return {};
}

Json ShareSettings::State() const {
  if (paused_.empty() && set_.empty() && turn_ms_.empty()) return {};
  Json of_scopes = Json::object();
  for (const auto& [scope, change] : set_) {
    Json& json = of_scopes[scope] = Json::object();
    if (change.weight) json["weight"] = *change.weight;
    if (change.cap_percent) json["cap"] = *change.cap_percent;
    if (change.reserve_percent) json["reserve"] = *change.reserve_percent;
    if (change.share_class) json["class"] = uint32_t(*change.share_class);
    if (change.pcie_mib_per_s) json["pcie_mib_per_s"] = *change.pcie_mib_per_s;
  }
  Json of_gpus = Json::object();
  for (const auto& [gpu, turn_ms] : turn_ms_) of_gpus[gpu] = turn_ms;
  return {{"paused", paused_}, {"set", of_scopes}, {"turn_ms", of_gpus}};
}

void ShareSettings::Restore(const Json& state) {
  for (const Json& scope : state.at("paused")) paused_.insert(scope.get<std::string>());
  for (const auto& [scope, json] : state.at("set").items()) {
    const auto number = [&, &of_scope = json](const char* key, uint64_t least, uint64_t most) {
      const uint64_t value = of_scope.value(key, uint64_t{most + 1});
      return value >= least && value <= most ? std::optional(uint32_t(value)) : std::nullopt;
    };
    ShareChange change;
    change.weight = number("weight", 1, kMostWeight);
    change.cap_percent = number("cap", 1, 100);
    change.reserve_percent = number("reserve", 0, 100);
    change.pcie_mib_per_s = number("pcie_mib_per_s", 0, kMostPcieMibPerS);
    if (const auto share_class = number("class", 0, uint64_t(ShareClass::kBackground)))
      change.share_class = ShareClass(*share_class);
    if (!change.empty()) set_[scope] = change;
  }
  for (const auto& [gpu, json] : state.at("turn_ms").items()) {
    const auto turn_ms = json.get<double>();
    if (turn_ms >= kLeastTurnMs && turn_ms <= kMostTurnMs) turn_ms_[gpu] = turn_ms;
  }
  Changed();
}

// With one that is dropped its scope has again what is configured, which may be more: then others are looked at again.
void ShareSettings::DropWhatCannotBeKept() {
  bool dropped = false;
  for (auto at = set_.begin(); at != set_.end();) {
    const auto& [scope, change] = *at;
    const auto checked = Checked(scope, change);
    if (checked.ok()) {
      ++at;
      continue;
    }
    LogWarning("what was set for " + Shown(scope) + " (" + change.Keys() +
               ") does not last beyond the daemon of before: " + checked.error());
    set_.erase(at);
    at = set_.begin();
    dropped = true;
  }
  if (dropped) Changed();
}

std::vector<std::string> ShareSettings::Named() const {
  std::set<std::string> scopes = NamedIn(config_);
  for (const auto& [scope, change] : set_) scopes.insert(scope);
  scopes.insert(paused_.begin(), paused_.end());
  return {scopes.begin(), scopes.end()};
}

std::vector<std::string> ShareSettings::Gpus() const {
  std::set<std::string> gpus;
  for (const std::string& scope : Named()) {
    const auto& of_scope = GpusIn(config_, scope);
    gpus.insert(of_scope.begin(), of_scope.end());
  }
  gpus.insert(config_.local_share.gpus.begin(), config_.local_share.gpus.end());
  gpus.insert(config_.tcp.share.gpus.begin(), config_.tcp.share.gpus.end());
  for (const auto* list : {&config_.gpu_turn_ms, &turn_ms_}) {
    for (const auto& [uuid, turn_ms] : *list) gpus.insert(uuid);
  }
  return {gpus.begin(), gpus.end()};
}

}  // namespace causeway::daemon
