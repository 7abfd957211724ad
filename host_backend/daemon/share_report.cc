// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/share_report.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "host_backend/common/shares/account_page.h"
#include "host_backend/daemon/toml/share_keys.h"
#include "ivshmem_ring/system/gpu_uuid.h"

namespace causeway::daemon {
namespace {

// As the configuration names it; workers tell a hash of the UUID alone.
std::string GpuName(const ShareSettings& settings, uint64_t device) {
  for (const std::string& gpu : settings.Gpus()) {
    if (DeviceHash(UuidOf(gpu).data()) == device) return gpu;
  }
  char text[32];
  std::snprintf(text, sizeof text, "gpu-%016llx", static_cast<unsigned long long>(device));
  return text;
}

double Seconds(uint64_t ns) {
  return Rounded(static_cast<double>(ns) / 1e9);
}

Json Microseconds(double us) {
  return us > 0 ? Json(Rounded(us)) : Json();
}

// Of a share that several scopes have together.
uint32_t SessionsOf(const Services& services, const std::string& share) {
  for (const auto& [name, scope] : services.scopes.all()) {
    if (scope->share() == share) return scope->family->sessions;
  }
  return 0;
}

Json JsonOf(const Services& services, const std::string& name) {
  const auto& all = services.scopes.all();
  const auto found = all.find(name);
  const Scope* scope = found == all.end() ? nullptr : found->second.get();
  const ShareTerms terms = services.share_settings.TermsOf(scope == nullptr ? name : scope->share());
  const bool paused = terms.paused || services.share_settings.TermsOf(name).paused;
  return {{"scope", name},
          {"sessions", scope == nullptr ? SessionsOf(services, name) : scope->sessions},
          {"weight", terms.weight},
          {"cap", terms.cap_percent},
          {"reserve", terms.reserve_percent},
          {"class", NameOf(terms.share_class)},
          {"pcie_mib_per_s", terms.pcie_mib_per_s},
          {"paused", paused},
          {"until_reload", services.share_settings.is_set(name)},
          {"worker_deaths", scope == nullptr ? 0 : scope->worker_deaths}};
}

// Nothing is charged while turns are not in force, so that a GPU on which they never were has no figures.
Json JsonOf(const ShareStatus& share, const std::string& gpu) {
  const ShareFigures& figures = share.figures;
  const bool measured = share.in_turns || figures.had_ns != 0 || figures.due_ns != 0;
  const auto seconds = [&](uint64_t ns) { return measured ? Json(Seconds(ns)) : Json(); };
  return {
      {"scope", share.scope},
      {"gpu", gpu},
      {"in_turns", share.in_turns},
      {"had_s", seconds(figures.had_ns)},
      {"due_s", seconds(figures.due_ns)},
      {"waited_s", seconds(figures.waited_ns)},
      {"throttled_s", seconds(figures.throttled_ns)},
      {"turns", measured ? Json(figures.turns) : Json()},
      {"wait_p50_us", Microseconds(share.wait_p50_us)},
      {"wait_p99_us", Microseconds(share.wait_p99_us)},
      {"wait_longest_us", Microseconds(share.wait_longest_us)},
      {"to_device_bytes", share.link[kToDevice].bytes},
      {"to_host_bytes", share.link[kToHost].bytes},
      {"link_throttled_s", Seconds(share.link[kToDevice].throttled_ns + share.link[kToHost].throttled_ns)}};
}

}  // namespace

void AddShares(Json& json, const Services& services, const std::vector<ShareStatus>& shares,
               const std::string& scope) {
  const ShareSettings& settings = services.share_settings;
  std::set<std::string> names;
  for (const std::string& name : settings.Named()) names.insert(name);
  for (const auto& [name, each] : services.scopes.all()) {
    if (!each->configured && each->sessions == 0) continue;
    names.insert(name);
    names.insert(each->share());
  }
  json["scopes"] = Json::array();
  for (const std::string& name : names) {
    if (scope.empty() || name == scope) json["scopes"].push_back(JsonOf(services, name));
  }
  std::map<uint64_t, bool> in_turns;  // by device
  json["shares"] = Json::array();
  for (const ShareStatus& share : shares) {
    if (!scope.empty() && std::count(share.scopes.begin(), share.scopes.end(), scope) == 0) continue;
    json["shares"].push_back(JsonOf(share, GpuName(settings, share.device)));
    in_turns[share.device] = in_turns[share.device] || share.in_turns;
  }
  json["gpus"] = Json::array();
  for (const auto& [device, turns] : in_turns) {
    json["gpus"].push_back(
        {{"gpu", GpuName(settings, device)},
         {"enforced_by", turns ? "turns" : "slices"},
         {"turn_ms", Rounded(static_cast<double>(settings.TurnsOf(device).turn_ns) / 1e6)}});
  }
}

}  // namespace causeway::daemon
