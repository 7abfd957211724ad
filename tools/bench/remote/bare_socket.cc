// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/remote/bare_socket.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

#include "host_backend/common/unique_fd.h"
#include "ivshmem_ring/tls/tls_records.h"
#include "ivshmem_ring/transport/record.h"
#include "ivshmem_ring/transport/waiter.h"
#include "tools/bench/crew/statistics.h"
#include "tools/bench/process.h"

namespace causeway::bench {
namespace {

constexpr int kRounds = 9;
constexpr uint32_t kAes128Gcm = 0x1301;
constexpr timeval kPatience{60, 0};  // no receive waits longer

struct Pair {
  UniqueFd near, far;
};

Result<Pair> Connect() {
  UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  Pair pair{UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), UniqueFd()};
  if (!listener || !pair.near || bind(listener.get(), generic, sizeof address) != 0 ||
      listen(listener.get(), 1) != 0 || getsockname(listener.get(), generic, &length) != 0 ||
      connect(pair.near.get(), generic, sizeof address) != 0)
    return Error{"no socket could be connected over the loopback interface: " + ErrnoText()};
  pair.far = UniqueFd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!pair.far) return Error{"no connection could be accepted: " + ErrnoText()};
  const int on = 1;
  for (const int fd : {pair.near.get(), pair.far.get()}) {
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof kPatience);
  }
  return pair;
}

bool SendWhole(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(sent));
  }
  return true;
}

bool ReceiveWhole(int fd, std::span<std::byte> bytes) {
  return recv(fd, bytes.data(), bytes.size(), MSG_WAITALL) == static_cast<ssize_t>(bytes.size());
}

// The answer comes whole: it is one small packet.
bool ReceiveBy(const WaitPolicy& policy, int fd, std::span<std::byte> bytes) {
  const uint64_t begin_us = NowUs();
  for (uint64_t us = 0; us < policy.spin_us + policy.yield_us; us = NowUs() - begin_us) {
    if (recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT) == static_cast<ssize_t>(bytes.size())) return true;
    if (us >= policy.spin_us) sched_yield();
  }
  return ReceiveWhole(fd, bytes);
}

struct Ends {
  std::unique_ptr<TlsRecords> near, far;
};

Ends MakeEnds() {
  TlsTraffic traffic{};
  if (getrandom(&traffic, sizeof traffic, 0) != sizeof traffic) return {};
  traffic.cipher = kAes128Gcm;
  traffic.reading.sequence = traffic.writing.sequence = 0;
  TlsTraffic other = traffic;
  std::swap(other.reading, other.writing);
  return {TlsRecords::Make(traffic), TlsRecords::Make(other)};
}

bool SendSealed(TlsRecords& records, int fd, std::span<const std::byte> bytes, std::vector<std::byte>& wire) {
  constexpr size_t kPieceBytes = 128u << 10;
  for (; !bytes.empty(); bytes = bytes.subspan(std::min(kPieceBytes, bytes.size()))) {
    if (!records.Seal(bytes.first(std::min(kPieceBytes, bytes.size())))) return false;
    records.TakeOutput(wire);
    if (!SendWhole(fd, wire)) return false;
  }
  return true;
}

bool ReceiveSealed(TlsRecords& records, int fd, std::span<std::byte> bytes, std::vector<std::byte>& wire) {
  wire.resize(128u << 10);
  while (!bytes.empty()) {
    const ptrdiff_t opened = records.Open(bytes);
    if (opened < 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(opened));
    if (opened > 0) continue;
    const ssize_t got = recv(fd, wire.data(), wire.size(), 0);
    if (got <= 0) return false;
    records.Received(std::span(wire).first(static_cast<size_t>(got)));
  }
  return true;
}

}  // namespace

Result<double> PingPongUs(size_t request_bytes, size_t reply_bytes, int calls) {
  auto connected = Connect();
  if (!connected.ok()) return Error{connected.error()};
  Pair& pair = connected.value();
  std::vector<std::byte> request(request_bytes), reply(reply_bytes);
  std::thread far([&] {
    std::vector<std::byte> in(request_bytes);
    const std::vector<std::byte> out(reply_bytes);
    while (ReceiveWhole(pair.far.get(), in) && SendWhole(pair.far.get(), out)) continue;
  });
  std::vector<double> rounds;
  bool good = true;
  for (int round = 0; round < kRounds && good; ++round) {
    const double begin_ms = NowMs();
    for (int i = 0; i < calls && good; ++i)
      good = SendWhole(pair.near.get(), request) && ReceiveBy(ReplyPolicy(true), pair.near.get(), reply);
    rounds.push_back((NowMs() - begin_ms) * 1000 / calls);
  }
  shutdown(pair.near.get(), SHUT_RDWR);
  far.join();
  if (!good) return Error{"the bare sockets lost each other"};
  return Median(rounds);
}

namespace {

// One end of a copy: its memory in pieces, again and again.
class End {
 public:
  End(uint64_t bytes, bool sends) : memory_(std::max<uint64_t>(bytes / kBulkBytes, 1) * kBulkBytes) {
    if (sends) {
      for (size_t i = 0; i < memory_.size(); ++i) memory_[i] = std::byte(i * 2654435761u >> 13);
    }
  }
  std::span<std::byte> Piece(uint64_t index) {
    return std::span(memory_).subspan(index * kBulkBytes % memory_.size(), kBulkBytes);
  }

 private:
  std::vector<std::byte> memory_;
};

}  // namespace

Result<double> SenderGbPerS(const BareCopy& copy) {
  constexpr uint64_t kLeastBytes = uint64_t{256} << 20;  // takes 50 ms
  auto connected = Connect();
  if (!connected.ok()) return Error{connected.error()};
  Pair& pair = connected.value();
  const Ends ends = copy.encrypted ? MakeEnds() : Ends{};
  if (copy.encrypted && (ends.near == nullptr || ends.far == nullptr))
    return Error{"no records of TLS could be made"};
  const uint64_t pieces = std::max(copy.bytes, kLeastBytes) / kBulkBytes;
  End from(copy.to_host ? copy.bytes : kBulkBytes, true), to(copy.to_host ? kBulkBytes : copy.bytes, false);
  bool received = true;
  std::thread far([&] {
    std::vector<std::byte> wire;
    for (uint64_t i = 0; i < pieces && received; ++i) {
      received = copy.encrypted ? ReceiveSealed(*ends.far, pair.far.get(), to.Piece(i), wire)
                                : ReceiveWhole(pair.far.get(), to.Piece(i));
    }
    received = received && SendWhole(pair.far.get(), to.Piece(0).first(1));
  });
  std::vector<std::byte> wire;
  std::byte done;
  const double begin_ms = NowMs();
  bool sent = true;
  for (uint64_t i = 0; i < pieces && sent; ++i) {
    sent = copy.encrypted ? SendSealed(*ends.near, pair.near.get(), from.Piece(i), wire)
                          : SendWhole(pair.near.get(), from.Piece(i));
  }
  sent = sent && ReceiveWhole(pair.near.get(), {&done, 1});
  const double ms = NowMs() - begin_ms;
  shutdown(pair.near.get(), SHUT_RDWR);
  far.join();
  if (!sent || !received) return Error{"the bare sockets lost each other"};
  return double(pieces * kBulkBytes) / ms / 1e6;
}

}  // namespace causeway::bench
