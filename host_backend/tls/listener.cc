// SPDX-License-Identifier: Apache-2.0
#include "host_backend/tls/listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <iterator>
#include <limits>
#include <span>
#include <variant>

#include "host_backend/common/remote/remote_hand_over.h"
#include "host_backend/tls/addresses.h"
#include "ivshmem_ring/tcp/tcp_connection.h"
#include "ivshmem_ring/transport/packet.h"

namespace causeway::tls {
namespace {

using daemon::LogLevel;

constexpr int64_t kTellAgainMs = 1000;
constexpr std::chrono::seconds kWatchAgain{1};
constexpr int64_t kSameFolderMs = 4000;  // while somebody has a session
constexpr std::chrono::seconds kRefusedLimit{15};
constexpr std::chrono::seconds kGoodbyeLimit{1};
constexpr size_t kMostTold = 1000;  // at once: far less than a socket holds
constexpr int kMostAccepts = 16;    // before others get their turn
// Connections that the kernel keeps until they are accepted. Beyond that it drops them, and a guest that comes beside a flood
// would try again only after a second.
constexpr int kMostWaiting = 1024;
// A connection has two descriptors here, and one that waits has one. Beside them stand listeners, keys that are read, and the one that is being
// made.
constexpr rlim_t kOfConnection = 2, kOtherDescriptors = 64;
constexpr rlim_t kMostDescriptors = kOfConnection * kMaxConnections + kMaxWaiting + kOtherDescriptors;

// How many connections may be open. A shell allows 1024 descriptors unless asked for more, so this process asks.
size_t MostConnections() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kMaxConnections;
  limit.rlim_cur = std::max(limit.rlim_cur, std::min(limit.rlim_max, kMostDescriptors));
  setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= kMostDescriptors) return kMaxConnections;
  const rlim_t most =
      limit.rlim_cur > kOtherDescriptors ? (limit.rlim_cur - kOtherDescriptors) / kOfConnection : 0;
  daemon::LogWarning("At most " + std::to_string(most) +
                     " connections can be open at once, because this process may have only " +
                     std::to_string(limit.rlim_cur) +
                     " descriptors; LimitNOFILE= of its unit gives it more.");
  return most;
}

// In seconds since 1970; 0: it was revoked.
int64_t GoodUntil(const Key& key) {
  if (key.revoked != 0) return 0;
  return key.expires != 0 ? int64_t(key.expires) : std::numeric_limits<int64_t>::max();
}

// The process of a connection: this program, anew.
[[noreturn]] void ExecConnection(int socket, int control, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  // Above the two numbers first, so that neither overwrites the other.
  // It says nothing by itself: the service's log is the listener's.
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (nothing < 0 || dup2(nothing, standard) != standard) _exit(127);
  const int peer = fcntl(socket, F_DUPFD_CLOEXEC, kListenerFd + 1);
  const int listener = fcntl(control, F_DUPFD_CLOEXEC, kListenerFd + 1);
  if (dup2(peer, kPeerFd) != kPeerFd || dup2(listener, kListenerFd) != kListenerFd) _exit(127);
  execl("/proc/self/exe", "causeway-tls", "--connection", static_cast<char*>(nullptr));
  _exit(127);
}

void SendAnswer(int control, const TlsAnswer& answer, int descriptor) {
  SendPacket(control, &answer, sizeof answer, {&descriptor, size_t(descriptor >= 0)}, MSG_DONTWAIT);
}

// Connects to causewayd and tells it who comes. Nothing: *why says what is wrong, for the guest.
UniqueFd ReachDaemon(const std::string& path, std::span<const std::byte> message, std::string* why) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket && connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
      send(socket.get(), message.data(), message.size(), MSG_NOSIGNAL) == ssize_t(message.size())) {
    return socket;
  }
  *why = "causewayd cannot be reached on this host: " + ErrnoText() +
         "; its administrator sees with `systemctl status causewayd` whether it runs.";
  return {};
}

}  // namespace

