// SPDX-License-Identifier: Apache-2.0
#include "host_backend/command/top/shares.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

#include "host_backend/command/top/cells.h"

namespace causeway::command {
namespace {

std::optional<double> Measured(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number() ? std::optional(found->get<double>()) : std::nullopt;
}

bool Flag(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_boolean() && found->get<bool>();
}

// What was counted between two readings, in `seconds`; a count that has begun anew has no such value.
std::optional<double> PartOf(const std::optional<double>& before, const std::optional<double>& now,
                             double seconds) {
  if (!before || !now || *now < *before || seconds <= 0) return std::nullopt;
  return (*now - *before) / seconds;
}

std::string Seconds(const std::optional<double>& seconds) {
  return seconds ? Format("%.1f s", *seconds) : "-";
}

std::string MibPerSecond(const std::optional<double>& bytes) {
  return bytes ? Short(*bytes / (1 << 20)) : "-";
}

struct ShareColumn {
  const char* head;
  int width;  // as Column::width
};
constexpr ShareColumn kColumns[] = {
    {"VM OR USER", -18}, {"GPU", -12},   {"BY", -6},         {"%HAD", 6},        {"%DUE", 6},
    {"P50 us", 8},       {"P99 us", 8},  {"%THROTTLED", 10}, {"WEIGHT", 6},      {"CAP", 4},
    {"RESERVE", 7},      {"CLASS", -10}, {"TO MiB/s", 8},    {"FROM MiB/s", 10}, {"LIMIT MiB/s", 11},
    {"SESSIONS", 8},     {"MEM MiB", 8}, {"DEATHS", 6}};

// Its last characters tell GPUs apart: "..34567890".
std::string ShortGpu(const std::string& gpu) {
  constexpr size_t kShown = 10;
  if (gpu.empty()) return "-";
  return gpu.size() <= kShown + 2 ? gpu : ".." + gpu.substr(gpu.size() - kShown);
}

}  // namespace

ShareReport ReadShares(const Json& status) {
  ShareReport report;
  for (const Json& json : Member(status, "scopes")) {
    ScopeShare scope;
    scope.scope = Text(json, "scope");
    scope.share_class = Text(json, "class");
    scope.sessions = Number(json, "sessions");
    scope.weight = Number(json, "weight");
    scope.cap_percent = Number(json, "cap");
    scope.reserve_percent = Number(json, "reserve");
    scope.pcie_mib_per_s = Number(json, "pcie_mib_per_s");
    scope.paused = Flag(json, "paused");
    scope.until_reload = Flag(json, "until_reload");
    scope.worker_deaths = Number(json, "worker_deaths");
    report.scopes.push_back(std::move(scope));
  }
  for (const Json& json : Member(status, "shares")) {
    report.shares.push_back({Text(json, "scope"), Text(json, "gpu"), Flag(json, "in_turns"),
                             Measured(json, "had_s"), Measured(json, "due_s"), Measured(json, "waited_s"),
                             Measured(json, "throttled_s"), Measured(json, "turns"),
                             Measured(json, "wait_p50_us"), Measured(json, "wait_p99_us"),
                             Measured(json, "to_device_bytes"), Measured(json, "to_host_bytes"),
                             Measured(json, "link_throttled_s")});
  }
  for (const Json& json : Member(status, "gpus"))
    report.gpus.push_back({Text(json, "gpu"), Text(json, "enforced_by"), Real(json, "turn_ms")});
  return report;
}

std::vector<ShareRow> ShareRows(const ShareReport& before, const ShareReport& now, double seconds) {
  std::map<std::pair<std::string, std::string>, const GpuShareFigures*> old;
  for (const GpuShareFigures& share : before.shares) old[{share.scope, share.gpu}] = &share;
  std::vector<ShareRow> rows;
  for (const ScopeShare& scope : now.scopes) {
    bool uses_any = false;
    for (const GpuShareFigures& share : now.shares) {
      if (share.scope != scope.scope) continue;
      uses_any = true;
      ShareRow row;
      row.scope = scope;
      row.gpu = share.gpu;
      for (const GpuInUse& gpu : now.gpus) {
        if (gpu.gpu == share.gpu) row.enforced_by = gpu.enforced_by;
      }
      row.wait_p50_us = share.wait_p50_us;
      row.wait_p99_us = share.wait_p99_us;
      if (const auto found = old.find({share.scope, share.gpu}); found != old.end()) {
        const GpuShareFigures& then = *found->second;
        row.had = PartOf(then.had_s, share.had_s, seconds);
        row.due = PartOf(then.due_s, share.due_s, seconds);
        row.waited = PartOf(then.waited_s, share.waited_s, seconds);
        row.throttled = PartOf(then.throttled_s, share.throttled_s, seconds);
        row.to_device_bytes_per_s = PartOf(then.to_device_bytes, share.to_device_bytes, seconds);
        row.to_host_bytes_per_s = PartOf(then.to_host_bytes, share.to_host_bytes, seconds);
      }
      rows.push_back(std::move(row));
    }
    if (uses_any) continue;
    ShareRow row;
    row.scope = scope;
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<std::string> ShareLines(const std::vector<ShareRow>& rows) {
  std::vector<std::string> lines(1);
  const auto add = [](std::string* line, const std::string& cell, size_t column) {
    *line += (column == 0 ? "" : " ") + Padded(cell, kColumns[column].width);
  };
  for (size_t i = 0; i < std::size(kColumns); ++i) add(&lines[0], kColumns[i].head, i);
  for (const ShareRow& row : rows) {
    const ScopeShare& scope = row.scope;
    const std::string cells[] = {scope.scope,
                                 ShortGpu(row.gpu),
                                 row.enforced_by.empty() ? "-" : row.enforced_by,
                                 Percent(row.had),
                                 Percent(row.due),
                                 Short(row.wait_p50_us),
                                 Short(row.wait_p99_us),
                                 Percent(row.throttled),
                                 std::to_string(scope.weight),
                                 std::to_string(scope.cap_percent),
                                 std::to_string(scope.reserve_percent),
                                 scope.paused ? "paused" : scope.share_class,
                                 MibPerSecond(row.to_device_bytes_per_s),
                                 MibPerSecond(row.to_host_bytes_per_s),
                                 scope.pcie_mib_per_s == 0 ? "-" : std::to_string(scope.pcie_mib_per_s),
                                 std::to_string(scope.sessions),
                                 Short(double(row.memory_bytes >> 20)),
                                 std::to_string(scope.worker_deaths)};
    static_assert(std::size(cells) == std::size(kColumns));
    std::string line;
    for (size_t i = 0; i < std::size(cells); ++i) add(&line, cells[i], i);
    lines.push_back(std::move(line));
  }
  return lines;
}

Json JsonOf(const ShareRow& row) {
  const auto text = [](const std::string& value) { return value.empty() ? Json() : Json(value); };
  return {{"scope", row.scope.scope},
          {"gpu", text(row.gpu)},
          {"enforced_by", text(row.enforced_by)},
          {"had", OptionalJson(row.had)},
          {"due", OptionalJson(row.due)},
          {"waited", OptionalJson(row.waited)},
          {"throttled", OptionalJson(row.throttled)},
          {"wait_p50_us", OptionalJson(row.wait_p50_us)},
          {"wait_p99_us", OptionalJson(row.wait_p99_us)},
          {"weight", row.scope.weight},
          {"cap", row.scope.cap_percent},
          {"reserve", row.scope.reserve_percent},
          {"class", row.scope.share_class},
          {"to_device_bytes_per_s", OptionalJson(row.to_device_bytes_per_s)},
          {"to_host_bytes_per_s", OptionalJson(row.to_host_bytes_per_s)},
          {"pcie_mib_per_s", row.scope.pcie_mib_per_s},
          {"paused", row.scope.paused},
          {"sessions", row.scope.sessions},
          {"memory_bytes", row.memory_bytes},
          {"worker_deaths", row.scope.worker_deaths}};
}

std::string TermsText(const ScopeShare& scope) {
  return "weight " + std::to_string(scope.weight) + ", cap " + std::to_string(scope.cap_percent) +
         " %, reserve " + std::to_string(scope.reserve_percent) + " %, class " + scope.share_class +
         (scope.pcie_mib_per_s == 0 ? "" : ", copies " + std::to_string(scope.pcie_mib_per_s) + " MiB/s") +
         (scope.paused ? ", paused" : "");
}

std::vector<std::string> ShareTexts(const ShareReport& report) {
  std::vector<std::string> lines;
  for (const ScopeShare& scope : report.scopes) {
    lines.push_back("  " + Padded(scope.scope, -20) + " " + TermsText(scope) +
                    (scope.until_reload ? "; some of it until the next reload" : "") + "; " +
                    std::to_string(scope.worker_deaths) + " worker deaths");
    for (const GpuShareFigures& share : report.shares) {
      if (share.scope != scope.scope) continue;
      lines.push_back("    on " + share.gpu + ": had " + Seconds(share.had_s) + " of " +
                      Seconds(share.due_s) + " that were due, waited " + Seconds(share.waited_s) +
                      " for turns (p50 " + Short(share.wait_p50_us) + " us, p99 " + Short(share.wait_p99_us) +
                      " us), throttled " + Seconds(share.throttled_s));
    }
  }
  for (const GpuInUse& gpu : report.gpus) {
    lines.push_back("  " + gpu.gpu + " is shared by " + gpu.enforced_by +
                    (gpu.enforced_by == "turns" ? Format(" of %g ms", gpu.turn_ms) : ""));
  }
  return lines;
}

}  // namespace causeway::command
