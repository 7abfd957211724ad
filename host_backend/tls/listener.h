// SPDX-License-Identifier: Apache-2.0
// The process that listens for remote guests. It reads none of their bytes: each connection has a process of its own
// (connection.h), which is started anew from the program's file and so has neither this one's memory nor another guest's. This one
// knows which keys are good, gives a connection's process the secret of the one key that its peer named, and ends the processes
// whose key is good no more. One thread.
//
// A peer that has not proved a key can make this process spend only so much: kMaxHandshakes processes at once, of which the peers of one
// network (NetworkOf) have at most kMaxOfNetwork; kHandshakeLimit of time; 64 MiB of memory and 16 KiB of received bytes in each; how often they connect (strangers.h); and twenty
// lines of the log a second.
#pragma once
#include <netinet/in.h>
#include <sys/stat.h>

#include <chrono>
#include <list>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "host_backend/common/key_folder.h"
#include "host_backend/common/unique_fd.h"
#include "host_backend/daemon/process/config.h"
#include "host_backend/daemon/process/log.h"
#include "host_backend/tls/dialogue.h"
#include "host_backend/tls/strangers.h"

namespace causeway::tls {

inline constexpr size_t kMaxHandshakes = 64;
inline constexpr size_t kMaxOfNetwork = 16;
// A connection of a network that has kMaxOfNetwork handshakes already waits for its turn, up to kWaitLimit and without a process, because the processes of
// a job connect at once. None waits where this process may have too few descriptors for kMaxConnections.
inline constexpr size_t kMaxWaiting = 256, kMaxWaitingOfNetwork = 128;
inline constexpr std::chrono::seconds kWaitLimit{3};
// Those that have proved their key, too. Fewer where this process may have fewer descriptors.
inline constexpr size_t kMaxConnections = 1024;
inline constexpr std::chrono::seconds kHandshakeLimit{5};

class Listener {
 public:
  explicit Listener(const daemon::Config& config);
  ~Listener();

  // Empty, or one sentence.
  std::string Start();
  // Until SIGTERM or SIGINT.
  void Run();

 private:
  using Clock = std::chrono::steady_clock;
  struct Connection {
    pid_t pid = 0;
    UniqueFd control;     // to its process
    UniqueFd socket;      // the peer's, to end the connection whoever else has it
    std::string network;  // by which handshakes and strangers are counted: NetworkOf
    std::string peer;     // its address and port, for the log
    // When its process is ended: at the end of the handshake's time, or soon after a refusal or the key's end. max(): it has a session.
    Clock::time_point end{};
    bool key_ended = false;  // and the log says so
    Dialogue dialogue;       // with its process
    std::string why_not;     // the key that it named was not good
  };

  // A connection that was accepted and has no process yet: it waits for its turn, or begins.
  struct Arrival {
    UniqueFd socket;
    std::string network, peer;  // as in Connection
    Clock::time_point until{};
  };

  std::string Listen(const std::string& address, uint16_t port);
  std::string WatchKeys();
  bool TakeChanges();
  bool IsSameFolder() const;
  // Reads the keys where something has changed. A folder that was replaced, removed or cannot be read is looked at again after kWatchAgain:
  // it may be about to be filled. What it then has counts; where there is none, no key is good.
  void LookAtKeys(bool changed);
  void LookAgainSoon();
  void ReadKeys(bool again);
  // Tells the daemon of keys that have ended since it was told, or of all of them; what cannot be told now is told later.
  void TellEndedKeys();
  int WaitMs() const;
  void Wait();
  void OnAccept(int listener);
  // Whether it may wait, since its network has as many handshakes as one may have.
  bool MayWait(const std::string& network) const;
  // Begins the waiting connections whose network has room for a handshake, and refuses those that have waited for kWaitLimit.
  void LookAtWaiting();
  // Refuses it or begins it.
  void Admit(Arrival arrival);
  void MakeRoom();
  void Begin(Arrival arrival);
  // False: the process has ended, and its connection with it.
  bool OnQuestion(Connection& connection);
  void Answer(Connection& connection, const TlsQuestion& question);
  void GiveSecret(Connection& connection);
  void HandOver(Connection& connection);
  void End(Connection& connection, const std::string& why);
  // Ends what takes too long, and what has a key that is not good any more.
  void Sweep();
  void LookAtKeyOf(Connection& connection);
  // Empty, or why the key is not good, in words that follow its name.
  std::string WhyNot(const std::string& id) const;
  std::string NameOf(const std::string& id) const;
  size_t Unproved(const std::string& network) const;

  const daemon::Config& config_;
  std::vector<UniqueFd> listeners_;
  UniqueFd signals_, keys_changed_;
  bool stopping_ = false;
  size_t most_connections_ = kMaxConnections;
  struct stat watched_ {};                                   // the folder of keys
  Clock::time_point look_again_ = Clock::time_point::max();  // max(): it is watched
  std::string problem_;                                      // why it cannot be watched
  std::map<std::string, NamedKey> keys_;                     // by their ids, and without their secrets
  std::set<std::string> good_;  // the ids of those that were good when the daemon was told last
  static constexpr int64_t kNever = INT64_MAX;
  int64_t next_end_ = kNever;    // when the next of good_ expires, in seconds since 1970
  bool told_ = false;            // it was told at all
  std::set<std::string> ended_;  // of those that the daemon is still to be told of
  std::list<Connection> connections_;
  std::list<Arrival> waiting_;
  daemon::LimitedLog log_;
  Strangers strangers_{Clock::now()};
};

}  // namespace causeway::tls
