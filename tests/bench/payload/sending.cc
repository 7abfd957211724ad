// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/payload/sending.h"

#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

namespace causeway::payload {
namespace {

constexpr uint32_t kAes128Gcm = 0x1301;

}  // namespace

Sender::Sender(std::string host, std::string port, std::span<std::byte> memory, uint32_t limit_s)
    : host_(std::move(host)),
      port_(std::move(port)),
      memory_(memory),
      orders_(payload::Connect(host_, port_)) {
  if (getrandom(&greeting_.token, sizeof greeting_.token, 0) != sizeof greeting_.token)
    Fail("the kernel gives no random bytes");
  greeting_.number = kOrders;
  greeting_.limit_s = limit_s;
  if (!PutAll(orders_.get(), greeting_)) Fail("the receiving process has gone");
}

Answer Sender::Ask(const Order& order) {
  Answer answer;
  if (!PutAll(orders_.get(), order) || !GetAll(orders_.get(), &answer))
    Fail("the receiving process has gone");
  return answer;
}

Outcome Sender::Connect(uint32_t way) {
  Order order;
  order.way = way;
  if (getrandom(order.traffic, sizeof order.traffic, 0) != sizeof order.traffic)
    Fail("the kernel gives no random bytes");
  for (TlsTraffic& traffic : order.traffic) {
    traffic.cipher = kAes128Gcm;
    traffic.reading.sequence = traffic.writing.sequence = 0;
  }
  const Answer answer = Ask(order);
  if (answer.status != Status::kDone) return {answer.status, answer.text};
  std::vector<Lane>& lanes = ways_[way];
  lanes.resize(kWays[way].connections);
  for (uint32_t i = 0; i < lanes.size(); ++i) {
    lanes[i].fd = payload::Connect(host_, port_);
    Greeting greeting = greeting_;
    greeting.number = i;
    if (!PutAll(lanes[i].fd.get(), greeting)) Fail("the receiving process has gone");
    for (size_t at = i * kPieceBytes; at < memory_.size(); at += lanes.size() * kPieceBytes)
      lanes[i].pieces.push_back(memory_.subspan(at, kPieceBytes));
  }
  Outcome outcome;
  for (uint32_t i = 0; i < lanes.size() && outcome.done(); ++i)
    lanes[i].end = MakeSendingEnd(kWays[way].sends, lanes[i].fd.get(), memory_, order.traffic[i], &outcome);
  return outcome;
}

Outcome Sender::Prepare(uint32_t way) {
  Outcome outcome = Connect(way);
  Sample unused;
  if (outcome.done()) outcome = Transfer(way, true, &unused);
  if (outcome.done() || ways_[way].empty()) return outcome;
  ways_[way].clear();
  Order drop;
  drop.kind = Order::kDrop;
  drop.way = way;
  Ask(drop);
  return outcome;
}

Outcome Sender::Transfer(uint32_t way, bool verifies, Sample* sample) {
  std::vector<Lane>& lanes = ways_[way];
  Order order;
  order.kind = Order::kTransfer;
  order.way = way;
  order.bytes = memory_.size();
  order.verifies = verifies ? 1 : 0;
  std::vector<Outcome> outcomes(lanes.size());
  const auto send = [&](size_t i) {
    outcomes[i] = lanes[i].end->Send(lanes[i].pieces);
    // The receiving end must not wait for what will not come.
    if (!outcomes[i].done()) shutdown(lanes[i].fd.get(), SHUT_RDWR);
  };
  const double before_s = CpuSeconds(), began = Now();
  if (!PutAll(orders_.get(), order)) Fail("the receiving process has gone");
  std::vector<std::thread> others;
  for (size_t i = 1; i < lanes.size(); ++i) others.emplace_back(send, i);
  send(0);
  for (std::thread& each : others) each.join();
  Answer answer;
  if (!GetAll(orders_.get(), &answer)) Fail("the receiving process has gone");
  for (size_t i = 0; i < lanes.size(); ++i)
    if (outcomes[i].done()) outcomes[i] = lanes[i].end->AwaitUnused();
  const double took = Now() - began, cpu_s = CpuSeconds() - before_s;
  // One end may fail because the other one lacks something.
  outcomes.push_back({answer.status, answer.text});
  const auto worse = [](const Outcome& one, const Outcome& other) {
    const auto rank = [](Status status) { return std::array{0, 2, 3, 1}[static_cast<size_t>(status)]; };
    return rank(one.status) < rank(other.status);
  };
  Outcome worst = *std::max_element(outcomes.begin(), outcomes.end(), worse);
  const double gb = static_cast<double>(memory_.size()) / 1e9;
  *sample = {gb / took, cpu_s / gb, answer.cpu_s / gb};
  return worst;
}

Notices Sender::NoticesOf(uint32_t way) const {
  return ways_[way].empty() ? Notices{} : ways_[way].front().end->notices();
}

}  // namespace causeway::payload
