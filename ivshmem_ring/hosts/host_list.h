// SPDX-License-Identifier: Apache-2.0
// The hosts that a guest without shared memory may use, in order of preference: the variable CAUSEWAY with commas between them,
// or a file with one in a line.
//
//   tls://gpu1.example:7471,tls://gpu2.example,tls://[2001:db8::1]:7471
//
// All functions may be called from any thread. A text as a result is empty, or what is wrong, as a sentence without its full stop.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace causeway {

inline constexpr char kHostsFile[] = "/etc/causeway/hosts";  // read where nothing else leads to a host
inline constexpr size_t kMaxHosts = 32;
inline constexpr size_t kMaxHostsFileBytes = 64u << 10;

struct HostAddress {
  bool encrypted = true;
  std::string host;  // a name or an address, without brackets
  std::string port;
  std::string text;  // the whole, with the port: "tls://[2001:db8::1]:7471"
};

// Whether `text` begins like the address of a remote host.
bool IsRemote(std::string_view text);

// "tls://HOST" or "tcp://HOST", with ":PORT" behind it; without, the port is 7471 or 7470.
std::string ParseHost(std::string_view text, HostAddress* address);
// Several with commas between them: at least one, each once.
std::string ParseHostList(std::string_view text, std::vector<HostAddress>* hosts);
// A file's text: one in a line; what follows # is a comment.
std::string ParseHostsFile(std::string_view text, std::vector<HostAddress>* hosts);
std::string ReadHostsFile(const std::string& path, std::vector<HostAddress>* hosts);

// The file of the key that this guest proves to that host: what CAUSEWAY_KEY names, or /etc/causeway/key; with ".HOST" behind it
// where there is such a file, for hosts that are not to know each other's keys.
std::string KeyFileFor(const HostAddress& address);

}  // namespace causeway
