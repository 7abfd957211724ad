// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/servers/stream_session.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "host_backend/daemon/servers/flight_store.h"
#include "host_backend/daemon/servers/open_block.h"
#include "ivshmem_ring/messages/local_protocol.h"

namespace causeway::daemon {
namespace {

constexpr std::chrono::milliseconds kOpenLimit{5'000};
constexpr size_t kMaxIdleStreams = 64;  // beyond the sessions

}  // namespace

class StreamSessions::Session final : public WorkerClient {
 public:
  Session(StreamSessions& server, UniqueFd socket, StreamOrigin origin)
      : server_(server),
        services_(server.services_),
        socket_(std::move(socket)),
        origin_(std::move(origin)),
        scope_(origin_.scope) {
    watch_ = services_.loop.Watch(socket_.get(), EPOLLIN | EPOLLRDHUP, "a remote client's packet",
                                  [this](uint32_t events) { OnSocket(events); });
    if (scope_ != nullptr) scope_->CountConnection(true);
    timer_ = services_.loop.After(kOpenLimit, "a remote client's time limit",
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
    status.kind = origin_.kind;
    status.scope = scope_->name;
    if (scope_->configured) status.vm = scope_->name.substr(scope_->name.find(':') + 1);
    status.uid = origin_.user.value_or(0);
    status.pid = block_.pid;
    status.release = release_;
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
    assignment.kind = origin_.encrypted ? AssignmentKind::kTls : AssignmentKind::kTcp;
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
    scope_->log->Write(LogLevel::kInfo, origin_.label + " session of pid " + std::to_string(block_.pid) +
                                            " is served by worker " + std::to_string(worker_pid_));
    if (!origin_.encrypted) {
      socket_.reset();  // the worker's copy is the only one: the client sees its end
      return;
    }
    // Its other end is in the process that did the handshake, which ends the session by its own end. A worker that was taken over
    // would not leave then, and has the guest's socket.
    worker_ = &worker;
    watch_ = services_.loop.Watch(socket_.get(), EPOLLRDHUP, "the end of a remote connection",
                                  [this](uint32_t) { OnConnectionEnd(); });
  }

  void OnNoWorker(const std::string& sentence) override { Refuse(sentence); }

  // One machine may hold many users: what its processes share only their tokens protect from each other. What
  // a process says of its number is not checked, so nobody may control it.
  SessionPeer Peer() const override { return PeerOf(*scope_, origin_.share, 0, 0, block_.pid); }

  void OnWorkerUsage(const WorkerUsage& usage) override {
    if (usage.violations > usage_.violations)
      services_.counters.violations += usage.violations - usage_.violations;
    usage_ = usage;
  }

  void OnWorkerViolation() override { ++services_.counters.violations; }

  void OnWorkerExit(const std::string& how, bool orderly) override {
    if (!orderly) ++services_.counters.worker_deaths;
    if (!orderly) worker_end_ = how;
    scope_->log->Write(
        orderly ? LogLevel::kInfo : LogLevel::kWarning,
        origin_.label + " session of pid " + std::to_string(block_.pid) + " ended: its worker " + how);
    worker_pid_ = 0;
    worker_ = nullptr;
    Leave();
  }

 private:
  void OnConnectionEnd() {
    services_.loop.Unwatch(watch_);
    if (worker_ != nullptr) worker_->End();  // killed when it does not
  }

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
    scope_->log->Write(LogLevel::kWarning,
                       scope_->who + ": " + origin_.label + " client is refused: " + sentence);
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
    if (origin_.stranger) {
      return Refuse(
          "This user may not use the host's GPUs: its connection over the loopback interface is held to "
          "socket_mode and socket_group in the configuration of causewayd; become a member of that group.");
    }
    services_.loop.Cancel(timer_);
    services_.loop.Unwatch(watch_);
    watch_ = services_.loop.Watch(socket_.get(), EPOLLRDHUP, "the end of a remote client",
                                  [this](uint32_t events) { OnSocket(events); });
    auto request =
        CheckOpenBlock(block_, services_.workers, 0, origin_.share.gpus, services_.config.nvml_shows_all);
    if (!request.ok()) {
      if (block_.magic != kRegionMagic) ++services_.counters.violations;
      return Refuse(request.error());
    }
    auto seat = services_.scopes.TakeSession(scope_);
    if (!seat.ok()) return Refuse(seat.error());
    seat_ = std::move(seat.value());
    EndConnection();
    release_ = request.value().release;
    services_.pool.Request(
        *this, {std::move(request.value().environment), origin_.share.gpus, block_.kind, block_.api_hash});
  }

  StreamSessions& server_;
  Services& services_;
  UniqueFd socket_;
  const StreamOrigin origin_;
  const ScopeRef scope_;
  EventLoop::WatchId watch_ = 0;
  EventLoop::TimerId timer_ = 0;
  OpenBlock block_{};
  std::string release_;
  size_t received_ = 0;
  SessionSeat seat_;
  const Clock::time_point opened_ = Clock::now();
  bool connecting_ = true;
  bool left_ = false;
  WorkerProcess* worker_ = nullptr;  // of an encrypted connection
  pid_t worker_pid_ = 0;
  pid_t last_worker_pid_ = 0;
  std::string worker_end_;
  uint64_t number_ = 0;
  std::unique_ptr<FlightFile> flight_;
  WorkerUsage usage_{};
};

StreamSessions::StreamSessions(Services& services) : services_(services) {}

StreamSessions::~StreamSessions() {
  sessions_.clear();
}

void StreamSessions::Add(UniqueFd socket, StreamOrigin origin) {
  if (sessions_.size() >= services_.config.max_sessions + kMaxIdleStreams) {
    // What has not said who it is makes room, the oldest first.
    const auto silent =
        std::find_if(sessions_.begin(), sessions_.end(), [](const auto& entry) { return entry->silent(); });
    if (silent == sessions_.end()) return;
    (*silent)->Leave();
  }
  auto session = std::make_unique<Session>(*this, std::move(socket), std::move(origin));
  if (session->crowded()) return;
  sessions_.push_back(std::move(session));
}

void StreamSessions::Destroy(Session& session) {
  services_.loop.Later("the end of a remote client", [this, raw = &session] {
    sessions_.remove_if([raw](const auto& entry) { return entry.get() == raw; });
  });
}

void StreamSessions::AppendStatus(std::vector<SessionStatus>& sessions) const {
  for (const auto& session : sessions_) sessions.push_back(session->Status());
}

}  // namespace causeway::daemon
