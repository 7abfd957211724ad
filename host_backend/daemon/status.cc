// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/status.h"

#include <sys/resource.h>
#include <unistd.h>

#include "host_backend/common/json.h"
#include "host_backend/daemon/share_report.h"
#include "ivshmem_ring/release/build_stamp.h"

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
  Json json = {{"number", session.number}, {"kind", session.kind}, {"scope", session.scope}};
  if (!session.vm.empty()) json["vm"] = session.vm;
  if (session.slot >= 0) {
    json["slot"] = session.slot;
    json["session"] = session.session;
  }
  json["pid"] = session.pid;
  json["uid"] = session.uid;
  json["release"] = session.release;
  json["state"] = session.state;
  json["age_s"] = Rounded(Seconds(Clock::now() - session.opened));
  json["worker_pid"] = session.worker_pid;
  if (session.compression) json["compression"] = *session.compression;
  json["calls"] = session.usage.calls;
  json["errors"] = session.usage.errors;
  json["to_device_bytes"] = session.usage.bytes_to_device;
  json["to_host_bytes"] = session.usage.bytes_to_host;
  if (session.queued_bytes >= 0) {
    json["queued_bytes"] = session.queued_bytes;
    json["queue_bytes"] = kMainRingBytes;
  }
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
          {"guest_epoch", region.guest_epoch},
          {"mode", region.doorbell ? "doorbell" : "plain"},
          {"polled", region.polled}};
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

Json JsonOf(const ImageCacheStatus& images) {
  return {{"kept", images.images},
          {"bytes", images.bytes},
          {"found", images.found},
          {"not_found", images.not_found}};
}

Json JsonOf(const Counters& counters) {
  return {{"sessions", counters.sessions},
          {"refused", counters.refused},
          {"worker_deaths", counters.worker_deaths},
          {"violations", counters.violations}};
}

template <class Each>
Json ListOf(const std::vector<Each>& all) {
  Json json = Json::array();
  for (const Each& each : all) json.push_back(JsonOf(each));
  return json;
}

// Those of the scope alone, unless that is empty.
template <class Each>
Json ListOf(std::vector<Each> all, const std::string& scope) {
  if (!scope.empty()) std::erase_if(all, [&](const Each& each) { return each.scope != scope; });
  return ListOf(all);
}

// Sums over all scopes.
void AddTotals(Json& json, const Services& services) {
  constexpr size_t kKindsOfWork = 16;
  const EventLoop& loop = services.loop;
  const auto now = Clock::now();
  json["loop_late"] = JsonOf(loop.late().Of(now));
  json["loop_busy"] = JsonOf(loop.busy().Of(now));
  // Absent where the kernel does not tell.
  if (loop.tells_unscheduled()) json["loop_unscheduled"] = JsonOf(loop.unscheduled().Of(now));
  json["loop_nice"] = getpriority(PRIO_PROCESS, 0);
  json["loop_work"] = ListOf(loop.work().Longest(kKindsOfWork, now));
  json["images"] = JsonOf(services.pool.images());
  json["counters"] = JsonOf(services.counters);
}

}  // namespace

std::string StatusJson(const Services& services, const StatusReport& report, const std::string& scope) {
  const Config& config = services.config;
  const WorkerPool& pool = services.pool;
  const auto own_spares = pool.OwnSparesStatus();
  Json json = {{"version", std::string(kBuildStamp.release)},
               {"pid", getpid()},
               {"uptime_s", Rounded(Seconds(Clock::now() - report.started))},
               {"socket", config.socket},
               {"tcp", report.tcp},
               {"driver",
                {{"configured", config.driver_library},
                 {"loaded", pool.driver()},
                 {"version", pool.driver_version()},
                 {"devices", pool.device_count()}}},
               {"workers",
                {{"spare_wanted", pool.wanted_spares()},
                 {"spare_least", pool.least_spares()},
                 {"spare_ready", pool.ready_spares()},
                 {"starting", pool.starting()},
                 {"all", pool.worker_count()},
                 {"starting_limit", pool.starting_limit()},
                 {"ready_time_ms", Milliseconds(pool.ready_time())},
                 {"own_spares", ListOf(own_spares, scope)},
                 {"problem", pool.failure()}}},
               {"of_all", scope.empty()}};
  if (scope.empty()) AddTotals(json, services);
  json["regions"] = scope.empty() ? ListOf(report.regions) : Json::array();
  AddShares(json, services, report.shares, scope);
  json["accounts"] = ListOf(pool.AccountsStatus(), scope);
  json["sessions"] = ListOf(report.sessions, scope);
  return JsonText(json);
}

}  // namespace causeway::daemon
