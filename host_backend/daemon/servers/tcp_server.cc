// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/servers/tcp_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "host_backend/daemon/scopes/tcp_peer.h"
#include "host_backend/daemon/servers/flight_store.h"
#include "host_backend/daemon/servers/open_block.h"
#include "ivshmem_ring/messages/local_protocol.h"

namespace causeway::daemon {
namespace {

constexpr std::chrono::milliseconds kOpenLimit{5'000};
constexpr size_t kMaxIdleConnections = 64;  // beyond the sessions

// Numbers alone: nobody is asked for names.
socklen_t FillAddress(const TcpConfig& config, sockaddr_storage& storage) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (getaddrinfo(config.address.c_str(), std::to_string(config.port).c_str(), &hints, &found) != 0) return 0;
  const socklen_t length = found->ai_addrlen;
  std::memcpy(&storage, found->ai_addr, length);
  freeaddrinfo(found);
  return length;
}

std::string AddressText(const std::string& address, uint16_t port) {
  const bool v6 = address.find(':') != std::string::npos;
  return (v6 ? "[" + address + "]" : address) + ":" + std::to_string(port);
}

}  // namespace

class TcpServer::Session final : public WorkerClient {
 public:
  Session(TcpServer& server, UniqueFd socket)
      : server_(server), services_(server.services_), socket_(std::move(socket)) {
    watch_ = services_.loop.Watch(socket_.get(), EPOLLIN | EPOLLRDHUP, "a TCP client's packet",
                                  [this](uint32_t events) { OnSocket(events); });
    sockaddr_storage address{};
    socklen_t length = sizeof(address);
    char text[NI_MAXHOST] = "";
    if (getpeername(socket_.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0)
      getnameinfo(reinterpret_cast<sockaddr*>(&address), length, text, sizeof(text), nullptr, 0,
                  NI_NUMERICHOST);
    // Over the loopback interface each user is a peer of its own, held to the UNIX socket's permissions.
    std::string name = text;
    if (IsLoopbackConnection(socket_.get())) {
      user_ = LoopbackPeer(socket_.get());
      name += user_ ? ":uid" + std::to_string(*user_) : ":unknown";
      stranger_ = !user_ || !MayUseSocket(*user_, services_.config);
    }
    scope_ = services_.scopes.OfPeer(name);
    if (scope_ != nullptr) scope_->CountConnection(true);
    timer_ = services_.loop.After(kOpenLimit, "a TCP client's time limit",
                                  [this] { Refuse("The opening message did not arrive within 5 s."); });
  }

  ~Session() override {
    services_.flights.End(number_);
    services_.loop.Unwatch(watch_);
    services_.loop.Cancel(timer_);
    services_.pool.Withdraw(*this);
    EndConnection();
  }

  bool crowded() const { return scope_ == nullptr || !services_.scopes.MayConnect(*scope_); }
  bool silent() const { return received_ < sizeof(block_) && !left_; }

  // Its connection is over; destroyed later. Repeatable.
  void Leave() {
    if (std::exchange(left_, true)) return;
    services_.loop.Unwatch(watch_);
    services_.loop.Cancel(timer_);
    services_.flights.End(number_);
    seat_.reset();
    EndConnection();
    server_.Destroy(*this);
  }

  SessionStatus Status() const {
    SessionStatus status;
    status.number = number_;
    status.kind = "tcp";
    status.scope = scope_->name;
    status.uid = user_.value_or(0);
    status.pid = block_.pid;
    status.state = worker_pid_ != 0 ? "serving" : "opening";
    status.opened = opened_;
    status.worker_pid = worker_pid_;
    status.usage = usage_;
    status.memory = services_.pool.MemoryOf(*this);
    return status;
  }

  void OnWorker(WorkerProcess& worker) override {
    services_.loop.Unwatch(watch_);
    const LocalReply reply = Accepted(0);
    WorkerAssignment assignment{};
    assignment.kind = AssignmentKind::kTcp;
    // The reply goes first: from the assignment on, only the worker writes to the connection.
    fcntl(socket_.get(), F_SETFL, 0);  // workers expect a blocking connection
    const bool replied =
        send(socket_.get(), &reply, sizeof(reply), MSG_NOSIGNAL | MSG_DONTWAIT) == ssize_t(sizeof(reply));
    std::vector<int> descriptors = {socket_.get()};
    flight_ = FlightFile::Make();
    assignment.has_flight = flight_ != nullptr ? 1 : 0;
    if (flight_ != nullptr) descriptors.push_back(flight_->fd());
    if (!replied || !worker.Assign(assignment, descriptors)) {
      worker.Kill();
      return;
    }
    worker_pid_ = last_worker_pid_ = worker.pid();
    number_ = services_.flights.Begin([this](bool with_images) { return CopyFlight(with_images); });
    ++services_.counters.sessions;
    scope_->log->Write(LogLevel::kInfo, "TCP session of pid " + std::to_string(block_.pid) +
                                            " is served by worker " + std::to_string(worker_pid_));
    socket_.reset();  // the worker's copy is the only one: the client sees its end
  }

  void OnNoWorker(const std::string& sentence) override { Refuse(sentence); }

  // One machine may hold many users: what its processes share only their tokens protect from each other. What
  // a process says of its number is not checked, so nobody may control it.
  SessionPeer Peer() const override { return PeerOf(*scope_, services_.config.tcp.share, 0, 0, block_.pid); }

  void OnWorkerUsage(const WorkerUsage& usage) override {
    if (usage.violations > usage_.violations)
      services_.counters.violations += usage.violations - usage_.violations;
    usage_ = usage;
  }

  void OnWorkerViolation() override { ++services_.counters.violations; }

  void OnWorkerExit(const std::string& how, bool orderly) override {
    if (!orderly) ++services_.counters.worker_deaths;
    if (!orderly) worker_end_ = how;
    scope_->log->Write(orderly ? LogLevel::kInfo : LogLevel::kWarning,
                       "TCP session of pid " + std::to_string(block_.pid) + " ended: its worker " + how);
    worker_pid_ = 0;
    Leave();
  }

 private:
  // From now on it counts as a session, or not at all.
  void EndConnection() {
    if (std::exchange(connecting_, false) && scope_ != nullptr) scope_->CountConnection(false);
  }

  // The guest's side stays with the guest: only the host's times are here.
  FlightCopy CopyFlight(bool with_images) const {
    FlightCopy copy{Status(), worker_end_, "", ""};
    copy.status.worker_pid = last_worker_pid_;
    if (with_images && flight_ != nullptr) copy.host = flight_->Copy();
    return copy;
  }

  void Refuse(const std::string& sentence) {
    if (left_) return;
    ++services_.counters.refused;
    scope_->log->Write(LogLevel::kWarning, scope_->who + ": TCP client is refused: " + sentence);
    const LocalReply reply = Refusal(sentence);
    if (socket_) send(socket_.get(), &reply, sizeof(reply), MSG_NOSIGNAL);
    Leave();
  }

  void OnSocket(uint32_t events) {
    if (received_ == sizeof(block_)) {
      // Waiting for a worker; what follows the opening message is the worker's. Only the end concerns us.
      if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) Leave();
      return;
    }
    // Never a byte more than the opening message.
    const ssize_t bytes =
        recv(socket_.get(), reinterpret_cast<char*>(&block_) + received_, sizeof(block_) - received_, 0);
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (bytes <= 0) return Leave();
    received_ += size_t(bytes);
    if (received_ == sizeof(block_)) Open();
  }

