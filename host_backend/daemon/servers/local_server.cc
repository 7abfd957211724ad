// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/servers/local_server.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>

#include "host_backend/common/control_socket.h"
#include "host_backend/daemon/loop/worker_fd.h"
#include "host_backend/daemon/process/file_lock.h"
#include "host_backend/daemon/process/trusted_file.h"
#include "host_backend/daemon/region/region_file.h"
#include "host_backend/daemon/scopes/local_peer.h"
#include "host_backend/daemon/servers/flight_store.h"
#include "host_backend/daemon/takeover/listeners.h"
#include "ivshmem_ring/messages/local_protocol.h"
#include "ivshmem_ring/transport/packet.h"

namespace causeway::daemon {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kRequestLimit{5'000};
constexpr milliseconds kRequestPause{5};
constexpr milliseconds kReadyLimit{60'000};
constexpr milliseconds kLocalBeat{1000};
constexpr size_t kStatusPacketBytes = 64u << 10;
constexpr size_t kMaxIdleClients = 256;  // beyond the sessions
constexpr uint32_t kLocalSlot = 0;
constexpr uint32_t kLocalSession = 1;

bool SendReply(int socket, const LocalReply& reply, int descriptor) {
  return SendPacket(socket, &reply, sizeof(reply), std::span(&descriptor, descriptor >= 0 ? 1 : 0),
                    MSG_DONTWAIT);
}

// One folder of container_folder, with that group and mode. Empty, or what failed.
std::string MakeFolder(const std::string& path, gid_t group, mode_t mode) {
  const std::string intro = "The folder " + path + " of container_folder ";
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return intro + "cannot be made: " + ErrnoText() + "; make the folder above it or correct the key.";
  const UniqueFd folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat found {};
  if (!folder || fstat(folder.get(), &found) != 0)
    return intro + "cannot be opened: " + ErrnoText() + "; remove what has its name or correct the key.";
  if (found.st_uid != geteuid()) return intro + "belongs to another user; remove it or correct the key.";
  if (fchown(folder.get(), uid_t(-1), group) != 0 || fchmod(folder.get(), mode) != 0)
    return intro + "cannot be given to its group: " + ErrnoText() + "; correct socket_group.";
  return {};
}

// A folder that members of socket_group may look into and others not, and in it the one that containers get, for all who are
// in there. The socket of a daemon that starts later is in it, too.
std::string MakeContainerFolders(const Config& config) {
  gid_t group = gid_t(-1);
  if (!config.socket_group.empty()) {
    const auto id = GroupId(config.socket_group, "socket_group");
    if (!id.ok()) return id.error();
    group = id.value();
  }
  const std::string text = MakeFolder(config.container_folder, group, 0750);
  return text.empty() ? MakeFolder(config.container_folder + kContainerRun, group, 0755) : text;
}

}  // namespace

struct LocalServer::Connection {
  enum class Stage { kRequest, kWaitReady, kSession, kStatus, kGone };
  explicit Connection(EventLoop& l) : loop(l) {}
  ~Connection() {
    Idle(false);
    loop.Unwatch(watch);
    loop.Unwatch(pidfd_watch);
    loop.Cancel(timer);
  }
  // Whether it counts as one without a session.
  void Idle(bool idle) {
    if (idle == counted) return;
    counted = idle;
    scope->CountConnection(idle);
  }
  // Its session was refused or has failed; its client is still there, and may read why.
  bool HasNoSession() const {
    return stage == Stage::kSession && (session == nullptr || session->has_failed());
  }
  EventLoop& loop;
  WorkerFd socket;  // what its client has sent and nobody has read ends with it
  LocalPeer peer;
  ScopeRef scope;
  bool counted = false;
  SessionSeat seat;  // from its request to the session's begin
  Stage stage = Stage::kRequest;
  EventLoop::WatchId watch = 0;
  EventLoop::WatchId pidfd_watch = 0;
  EventLoop::TimerId timer = 0;
  std::shared_ptr<Region> region;
  std::unique_ptr<RegionSession> session;
  uint64_t key = 0;    // of its record, from the region's making on
  bool begun = false;  // its client has said that it is ready
  std::string status;
  size_t status_sent = 0;
};

LocalServer::LocalServer(Services& services, UniqueFd lock,
                         std::function<std::string(const std::string&)> status)
    : services_(services), status_(std::move(status)), lock_(std::move(lock)) {}

Result<std::unique_ptr<LocalServer>> LocalServer::Start(
    Services& services, UniqueFd lock, std::function<std::string(const std::string&)> status) {
  std::unique_ptr<LocalServer> server(new LocalServer(services, std::move(lock), std::move(status)));
  if (std::string text = server->Bind(); !text.empty()) return Error{text};
  for (Listener& listener : server->listeners_) server->Listen(listener);
  return server;
}

void LocalServer::Listen(Listener& listener) {
  listener.watch = services_.loop.Watch(listener.socket.get(), EPOLLIN, "a new local connection",
                                        [this, &listener](uint32_t) { OnAccept(listener); });
}

// The lock says whether another daemon lives; a socket without it is a leftover.
Result<UniqueFd> LocalServer::LockSocket(const std::string& socket) {
  const std::string intro = "The socket " + socket + " ";
  const std::string lock_path = socket + ".lock";
  UniqueFd lock(open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock && errno == ENOENT)
    return Error{intro +
                 "cannot be made because its folder does not exist; create the folder or correct `socket`."};
  if (!lock) {
    return Error{intro + "cannot be made: its lock file " + lock_path + " cannot be opened: " + ErrnoText() +
                 "; run causewayd as a user that may write there or correct `socket`."};
  }
  struct stat found {};
  const bool examined = fstat(lock.get(), &found) == 0;
  if (const std::string text = examined ? WhyNotTrusted(lock.get(), found, lock_path) : "cannot be examined.";
      !text.empty()) {
    return Error{intro + "cannot be made: its lock file " + lock_path + " " + text};
  }
  if (!LockExclusively(lock.get())) {
    return Error{intro + "is in use by another causewayd; stop that one or give this one another `socket`."};
  }
  return lock;
}

std::string LocalServer::Bind() {
  const Config& config = services_.config;
  if (!config.admin_group.empty()) {
    const auto group = GroupId(config.admin_group, "admin_group");
    if (!group.ok()) return group.error();
    admin_group_ = group.value();
  }
  std::string text =
      AddListener({config.socket, "socket", config.socket_mode, config.socket_group, "socket_group"}, false);
  if (!text.empty() || config.container_folder.empty()) return text;
  text = MakeContainerFolders(config);
  if (!text.empty()) return text;
  // The folder above keeps others away: users of a container have ids of their own.
  return AddListener({config.container_folder + kContainerSocket, "container_folder", 0666,
                      config.socket_group, "socket_group"},
                     true);
}

std::string LocalServer::AddListener(const ListenerPlan& plan, bool of_containers) {
  Listener& added = listeners_.emplace_back();
  added.path = plan.path;
  added.of_containers = of_containers;
  added.socket = TakeListener(services_.vault, plan.path, &added.key);
  if (added.socket) return {};
  auto bound = BindListener(plan);
  if (!bound.ok()) return bound.error();
  added.socket = std::move(bound.value());
  return {};
}

void LocalServer::StopTaking() {
  for (Listener& listener : listeners_) {
    services_.loop.Unwatch(listener.watch);
    services_.loop.Cancel(listener.pause);
  }
}

void LocalServer::CloseListeners() {
  StopTaking();
  for (Listener& listener : listeners_) {
    if (listener.socket) unlink(listener.path.c_str());
    listener.socket.reset();
  }
}

LocalServer::~LocalServer() {
  services_.loop.Cancel(beat_timer_);
  CloseListeners();
}

void LocalServer::KeepListener() {
  for (Listener& listener : listeners_)
    KeepListenerRecord(services_.vault, listener.path, listener.socket.get(), &listener.key);
}

bool LocalServer::quiet() const {
  return std::none_of(connections_.begin(), connections_.end(), [](const auto& connection) {
    return connection->stage == Connection::Stage::kRequest ||
           connection->stage == Connection::Stage::kStatus;
  });
}

void LocalServer::Stop() {
  CloseListeners();
  for (auto& connection : connections_) {
    if (!connection->session) continue;
    connection->session->Abandon(
        "The host daemon was stopped; this process must be started again when it runs.");
    connection->region->SetState(HostState::kStopped);
  }
}

void LocalServer::Pause(Listener& listener) {
  services_.loop.Unwatch(listener.watch);
  listener.pause =
      services_.loop.After(kClosingPause, "a new local connection", [this, &listener] { Listen(listener); });
}

void LocalServer::OnAccept(Listener& listener) {
  if (ClosingBacklog() > kMostClosing) return Pause(listener);
  WorkerFd socket(accept4(listener.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket && IsOutOfDescriptors(errno)) return Pause(listener);
  if (!socket) return;
  for (const auto& connection : connections_) {
    if (connection->HasNoSession()) connection->Idle(true);
  }
  if (!MakeRoom()) {
    SendReply(socket.get(), Refusal("The host daemon has too many connections; try again later."), -1);
    return;
  }
  auto peer =
      listener.of_containers ? IdentifyContainer(socket.get()) : IdentifyPeer(socket.get(), admin_group_);
  if (!peer) return;  // it is gone already
  const ScopeRef scope = services_.scopes.OfUser(peer->scope, peer->family);
  if (scope == nullptr) {
    SendReply(socket.get(),
              Refusal("Too many users or namespaces are connected to the host daemon; try again later."), -1);
    return;
  }
  if (!services_.scopes.MayConnect(*scope)) {
    const std::string text = scope->who + " has too many connections to the host daemon; try again later.";
    scope->log->Write(LogLevel::kWarning, text);
    SendReply(socket.get(), Refusal(text), -1);
    return;
  }
  auto connection = std::make_unique<Connection>(services_.loop);
  Connection* raw = connection.get();
  raw->socket = std::move(socket);
  raw->peer = std::move(*peer);
  raw->scope = scope;
  raw->socket.ChargeTo(scope->family->closing);
  raw->Idle(true);
  Watch(*raw);
  SetLimit(*raw, kRequestLimit);
  connections_.push_back(std::move(connection));
}

// What has asked for nothing yet makes room, then what is left of sessions that were refused or have failed, the oldest first:
// many users together cannot keep others away. False: there is no room.
bool LocalServer::MakeRoom() {
  if (connections_.size() < services_.config.max_sessions + kMaxIdleClients) return true;
  const auto first = [this](auto is_it) {
    return std::find_if(connections_.begin(), connections_.end(),
                        [is_it](const auto& connection) { return is_it(*connection); });
  };
  auto found = first([](const Connection& each) { return each.stage == Connection::Stage::kRequest; });
  if (found == connections_.end()) found = first([](const Connection& each) { return each.HasNoSession(); });
  if (found == connections_.end()) return false;
  OnClientGone(**found);
  return true;
}

void LocalServer::Watch(Connection& connection) {
  connection.watch =
      services_.loop.Watch(connection.socket.get(), EPOLLIN | EPOLLRDHUP, "a local client's packet",
                           [this, &connection](uint32_t events) { OnPacket(connection, events); });
}

void LocalServer::SetLimit(Connection& connection, milliseconds limit) {
  services_.loop.Cancel(connection.timer);
  connection.timer = services_.loop.After(limit, "a local client's time limit",
                                          [this, &connection] { OnClientGone(connection); });
}

void LocalServer::OnPacket(Connection& connection, uint32_t events) {
  if (connection.stage == Connection::Stage::kStatus) {
    if ((events & (EPOLLHUP | EPOLLERR)) != 0) return OnClientGone(connection);
    return SendStatus(connection);
  }
  char packet[256];
  // Never waits, whatever its worker, which has the same socket, has made of its flags and read of it.
  std::vector<WorkerFd> descriptors;  // has no use for any
  int flags = 0;
  const ClosingAccountRef& account = connection.scope->family->closing;
  if (account->is_full()) return OnClientGone(connection);  // what it has sent is closed with its socket
  const ssize_t bytes =
      ReceiveFromStranger(connection.socket.get(), packet, sizeof(packet), &descriptors, &flags, account);
  if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (bytes <= 0) return OnClientGone(connection);
  const bool fits = descriptors.empty() && (flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
  switch (fits ? connection.stage : Connection::Stage::kGone) {
    case Connection::Stage::kRequest:
      return OnRequest(connection, packet, size_t(bytes));
    case Connection::Stage::kWaitReady:
      if (bytes == 1 && packet[0] == kLocalReady) return BeginSession(connection);
      break;
    default:
      break;
  }
  ++services_.counters.violations;
  connection.scope->log->Write(LogLevel::kWarning,
                               "pid " + std::to_string(connection.peer.pid) +
                                   " sent a packet that has no place here; it is disconnected");
  OnClientGone(connection);
}

void LocalServer::OnRequest(Connection& connection, const void* packet, size_t bytes) {
  LocalTraceRequest trace{};
  std::memcpy(&trace, packet, std::min(bytes, sizeof(trace)));
  const LocalRequest& request = trace.request;
  const size_t expected = request.kind == LocalRequestKind::kTrace ? sizeof(trace) : sizeof(request);
  if (bytes < expected || request.magic != kLocalMagic)
    return Refuse(connection, "This is not a request of the Causeway library or command.");
  if (request.abi_major != kAbiMajor) {
    return Refuse(connection, "The client speaks version " + std::to_string(request.abi_major) + "." +
                                  std::to_string(request.abi_minor) + " and this host " +
                                  std::to_string(kAbiMajor) + "." + std::to_string(kAbiMinor) +
                                  "; install the same Causeway release on both sides.");
  }
  if (!connection.scope->family->requests.Take(Clock::now())) {
    // Others come first; its turn comes before the limit of a request that was never made.
    services_.loop.Unwatch(connection.watch);
    services_.loop.Cancel(connection.timer);
    connection.timer =
        services_.loop.After(kRequestPause, "a local client's packet", [this, c = &connection, trace, bytes] {
          Watch(*c);
          SetLimit(*c, kRequestLimit);
          OnRequest(*c, &trace, bytes);
        });
    return;
  }
  if (request.kind == LocalRequestKind::kOpenSession) return OpenSession(connection);
  if (request.kind == LocalRequestKind::kStatus)
    return SendText(connection, status_(connection.peer.sees_all ? "" : connection.scope->name));
  if (request.kind == LocalRequestKind::kTrace) {
    auto text =
        services_.flights.Answer(trace.session, connection.peer.sees_all ? "" : connection.scope->name);
    if (!text.ok()) return Refuse(connection, text.error());
    return SendText(connection, std::move(text.value()));
  }
  Refuse(connection, "This host knows no request of kind " + std::to_string(uint32_t(request.kind)) + ".");
}

void LocalServer::SendText(Connection& connection, std::string text) {
  if (!SendReply(connection.socket.get(), Accepted(0), -1)) return OnClientGone(connection);
  connection.status = std::move(text);
  connection.stage = Connection::Stage::kStatus;
  services_.loop.Unwatch(connection.watch);
  connection.watch = services_.loop.Watch(connection.socket.get(), EPOLLOUT, "an answer to a local client",
                                          [this, c = &connection](uint32_t events) { OnPacket(*c, events); });
}

void LocalServer::Refuse(Connection& connection, const std::string& sentence) {
  ++services_.counters.refused;
  connection.scope->log->Write(
      LogLevel::kWarning,
      "local client (pid " + std::to_string(connection.peer.pid) + ") is refused: " + sentence);
  SendReply(connection.socket.get(), Refusal(sentence), -1);
  OnClientGone(connection);
}

void LocalServer::OpenSession(Connection& connection) {
  auto seat = services_.scopes.TakeSession(connection.scope);
  if (!seat.ok()) return Refuse(connection, seat.error());
  connection.seat = std::move(seat.value());
  connection.Idle(false);
  auto region = Region::Create(services_.config.local_region_mib * kMib);
  if (!region.ok()) return Refuse(connection, region.error());
  connection.region = std::move(region.value());
  connection.region->Format(NewIdentity(), false);
  connection.region->SetState(HostState::kRunning);
  connection.region->Beat();
  if (!SendReply(connection.socket.get(), Accepted(connection.region->bytes()), connection.region->fd())) {
    if (errno != ETOOMANYREFS) return OnClientGone(connection);
    return Refuse(connection,
                  "The session's memory cannot be handed over: " + ErrnoText() +
                      "; processes of the daemon's user send too many descriptors at once. Try again later.");
  }
  KeepRecord(connection);
  AwaitReady(connection);
}

void LocalServer::AwaitReady(Connection& connection) {
  connection.stage = Connection::Stage::kWaitReady;
  SetLimit(connection, kReadyLimit);
  // The socket alone is not proof of life: a forked child may hold it. A pid of another pid namespace is 0.
  if (connection.peer.pidfd) {
    connection.pidfd_watch =
        services_.loop.Watch(connection.peer.pidfd.get(), EPOLLIN, "the end of a local client",
                             [this, c = &connection](uint32_t) { OnClientGone(*c); });
  }
  if (beat_timer_ == 0) Beat();
}

// From the region's making on: what its client has been told must stay true.
void LocalServer::KeepRecord(Connection& connection) {
  if (connection.key == 0) connection.key = services_.vault.NewKey(Vault::Kind::kConnection);
  services_.vault.Put(connection.key,
                      {{"pid", connection.peer.pid},
                       {"uid", connection.peer.uid},
                       {"scope", connection.peer.scope},
                       {"family", connection.peer.family},
                       {"bytes", connection.region->bytes()},
                       {"begun", connection.begun}},
                      {{"socket", connection.socket.get()},
                       {"region", connection.region->fd()},
                       {"pidfd", connection.peer.pidfd ? connection.peer.pidfd.get() : -1}},
                      0, connection.scope->family->closing);
}

void LocalServer::TakeOver() {
  for (Vault::Record* record : services_.vault.All(Vault::Kind::kConnection)) Resume(*record);
  if (beat_timer_ == 0) Beat();
}

// False: it cannot go on; its worker ends with the records that nobody takes.
bool LocalServer::Resume(Vault::Record& record) {
  const Json& state = record.state;
  auto connection = std::make_unique<Connection>(services_.loop);
  Connection& resumed = *connection;
  resumed.peer.pid = state.at("pid").get<pid_t>();
  resumed.peer.uid = state.at("uid").get<uid_t>();
  resumed.peer.scope = state.at("scope").get<std::string>();
  resumed.peer.family = state.at("family").get<std::string>();
  resumed.begun = state.at("begun").get<bool>();
  resumed.scope = services_.scopes.OfUser(resumed.peer.scope, resumed.peer.family);
  if (resumed.scope == nullptr) return false;
  resumed.socket = WorkerFd(record.Take("socket"));
  resumed.socket.ChargeTo(resumed.scope->family->closing);
  resumed.peer.pidfd = record.Take("pidfd");
  auto region = Region::Map(record.Take("region"), state.at("bytes").get<uint64_t>(), "of a local session");
  if (!resumed.socket || !region.ok()) return false;
  resumed.region = std::move(region.value());
  resumed.key = services_.vault.Adopt(record).key;
  connections_.push_back(std::move(connection));
  Vault::Record* served = nullptr;
  for (Vault::Record* each : services_.vault.All(Vault::Kind::kSession)) {
    if (each->state.at("connection") == resumed.key) served = each;
  }
  std::map<uint32_t, uint32_t> words;
  if (served != nullptr) words[kLocalSlot] = SlotWord(kLocalSession, uint32_t(SlotHostState::kServing));
  resumed.region->Resume(words);
  resumed.region->Beat();
  Watch(resumed);
  AwaitReady(resumed);
  if (served != nullptr) {
    MakeSession(resumed);
    resumed.session->Resume(services_.vault.Adopt(*served), services_.scopes.ResumeSession(resumed.scope));
    return true;
  }
  // A session that was refused or has failed stays so until its client leaves.
  if (SlotState(resumed.region->host_word(kLocalSlot)) != uint32_t(SlotHostState::kClosed)) {
    services_.loop.Cancel(resumed.timer);
    resumed.stage = Connection::Stage::kSession;
    return true;
  }
  resumed.seat = services_.scopes.ResumeSession(resumed.scope);
  if (resumed.begun) BeginSession(resumed);
  return true;
}

void LocalServer::BeginSession(Connection& connection) {
  if (!connection.begun) {
    connection.begun = true;
    KeepRecord(connection);
  }
  MakeSession(connection);
  connection.session->Open(std::move(connection.seat));
}

void LocalServer::MakeSession(Connection& connection) {
  services_.loop.Cancel(connection.timer);
  connection.stage = Connection::Stage::kSession;
  Connection* raw = &connection;
  connection.session = std::make_unique<RegionSession>(
      services_, connection.region, kLocalSlot, kLocalSession,
      RegionSession::Origin{connection.scope, "", uint32_t(connection.peer.pid), connection.peer.uid,
                            connection.socket.get(), &services_.config.local_share, nullptr, connection.key},
      [this, raw] { Destroy(*raw); });
}

void LocalServer::SendStatus(Connection& connection) {
  while (connection.status_sent < connection.status.size()) {
    const size_t bytes = std::min(kStatusPacketBytes, connection.status.size() - connection.status_sent);
    const ssize_t sent = send(connection.socket.get(), connection.status.data() + connection.status_sent,
                              bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (sent < 0) break;
    connection.status_sent += size_t(sent);
  }
  shutdown(connection.socket.get(), SHUT_WR);  // the answer's end, which its reader need not wait for
  OnClientGone(connection);
}

void LocalServer::OnClientGone(Connection& connection) {
  if (connection.stage == Connection::Stage::kGone) return;
  connection.stage = Connection::Stage::kGone;
  services_.loop.Unwatch(connection.watch);
  services_.loop.Unwatch(connection.pidfd_watch);
  if (connection.session) {
    connection.session->End();  // Destroy follows when the worker is gone
  } else {
    Destroy(connection);
  }
}

void LocalServer::Destroy(Connection& connection) {
  services_.vault.Drop(connection.key);
  connection.stage = Connection::Stage::kGone;
  services_.loop.Unwatch(connection.watch);
  services_.loop.Unwatch(connection.pidfd_watch);
  services_.loop.Cancel(connection.timer);
  services_.loop.Later("the end of a local client", [this, raw = &connection] {
    connections_.remove_if([raw](const auto& connection_entry) { return connection_entry.get() == raw; });
  });
}

void LocalServer::Beat() {
  beat_timer_ = 0;
  bool any = false;
  for (auto& connection : connections_) {
    if (!connection->region) continue;
    connection->region->Beat();
    any = true;
  }
  if (any)
    beat_timer_ = services_.loop.After(kLocalBeat, "the heartbeat of local regions", [this] { Beat(); });
}

void LocalServer::AppendStatus(std::vector<SessionStatus>& sessions) const {
  for (const auto& connection : connections_) {
    if (connection->session) sessions.push_back(connection->session->Status());
  }
}

}  // namespace causeway::daemon
