// SPDX-License-Identifier: Apache-2.0
#include "host_backend/command/top/figures.h"

#include <algorithm>
#include <map>

#include "host_backend/command/top/cells.h"
#include "host_backend/common/json.h"

namespace causeway::command {
namespace {

SessionFigures SessionOf(const Json& json) {
  SessionFigures session;
  session.number = Number(json, "number");
  session.scope = Text(json, "scope");
  session.state = Text(json, "state");
  session.pid = Number(json, "pid");
  session.worker_pid = pid_t(Number(json, "worker_pid"));
  session.age_s = Real(json, "age_s");
  session.calls = Number(json, "calls");
  session.errors = Number(json, "errors");
  session.to_device_bytes = Number(json, "to_device_bytes");
  session.to_host_bytes = Number(json, "to_host_bytes");
  for (const char* kind : kMemoryKindNames)
    session.memory_bytes += Number(json, (std::string(kind) + "_bytes").c_str());
  if (const uint64_t size = Number(json, "queue_bytes"); size != 0)
    session.queue_fill = double(Number(json, "queued_bytes")) / double(size);
  return session;
}

// Sums where there is one of them at least.
void Add(std::optional<double>* sum, const std::optional<double>& value) {
  if (value) *sum = sum->value_or(0) + *value;
}

}  // namespace

Result<StatusFigures> ReadFigures(const std::string& status) {
  const Json json = Json::parse(status, nullptr, false);
  if (!json.is_object()) return Error{"The daemon's status is no JSON; check --socket."};
  const Json driver = Member(json, "driver"), workers = Member(json, "workers");
  const Json counters = Member(json, "counters");
  StatusFigures figures;
  figures.version = Text(json, "version");
  figures.uptime_s = Real(json, "uptime_s");
  figures.driver = Text(driver, "configured");
  figures.devices = Number(driver, "devices");
  figures.workers = Number(workers, "all");
  figures.spares_ready = Number(workers, "spare_ready");
  figures.refused = Number(counters, "refused");
  figures.worker_deaths = Number(counters, "worker_deaths");
  figures.shares = ReadShares(json);
  for (const Json& session : Member(json, "sessions")) figures.sessions.push_back(SessionOf(session));
  return figures;
}

std::vector<Row> SessionRows(const StatusFigures& before, const StatusFigures& now, double seconds) {
  std::map<uint64_t, const SessionFigures*> old;
  for (const SessionFigures& session : before.sessions) old[session.number] = &session;
  std::vector<Row> rows;
  for (const SessionFigures& session : now.sessions) {
    Row row;
    row.scope = session.scope;
    row.number = session.number;
    row.sessions = 1;
    row.pid = session.pid;
    row.state = session.state;
    row.age_s = session.age_s;
    row.gpu = session.gpu;
    row.queue_fill = session.queue_fill;
    row.memory_bytes = session.memory_bytes;
    row.calls = session.calls;
    row.errors = session.errors;
    if (const auto found = old.find(session.number);
        session.number != 0 && found != old.end() && seconds > 0) {
      const SessionFigures& then = *found->second;
      const auto rate = [&](uint64_t earlier, uint64_t later) {
        return std::optional<double>(later < earlier ? 0 : double(later - earlier) / seconds);
      };
      row.calls_per_s = rate(then.calls, session.calls);
      row.errors_per_s = rate(then.errors, session.errors);
      row.to_device_per_s = rate(then.to_device_bytes, session.to_device_bytes);
      row.to_host_per_s = rate(then.to_host_bytes, session.to_host_bytes);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<Row> ScopeRows(const std::vector<Row>& sessions) {
  std::map<std::string, Row> scopes;
  for (const Row& session : sessions) {
    Row& row = scopes[session.scope];
    row.scope = session.scope;
    row.sessions += 1;
    row.age_s = std::max(row.age_s, session.age_s);
    Add(&row.calls_per_s, session.calls_per_s);
    Add(&row.errors_per_s, session.errors_per_s);
    Add(&row.to_device_per_s, session.to_device_per_s);
    Add(&row.to_host_per_s, session.to_host_per_s);
    Add(&row.gpu, session.gpu);
    if (session.queue_fill) row.queue_fill = std::max(row.queue_fill.value_or(0), *session.queue_fill);
    row.memory_bytes += session.memory_bytes;
    row.calls += session.calls;
    row.errors += session.errors;
  }
  std::vector<Row> rows;
  for (auto& [name, row] : scopes) rows.push_back(std::move(row));
  return rows;
}

}  // namespace causeway::command
