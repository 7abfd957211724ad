// SPDX-License-Identifier: Apache-2.0
// Scopes: a VM, a local user, a TCP peer. What is bounded is bounded for each of them, and each has a part of
// the sessions that no other scope can take. All of it belongs to the daemon's thread.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "host_backend/common/result.h"
#include "host_backend/daemon/loop/closing.h"
#include "host_backend/daemon/loop/pace.h"
#include "host_backend/daemon/process/config.h"
#include "host_backend/daemon/process/log.h"

namespace causeway::daemon {

// Scopes that one user may make as many of as it likes: of its user namespaces (local_peer.h). They have together
// what one scope has.
struct ScopeFamily {
  std::string name{};  // of a user's: "uid:NUMBER", "namespace:NUMBER" (LocalPeer::family); else empty
  uint32_t scopes = 0, sessions = 0, connections = 0;  // of all its scopes; the last as in Scope
  // Of what its clients and workers send, and of their sockets.
  ClosingAccountRef closing = std::make_shared<ClosingAccount>();
  Pace requests{4, 0.5};  // of its local clients: a session or a text takes some tenths of a millisecond
};

struct Scope {
  Scope() = default;
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  ~Scope() { --family->scopes; }
  std::string name;  // "vm:NAME", "uid:NUMBER", "container:uid:NUMBER", "tcp:ADDRESS"
  std::string
      who;  // as sentences begin with it: "VM NAME", "User NUMBER", "Container uid:NUMBER", "Peer ADDRESS"
  std::string limit_key;       // of the configuration, for max_sessions
  uint32_t max_sessions = 0;   // at once
  uint32_t guaranteed = 0;     // so many of them no other scope can take
  bool configured = false;     // what is guaranteed is kept for it also while it has no session
  std::string closed;          // why none begins; empty: they may
  uint32_t sessions = 0;       // opening or served
  uint32_t connections = 0;    // that have no session: not yet, or it was refused or has failed
  uint64_t worker_deaths = 0;  // of its sessions' workers, while they served
  // Never null. Of a VM, a peer, and a user who makes no scopes it has this scope alone.
  std::shared_ptr<ScopeFamily> family = std::make_shared<ScopeFamily>(ScopeFamily{.scopes = 1});
  // All scopes with the same one have one share of a GPU's time together.
  const std::string& share() const { return family->name.empty() ? name : family->name; }
  // One connection without a session more, or less.
  void CountConnection(bool more) {
    connections += more ? 1 : -1;
    family->connections += more ? 1 : -1;
  }
  const std::shared_ptr<LimitedLog> log = std::make_shared<LimitedLog>();   // all lines that its guests cause
  const std::shared_ptr<WorkerPace> pace = std::make_shared<WorkerPace>();  // of what its workers say
};
using ScopeRef = std::shared_ptr<Scope>;

// A session of a scope; it counts for as long as this lives.
using SessionSeat = std::shared_ptr<void>;

class Scopes {
 public:
  // `config` outlives this.
  explicit Scopes(const Config& config);

  ScopeRef OfVm(const VmConfig& vm);
  // The VM is served no more: nothing is kept for it.
  void ForgetVm(const VmConfig& vm);
  // `name` is the scope's: more than the number where the user's namespaces are its own, and `family` whoever
  // made those (local_peer.h). Null: there are as many scopes as are remembered, or as a family may have.
  ScopeRef OfUser(const std::string& name, const std::string& family);
  // Null as before.
  ScopeRef OfPeer(const std::string& address);

  // The configuration has changed: limits of the users and peers that are known follow it. VMs follow by OfVm.
  void Reconfigured();
  // No session of any scope begins any more, and each that asks is told `why`; empty: they may again.
  void Close(const std::string& why) { closed_ = why; }
  const std::string& closed() const { return closed_; }

  // An error is the sentence for the guest process.
  Result<SessionSeat> TakeSession(const ScopeRef& scope);
  // Of a session that a daemon of before has served: it has its place, whatever the limits are now.
  SessionSeat ResumeSession(const ScopeRef& scope);
  uint32_t live_sessions() const { return live_; }
  // Those that are remembered, by name: VMs, and users and peers that were here lately.
  const std::map<std::string, ScopeRef>& all() const { return scopes_; }

  // One more connection that has no session yet; false: the scope has as many as it may.
  bool MayConnect(const Scope& scope) const;
  // Says what limited logs have left out, of each that has not said so within a minute. Whether any has more to say.
  bool FlushLogs();

 private:
  // Null if `family` is full, or if all of `most` are in use.
  ScopeRef Find(const std::string& name, const std::string& who, const std::string& limit_key,
                uint32_t max_sessions, size_t most, std::shared_ptr<ScopeFamily> family);
  // How many free sessions are kept for other scopes than `asker`.
  uint32_t KeptForOthers(const Scope& asker) const;
  void Forget();

  const Config& config_;
  uint32_t live_ = 0;
  std::string closed_;
  std::map<std::string, ScopeRef> scopes_;
  std::map<std::string, std::weak_ptr<ScopeFamily>> families_;  // of users, by their names
};

}  // namespace causeway::daemon