Listener::Listener(const daemon::Config& config) : config_(config) {}

Listener::~Listener() {
  for (Connection& connection : connections_) End(connection, "");
}

std::string Listener::Start() {
  signal(SIGPIPE, SIG_IGN);
  most_connections_ = MostConnections();
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  signals_.reset(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) return "Signals cannot be received: " + ErrnoText() + ".";
  // Its processes know what is secret; nobody else of this user looks into it.
  prctl(PR_SET_DUMPABLE, 0);
  if (std::string problem = WatchKeys(); !problem.empty()) return problem;
  ReadKeys(true);
  for (const auto& [address, port] : config_.tls.listen)
    if (std::string problem = Listen(address, port); !problem.empty()) return problem;
  return {};
}

std::string Listener::Listen(const std::string& address, uint16_t port) {
  sockaddr_storage storage{};
  socklen_t length = SocketAddress(address, port, &storage);
  UniqueFd socket(::socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  if (socket) setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  // So that [::] and 0.0.0.0 stand beside each other.
  if (socket && storage.ss_family == AF_INET6)
    setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
  if (!socket || bind(socket.get(), reinterpret_cast<sockaddr*>(&storage), length) != 0 ||
      ::listen(socket.get(), kMostWaiting) != 0) {
    return "TLS connections at " + AddressText(storage, true) + " cannot be accepted: " + ErrnoText() +
           "; correct [tls] listen.";
  }
  length = sizeof storage;
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&storage), &length);
  daemon::LogInfo("TLS sessions are accepted at " + AddressText(storage, true));
  listeners_.push_back(std::move(socket));
  return {};
}

