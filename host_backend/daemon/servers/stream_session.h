// SPDX-License-Identifier: Apache-2.0
// Sessions whose bytes come by a stream socket, of TCP or of causeway-tls: the opening message is checked here, then the
// connection belongs to a worker. All of it runs in the daemon's only thread.
#pragma once
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

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
};

class StreamSessions {
 public:
  explicit StreamSessions(Services& services);
  ~StreamSessions();

  // A connection whose first byte is the opening message's. It is closed where its scope has too many.
  void Add(UniqueFd socket, StreamOrigin origin);
  void AppendStatus(std::vector<SessionStatus>& sessions) const;

 private:
  class Session;
  void Destroy(Session& session);

  Services& services_;
  std::list<std::unique_ptr<Session>> sessions_;
};

}  // namespace causeway::daemon
