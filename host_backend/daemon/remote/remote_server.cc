// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/remote/remote_server.h"

#include <pwd.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "host_backend/daemon/process/unix_listener.h"
#include "host_backend/daemon/takeover/listeners.h"

namespace causeway::daemon {
namespace {

// causeway-tls sends its message with the connection.
constexpr std::chrono::milliseconds kHandOverLimit{5'000};
constexpr size_t kMaxArrivals = 64;

// The user of causeway-tls; root's where it has none of its own.
uid_t UserOf(const std::string& name) {
  const struct passwd* user = name.empty() ? nullptr : getpwnam(name.c_str());
  return user != nullptr ? user->pw_uid : 0;
}

// The group that the socket is given to. Its name; empty: it stays the daemon's.
std::string GroupOf(const std::string& user) {
  return user == "causeway-tls" ? user : "";
}

}  // namespace

Result<std::unique_ptr<RemoteServer>> RemoteServer::Start(Services& services) {
  std::unique_ptr<RemoteServer> server(new RemoteServer(services));
  const TlsConfig& config = services.config.tls;
  ListenerPlan plan;
  plan.path = config.hand_over;
  plan.key = "[tls] hand_over_socket";
  plan.mode = 0660;
  plan.group = GroupOf(config.user);
  plan.group_key = "[tls] user";
  plan.type = SOCK_STREAM;
  plan.takes_descriptors =
      true;  // the guest's socket, which the session's worker takes and this process never
  server->listener_ = TakeListener(services.vault, plan.path, &server->listener_key_);
  if (!server->listener_) {
    auto listener = BindListener(plan);
    if (!listener.ok()) return Error{listener.error()};
    server->listener_ = std::move(listener.value());
  }
  server->watch_ = services.loop.Watch(server->listener_.get(), EPOLLIN, "a new TLS connection",
                                       [self = server.get()](uint32_t) { self->OnAccept(); });
  LogInfo("remote guests that have proved a key are taken over at " + config.hand_over);
  return server;
}

RemoteServer::~RemoteServer() {
  while (!arrivals_.empty()) Drop(arrivals_.front());
  Stop();
}

void RemoteServer::Stop() {
  if (!listener_) return;
  StopTaking();
  services_.vault.Drop(listener_key_);
  listener_.reset();
  unlink(services_.config.tls.hand_over.c_str());
}

void RemoteServer::KeepListener() {
  KeepListenerRecord(services_.vault, services_.config.tls.hand_over, listener_.get(), &listener_key_);
}

void RemoteServer::TakeOver() {
  sessions_.TakeOver("tls", [this](const std::string& vm, std::optional<uid_t>) { return OriginOf(vm); });
}

std::optional<StreamOrigin> RemoteServer::OriginOf(const std::string& vm) const {
  for (const auto* list : {&services_.config.vms, &services_.config.remotes}) {
    for (const VmConfig& entry : *list) {
      if (entry.name != vm) continue;
      return StreamOrigin{"tls", "TLS", services_.scopes.OfVm(entry), entry.share, std::nullopt, false, true,
                          vm,    ""};
    }
  }
  return std::nullopt;
}

bool RemoteServer::MayHandOver(int socket) const {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return false;
  if (peer.uid == 0 || peer.uid == geteuid() || peer.uid == UserOf(services_.config.tls.user)) return true;
  LogWarning("user " + std::to_string(peer.uid) +
             " may not hand over remote guests; causeway-tls runs as the " + "user that [tls] names");
  return false;
}

void RemoteServer::OnAccept() {
  WorkerFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket || !MayHandOver(socket.get())) return;
  if (arrivals_.size() >= kMaxArrivals) Drop(arrivals_.front());
  Arrival& arrival = arrivals_.emplace_back();
  arrival.socket = std::move(socket);
  arrival.watch = services_.loop.Watch(arrival.socket.get(), EPOLLIN, "the word on a remote guest",
                                       [this, &arrival](uint32_t) { OnArrival(arrival); });
  arrival.timer =
      services_.loop.After(kHandOverLimit, "a hand-over's time limit", [this, &arrival] { Drop(arrival); });
}

void RemoteServer::Drop(Arrival& arrival) {
  services_.loop.Unwatch(arrival.watch);
  services_.loop.Cancel(arrival.timer);
  arrivals_.remove_if([&arrival](const Arrival& entry) { return &entry == &arrival; });
}

void RemoteServer::OnArrival(Arrival& arrival) {
  KeyHandOver hand_over{};
  RemoteHandOver& who = hand_over.who;
  // What comes first tells which message it is; what follows a hand-over is the guest's.
  std::vector<WorkerFd> descriptors;  // has no use for any
  const ssize_t begun = ReceiveFromStranger(arrival.socket.get(), &who.magic, sizeof who.magic, &descriptors);
  if (begun < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (begun == ssize_t(sizeof who.magic) && who.magic == kKeyEndedMagic) return OnKeyEnded(arrival);
  if (begun == 0 && arrival.tells_keys) return Drop(arrival);  // it has told of all
  // It was sent with one call: all of it is there, or none.
  const size_t expected = (who.magic == kKeyHandOverMagic ? sizeof hand_over : sizeof who) - sizeof who.magic;
  const ssize_t bytes = ReceiveFromStranger(arrival.socket.get(), who.vm, expected, &descriptors);
  WorkerFd socket = std::move(arrival.socket);
  services_.loop.Unwatch(arrival.watch);
  arrival.watch = 0;
  Drop(arrival);
  hand_over.id[sizeof(hand_over.id) - 1] = '\0';
  if (bytes != ssize_t(expected) || (who.magic != kHandOverMagic && who.magic != kKeyHandOverMagic)) {
    LogWarning("causeway-tls handed over a remote guest without saying whom: it is of another version");
    return;
  }
  Admit(std::move(socket), who, hand_over.id);
}

// It was sent with one call as well. The next one, or the end, is the next event.
void RemoteServer::OnKeyEnded(Arrival& arrival) {
  KeyEnded ended{};
  std::vector<WorkerFd> descriptors;
  if (ReceiveFromStranger(arrival.socket.get(), ended.id, sizeof ended.id, &descriptors) !=
      ssize_t(sizeof ended.id))
    return Drop(arrival);
  arrival.tells_keys = true;
  ended.id[sizeof(ended.id) - 1] = '\0';
  if (ended.id[0] != '\0') sessions_.EndKey(ended.id);
}

void RemoteServer::Admit(WorkerFd socket, RemoteHandOver who, const std::string& key_id) {
  who.vm[sizeof(who.vm) - 1] = who.key[sizeof(who.key) - 1] = who.peer[sizeof(who.peer) - 1] = '\0';
  std::optional<StreamOrigin> origin = OriginOf(who.vm);
  if (!origin) {
    ++services_.counters.refused;
    const std::string sentence =
        "The key " + std::string(who.key) + " is one of VM " + who.vm +
        ", which the configuration of causewayd does not have; add a [[remote]] table with " + "that name.";
    LogWarning(sentence);
    const LocalReply reply = Refusal(sentence);
    send(socket.get(), &reply, sizeof(reply), MSG_NOSIGNAL);
    return;
  }
  origin->key_id = key_id;
  const ScopeRef scope = origin->scope;
  scope->log->Write(LogLevel::kInfo, scope->who + " comes by TLS from " + who.peer + " with key " + who.key);
  sessions_.Add(std::move(socket), std::move(*origin));
}

}  // namespace causeway::daemon
