// SPDX-License-Identifier: Apache-2.0
// A session over a connection that is cut again and again at random places, client and server in one process.
#pragma once
#include <poll.h>

#include <condition_variable>
#include <future>
#include <list>
#include <random>

#include "ivshmem_ring/tcp/tcp_transport.h"
#include "ivshmem_ring/tls/tls_records.h"
#include "tests/unit/transport_harness.h"

namespace causeway::test {

// What passes bytes on between two sockets until a number of them has passed; then it resets both connections, in the middle of whatever
// was under way; or it `spoils` one byte there instead and passes on all that follows. A number of 0: nothing ends it.
class CuttingRelay {
 public:
  CuttingRelay(int near, int far, uint64_t cut_after, bool spoils)
      : near_(near), far_(far), spoils_(spoils), cut_after_(cut_after) {
    thread_ = std::thread([this] { Run(); });
  }
  ~CuttingRelay() {
    stop_ = true;
    thread_.join();
  }
  bool cut() const { return cut_.load(); }

 private:
  void Run() {
    uint64_t passed = 0;
    while (!stop_) {
      pollfd ready[2] = {{near_, POLLIN, 0}, {far_, POLLIN, 0}};
      if (poll(ready, 2, 5) <= 0) continue;
      if ((ready[0].revents != 0 && !Pass(near_, far_, &passed)) ||
          (ready[1].revents != 0 && !Pass(far_, near_, &passed)))
        break;
    }
    cut_ = cut_after_ != 0 && passed >= cut_after_;
    const linger at_once{1, 0};
    for (const int fd : {near_, far_}) {
      if (cut_) setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
      close(fd);
    }
  }
  bool Pass(int from, int to, uint64_t* passed) {
    std::byte bytes[32'768];
    size_t most = sizeof bytes;
    if (cut_after_ != 0) most = std::min<uint64_t>(most, cut_after_ - *passed);
    const ssize_t got = recv(from, bytes, most, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return true;
    if (got <= 0) return false;
    if (spoils_ && cut_after_ != 0 && *passed + uint64_t(got) == cut_after_) {
      bytes[got - 1] ^= std::byte{1};
      cut_after_ = 0;
    }
    for (ssize_t sent = 0; sent < got && !stop_;) {
      const ssize_t step = send(to, bytes + sent, size_t(got - sent), MSG_NOSIGNAL | MSG_DONTWAIT);
      pollfd room{to, POLLOUT, 0};
      if (step < 0 && errno != EAGAIN) return false;
      if (step < 0) poll(&room, 1, 5);
      sent += std::max<ssize_t>(step, 0);
    }
    *passed += uint64_t(got);
    return cut_after_ == 0 || *passed < cut_after_;
  }

  const int near_, far_;
  const bool spoils_;
  uint64_t cut_after_;
  std::atomic<bool> stop_{false}, cut_{false};
  std::thread thread_;
};

struct CutPlan {
  bool encrypted = false;
  uint32_t cuts = 0;                // then the connection stays
  uint64_t least = 1, most = 1000;  // bytes that pass before each
  uint32_t grace_s = 60;
  bool spoils = false;   // a byte that passes is changed, and nothing is cut
  uint32_t refused = 0;  // so many attempts to connect again fail after each cut
  Compression compression = {};
};

// A client and a server, whose threads serve as TestServer does.
class CutSession {
 public:
  CutSession(const CutPlan& plan, uint64_t seed) : plan_(plan), random_(seed) {
    Ends ends = Connect();
    server_ = std::make_unique<TcpServer>(
        ends.server, nullptr, std::move(ends.server_layer),
        WaitForGuest{plan.grace_s, [this](bool waits) { (waits ? losses_ : returns_).fetch_add(1); }},
        plan.compression);
    client_ = std::make_unique<TcpClient>(
        ends.client, std::move(ends.client_layer),
        ConnectAgain{[this](uint64_t, uint64_t received, FreshSocket* fresh, std::string* why) {
                       return Dial(received, fresh, why);
                     },
                     plan.grace_s},
        plan.compression);
    threads_ = std::make_unique<TestServer>(*server_);
  }
  ~CutSession() {
    client_.reset();
    server_->Stop();
    threads_->Join();
    EXPECT_FALSE(threads_->corrupt()) << server_->CorruptReason();
    server_.reset();
    relays_.clear();
  }

  TcpClient& client() { return *client_; }
  TcpServer& server() { return *server_; }
  std::byte* BulkBuffer(uint32_t index) { return client_->BulkBuffer(index); }
  uint64_t posted = 0;  // values, by whoever has them counted
  uint32_t losses() const { return losses_.load(); }
  uint32_t returns() const { return returns_.load(); }
  // From then on no attempt succeeds.
  void Forbid() { forbidden_ = true; }

 private:
  struct Ends {
    int client = -1, server = -1;
    std::unique_ptr<StreamLayer> client_layer, server_layer;
  };

  Ends Connect() {
    Ends ends;
    const auto near = TcpPair(), far = TcpPair();
    ends.client = near.first;
    ends.server = far.second;
    uint64_t cut_after = 0;
    if (made_++ < plan_.cuts)
      cut_after = std::uniform_int_distribution<uint64_t>(plan_.least, plan_.most)(random_);
    relays_.emplace_back(near.second, far.first, cut_after, plan_.spoils);
    if (!plan_.encrypted) return ends;
    TlsTraffic traffic{};
    for (auto* direction : {&traffic.reading, &traffic.writing})
      for (uint8_t& byte : direction->secret) byte = uint8_t(random_());
    traffic.cipher = 0x1301;
    ends.client_layer = TlsRecords::Make(traffic);
    std::swap(traffic.reading, traffic.writing);
    ends.server_layer = TlsRecords::Make(traffic);
    return ends;
  }

  // In the client's keeper; the server's takes what is offered, and says how much it has received.
  SocketSource::Got Dial(uint64_t received, FreshSocket* fresh, std::string* why) {
    *why = "a test refuses it";
    if (forbidden_ || refusals_++ % (plan_.refused + 1) != plan_.refused) return SocketSource::Got::kNothing;
    auto ends = std::make_shared<Ends>(Connect());
    auto theirs = std::make_shared<std::promise<uint64_t>>();
    std::future<uint64_t> answer = theirs->get_future();
    fresh->fd = ends->client;
    fresh->layer = std::move(ends->client_layer);
    server_->Offer([ends, theirs, received](uint64_t host_received, FreshSocket* taken, std::string*) {
      taken->fd = ends->server;
      taken->layer = std::move(ends->server_layer);
      taken->peer_received = received;
      theirs->set_value(host_received);
      return true;
    });
    if (answer.wait_for(kMostWaiting) != std::future_status::ready) return SocketSource::Got::kNothing;
    try {
      fresh->peer_received = answer.get();
    } catch (const std::future_error&) {  // the offer was not taken
      return SocketSource::Got::kNothing;
    }
    return SocketSource::Got::kSocket;
  }

  const CutPlan plan_;
  std::mt19937_64 random_;
  uint32_t made_ = 0, refusals_ = 0;
  std::atomic<bool> forbidden_{false};
  std::atomic<uint32_t> losses_{0}, returns_{0};
  std::list<CuttingRelay> relays_;
  std::unique_ptr<TcpServer> server_;
  std::unique_ptr<TcpClient> client_;
  std::unique_ptr<TestServer> threads_;
};

}  // namespace causeway::test