std::string Listener::WatchKeys() {
  keys_changed_.reset(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  constexpr uint32_t kChanges = IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE | IN_CLOSE_WRITE | IN_ATTRIB |
                                IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR;
  if (keys_changed_ && inotify_add_watch(keys_changed_.get(), config_.tls.keys.c_str(), kChanges) >= 0 &&
      stat(config_.tls.keys.c_str(), &watched_) == 0) {
    look_again_ = Clock::time_point::max();
    return {};
  }
  std::string problem =
      "The folder of keys " + config_.tls.keys + " cannot be watched: " + ErrnoText() +
      "; `causeway keys create` makes it, [tls] keys in the configuration names another one.";
  LookAgainSoon();
  return problem;
}

void Listener::LookAgainSoon() {
  keys_changed_.reset();
  look_again_ = Clock::now() + kWatchAgain;
}

// False: it may be another folder by now, or none.
bool Listener::TakeChanges() {
  constexpr uint32_t kOther = IN_DELETE_SELF | IN_MOVE_SELF | IN_IGNORED | IN_UNMOUNT | IN_Q_OVERFLOW;
  alignas(inotify_event) char events[4096];
  bool same = true;
  for (;;) {
    const ssize_t got = read(keys_changed_.get(), events, sizeof events);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return same;
    for (ssize_t at = 0; at < got;) {
      const auto& event = reinterpret_cast<const inotify_event&>(events[at]);
      same &= (event.mask & kOther) == 0;
      at += ssize_t(sizeof event + event.len);
    }
  }
}

// Nothing tells that a folder above it was renamed, or a link on the way to it changed.
bool Listener::IsSameFolder() const {
  struct stat now {};
  return stat(config_.tls.keys.c_str(), &now) == 0 && now.st_dev == watched_.st_dev &&
         now.st_ino == watched_.st_ino;
}

void Listener::LookAtKeys(bool changed) {
  if (look_again_ == Clock::time_point::max()) {
    if ((changed && !TakeChanges()) || !IsSameFolder()) return LookAgainSoon();
    if (changed) ReadKeys(false);
    return;
  }
  if (Clock::now() < look_again_) return;
  const std::string problem = WatchKeys();
  if (problem.empty()) daemon::LogInfo("The folder of keys " + config_.tls.keys + " is watched again");
  if (!problem.empty() && problem != problem_) daemon::LogWarning(problem);
  problem_ = problem;
  ReadKeys(true);
}

// What cannot be read is believed when it was looked at twice.
void Listener::ReadKeys(bool again) {
  std::vector<std::string> problems;
  auto listed = ListKeys(config_.tls.keys, &problems);
  if (!listed.ok() && !again) return LookAgainSoon();
  if (!listed.ok()) problems.push_back(listed.error());
  const size_t before = keys_.size();
  keys_.clear();
  std::vector<NamedKey> keys;
  if (listed.ok()) keys = std::move(listed.value());
  for (NamedKey& key : keys) {
    key.key.secret.fill(0);  // read again when a peer names the key
    const std::string id = key.key.id;
    const auto [known, is_new] = keys_.try_emplace(id, key);
    if (is_new) continue;
    // Two files may hold the same key. The listener accepts it only while both files do, so that revoking either file ends the key.
    if (GoodUntil(key.key) < GoodUntil(known->second.key)) known->second = std::move(key);
    problems.push_back("Two files in " + config_.tls.keys + " have the key with id " + id +
                       "; the one that ends first counts.");
  }
  // While the folder cannot be watched it is read each second.
  if (problem_.empty() || keys_.size() != before) {
    for (const std::string& problem : problems) daemon::LogWarning(problem);
  }
  if (keys_.size() != before || !told_)
    daemon::LogInfo(keys_.size() == 1 ? "1 key is known" : std::to_string(keys_.size()) + " keys are known");
  TellEndedKeys();
}

std::string Listener::NameOf(const std::string& id) const {
  const auto found = keys_.find(id);
  return found != keys_.end() ? "key " + found->second.name : "key with id " + id;
}

std::string Listener::WhyNot(const std::string& id) const {
  const auto found = keys_.find(id);
  if (found == keys_.end()) return "is not known here";
  const Key& key = found->second.key;
  if (key.revoked != 0) return "was revoked at " + TimeText(key.revoked);
  if (key.expires != 0 && key.expires <= std::time(nullptr)) return "expired at " + TimeText(key.expires);
  return {};
}

size_t Listener::Unproved(const std::string& network) const {
  return size_t(std::count_if(connections_.begin(), connections_.end(), [&](const Connection& connection) {
    return !connection.dialogue.proved() && (network.empty() || connection.network == network);
  }));
}

int Listener::WaitMs() const {
  static constexpr int64_t kLongestMs = 3'600'000;
  int64_t wait = -1;
  const auto at_most = [&wait](int64_t ms) {
    ms = std::clamp<int64_t>(ms, 0, kLongestMs);
    wait = wait < 0 ? ms : std::min(wait, ms);
  };
  for (const Connection& connection : connections_) {
    if (connection.end != Clock::time_point::max())
      at_most(std::chrono::ceil<std::chrono::milliseconds>(connection.end - Clock::now()).count());
  }
  if (!waiting_.empty())
    at_most(std::chrono::ceil<std::chrono::milliseconds>(waiting_.front().until - Clock::now()).count());
  if (next_end_ != kNever) at_most((next_end_ - std::time(nullptr)) * 1000);
  if (!ended_.empty()) at_most(kTellAgainMs);
  if (look_again_ != Clock::time_point::max())
    at_most(std::chrono::ceil<std::chrono::milliseconds>(look_again_ - Clock::now()).count());
  if (!connections_.empty()) at_most(kSameFolderMs);
  return int(wait);
}

void Listener::Wait() {
  std::vector<pollfd> ready = {{signals_.get(), POLLIN, 0}, {keys_changed_.get(), POLLIN, 0}};
  for (const UniqueFd& listener : listeners_) ready.push_back({listener.get(), POLLIN, 0});
  const size_t first = ready.size();
  for (const Connection& connection : connections_) ready.push_back({connection.control.get(), POLLIN, 0});
  if (poll(ready.data(), ready.size(), WaitMs()) < 0) return;
  signalfd_siginfo signal_info{};
  if (ready[0].revents != 0 && read(signals_.get(), &signal_info, sizeof signal_info) > 0) stopping_ = true;
  LookAtKeys(ready[1].revents != 0);
  size_t at = first;
  for (auto connection = connections_.begin(); connection != connections_.end(); ++at) {
    const auto current = connection++;
    if (ready[at].revents == 0 || OnQuestion(*current)) continue;
    shutdown(current->socket.get(),
             SHUT_RDWR);  // its process may have been killed; its session's worker has it too
    connections_.erase(current);
  }
  Sweep();
  LookAtWaiting();
  for (size_t i = 0; i < listeners_.size(); ++i)
    if (ready[i + 2].revents != 0) OnAccept(listeners_[i].get());
}

void Listener::Run() {
  while (!stopping_) Wait();
  daemon::LogInfo("causeway-tls stops");
}

void Listener::Sweep() {
  for (auto next = connections_.begin(); next != connections_.end();) {
    const auto connection = next++;
    if (connection->dialogue.proved() && !connection->key_ended) LookAtKeyOf(*connection);
    if (connection->end > Clock::now()) continue;
    std::string why;  // empty: it was said
    if (!connection->dialogue.proved())
      why = "its handshake took longer than 5 s";
    else if (!connection->key_ended)
      why = "it was refused and did not end";
    End(*connection, why);
    connections_.erase(connection);
  }
  if (next_end_ <= std::time(nullptr) || !ended_.empty()) TellEndedKeys();
  log_.Flush("TLS peers");
}

// causeway-tls tells the daemon which keys have ended, and the daemon has the session's worker say goodbye to the guest. A guest whose
// connection is cut without that tries to come back, because it cannot know why. What is left after kGoodbyeLimit is cut all the same.
void Listener::LookAtKeyOf(Connection& connection) {
  const std::string& id = connection.dialogue.id();
  const std::string bad = WhyNot(id);
  if (bad.empty()) return;
  connection.key_ended = true;
  connection.end = std::min(connection.end, Clock::now() + kGoodbyeLimit);
  log_.Write(LogLevel::kWarning, connection.peer + ": ended: " + NameOf(id) + " " + bad);
}

// The daemon has sessions that wait for their guest, of which this process knows nothing. At the start it is told of every key that is
// not good: one may have been revoked while this process did not run.
void Listener::TellEndedKeys() {
  std::set<std::string> good;
  next_end_ = kNever;
  for (const auto& [id, key] : keys_) {
    if (!WhyNot(id).empty()) {
      if (!told_) ended_.insert(id);
      continue;
    }
    good.insert(id);
    if (key.key.expires != 0) next_end_ = std::min(next_end_, key.key.expires);
  }
  std::set_difference(good_.begin(), good_.end(), good.begin(), good.end(),
                      std::inserter(ended_, ended_.end()));
  for (const std::string& id : good) ended_.erase(id);
  good_ = std::move(good);
  told_ = true;
  if (ended_.empty()) return;
  std::vector<KeyEnded> messages;
  for (const std::string& id : ended_) {
    if (messages.size() == kMostTold) break;
    KeyEnded& message = messages.emplace_back(KeyEnded{kKeyEndedMagic, {}});
    id.copy(message.id, sizeof(message.id) - 1);
  }
  std::string why;
  if (!ReachDaemon(config_.tls.hand_over, std::as_bytes(std::span(messages)), &why)) return;
  for (const KeyEnded& message : messages) ended_.erase(message.id);
}

void Listener::End(Connection& connection, const std::string& why) {
  shutdown(connection.socket.get(), SHUT_RDWR);  // its session's worker has it too
  kill(connection.pid, SIGKILL);
  waitpid(connection.pid, nullptr, 0);
  if (!why.empty()) log_.Write(LogLevel::kWarning, connection.peer + ": ended: " + why);
}

// The oldest that has proved nothing goes: a new one may be a guest.
void Listener::MakeRoom() {
  const auto oldest =
      std::find_if(connections_.begin(), connections_.end(),
                   [](const Connection& connection) { return !connection.dialogue.proved(); });
  if (oldest == connections_.end()) return;
  End(*oldest, "more than " + std::to_string(kMaxHandshakes) + " peers are in their handshakes");
  connections_.erase(oldest);
}

void Listener::OnAccept(int listener) {
  for (int i = 0; i < kMostAccepts; ++i) {
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    UniqueFd socket(accept4(listener, reinterpret_cast<sockaddr*>(&address), &length, SOCK_CLOEXEC));
    if (!socket) return;
    Arrival arrival{
        .socket = std::move(socket), .network = NetworkOf(address), .peer = AddressText(address, true)};
    if (MayWait(arrival.network)) {
      arrival.until = Clock::now() + kWaitLimit;
      waiting_.push_back(std::move(arrival));
    } else {
      Admit(std::move(arrival));
    }
  }
}

bool Listener::MayWait(const std::string& network) const {
  const bool has_descriptors = most_connections_ == kMaxConnections;
  if (!has_descriptors || Unproved(network) < kMaxOfNetwork || waiting_.size() >= kMaxWaiting) return false;
  const auto of_it = std::count_if(waiting_.begin(), waiting_.end(),
                                   [&](const Arrival& arrival) { return arrival.network == network; });
  return size_t(of_it) < kMaxWaitingOfNetwork;
}

// The connections are looked at in the order in which they came. Once a network is found full, its others are passed over.
void Listener::LookAtWaiting() {
  std::set<std::string> full;
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    const auto arrival = next++;
    const bool is_late = arrival->until <= Clock::now();
    if (!is_late && full.contains(arrival->network)) continue;
    if (!is_late && Unproved(arrival->network) >= kMaxOfNetwork) {
      full.insert(arrival->network);
      continue;
    }
    Arrival due = std::move(*arrival);
    waiting_.erase(arrival);
    Admit(std::move(due));
  }
}

