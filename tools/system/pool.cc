// SPDX-License-Identifier: Apache-2.0
#include "tools/system/pool.h"

#include <cstdio>
#include <cstdlib>

#include "host_backend/common/json.h"
#include "ivshmem_ring/hosts/ask_hosts.h"

namespace causeway::pool {
namespace {

Json JsonOf(const HostGpu& gpu) {
  Json json = {{"uuid", gpu.uuid},
               {"name", gpu.name},
               {"memory_bytes", gpu.memory_bytes},
               {"free_bytes", gpu.free_bytes},
               {"load_percent", nullptr}};
  if (gpu.load_percent >= 0) json["load_percent"] = gpu.load_percent;
  return json;
}

void PrintJson(const std::vector<HostAddress>& hosts, const std::vector<HostAnswer>& answers,
               const std::vector<size_t>& order) {
  Json list = Json::array();
  for (size_t i = 0; i < hosts.size(); ++i) {
    Json gpus = Json::array();
    for (const HostGpu& gpu : answers[i].figures.gpus) gpus.push_back(JsonOf(gpu));
    list.push_back({{"host", hosts[i].text},
                    {"state", StateName(answers[i].state)},
                    {"reason", answers[i].reason},
                    {"sessions", answers[i].figures.sessions},
                    {"gpus", std::move(gpus)}});
  }
  const Json chosen = order.empty() ? Json() : Json(hosts[order.front()].text);
  std::printf("%s\n", JsonText({{"hosts", std::move(list)}, {"chosen", chosen}}).c_str());
}

void PrintText(const std::vector<HostAddress>& hosts, const std::vector<HostAnswer>& answers,
               const std::vector<size_t>& order) {
  constexpr double kGib = 1u << 30;
  for (size_t i = 0; i < hosts.size(); ++i) {
    const HostAnswer& answer = answers[i];
    std::printf("%s  %s", hosts[i].text.c_str(), StateName(answer.state));
    if (answer.state == HostAnswer::State::kUp)
      std::printf(", %u sessions of this guest\n", answer.figures.sessions);
    else
      std::printf(": %s\n", PrintableText(answer.reason).c_str());
    for (const HostGpu& gpu : answer.figures.gpus) {
      const std::string load = gpu.load_percent >= 0 ? std::to_string(gpu.load_percent) + " %" : "?";
      std::printf("  %-32s %s  load %5s  free %7.2f of %7.2f GiB\n", gpu.name.c_str(), gpu.uuid.c_str(),
                  load.c_str(), double(gpu.free_bytes) / kGib, double(gpu.memory_bytes) / kGib);
    }
  }
  if (order.empty())
    std::printf("A program would find no host now.\n");
  else
    std::printf("A program that begins now would use %s.\n", hosts[order.front()].text.c_str());
}

std::string HostsOf(const PoolOptions& options, std::vector<HostAddress>* hosts) {
  if (options.hosts.empty()) return NamedHosts(kHostsFile, hosts);
  std::string list;
  for (const std::string& host : options.hosts) list += (list.empty() ? "" : ",") + host;
  return ParseHostList(list, hosts);
}

}  // namespace

std::string NamedHosts(const std::string& file, std::vector<HostAddress>* hosts) {
  constexpr std::string_view kFile = "hosts:";
  const char* variable = std::getenv("CAUSEWAY");
  const std::string chosen = variable != nullptr ? variable : "";
  if (chosen.empty()) return ReadHostsFile(file, hosts);
  if (chosen.starts_with(kFile)) return ReadHostsFile(chosen.substr(kFile.size()), hosts);
  const std::string problem = ParseHostList(chosen, hosts);
  return problem.empty() ? "" : "in the variable CAUSEWAY " + problem;
}

const char* StateName(HostAnswer::State state) {
  switch (state) {
    case HostAnswer::State::kUp:
      return "up";
    case HostAnswer::State::kUnknown:
      return "unknown";
    case HostAnswer::State::kFull:
      return "full";
    default:
      return "down";
  }
}

int RunPool(const PoolOptions& options) {
  std::vector<HostAddress> hosts;
  if (const std::string problem = HostsOf(options, &hosts); !problem.empty()) {
    std::fprintf(stderr, "causeway: No hosts: %s.\n", PrintableText(problem).c_str());
    return 1;
  }
  std::vector<HostAnswer> answers = AskHosts(hosts, true);
  const char* devices = std::getenv("CUDA_VISIBLE_DEVICES");
  const std::vector<size_t> order = OrderHosts(answers, devices != nullptr ? devices : "");
  options.json ? PrintJson(hosts, answers, order) : PrintText(hosts, answers, order);
  return order.empty() ? 1 : 0;
}

}  // namespace causeway::pool
