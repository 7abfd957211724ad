// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/servers/stream_session.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "host_backend/daemon/servers/flight_store.h"
#include "host_backend/daemon/servers/open_block.h"
#include "ivshmem_ring/hosts/pool_messages.h"
#include "ivshmem_ring/messages/local_protocol.h"
#include "ivshmem_ring/messages/resume_messages.h"

namespace causeway::daemon {
namespace {

constexpr std::chrono::milliseconds kOpenLimit{5'000};
constexpr size_t kMaxIdleStreams = 64;  // beyond the sessions
// How long a question for the host's load waits for the figures, whose process may have to start, and how often it looks.
constexpr std::chrono::milliseconds kFiguresLimit{1'500}, kFiguresLook{20};

UniqueFd FileOf(const OpenBlock& block) {
  UniqueFd file(memfd_create("causeway-opening", MFD_CLOEXEC));
  if (file && pwrite(file.get(), &block, sizeof block, 0) != ssize_t(sizeof block)) file.reset();
  return file;
}

}  // namespace

class StreamSessions::Session final : public WorkerClient {
 public:
  Session(StreamSessions& server, WorkerFd socket, StreamOrigin origin)
      : server_(server),
        services_(server.services_),
        socket_(std::move(socket)),
        origin_(std::move(origin)),
        scope_(origin_.scope) {
    // A worker that was taken over can have its close take long.
    if (scope_ != nullptr) socket_.ChargeTo(scope_->family->closing);
  }

  // A connection that has said nothing yet.
  void Begin() {
    connecting_ = true;
    if (scope_ != nullptr) scope_->CountConnection(true);
    watch_ = services_.loop.Watch(socket_.get(), EPOLLIN | EPOLLRDHUP, "a remote client's packet",
                                  [this](uint32_t events) { OnSocket(events); });
    timer_ = services_.loop.After(kOpenLimit, "a remote client's time limit",
                                  [this] { Refuse("The opening message did not arrive within 5 s."); });
  }

  // Called instead of Begin for a session that an earlier daemon has left: it goes on with its worker, or ends where the worker is gone.
  void Resume(Vault::Record record) {
    const Json& state = record.state;
    key_ = record.key;
    received_ = sizeof(block_);
    block_.pid = state.at("pid").get<uint32_t>();
    seat_ = services_.scopes.ResumeSession(scope_);
    const auto worker = state.at("worker").get<uint64_t>();
    if (worker == 0) return AwaitAgain(record.Take("block"));
    opened_ = OpenedOf(state);
    release_ = state.at("release").get<std::string>();
    compresses_ = state.value("compresses", false);
    flight_ = FlightFile::Of(record.Take("flight"));
    number_ = state.at("number").get<uint64_t>();
    return_ = GuestReturn::Of(state);
    services_.flights.Resume(number_, [this](bool with_images) { return CopyFlight(with_images); });
    if ((origin_.encrypted && !socket_ && return_.grace_s() == 0) || !services_.pool.Resume(*this, worker)) {
      scope_->log->Write(LogLevel::kWarning, Name() + " ended while causewayd was replaced");
      return Leave();
    }
    worker_pid_ = last_worker_pid_ = services_.pool.PidOf(*this);
    ++services_.counters.sessions;
    scope_->log->Write(LogLevel::kInfo, Name() + " goes on with worker " + std::to_string(worker_pid_));
    if (state.value("waits", false)) Wait("so it did when causewayd was replaced");
    LeaveSocketToWorker();
  }

  ~Session() override {
    services_.vault.Drop(key_);
    services_.flights.End(number_);
    services_.loop.Unwatch(watch_);
    services_.loop.Cancel(timer_);
    services_.pool.Withdraw(*this);
    EndConnection();
  }

  bool crowded() const { return scope_ == nullptr || !services_.scopes.MayConnect(*scope_); }
  bool silent() const { return (received_ < sizeof(block_) || asks_) && !left_; }

  // Its connection is over; destroyed later. Repeatable.
  void Leave() {
    if (std::exchange(left_, true)) return;
    services_.vault.Drop(key_);
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
    status.state = worker_pid_ == 0 ? "opening" : waiting_ ? "waiting" : "serving";
    status.opened = opened_;
    status.worker_pid = worker_pid_;
    status.usage = usage_;
    status.memory = services_.pool.MemoryOf(*this);
    status.compression = compresses_;
    return status;
  }

  void OnWorker(WorkerProcess& worker) override {
    services_.loop.Unwatch(watch_);
    LocalReply reply = Accepted(0);
    if (MayReturn(worker)) return_ = GuestReturn::Grant(services_.config.wait_for_guests_s);
    if (return_.grace_s() != 0) PutGrant(return_.token(), return_.grace_s(), &reply);
    compresses_ = MayCompress(worker);
    if (compresses_) PutCompression(&reply);
    WorkerAssignment assignment{};
    assignment.kind = origin_.encrypted ? AssignmentKind::kTls : AssignmentKind::kTcp;
    flight_ = FlightFile::Make();
    assignment.has_flight = flight_ != nullptr ? 1 : 0;
    number_ = services_.flights.Begin([this](bool with_images) { return CopyFlight(with_images); });
    KeepRecord(
        worker
            .number());  // before anybody is told, so that none serves of which the next daemon does not know
    // The reply goes first: from the assignment on, only the worker writes to the connection.
    fcntl(socket_.get(), F_SETFL, 0);  // workers expect a blocking connection
    const bool replied =
        send(socket_.get(), &reply, sizeof(reply), MSG_NOSIGNAL | MSG_DONTWAIT) == ssize_t(sizeof(reply));
    std::vector<int> descriptors = {socket_.get()};
    if (flight_ != nullptr) descriptors.push_back(flight_->fd());
    if (!replied || !worker.Assign(assignment, descriptors, return_.grace_s(), compresses_)) {
      services_.vault.Drop(key_);
      services_.flights.End(std::exchange(number_, 0));
      worker.Kill();  // its exit is reported as OnNoWorker
      return;
    }
    worker_pid_ = last_worker_pid_ = worker.pid();
    ++services_.counters.sessions;
    scope_->log->Write(LogLevel::kInfo, Name() + " is served by worker " + std::to_string(worker_pid_));
    LeaveSocketToWorker();
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

  // What the worker says; that an encrypted connection has ended the daemon sees itself.
  void OnWorkerLink(bool waits) override {
    if (return_.grace_s() == 0 || worker_pid_ == 0) return;
    if (waits) return Wait("its connection was lost");
    if (!std::exchange(waiting_, socket_ended_) || socket_ended_) return;
    KeepAgain();
    services_.loop.Cancel(timer_);
    scope_->log->Write(LogLevel::kInfo, Name() + " goes on over another connection");
  }

  // Whether that guest, from there, is the one whose session this is.
  bool Expects(const StreamOrigin& origin, const ResumeRequest& request) const {
    return return_.Knows(request) && worker_pid_ != 0 && !left_ && scope_ == origin.scope &&
           origin_.place == origin.place && origin_.key_id == origin.key_id && origin_.user == origin.user;
  }

  // It comes by that socket. Empty, or why it cannot.
  std::string TakeBack(WorkerFd& socket, const ResumeRequest& request) {
    if (!return_.Take(request)) return "A later connection of this session has come already.";
    const LocalReply reply = Accepted(0);
    fcntl(socket.get(), F_SETFL, 0);  // workers expect a blocking connection
    // The reply goes first, as in OnWorker. A guest that does not get it comes once more.
    if (send(socket.get(), &reply, sizeof(reply), MSG_NOSIGNAL | MSG_DONTWAIT) != ssize_t(sizeof(reply)))
      return "This connection was lost at once.";
    services_.loop.Unwatch(watch_);
    const WorkerFd before = std::exchange(socket_, std::move(socket));
    socket_ended_ = false;
    KeepAgain();  // before the worker has it: the next daemon would take the end of the old connection for this one's
    if (!services_.pool.GuestReturned(*this, request.received, socket_.get()))
      shutdown(socket_.get(), SHUT_RDWR);  // the guest comes once more
    // The daemon shuts the guest's earlier connection down, because its process of causeway-tls lives as long as anybody holds the
    // socket: a worker that was taken over could otherwise keep many such processes alive.
    if (origin_.encrypted && before) shutdown(before.get(), SHUT_RDWR);
    LeaveSocketToWorker();
    return {};
  }

  const std::string& key_id() const { return origin_.key_id; }
  void EndForKey() {
    if (worker_pid_ == 0) return;  // causeway-tls ends its connection
    scope_->log->Write(LogLevel::kWarning, Name() + " ends: its key is good no more");
    services_.pool.End(*this, false);
  }

  void OnWorkerExit(const std::string& how, bool orderly) override {
    if (!orderly) CountWorkerDeath(services_, *scope_);
    if (!orderly) worker_end_ = how;
    scope_->log->Write(orderly ? LogLevel::kInfo : LogLevel::kWarning, Name() + " ended: its worker " + how);
    worker_pid_ = 0;
    Leave();
  }

 private:
  std::string Name() const { return origin_.label + " session of pid " + std::to_string(block_.pid); }

  // The worker's copy is the only one, so that the client sees its end. An encrypted one has its other end in the process that did
  // the handshake, which ends the session by its own end: a worker that was taken over would not leave then, and has the
  // guest's socket.
  void LeaveSocketToWorker() {
    if (!origin_.encrypted) return socket_.reset();
    if (!socket_) return OnConnectionEnd();  // a daemon of before had lost it
    watch_ = services_.loop.Watch(socket_.get(), EPOLLRDHUP, "the end of a remote connection",
                                  [this](uint32_t) { OnConnectionEnd(); });
  }

  void OnConnectionEnd() {
    services_.loop.Unwatch(watch_);
    watch_ = 0;
    if (return_.grace_s() == 0) return (void)services_.pool.End(*this, false);  // killed when it does not
    socket_ended_ = true;
    Wait("its connection has ended");
  }

  // A guest is waited for if it and the worker can do that, and if causeway-tls has said by which key it is known.
  bool MayReturn(const WorkerProcess& worker) const {
    return services_.config.wait_for_guests_s != 0 && block_.abi_minor >= 1 &&
           (block_.features & kResumesFeature) != 0 && worker.waits_for_guests() &&
           (!origin_.encrypted || !origin_.key_id.empty());
  }

  bool MayCompress(const WorkerProcess& worker) const {
    return services_.config.remote_compression && block_.abi_minor >= 1 &&
           (block_.features & kCompressesFeature) != 0 && worker.compresses();
  }

  // The worker ends when the time is over; this one sees to it.
  void Wait(const std::string& why) {
    constexpr std::chrono::seconds kWorkersOwn{5};
    if (std::exchange(waiting_, true)) return;
    KeepAgain();
    scope_->log->Write(LogLevel::kInfo, Name() + " waits for its guest: " + why);
    services_.loop.Cancel(timer_);
    timer_ =
        services_.loop.After(std::chrono::seconds(return_.grace_s()) + kWorkersOwn,
                             "a session without its guest", [this] { services_.pool.End(*this, false); });
  }

  // From the opening message on. `worker`: 0 while it waits for one, and `block` is what it asks for. A connection over TCP belongs
  // to the worker alone as soon as there is one.
  void KeepRecord(uint64_t worker, int block = -1) {
    if (key_ == 0) key_ = services_.vault.NewKey(Vault::Kind::kStream);
    Json state = {{"kind", origin_.kind},
                  {"place", origin_.place},
                  {"user", origin_.user ? Json(*origin_.user) : Json()},
                  {"worker", worker},
                  {"pid", block_.pid},
                  {"number", number_},
                  {"release", release_},
                  {"key_id", origin_.key_id},
                  {"waits", waiting_},
                  {"compresses", compresses_},
                  {"opened_ns", opened_.time_since_epoch().count()}};
    return_.Keep(&state);
    services_.vault.Put(key_, state,
                        {{"socket", worker == 0 || origin_.encrypted ? socket_.get() : -1},
                         {"flight", flight_ != nullptr ? flight_->fd() : -1},
                         {"block", block}},
                        0, scope_->family->closing);
  }

  // Something of it has changed.
  void KeepAgain() {
    if (services_.vault.keeps()) KeepRecord(services_.pool.NumberOf(*this));
  }

  // It was waiting for a worker, and waits for one again.
  void AwaitAgain(UniqueFd file) {
    if (!socket_ || !file || pread(file.get(), &block_, sizeof block_, 0) != ssize_t(sizeof block_))
      return Leave();
    // Those that have a worker take their places first, and what belongs to nobody any more ends.
    timer_ = services_.loop.After({}, "a remote client that waits again", [this] { Ask(); });
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

  // `flags`: of LocalReply::reserved.
  void Refuse(const std::string& sentence, uint32_t flags = 0) {
    if (left_) return;
    ++services_.counters.refused;
    scope_->log->Write(LogLevel::kWarning,
                       scope_->who + ": " + origin_.label + " client is refused: " + sentence);
    LocalReply reply = Refusal(sentence);
    reply.reserved = flags;
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
    std::vector<WorkerFd> descriptors;  // has no use for any
    const ssize_t bytes = ReceiveFromStranger(socket_.get(), reinterpret_cast<char*>(&block_) + received_,
                                              sizeof(block_) - received_, &descriptors);
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
    if (block_.magic == kRegionMagic && block_.abi_major == kAbiMajor && block_.kind == kResumeKind)
      return ComeBack();
    auto seat = services_.scopes.TakeSession(scope_);
    if (!seat.ok()) return Refuse(seat.error());
    if (block_.magic == kRegionMagic && block_.abi_major == kAbiMajor &&
        block_.kind == SessionKind::kQuestion) {
      seat.value().reset();  // a question counts as a connection
      return TakeQuestion();
    }
    seat_ = std::move(seat.value());
    EndConnection();
    if (services_.vault.keeps()) KeepRecord(0, FileOf(block_).get());
    Ask();
  }

  // The guest of another of these objects, which goes on with this connection. The session has its place already.
  void ComeBack() {
    const ResumeRequest request = RequestOf(block_);
    Session* session = server_.FindReturning(origin_, request);
    // What is not there and what is another's are one answer.
    if (session == nullptr)
      return Refuse("The session does not live any more, or it is not this guest's.", kSessionGone);
    if (const std::string why = session->TakeBack(socket_, request); !why.empty()) return Refuse(why);
    Leave();
  }

  void TakeQuestion() {
    asks_ = true;
    opened_ = Clock::now();
    watch_ = services_.loop.Watch(socket_.get(), EPOLLRDHUP, "the end of a remote client",
                                  [this](uint32_t) { Leave(); });
    AnswerQuestion();
  }

  // How loaded the host is for this guest, which was found to have room for a session a moment ago.
  void AnswerQuestion() {
    if (services_.workers.PathOf(block_.api_hash).empty())
      return Refuse(services_.workers.WhyNone(block_.api_hash, ReleaseOf(block_)));
    const auto gpus = services_.pool.DevicesFor(scope_->name, origin_.share);
    if (!gpus && Clock::now() - opened_ < kFiguresLimit) {
      timer_ =
          services_.loop.After(kFiguresLook, "a question for the host's load", [this] { AnswerQuestion(); });
      return;
    }
    const std::vector<std::byte> answer =
        PoolAnswerBytes(scope_->sessions, gpus.value_or(std::vector<PoolGpu>{}));
    LocalReply reply = Accepted(answer.size());
    reply.accepted = kAnswersOnly;
    std::vector<std::byte> bytes(sizeof reply + answer.size());
    std::memcpy(bytes.data(), &reply, sizeof reply);
    std::memcpy(bytes.data() + sizeof reply, answer.data(), answer.size());
    // Far less than a socket's buffer holds, and the first that this one is sent.
    (void)!send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    Leave();
  }

  void Ask() {
    auto request =
        CheckOpenBlock(block_, services_.workers, 0, origin_.share.gpus, services_.config.nvml_shows_all);
    if (!request.ok()) {
      if (block_.magic != kRegionMagic) ++services_.counters.violations;
      return Refuse(request.error());
    }
    watch_ = services_.loop.Watch(socket_.get(), EPOLLRDHUP, "the end of a remote client",
                                  [this](uint32_t events) { OnSocket(events); });
    release_ = request.value().release;
    services_.pool.Request(
        *this, {std::move(request.value().environment), origin_.share.gpus, block_.kind, block_.api_hash});
  }

  StreamSessions& server_;
  Services& services_;
  WorkerFd socket_;
  const StreamOrigin origin_;
  const ScopeRef scope_;
  EventLoop::WatchId watch_ = 0;
  EventLoop::TimerId timer_ = 0;
  OpenBlock block_{};
  std::string release_;
  size_t received_ = 0;
  SessionSeat seat_;
  Clock::time_point opened_ = Clock::now();
  bool connecting_ = false;
  bool left_ = false;
  bool asks_ = false;  // for the host's load, not for a session
  pid_t worker_pid_ = 0;
  pid_t last_worker_pid_ = 0;
  std::string worker_end_;
  uint64_t number_ = 0;
  std::unique_ptr<FlightFile> flight_;
  WorkerUsage usage_{};
  uint64_t key_ = 0;  // of its record
  GuestReturn return_;
  bool compresses_ = false;    // both sides may compress what copies send
  bool waiting_ = false;       // for its guest
  bool socket_ended_ = false;  // of an encrypted connection, whose end came before the next one
};

StreamSessions::StreamSessions(Services& services) : services_(services) {}

StreamSessions::~StreamSessions() {
  sessions_.clear();
}

void StreamSessions::Add(WorkerFd socket, StreamOrigin origin) {
  if (sessions_.size() >= services_.config.max_sessions + kMaxIdleStreams) {
    // What has not said who it is makes room, the oldest first.
    const auto silent =
        std::find_if(sessions_.begin(), sessions_.end(), [](const auto& entry) { return entry->silent(); });
    if (silent == sessions_.end()) return;
    (*silent)->Leave();
  }
  auto session = std::make_unique<Session>(*this, std::move(socket), std::move(origin));
  if (session->crowded()) return;
  session->Begin();
  sessions_.push_back(std::move(session));
}

void StreamSessions::TakeOver(
    const char* kind,
    const std::function<std::optional<StreamOrigin>(const std::string&, std::optional<uid_t>)>& find) {
  for (Vault::Record* record : services_.vault.All(Vault::Kind::kStream)) {
    const Json& state = record->state;
    if (state.at("kind") != kind) continue;
    std::optional<uid_t> user;
    if (!state.at("user").is_null()) user = state.at("user").get<uid_t>();
    auto origin = find(state.at("place").get<std::string>(), user);
    if (!origin || origin->scope == nullptr) continue;
    origin->place = state.at("place").get<std::string>();
    origin->user = user;
    origin->key_id = state.value("key_id", "");
    WorkerFd socket(record->Take("socket"));
    sessions_.push_back(std::make_unique<Session>(*this, std::move(socket), std::move(*origin)));
    sessions_.back()->Resume(services_.vault.Adopt(*record));
  }
}

bool StreamSessions::quiet() const {
  return std::none_of(sessions_.begin(), sessions_.end(), [](const auto& entry) { return entry->silent(); });
}

StreamSessions::Session* StreamSessions::FindReturning(const StreamOrigin& origin,
                                                       const ResumeRequest& request) const {
  const auto found = std::find_if(sessions_.begin(), sessions_.end(),
                                  [&](const auto& session) { return session->Expects(origin, request); });
  return found != sessions_.end() ? found->get() : nullptr;
}

void StreamSessions::EndKey(const std::string& key_id) {
  for (const auto& session : sessions_)
    if (session->key_id() == key_id) session->EndForKey();
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