void Listener::Admit(Arrival arrival) {
  const bool is_full = connections_.size() >= most_connections_;
  if (is_full || Unproved(arrival.network) >= kMaxOfNetwork)
    return log_.Write(LogLevel::kWarning,
                      arrival.peer + ": refused: " +
                          (is_full ? std::to_string(most_connections_) + " connections are open"
                                   : std::to_string(kMaxOfNetwork) + " connections of " + arrival.network +
                                         " are in their handshakes"));
  if (!strangers_.Admit(arrival.network, Clock::now()))
    return log_.Write(LogLevel::kWarning, arrival.peer + ": refused: too many connections of " +
                                              arrival.network + ", or of all strangers, have proved no key");
  if (Unproved("") >= kMaxHandshakes) MakeRoom();
  Begin(std::move(arrival));
}

void Listener::Begin(Arrival arrival) {
  SetTcpOptions(arrival.socket.get(), kKeepAlive);
  const auto refuse = [&] {
    log_.Write(LogLevel::kError, arrival.peer + ": refused: no process can be made: " + ErrnoText());
  };
  int pair[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return refuse();
  Connection connection;
  connection.control.reset(pair[0]);
  const UniqueFd theirs(pair[1]);
  const pid_t self = getpid();
  connection.pid = fork();
  if (connection.pid == 0) ExecConnection(arrival.socket.get(), theirs.get(), self);
  if (connection.pid < 0) return refuse();
  connection.socket = std::move(arrival.socket);
  connection.network = std::move(arrival.network);
  connection.peer = std::move(arrival.peer);
  connection.end = Clock::now() + kHandshakeLimit;
  connections_.push_back(std::move(connection));
}

bool Listener::OnQuestion(Connection& connection) {
  TlsQuestion question;
  const Reading reading = ReadQuestion(connection.control.get(), &question);
  if (reading == Reading::kMessage) Answer(connection, question);
  if (reading != Reading::kEnd) return true;
  int status = 0;
  kill(connection.pid, SIGKILL);  // it may have closed the socket and gone on
  waitpid(connection.pid, &status, 0);
  const Dialogue& dialogue = connection.dialogue;
  if (dialogue.proved()) {
    log_.Write(LogLevel::kInfo,
               connection.peer + ": the session with " + NameOf(dialogue.id()) + " has ended");
  } else if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL) {
    log_.Write(LogLevel::kWarning, connection.peer + ": its process was ended by signal " +
                                       std::to_string(WTERMSIG(status)) + " during the handshake");
  }
  return false;
}

