// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/payload/link.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace causeway::payload {
namespace {

UniqueFd Prepared(int fd) {
  const int on = 1;
  const timeval patience{60, 0};
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  return UniqueFd(fd);
}

}  // namespace

void Fail(const std::string& what) {
  std::fprintf(stderr, "payload_bench: %s\n", what.c_str());
  std::exit(1);
}

bool Put(int fd, std::span<const std::byte> bytes) {
  return SendWhole(fd, bytes).done();
}

bool Get(int fd, std::span<std::byte> bytes) {
  return ReceiveWhole(fd, bytes).done();
}

UniqueFd Listen(bool loopback_only, uint16_t port, uint16_t* bound) {
  UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  at.sin_addr.s_addr = htonl(loopback_only ? INADDR_LOOPBACK : INADDR_ANY);
  auto* const address = reinterpret_cast<sockaddr*>(&at);
  socklen_t length = sizeof at;
  const int on = 1;
  setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(listener.get(), address, length) != 0 || listen(listener.get(), kMostConnections) != 0 ||
      getsockname(listener.get(), address, &length) != 0)
    Fail("port " + std::to_string(port) + " cannot be listened on: " + std::strerror(errno));
  *bound = ntohs(at.sin_port);
  return listener;
}

UniqueFd Accept(int listener) {
  const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd < 0) Fail(std::string("no connection could be accepted: ") + std::strerror(errno));
  return Prepared(fd);
}

UniqueFd Connect(const std::string& host, const std::string& port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_family = AF_INET;
  const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (error != 0) Fail(host + ":" + port + " is no address: " + gai_strerror(error));
  UniqueFd fd(socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, 0));
  const int connected = connect(fd.get(), found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  if (connected != 0) Fail(host + ":" + port + " cannot be reached: " + std::strerror(errno));
  return Prepared(fd.release());
}

void Pattern(uint64_t at, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    uint64_t word = (at / sizeof word + 1) * 0x9e3779b97f4a7c15;
    word ^= word >> 29;
    const size_t skipped = at % sizeof word, taken = std::min(sizeof word - skipped, bytes.size());
    std::memcpy(bytes.data(), reinterpret_cast<const std::byte*>(&word) + skipped, taken);
    bytes = bytes.subspan(taken);
    at += taken;
  }
}

double Now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& of) {
    return static_cast<double>(of.tv_sec) + static_cast<double>(of.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace causeway::payload
