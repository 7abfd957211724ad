// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/connection/connect_hosts.h"

#include <stdlib.h>

#include <algorithm>

#include "guest_lib/process/log.h"
#include "ivshmem_ring/hosts/ask_hosts.h"
#include "ivshmem_ring/hosts/dial.h"

namespace causeway::guest {
namespace {

// Says that a host is passed over, and notes it for the case that no host is left.
void Skip(const HostAddress& host, const std::string& why, std::string* reasons) {
  Complain(host.text + " is passed over: " + why);
  *reasons += (reasons->empty() ? "" : "; ") + host.text + ": " + why;
}

// The hosts that are to be tried, best first.
std::vector<HostAddress> AskAndOrder(const std::vector<HostAddress>& hosts, std::string* reasons) {
  std::vector<HostAnswer> answers = AskHosts(hosts, false);
  const char* devices = getenv("CUDA_VISIBLE_DEVICES");
  std::vector<HostAddress> ordered;
  for (const size_t number : OrderHosts(answers, devices != nullptr ? devices : ""))
    ordered.push_back(hosts[number]);
  for (size_t i = 0; i < hosts.size(); ++i) {
    if (answers[i].state == HostAnswer::State::kDown || answers[i].state == HostAnswer::State::kFull)
      Skip(hosts[i], answers[i].reason, reasons);
  }
  return ordered;
}

}  // namespace

std::unique_ptr<Connection> ConnectHosts(const std::vector<HostAddress>& hosts, SessionKind kind,
                                         std::string* error) {
  if (hosts.size() == 1) return ConnectHost(hosts.front(), kind, error);
  const auto named = [&](const std::string& text) {
    return std::find_if(hosts.begin(), hosts.end(),
                        [&](const HostAddress& host) { return host.text == text; });
  };
  if (const auto used = named(HostOfProcess("")); used != hosts.end()) return ConnectHost(*used, kind, error);
  std::string reasons;
  for (const HostAddress& host : AskAndOrder(hosts, &reasons)) {
    std::string why;
    auto connection = ConnectHost(host, kind, &why);
    if (connection == nullptr) {
      Skip(host, why, &reasons);
      continue;
    }
    // Another thread may have chosen for another library meanwhile.
    const auto used = named(HostOfProcess(host.text));
    if (used != hosts.end() && used->text != host.text) return ConnectHost(*used, kind, error);
    Explain("this process uses the GPUs of " + host.text);
    return connection;
  }
  *error = "no host can be used: " + reasons;
  return nullptr;
}

}  // namespace causeway::guest