// A process that says what none says is one that a stranger has taken over.
void Listener::Answer(Connection& connection, const TlsQuestion& question) {
  const Dialogue::Said said = connection.dialogue.Take(question);
  const std::string& id = connection.dialogue.id();
  if (std::holds_alternative<Dialogue::AsksForSecret>(said)) return GiveSecret(connection);
  if (std::holds_alternative<Dialogue::Proves>(said)) return HandOver(connection);
  if (const auto* fails = std::get_if<Dialogue::Fails>(&said)) {
    const std::string why = !connection.why_not.empty()
                                ? connection.why_not
                                : (id.empty() ? "" : "it named " + NameOf(id) + ", but: ") + fails->why;
    log_.Write(LogLevel::kWarning, connection.peer + ": refused: " + why);
    return;
  }
  log_.Write(LogLevel::kWarning, connection.peer + ": its process said what none says, and is ended");
  kill(connection.pid, SIGKILL);
}

void Listener::GiveSecret(Connection& connection) {
  const std::string& id = connection.dialogue.id();
  TlsAnswer answer{};
  std::string why = WhyNot(id);
  if (why.empty()) {
    auto key = ReadKey(config_.tls.keys, keys_.at(id).name);
    if (!key.ok()) {
      why = "cannot be read: " + key.error();
    } else if (key.value().id != id || !key.value().has_secret) {
      why = "was changed a moment ago";
    } else {
      answer.accepted = 1;
      std::memcpy(answer.secret, key.value().secret.data(), sizeof answer.secret);
    }
  }
  if (!why.empty()) {
    connection.why_not = NameOf(id) + " " + why;
    connection.dialogue.Refuse();
  }
  SendAnswer(connection.control.get(), answer, -1);
}

