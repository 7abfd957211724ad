// SPDX-License-Identifier: Apache-2.0
// The daemon's state as JSON.
#include "host_backend/daemon/status.h"

#include <sys/resource.h>
#include <unistd.h>

#include "host_backend/common/json_writer.h"

namespace causeway::daemon {
namespace {

double Seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

void WriteMemory(JsonWriter& json, const MemoryBytes& bytes) {
  for (uint32_t kind = 0; kind < kMemoryKinds; ++kind)
    json.Key((std::string(kMemoryKindNames[kind]) + "_bytes").c_str()).Number(bytes[kind]);
}

void WriteAccount(JsonWriter& json, const AccountStatus& account) {
  json.Open('{').Key("scope").String(account.scope).Key("sessions").Number(account.sessions);
  WriteMemory(json, account.bytes);
  json.Key("gpu_bytes").Number(account.gpu_bytes);
  json.Key("device_memory_limit_bytes").Number(account.limit_bytes);
  json.Key("refused").Number(account.refused).Close('}');
}

void WriteSession(JsonWriter& json, const SessionStatus& session) {
  json.Open('{').Key("number").Number(session.number).Key("kind").String(session.kind);
  if (!session.vm.empty()) json.Key("vm").String(session.vm);
  if (session.slot >= 0) json.Key("slot").Signed(session.slot).Key("session").Number(session.session);
  json.Key("pid").Number(session.pid).Key("uid").Number(session.uid);
  json.Key("state").String(session.state).Key("age_s").Real(Seconds(Clock::now() - session.opened));
  json.Key("worker_pid").Signed(session.worker_pid);
  json.Key("calls").Number(session.usage.calls);
  WriteMemory(json, session.memory);
  json.Key("violations").Number(session.usage.violations).Close('}');
}

void WriteRegion(JsonWriter& json, const RegionStatus& region) {
  json.Open('{').Key("vm").String(region.vm).Key("file").String(region.file);
  json.Key("problem").String(region.problem).Key("region_bytes").Number(region.region_bytes);
  json.Key("slots").Number(region.slots).Key("slots_in_use").Number(region.slots_in_use);
  json.Key("slices").Number(region.slices).Key("slices_free").Number(region.slices_free);
  json.Key("guest_epoch").Number(region.guest_epoch).Close('}');
}

void WriteWorkers(JsonWriter& json, const StatusReport& report) {
  json.Key("workers").Open('{');
  json.Key("spare_wanted").Number(report.spare_wanted).Key("spare_ready").Number(report.spare_ready);
  json.Key("starting").Number(report.starting).Key("all").Number(report.workers);
  json.Key("own_spares").Open('[');
  for (const auto& own : report.own_spares) {
    json.Open('{').Key("scope").String(own.scope).Key("wanted").Number(own.wanted);
    json.Key("ready").Number(own.ready).Close('}');
  }
  json.Close(']').Key("problem").String(report.worker_problem).Close('}');
}

double Milliseconds(Lateness::Duration time) {
  return 1e3 * std::chrono::duration<double>(time).count();
}

void WriteLateness(JsonWriter& json, const char* name, const Lateness::Summary& late) {
  json.Key(name).Open('{').Key("rounds").Number(late.count);
  json.Key("p99_ms").Real(Milliseconds(late.p99)).Key("max_ms").Real(Milliseconds(late.max)).Close('}');
}

void WriteLoop(JsonWriter& json, const StatusReport& report) {
  WriteLateness(json, "loop_late", report.late);
  WriteLateness(json, "loop_busy", report.busy);
  // Absent where the kernel does not tell.
  if (report.tells_unscheduled) WriteLateness(json, "loop_unscheduled", report.unscheduled);
  json.Key("loop_nice").Signed(getpriority(PRIO_PROCESS, 0));
  json.Key("loop_work").Open('[');
  for (const LoopWork::Kind& kind : report.longest_work) {
    json.Open('{').Key("what").String(std::string(kind.what)).Key("times").Number(kind.times);
    json.Key("sum_ms").Real(Milliseconds(kind.sum)).Key("max_ms").Real(Milliseconds(kind.longest.busy));
    json.Key("max_processor_ms").Real(Milliseconds(kind.longest.processor)).Close('}');
  }
  json.Close(']');
}

// Sums over all scopes.
void WriteTotals(JsonWriter& json, const StatusReport& report) {
  WriteLoop(json, report);
  json.Key("images").Open('{');
  json.Key("kept").Number(report.images.images).Key("bytes").Number(report.images.bytes);
  json.Key("found").Number(report.images.found).Key("not_found").Number(report.images.not_found).Close('}');
  json.Key("counters").Open('{');
  json.Key("sessions").Number(report.counters.sessions).Key("refused").Number(report.counters.refused);
  json.Key("worker_deaths").Number(report.counters.worker_deaths);
  json.Key("violations").Number(report.counters.violations).Close('}');
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
  JsonWriter json;
  json.Open('{').Key("version").String(CAUSEWAY_VERSION).Key("pid").Signed(getpid());
  json.Key("uptime_s").Real(Seconds(report.uptime)).Key("socket").String(report.socket);
  json.Key("tcp").String(report.tcp);
  json.Key("driver").Open('{').Key("configured").String(report.driver_library);
  json.Key("loaded").String(report.driver).Key("version").Number(report.driver_version);
  json.Key("devices").Number(report.device_count).Close('}');
  WriteWorkers(json, report);
  json.Key("of_all").Bool(report.of_all);
  if (report.of_all) WriteTotals(json, report);
  json.Key("regions").Open('[');
  for (const RegionStatus& region : report.regions) WriteRegion(json, region);
  json.Close(']').Key("accounts").Open('[');
  for (const AccountStatus& account : report.accounts) WriteAccount(json, account);
  json.Close(']').Key("sessions").Open('[');
  for (const SessionStatus& session : report.sessions) WriteSession(json, session);
  json.Close(']').Close('}');
  return json.text();
}

}  // namespace causeway::daemon
