// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>

#include "host_backend/command/attach/attach.h"
#include "host_backend/command/attach/control_client.h"
#include "host_backend/command/attach/xen_domain.h"
#include "host_backend/command/libvirt/placed_domain.h"
#include "host_backend/common/control_socket.h"

namespace causeway::command {
namespace {

// One line: a region as libvirt and causewayd see it. `domain` empty: no domain has it; `served` null: causewayd does not.
struct Row {
  std::string region;
  std::string domain;
  bool runs = false;
  bool live = false;
  bool next = false;
  std::vector<uint64_t> xml_mib;      // of the running VM and of its next start; 0 in doorbell mode
  std::vector<std::string> doorbell;  // likewise: the server's path, empty in plain mode
  bool xen = false;                   // a domain of Xen, which has no XML
  Json served;
};

std::string Agreement(const Row& row, const std::vector<Row>& all) {
  const auto same = [&](const Row& other) {
    return other.region == row.region && other.domain != row.domain;
  };
  if (const auto other = std::find_if(all.begin(), all.end(), same); other != all.end())
    return "domain " + other->domain + " has the same region: detach one of them";
  if (row.served.is_null()) return "causewayd does not serve it: run `causeway attach " + row.domain + "`";
  if (const std::string problem = row.served.value("problem", ""); !problem.empty()) return problem;
  if (row.xen) return "ok";
  if (row.domain.empty())
    return "no domain of this libvirt has it: if its domain is gone, run `causeway detach " +
           row.served.value("name", "") + "`";
  const auto mib = row.served.value("memory_mib", uint64_t{0});
  for (const uint64_t xml : row.xml_mib) {
    if (xml != 0 && xml != mib) {
      return "its XML says " + std::to_string(xml) + " MiB, causewayd " + std::to_string(mib) +
             ": detach it, and attach it again";
    }
  }
  const std::string socket = row.served.value("doorbell", "");
  for (const std::string& path : row.doorbell) {
    if (!path.empty() && path != socket)
      return "its XML names the doorbell " + path +
             ", where causewayd has none of it: detach it, and attach it again";
  }
  return "ok";
}

// "plain" or "doorbell", as the running VM or its next start has it; empty: neither has it. And whether causewayd looks at a VM
// in doorbell mode nevertheless: an earlier causewayd had its doorbell, or its guest has not started yet.
std::string ModeOf(const Row& row) {
  if (row.xen) return row.live ? "doorbell" : "";  // event channels
  return row.doorbell.empty() ? "" : row.doorbell[0].empty() ? "plain" : "doorbell";
}
bool IsPolled(const Row& row) {
  return row.live && ModeOf(row) == "doorbell" && !row.served.is_null() && row.served.value("polled", false);
}

// In domain 0 causewayd alone knows which domains have regions. A domain that does not run is given one when it starts.
Result<std::vector<Row>> XenRows(const ListOptions& options) {
  auto answer = AskControl(options.host.control_socket, {{"do", "list"}});
  if (!answer.ok()) return Error{answer.error()};
  std::vector<Row> rows;
  for (const Json& vm : answer.value()["vms"]) {
    Row& row = rows.emplace_back();
    row.region = vm.value("file", "");
    row.domain = vm.value("xen_domain", "");
    row.xen = row.next = !row.domain.empty();
    row.runs = row.live = row.xen && vm.value("granted", false);
    row.served = vm;
  }
  return rows;
}

Result<std::vector<Row>> Rows(const ListOptions& options) {
  if (IsXenHost(options.host)) return XenRows(options);
  auto link = HostLink::Open(options.host.connect);
  if (!link.ok()) return Error{link.error()};
  auto answer = AskControl(options.host.control_socket, {{"do", "list"}});
  if (!answer.ok()) return Error{answer.error()};
  const Json& served = answer.value()["vms"];
  std::vector<Row> rows;
  for (Domain& domain : link.value().All()) {
    const auto placed = Place(std::move(domain));
    if (!placed.ok()) continue;  // it has ended meanwhile
    for (const std::string& region : placed.value().RegionNames()) {
      Row row;
      row.region = region;
      row.domain = placed.value().domain.name();
      row.runs = placed.value().live.has_value();
      const auto live = FindRegion(placed.value().live, region),
                 next = FindRegion(placed.value().next, region);
      row.live = live.has_value();
      row.next = next.has_value();
      for (const auto& device : {live, next}) {
        if (!device) continue;
        row.xml_mib.push_back(device->mib);
        row.doorbell.push_back(device->doorbell);
      }
      rows.push_back(row);
    }
  }
  for (const Json& vm : served) {
    const std::string file = vm.value("file", "");
    const auto has = [&](const Row& row) { return kRegionFolder + row.region == file; };
    if (std::none_of(rows.begin(), rows.end(), has)) {
      const std::string folder = kRegionFolder;
      rows.emplace_back().region = file.starts_with(folder) ? file.substr(folder.size()) : file;
    }
    for (Row& row : rows) {
      if (has(row) || row.region == file) row.served = vm;
    }
  }
  return rows;
}

Json JsonOf(const Row& row, const std::vector<Row>& all) {
  return {{"region", row.region},
          {"domain", row.domain},
          {"state", row.domain.empty() ? "none"
                    : row.runs         ? "running"
                                       : "shut off"},
          {"live", row.live},
          {"next_start", row.next},
          {"mode", ModeOf(row)},
          {"polled", IsPolled(row)},
          {"memory_mib", row.served.is_null() ? Json() : row.served["memory_mib"]},
          {"gpus", row.served.is_null() ? Json::array() : row.served["gpus"]},
          {"sessions", row.served.is_null() ? Json(0) : row.served["sessions"]},
          {"agreement", Agreement(row, all)}};
}

void Print(const Json& row) {
  const bool live = row["live"].get<bool>(), next = row["next_start"].get<bool>();
  const auto text = [&](const char* key) {
    return row[key].is_string() ? PrintableText(row[key].get<std::string>()) : JsonText(row[key]);
  };
  const std::string domain = text("domain");
  const char* when = live && next ? "now and next start" : live ? "now" : next ? "next start" : "-";
  const std::string mode = text("mode") + (row["polled"].get<bool>() ? ", polled" : "");
  std::printf("%-16s %-9s %-24s %8s MiB  %-18s %-16s %4s sessions  %s\n",
              domain.empty() ? "-" : domain.c_str(), text("state").c_str(), text("region").c_str(),
              text("memory_mib").c_str(), when, mode.empty() ? "-" : mode.c_str(), text("sessions").c_str(),
              text("agreement").c_str());
}

}  // namespace

int RunList(const ListOptions& options) {
  const auto rows = Rows(options);
  if (!rows.ok()) {
    std::fprintf(stderr, "causeway: %s\n", rows.error().c_str());
    return 1;
  }
  Json list = Json::array();
  for (const Row& row : rows.value()) list.push_back(JsonOf(row, rows.value()));
  if (options.json) {
    std::printf("%s\n", JsonText(list).c_str());
    return 0;
  }
  if (list.empty()) std::printf("no domain has a region\n");
  for (const Json& row : list) Print(row);
  return 0;
}

}  // namespace causeway::command