  void Open() {
    if (stranger_) {
      return Refuse(
          "This user may not use the host's GPUs: its connection over the loopback interface is held to "
          "socket_mode and socket_group in the configuration of causewayd; become a member of that group.");
    }
    services_.loop.Cancel(timer_);
    services_.loop.Unwatch(watch_);
    watch_ = services_.loop.Watch(socket_.get(), EPOLLRDHUP, "the end of a TCP client",
                                  [this](uint32_t events) { OnSocket(events); });
    auto request = CheckOpenBlock(block_, services_.api_hash, 0, services_.config.tcp.share.gpus,
                                  services_.config.nvml_shows_all);
    if (!request.ok()) {
      if (block_.magic != kRegionMagic) ++services_.counters.violations;
      return Refuse(request.error());
    }
    auto seat = services_.scopes.TakeSession(scope_);
    if (!seat.ok()) return Refuse(seat.error());
    seat_ = std::move(seat.value());
    EndConnection();
    services_.pool.Request(
        *this, {std::move(request.value().environment), services_.config.tcp.share.gpus, block_.kind});
  }

  TcpServer& server_;
  Services& services_;
  UniqueFd socket_;
  EventLoop::WatchId watch_ = 0;
  EventLoop::TimerId timer_ = 0;
  OpenBlock block_{};
  size_t received_ = 0;
  std::optional<uid_t> user_;  // of this host, where the connection does not leave it
  bool stranger_ = false;      // whom the UNIX socket would not let in
  ScopeRef scope_;
  SessionSeat seat_;
  const Clock::time_point opened_ = Clock::now();
  bool connecting_ = true;
  bool left_ = false;
  pid_t worker_pid_ = 0;
  pid_t last_worker_pid_ = 0;
  std::string worker_end_;
  uint64_t number_ = 0;
  std::unique_ptr<FlightFile> flight_;
  WorkerUsage usage_{};
};

TcpServer::TcpServer(Services& services) : services_(services) {}

Result<std::unique_ptr<TcpServer>> TcpServer::Start(Services& services) {
  std::unique_ptr<TcpServer> server(new TcpServer(services));
  if (std::string text = server->Bind(); !text.empty()) return Error{text};
  server->watch_ = services.loop.Watch(server->listener_.get(), EPOLLIN, "a new TCP connection",
                                       [self = server.get()](uint32_t) { self->OnAccept(); });
  return server;
}

std::string TcpServer::Bind() {
  const TcpConfig& config = services_.config.tcp;
  const std::string where = AddressText(config.address, config.port);
  sockaddr_storage address{};
  socklen_t length = FillAddress(config, address);
  listener_.reset(socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  if (listener_) setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (!listener_ || bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(listener_.get(), 128) != 0) {
    return "TCP connections at " + where + " cannot be accepted: " + ErrnoText() + "; correct [tcp] listen.";
  }
  length = sizeof(address);
  getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length);
  const uint16_t port =
      ntohs(address.ss_family == AF_INET ? reinterpret_cast<sockaddr_in*>(&address)->sin_port
                                         : reinterpret_cast<sockaddr_in6*>(&address)->sin6_port);
  address_ = AddressText(config.address, port);
  LogInfo("TCP sessions are accepted at " + address_ + ", neither encrypted nor authenticated");
  return {};
}

TcpServer::~TcpServer() {
  sessions_.clear();
  services_.loop.Unwatch(watch_);
}

void TcpServer::Stop() {
  services_.loop.Unwatch(watch_);
  listener_.reset();
}

void TcpServer::OnAccept() {
  UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) return;
  if (sessions_.size() >= services_.config.max_sessions + kMaxIdleConnections) {
    // What has not said who it is makes room, the oldest first.
    const auto silent =
        std::find_if(sessions_.begin(), sessions_.end(), [](const auto& entry) { return entry->silent(); });
    if (silent == sessions_.end()) return;
    (*silent)->Leave();
  }
  const int on = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  auto session = std::make_unique<Session>(*this, std::move(socket));
  if (session->crowded()) return;
  sessions_.push_back(std::move(session));
}

void TcpServer::Destroy(Session& session) {
  services_.loop.Later("the end of a TCP client", [this, raw = &session] {
    sessions_.remove_if([raw](const auto& entry) { return entry.get() == raw; });
  });
}

void TcpServer::AppendStatus(std::vector<SessionStatus>& sessions) const {
  for (const auto& session : sessions_) sessions.push_back(session->Status());
}

}  // namespace causeway::daemon
