// SPDX-License-Identifier: Apache-2.0
// `causeway status`: asks the daemon and prints.
#include <cstdio>
#include <cstdlib>

#include "host_backend/command/command.h"
#include "host_backend/command/top/shares.h"
#include "host_backend/common/json.h"
#include "host_backend/common/shares/account_page.h"
#include "ivshmem_ring/messages/local_protocol.h"
#include "ivshmem_ring/transport/layout.h"

namespace causeway::command {
namespace {

std::string Mib(const std::string& bytes) {
  return std::to_string(std::strtoull(bytes.c_str(), nullptr, 10) >> 20) + " MiB";
}

// "3 MiB device, 16 MiB staging": what there is any of.
std::string MemoryText(const std::string& object) {
  std::string text;
  for (const char* kind : kMemoryKindNames) {
    const std::string bytes = StatusValue(object, "", std::string(kind) + "_bytes");
    if (bytes != "0") text += (text.empty() ? "" : ", ") + Mib(bytes) + " " + kind;
  }
  return text.empty() ? "no memory" : text;
}

void PrintAccount(const std::string& account) {
  const auto value = [&](const char* key) { return StatusValue(account, "", key); };
  const std::string limit = value("device_memory_limit_bytes");
  std::printf("  %-20s %s sessions  %s", value("scope").c_str(), value("sessions").c_str(),
              MemoryText(account).c_str());
  if (limit != "0")
    std::printf("; at most %s on each GPU, %s calls refused", Mib(limit).c_str(), value("refused").c_str());
  std::printf("\n");
}

void PrintSession(const std::string& session) {
  const auto value = [&](const char* key) { return StatusValue(session, "", key); };
  const std::string vm = value("vm");
  std::printf("  %-6s %-12s pid %-8s uid %-6s %-10s %8.0f s  worker %-8s %12s calls  %s\n",
              value("kind").c_str(), vm.empty() ? "-" : vm.c_str(), value("pid").c_str(),
              value("uid").c_str(), value("state").c_str(), std::strtod(value("age_s").c_str(), nullptr),
              value("worker_pid").c_str(), value("calls").c_str(), MemoryText(session).c_str());
}

void PrintRegion(const std::string& region) {
  const auto value = [&](const char* key) { return StatusValue(region, "", key); };
  const std::string mode = value("mode");
  std::printf("  %-12s %s, %s, %s of %s slots in use, %s of %s slices free, %s%s\n", value("vm").c_str(),
              value("file").c_str(), Mib(value("region_bytes")).c_str(), value("slots_in_use").c_str(),
              value("slots").c_str(), value("slices_free").c_str(), value("slices").c_str(), mode.c_str(),
              mode == "doorbell" && value("polled") == "true" ? ", but polled" : "");
  if (!value("problem").empty()) std::printf("               problem: %s\n", value("problem").c_str());
}

void PrintText(const std::string& json) {
  const auto value = [&](const char* section, const char* key) { return StatusValue(json, section, key); };
  std::printf("causewayd %s, pid %s, up %.0f s, at %s", value("", "version").c_str(),
              value("", "pid").c_str(), std::strtod(value("", "uptime_s").c_str(), nullptr),
              value("", "socket").c_str());
  const std::string tcp = value("", "tcp");
  std::printf(tcp.empty() ? "\n" : " and TCP %s\n", tcp.c_str());
  std::printf("driver: %s, version %s, %s devices\n", value("driver", "configured").c_str(),
              value("driver", "version").c_str(), value("driver", "devices").c_str());
  std::printf("workers: %s, of them %s of %s spare ones ready, %s starting\n",
              value("workers", "all").c_str(), value("workers", "spare_ready").c_str(),
              value("workers", "spare_wanted").c_str(), value("workers", "starting").c_str());
  std::printf("module images: %s kept, %s, found %s times of %s\n", value("images", "kept").c_str(),
              Mib(value("images", "bytes")).c_str(), value("images", "found").c_str(),
              std::to_string(std::strtoull(value("images", "found").c_str(), nullptr, 10) +
                             std::strtoull(value("images", "not_found").c_str(), nullptr, 10))
                  .c_str());
  if (!value("workers", "problem").empty()) std::printf("problem: %s\n", value("workers", "problem").c_str());
  std::printf("so far: %s sessions, %s refused, %s worker deaths, %s violations by guests\n",
              value("counters", "sessions").c_str(), value("counters", "refused").c_str(),
              value("counters", "worker_deaths").c_str(), value("counters", "violations").c_str());
  const auto regions = JsonObjects(json, "regions");
  if (!regions.empty()) std::printf("regions:\n");
  for (const auto& region : regions) PrintRegion(region);
  const auto accounts = JsonObjects(json, "accounts");
  if (!accounts.empty()) std::printf("memory:\n");
  for (const auto& account : accounts) PrintAccount(account);
  const auto shares = ShareTexts(ReadShares(Json::parse(json, nullptr, false)));
  if (!shares.empty()) std::printf("shares of the GPUs' time:\n");
  for (const std::string& line : shares) std::printf("%s\n", line.c_str());
  const auto sessions = JsonObjects(json, "sessions");
  std::printf(sessions.empty() ? "no sessions\n" : "sessions:\n");
  for (const auto& session : sessions) PrintSession(session);
}

}  // namespace

int RunStatus(const StatusOptions& options) {
  auto text = QueryStatus(options.socket);
  if (!text.ok()) {
    std::fprintf(stderr, "causeway: %s\n", text.error().c_str());
    return 1;
  }
  if (options.json) {
    std::printf("%s\n", PrintableText(text.value()).c_str());
  } else {
    PrintText(text.value());
  }
  return 0;
}

}  // namespace causeway::command
