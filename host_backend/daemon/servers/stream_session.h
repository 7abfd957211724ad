// SPDX-License-Identifier: Apache-2.0
// Sessions whose bytes come by a stream socket, of TCP or of causeway-tls: the opening message is checked here, then the
// connection belongs to a worker. A session whose connection is lost waits for its guest, where both can do that, and keeps its worker and
// its place (messages/resume_messages.h). From that message on the session outlives its daemon (../takeover/vault.h). All of it runs in the
// daemon's only thread.
#pragma once
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host_backend/common/remote/guest_return.h"
#include "host_backend/daemon/servers/services.h"

namespace causeway::daemon {

// Where such a session comes from.
struct StreamOrigin {
  const char* kind = "";      // as `causeway status` names it
  std::string label;          // the same for the log
  ScopeRef scope;             // null: there are as many as are remembered
  GpuShare share;             // what the scope may use
  std::optional<uid_t> user;  // of this host, where the connection does not leave it
  bool stranger = false;      // whom the UNIX socket would not let in
  bool encrypted = false;     // causeway-tls hands the guest's own socket to the worker (tls_hand_over.h)
  std::string place;          // by which the next daemon finds the scope: a peer's or a VM's name
  std::string key_id;  // of the key that the guest has proved; empty: none, or causeway-tls did not say
};

class StreamSessions {
 public:
  explicit StreamSessions(Services& services);
  ~StreamSessions();

  // A connection whose first byte is the opening message's. It is closed where its scope has too many.
  void Add(WorkerFd socket, StreamOrigin origin);
  // Goes on with the sessions that a daemon of before had under that kind. `find` tells where one with that `place`, and of that
  // user of this host, comes from; its place and user are known. None: there is no such place any more, and the session ends.
  void TakeOver(const char* kind,
                const std::function<std::optional<StreamOrigin>(const std::string& place,
                                                                std::optional<uid_t> user)>& find);
  // Whether no connection is left that the next daemon could not go on with, because its opening message has not arrived.
  bool quiet() const;
  void AppendStatus(std::vector<SessionStatus>& sessions) const;
  // That key is good no more: its sessions end.
  void EndKey(const std::string& key_id);

 private:
  class Session;
  void Destroy(Session& session);
  // The session to which a guest from there wants to come back. Null: there is none that it may have.
  Session* FindReturning(const StreamOrigin& origin, const ResumeRequest& request) const;

  Services& services_;
  std::list<std::unique_ptr<Session>> sessions_;
};

}  // namespace causeway::daemon
