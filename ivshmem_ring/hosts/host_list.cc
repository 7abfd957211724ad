// SPDX-License-Identifier: Apache-2.0
#include "ivshmem_ring/hosts/host_list.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "ivshmem_ring/tls/key_file.h"

namespace causeway {
namespace {

constexpr std::string_view kTls = "tls://", kTcp = "tcp://", kBlanks = " \t\r";

std::string_view Trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
}

bool IsPort(std::string_view text) {
  return !text.empty() && text.size() <= 5 && text.find_first_not_of("0123456789") == text.npos &&
         std::atoi(std::string(text).c_str()) <= 65'535;
}

// A name or an address of version 4; of version 6, maybe with the interface that it is of.
bool IsHost(std::string_view text, bool v6) {
  const auto fits = [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_' || (v6 && (c == ':' || c == '%'));
  };
  return !text.empty() && (!v6 || text.find(':') != text.npos) && std::all_of(text.begin(), text.end(), fits);
}

// "HOST", "HOST:PORT", "[ADDRESS]" or "[ADDRESS]:PORT". False: it is none of them.
bool Split(std::string_view text, HostAddress* address) {
  std::string_view host = text, rest;
  const bool v6 = text.starts_with('[');
  if (v6) {
    const size_t end = text.find(']');
    if (end == text.npos) return false;
    host = text.substr(1, end - 1);
    rest = text.substr(end + 1);
  } else if (const size_t colon = text.find(':'); colon != text.npos) {
    host = text.substr(0, colon);
    rest = text.substr(colon);
  }
  if (!IsHost(host, v6)) return false;
  address->host = host;
  if (rest.empty()) return true;
  address->port = rest.substr(1);
  return rest.front() == ':' && IsPort(address->port);
}

std::string Add(std::string_view text, std::vector<HostAddress>* hosts) {
  HostAddress address;
  if (std::string problem = ParseHost(text, &address); !problem.empty()) return problem;
  const auto same = [&](const HostAddress& other) { return other.text == address.text; };
  if (std::any_of(hosts->begin(), hosts->end(), same)) return address.text + " is named twice";
  if (hosts->size() == kMaxHosts) return "more than " + std::to_string(kMaxHosts) + " hosts are named";
  hosts->push_back(std::move(address));
  return {};
}

}  // namespace

bool IsRemote(std::string_view text) {
  return text.starts_with(kTls) || text.starts_with(kTcp);
}

std::string ParseHost(std::string_view text, HostAddress* address) {
  *address = {};
  address->encrypted = text.starts_with(kTls);
  address->port = address->encrypted ? "7471" : "7470";
  const std::string quoted = "'" + std::string(text.substr(0, 300)) + "'";
  if (!IsRemote(text)) return quoted + " is neither tls://host:port nor tcp://host:port";
  if (!Split(text.substr(kTls.size()), address))
    return quoted + " is no host:port; the port is a number, and an IPv6 address stands in brackets";
  const bool v6 = address->host.find(':') != std::string::npos;
  address->text = std::string(text.substr(0, kTls.size())) +
                  (v6 ? "[" + address->host + "]" : address->host) + ":" + address->port;
  return {};
}

std::string ParseHostList(std::string_view text, std::vector<HostAddress>* hosts) {
  hosts->clear();
  while (true) {
    const size_t comma = text.find(',');
    if (std::string problem = Add(Trimmed(text.substr(0, comma)), hosts); !problem.empty()) return problem;
    if (comma == text.npos) return {};
    text.remove_prefix(comma + 1);
  }
}

std::string ParseHostsFile(std::string_view text, std::vector<HostAddress>* hosts) {
  hosts->clear();
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
    line = Trimmed(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    if (std::string problem = Add(line, hosts); !problem.empty())
      return "line " + std::to_string(number) + ": " + problem;
  }
  return hosts->empty() ? "it names no host" : "";
}

std::string ReadHostsFile(const std::string& path, std::vector<HostAddress>* hosts) {
  hosts->clear();
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  std::string text(kMaxHostsFileBytes + 1, '\0');
  const ssize_t bytes = file >= 0 ? read(file, text.data(), text.size()) : -1;
  const int why = errno;
  if (file >= 0) close(file);
  if (bytes < 0) return "the file of hosts " + path + " cannot be read: " + strerror(why);
  if (static_cast<size_t>(bytes) > kMaxHostsFileBytes)
    return "the file of hosts " + path + " is longer than " + std::to_string(kMaxHostsFileBytes) + " bytes";
  const std::string problem =
      ParseHostsFile(std::string_view(text).substr(0, static_cast<size_t>(bytes)), hosts);
  return problem.empty() ? "" : "the file of hosts " + path + ": " + problem;
}

std::string KeyFileFor(const HostAddress& address) {
  const char* chosen = getenv("CAUSEWAY_KEY");
  const std::string usual = chosen != nullptr && *chosen != '\0' ? chosen : kGuestKeyFile;
  const std::string own = usual + "." + address.host;
  return access(own.c_str(), F_OK) == 0 ? own : usual;
}

}  // namespace causeway
