// SPDX-License-Identifier: Apache-2.0
// What the two processes say to each other, on a connection that carries no payload, and how connections are made.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "host_backend/common/unique_fd.h"
#include "ivshmem_ring/tls/tls_records.h"
#include "tests/bench/payload/ends.h"
#include "tests/bench/payload/ways.h"

namespace causeway::payload {

// The first message on each connection. Both ends have to be one build.
struct Greeting {
  uint64_t magic = 0x313064616f6c7970 + kWayCount;
  uint64_t token = 0;  // all connections of one run have the same
  uint32_t number = 0;
  uint32_t limit_s = 0;  // on kOrders: the receiving process ends itself a while after
};
inline constexpr uint32_t kOrders = 0xffffffff;  // the number of the connection without payload

// From the sending end to the receiving one, which answers each.
struct Order {
  enum Kind : uint32_t {
    kPrepare,  // makes the ends of a way; when the answer is good, its connections come, with the numbers from 0 on
    kTransfer,  // that many bytes come over the way; answered when all are there
    kDrop       // the way is not needed any more
  };
  Kind kind = kPrepare;
  uint32_t way = 0;
  uint64_t bytes = 0;
  uint32_t verifies = 0;  // each byte is compared with Pattern's
  uint32_t reserved = 0;
  // The sending ends' secrets. They are sent in plain text, since nothing here is secret.
  TlsTraffic traffic[kMostConnections]{};
};
struct Answer {
  Status status = Status::kDone;
  uint32_t reserved = 0;
  double cpu_s = 0;  // of the whole receiving process in the transfer
  char text[240] = "";
};

// False: the other end has gone.
bool Put(int fd, std::span<const std::byte> bytes);
bool Get(int fd, std::span<std::byte> bytes);
template <typename T>
bool PutAll(int fd, const T& message) {
  return Put(fd, std::as_bytes(std::span(&message, 1)));
}
template <typename T>
bool GetAll(int fd, T* message) {
  return Get(fd, std::as_writable_bytes(std::span(message, 1)));
}

// These say on stderr what failed and end the process.
[[noreturn]] void Fail(const std::string& what);
UniqueFd Listen(bool loopback_only, uint16_t port, uint16_t* bound);
UniqueFd Accept(int listener);
UniqueFd Connect(const std::string& host, const std::string& port);

// What belongs at [at, at + bytes.size()) of the sender's memory: each place has bytes of its own, and they look random.
void Pattern(uint64_t at, std::span<std::byte> bytes);

// Seconds of a clock that nobody sets.
double Now();
// Processor time of all threads of this process so far.
double CpuSeconds();

}  // namespace causeway::payload
