// SPDX-License-Identifier: Apache-2.0
#include "host_backend/command/top/table.h"

#include <algorithm>

#include "host_backend/command/top/cells.h"
#include "host_backend/command/top/shares.h"
#include "host_backend/common/json.h"

namespace causeway::command {
namespace {

enum ColumnIndex {
  kScope,
  kNumber,
  kPid,
  kState,
  kGpu,
  kCalls,
  kMemory,
  kToDevice,
  kToHost,
  kFill,
  kErrors,
  kAge,
  kAllColumns
};

std::string Cell(const Row& row, size_t column) {
  switch (column) {
    case kScope:
      return row.scope;
    case kNumber:
      return row.number == 0 ? std::to_string(row.sessions) : "#" + std::to_string(row.number);
    case kPid:
      return row.pid == 0 ? "-" : std::to_string(row.pid);
    case kState:
      return row.state.empty() ? "-" : row.state;
    case kGpu:
      return Percent(row.gpu);
    case kCalls:
      return Short(row.calls_per_s);
    case kMemory:
      return Short(double(row.memory_bytes >> 20));
    case kToDevice:
      return Short(row.to_device_per_s ? std::optional(*row.to_device_per_s / 1e6) : std::nullopt);
    case kToHost:
      return Short(row.to_host_per_s ? std::optional(*row.to_host_per_s / 1e6) : std::nullopt);
    case kFill:
      return Percent(row.queue_fill);
    case kErrors:
      return Short(row.errors_per_s);
    case kAge:
      return Format("%.0f", row.age_s);
    default:
      return "";
  }
}

// What a column is sorted by; text columns are not asked.
double Key(const Row& row, size_t column) {
  switch (column) {
    case kNumber:
      return double(row.number == 0 ? row.sessions : row.number);
    case kPid:
      return double(row.pid);
    case kGpu:
      return row.gpu.value_or(-1);
    case kCalls:
      return row.calls_per_s.value_or(-1);
    case kMemory:
      return double(row.memory_bytes);
    case kToDevice:
      return row.to_device_per_s.value_or(-1);
    case kToHost:
      return row.to_host_per_s.value_or(-1);
    case kFill:
      return row.queue_fill.value_or(-1);
    case kErrors:
      return row.errors_per_s.value_or(-1);
    case kAge:
      return row.age_s;
    default:
      return 0;
  }
}

Json JsonOf(const Row& row) {
  Json json = {{"scope", row.scope}};
  if (row.number != 0) json["number"] = row.number;
  json["sessions"] = row.sessions;
  json["pid"] = row.pid;
  json["state"] = row.state;
  json["age_s"] = row.age_s;
  json["gpu"] = OptionalJson(row.gpu);
  json["calls"] = row.calls;
  json["errors"] = row.errors;
  json["memory_bytes"] = row.memory_bytes;
  json["calls_per_s"] = OptionalJson(row.calls_per_s);
  json["errors_per_s"] = OptionalJson(row.errors_per_s);
  json["to_device_bytes_per_s"] = OptionalJson(row.to_device_per_s);
  json["to_host_bytes_per_s"] = OptionalJson(row.to_host_per_s);
  json["queue_fill"] = OptionalJson(row.queue_fill);
  return json;
}

Json ListOf(const std::vector<Row>& rows) {
  Json list = Json::array();
  for (const Row& row : rows) list.push_back(JsonOf(row));
  return list;
}

}  // namespace

const std::vector<Column>& Columns() {
  static const std::vector<Column> columns = {
      {"scope", "VM OR USER", -18}, {"session", "SESSION", 8},    {"pid", "PID", 8},
      {"state", "STATE", -8},       {"gpu", "%GPU", 6},           {"calls", "CALLS/s", 8},
      {"memory", "MEM MiB", 8},     {"to-device", "H2D MB/s", 9}, {"to-host", "D2H MB/s", 9},
      {"queue", "%QUEUE", 7},       {"errors", "ERRORS/s", 9},    {"age", "AGE s", 8}};
  static_assert(kAllColumns == 12);
  return columns;
}

size_t ColumnNamed(const std::string& name) {
  size_t index = 0;
  while (index < Columns().size() && name != Columns()[index].name) ++index;
  return index;
}

void SortRows(const View& view, std::vector<Row>* rows) {
  const size_t column = view.sort_column;
  const bool is_text = Columns()[column].width < 0;
  std::stable_sort(rows->begin(), rows->end(), [&](const Row& one, const Row& other) {
    const Row& first = view.reversed ? other : one;
    const Row& second = view.reversed ? one : other;
    // Text from A to Z, numbers from the largest, as top does.
    return is_text ? Cell(first, column) < Cell(second, column) : Key(first, column) > Key(second, column);
  });
}

std::vector<std::string> TableLines(const View& view, const std::vector<Row>& rows) {
  std::vector<std::string> lines(1);
  for (const Column& column : Columns())
    lines[0] += (lines[0].empty() ? "" : " ") + Padded(column.head, column.width);
  if (view.scopes) lines[0].replace(lines[0].find(" SESSION"), 9, "SESSIONS ");
  for (const Row& row : rows) {
    std::string line;
    for (size_t i = 0; i < Columns().size(); ++i)
      line += (line.empty() ? "" : " ") + Padded(Cell(row, i), Columns()[i].width);
    lines.push_back(std::move(line));
  }
  return lines;
}

std::vector<std::string> HeadLines(const StatusFigures& figures, const std::vector<Row>& sessions) {
  const std::vector<Row> scopes = ScopeRows(sessions);
  Row sum;
  for (const Row& row : sessions) {
    sum.calls_per_s = sum.calls_per_s.value_or(0) + row.calls_per_s.value_or(0);
    sum.memory_bytes += row.memory_bytes;
    sum.errors += row.errors;
  }
  return {"causewayd " + figures.version + ", up " + Format("%.0f", figures.uptime_s) + " s, " +
              std::to_string(figures.devices) + (figures.devices == 1 ? " GPU, " : " GPUs, ") +
              std::to_string(figures.workers) + " workers (" + std::to_string(figures.spares_ready) +
              " spare), " + std::to_string(figures.worker_deaths) + " worker deaths, " +
              std::to_string(figures.refused) + " refused",
          std::to_string(scopes.size()) + " VMs and users, " + std::to_string(sessions.size()) +
              " sessions, " + Short(sum.calls_per_s) + " calls/s, " + Short(double(sum.memory_bytes >> 20)) +
              " MiB, " + std::to_string(sum.errors) + " errors"};
}

std::string TopJson(const StatusFigures& figures, double seconds, const std::vector<Row>& sessions,
                    const std::vector<ShareRow>& shares) {
  Json of_shares = Json::array();
  for (const ShareRow& share : shares) of_shares.push_back(JsonOf(share));
  const Json json = {{"version", figures.version},
                     {"seconds", Rounded(seconds)},
                     {"devices", figures.devices},
                     {"workers", figures.workers},
                     {"worker_deaths", figures.worker_deaths},
                     {"refused", figures.refused},
                     {"scopes", ListOf(ScopeRows(sessions))},
                     {"shares", of_shares},
                     {"sessions", ListOf(sessions)}};
  return JsonText(json);
}

}  // namespace causeway::command