void Listener::HandOver(Connection& connection) {
  TlsAnswer answer{};
  std::string why = WhyNot(connection.dialogue.id());
  KeyHandOver hand_over{};
  RemoteHandOver& who = hand_over.who;
  UniqueFd daemon;
  if (why.empty()) {
    const NamedKey& key = keys_.at(connection.dialogue.id());
    who.magic = kKeyHandOverMagic;
    connection.dialogue.id().copy(hand_over.id, sizeof(hand_over.id) - 1);
    key.key.vm.copy(who.vm, sizeof(who.vm) - 1);
    key.name.copy(who.key, sizeof(who.key) - 1);
    connection.peer.copy(who.peer, sizeof(who.peer) - 1);
    daemon = ReachDaemon(config_.tls.hand_over, std::as_bytes(std::span(&hand_over, 1)), &why);
  }
  strangers_.Prove(connection.network, Clock::now());
  answer.accepted = why.empty() ? 1 : 0;
  // One that has no session takes no place for longer than its process needs to say so.
  connection.end = why.empty() ? Clock::time_point::max() : Clock::now() + kRefusedLimit;
  why.copy(answer.text, sizeof(answer.text) - 1);
  if (!why.empty()) {
    log_.Write(LogLevel::kError, connection.peer + ": " + NameOf(connection.dialogue.id()) + ": " + why);
  } else {
    log_.Write(LogLevel::kInfo,
               connection.peer + ": a session with " + NameOf(connection.dialogue.id()) + " of VM " + who.vm);
  }
  SendAnswer(connection.control.get(), answer, daemon.get());
}

}  // namespace causeway::tls
