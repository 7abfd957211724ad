// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/payload/receiving.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ivshmem_ring/tcp/tcp_connection.h"
#include "tests/bench/payload/ends.h"
#include "tests/bench/payload/link.h"
#include "tests/bench/payload/ways.h"

namespace causeway::payload {
namespace {

struct Lane {
  UniqueFd fd;
  std::unique_ptr<ReceivingEnd> end;
};
using Lanes = std::vector<Lane>;

// Compares what the connection with that number, of so many, has received.
class Comparison {
 public:
  Comparison(uint32_t number, uint32_t connections) : number_(number), connections_(connections) {}

  void Take(uint64_t at, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const size_t part = std::min({bytes.size(), expected_.size(), kPieceBytes - at % kPieceBytes});
      // The pieces of the memory go to the connections in turns.
      const uint64_t piece = at / kPieceBytes * connections_ + number_;
      const auto expected = std::span(expected_).first(part);
      Pattern(piece * kPieceBytes + at % kPieceBytes, expected);
      if (!std::equal(expected.begin(), expected.end(), bytes.begin()) && wrong_.empty())
        wrong_ = "connection " + std::to_string(number_) + ", between its bytes " + std::to_string(at) +
                 " and " + std::to_string(at + part);
      bytes = bytes.subspan(part);
      at += part;
    }
  }
  Outcome outcome() const { return wrong_.empty() ? Outcome{} : Outcome{Status::kWrong, wrong_}; }

 private:
  const uint32_t number_, connections_;
  std::vector<std::byte> expected_ = std::vector<std::byte>(32u << 10);
  std::string wrong_;
};

class Receiver {
 public:
  Receiver(int listener, UniqueFd orders, uint64_t token)
      : listener_(listener), orders_(std::move(orders)), token_(token) {
    // As the worker has its staging buffers: one behind the other, in large pages where the kernel gives them, and in memory already.
    madvise(staging_.all().data(), staging_.all().size(), MADV_HUGEPAGE);
    std::fill(staging_.all().begin(), staging_.all().end(), std::byte{0});
  }

  // False: the sending end has gone.
  bool ServeOne() {
    Order order;
    if (!GetAll(orders_.get(), &order) || order.way >= kWayCount) return false;
    if (order.kind == Order::kPrepare) return Prepare(order);
    if (order.kind == Order::kTransfer) return Transfer(order);
    ways_.erase(order.way);
    return Reply({}, 0);
  }

 private:
  bool Reply(const Outcome& outcome, double cpu_s) {
    Answer answer;
    answer.status = outcome.status;
    answer.cpu_s = cpu_s;
    std::snprintf(answer.text, sizeof answer.text, "%s", outcome.text.c_str());
    return PutAll(orders_.get(), answer);
  }

  bool Prepare(Order& order) {
    const Way& way = kWays[order.way];
    const size_t share = PiecesOf(way.connections) * kPieceBytes;
    Lanes lanes(way.connections);
    Outcome outcome;
    for (size_t i = 0; i < lanes.size() && outcome.done(); ++i) {
      std::swap(order.traffic[i].reading, order.traffic[i].writing);
      lanes[i].end = MakeReceivingEnd(way.receives, staging_.all().subspan(i * share, share),
                                      order.traffic[i], &outcome);
    }
    if (!Reply(outcome, 0)) return false;
    if (!outcome.done()) return true;
    for (size_t i = 0; i < lanes.size(); ++i) {
      UniqueFd fd = Accept(listener_);
      Greeting greeting;
      if (!GetAll(fd.get(), &greeting) || greeting.token != token_ || greeting.number >= lanes.size())
        Fail("a connection has come that is none of this run");
      lanes[greeting.number].fd = std::move(fd);
    }
    ways_[order.way] = std::move(lanes);
    return true;
  }

  bool Transfer(const Order& order) {
    const auto found = ways_.find(order.way);
    if (found == ways_.end()) return false;
    Lanes& lanes = found->second;
    const auto count = static_cast<uint32_t>(lanes.size());
    std::vector<Comparison> comparisons;
    for (uint32_t i = 0; order.verifies != 0 && i < count; ++i) comparisons.emplace_back(i, count);
    // What an earlier way has left there must not pass for this one's.
    if (order.verifies != 0) std::fill(staging_.all().begin(), staging_.all().end(), std::byte{0});
    std::vector<Outcome> outcomes(count);
    const double before_s = CpuSeconds();
    const auto receive = [&](uint32_t i) {
      const uint64_t pieces = order.bytes / kPieceBytes;
      const uint64_t own = (pieces + count - 1 - i) / count * kPieceBytes;
      Taker take;
      if (order.verifies != 0) take = [&, i](uint64_t at, auto bytes) { comparisons[i].Take(at, bytes); };
      outcomes[i] = lanes[i].end->Receive(lanes[i].fd.get(), own, take);
      // The sender must not wait for room in a socket from which nothing will be taken.
      if (!outcomes[i].done()) shutdown(lanes[i].fd.get(), SHUT_RDWR);
    };
    std::vector<std::thread> others;
    for (uint32_t i = 1; i < count; ++i) others.emplace_back(receive, i);
    receive(0);
    for (std::thread& each : others) each.join();
    const double cpu_s = CpuSeconds() - before_s;
    for (const Comparison& each : comparisons) outcomes.push_back(each.outcome());
    const auto bad = std::find_if(outcomes.begin(), outcomes.end(), [](auto& each) { return !each.done(); });
    return Reply(bad == outcomes.end() ? Outcome{} : *bad, cpu_s);
  }

  const int listener_;
  const UniqueFd orders_;
  const uint64_t token_;
  BulkMemory staging_;
  std::map<uint32_t, Lanes> ways_;
};

}  // namespace

int ServeReceiving(int listener) {
  constexpr unsigned kGraceS = 120;
  UniqueFd orders = Accept(listener);
  Greeting greeting;
  if (!GetAll(orders.get(), &greeting) || greeting.magic != Greeting{}.magic || greeting.number != kOrders)
    Fail("what has come is no payload_bench of the same build");
  alarm(greeting.limit_s + kGraceS);  // ends this process, whatever it waits for
  // The sender fills its memory before it gives the first order, and between two tables.
  const timeval forever{};
  setsockopt(orders.get(), SOL_SOCKET, SO_RCVTIMEO, &forever, sizeof forever);
  Receiver receiver(listener, std::move(orders), greeting.token);
  while (receiver.ServeOne()) continue;
  return 0;
}

}  // namespace causeway::payload
