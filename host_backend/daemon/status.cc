// SPDX-License-Identifier: Apache-2.0
// The daemon's state as JSON.
#include "host_backend/daemon/status.h"

#include <sys/resource.h>
#include <unistd.h>

#include "host_backend/common/json.h"

namespace causeway::daemon {
namespace {

double Seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

void AddMemory(Json& json, const MemoryBytes& bytes) {
  for (uint32_t kind = 0; kind < kMemoryKinds; ++kind)
    json[std::string(kMemoryKindNames[kind]) + "_bytes"] = bytes[kind];
}

Json JsonOf(const AccountStatus& account) {
  Json json = {{"scope", account.scope}, {"sessions", account.sessions}};
  AddMemory(json, account.bytes);
  json["gpu_bytes"] = account.gpu_bytes;
  json["device_memory_limit_bytes"] = account.limit_bytes;
  json["refused"] = account.refused;
  return json;
}

Json JsonOf(const SessionStatus& session) {
  Json json = {{"number", session.number}, {"kind", session.kind}};
  if (!session.vm.empty()) json["vm"] = session.vm;
  if (session.slot >= 0) {
    json["slot"] = session.slot;
    json["session"] = session.session;
  }
  json["pid"] = session.pid;
  json["uid"] = session.uid;
  json["state"] = session.state;
  json["age_s"] = Rounded(Seconds(Clock::now() - session.opened));
  json["worker_pid"] = session.worker_pid;
  json["calls"] = session.usage.calls;
  AddMemory(json, session.memory);
  json["violations"] = session.usage.violations;
  return json;
}

Json JsonOf(const RegionStatus& region) {
  return {{"vm", region.vm},
          {"file", region.file},
          {"problem", region.problem},
          {"region_bytes", region.region_bytes},
          {"slots", region.slots},
          {"slots_in_use", region.slots_in_use},
          {"slices", region.slices},
          {"slices_free", region.slices_free},
          {"guest_epoch", region.guest_epoch}};
}

Json JsonOf(const WorkerPool::OwnSpareStatus& own) {
  return {{"scope", own.scope}, {"wanted", own.wanted}, {"ready", own.ready}};
}

double Milliseconds(Lateness::Duration time) {
  return Rounded(1e3 * std::chrono::duration<double>(time).count());
}

Json JsonOf(const Lateness::Summary& late) {
  return {{"rounds", late.count}, {"p99_ms", Milliseconds(late.p99)}, {"max_ms", Milliseconds(late.max)}};
}

Json JsonOf(const LoopWork::Kind& kind) {
  return {{"what", kind.what},
          {"times", kind.times},
          {"sum_ms", Milliseconds(kind.sum)},
          {"max_ms", Milliseconds(kind.longest.busy)},
          {"max_processor_ms", Milliseconds(kind.longest.processor)}};
}

template <class Each>
Json JsonOf(const std::vector<Each>& all) {
  Json json = Json::array();
  for (const Each& each : all) json.push_back(JsonOf(each));
  return json;
}

// Sums over all scopes.
void AddTotals(Json& json, const StatusReport& report) {
  json["loop_late"] = JsonOf(report.late);
  json["loop_busy"] = JsonOf(report.busy);
  // Absent where the kernel does not tell.
  if (report.tells_unscheduled) json["loop_unscheduled"] = JsonOf(report.unscheduled);
  json["loop_nice"] = getpriority(PRIO_PROCESS, 0);
  json["loop_work"] = JsonOf(report.longest_work);
  json["images"] = {{"kept", report.images.images},
                    {"bytes", report.images.bytes},
                    {"found", report.images.found},
                    {"not_found", report.images.not_found}};
  json["counters"] = {{"sessions", report.counters.sessions},
                      {"refused", report.counters.refused},
                      {"worker_deaths", report.counters.worker_deaths},
                      {"violations", report.counters.violations}};
}

}  // namespace

void KeepScope(StatusReport& report, const std::string& scope) {
  report.of_all = false;
  report.regions.clear();
  std::erase_if(report.sessions, [&](const SessionStatus& session) { return session.scope != scope; });
  std::erase_if(report.own_spares, [&](const auto& own) { return own.scope != scope; });
  std::erase_if(report.accounts, [&](const AccountStatus& account) { return account.scope != scope; });
}

std::string StatusJson(const StatusReport& report) {
  Json json = {{"version", CAUSEWAY_VERSION},
               {"pid", getpid()},
               {"uptime_s", Rounded(Seconds(report.uptime))},
               {"socket", report.socket},
               {"tcp", report.tcp},
               {"driver",
                {{"configured", report.driver_library},
                 {"loaded", report.driver},
                 {"version", report.driver_version},
                 {"devices", report.device_count}}},
               {"workers",
                {{"spare_wanted", report.spare_wanted},
                 {"spare_ready", report.spare_ready},
                 {"starting", report.starting},
                 {"all", report.workers},
                 {"own_spares", JsonOf(report.own_spares)},
                 {"problem", report.worker_problem}}},
               {"of_all", report.of_all}};
  if (report.of_all) AddTotals(json, report);
  json["regions"] = JsonOf(report.regions);
  json["accounts"] = JsonOf(report.accounts);
  json["sessions"] = JsonOf(report.sessions);
  return JsonText(json);
}

}  // namespace causeway::daemon
