// SPDX-License-Identifier: Apache-2.0
// A user and group id of its own for each scope (VM, local user, TCP peer) that has sessions: its workers
// become that user before they look at anything of their guest. None is given again while in use.
#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "host_backend/common/result.h"

namespace causeway::daemon {

class ScopeUsers {
 public:
  ScopeUsers(uint32_t first, uint32_t count);

  // Whether this process may make workers other users; otherwise Join answers 0, which means: as they are.
  bool possible() const { return problem_.empty(); }
  const std::string& problem() const { return problem_; }

  // A launcher that a daemon of before had started may change users, or may not; this process need not.
  void Assume(const std::string& problem) { problem_ = problem; }
  // One more worker of that scope, which has that user already. False: the user is another scope's.
  bool Rejoin(const std::string& scope, uint32_t user);

  // The scope's user, for one more of its workers. The same as the last time where that is free.
  Result<uint32_t> Join(const std::string& scope);
  // One of its workers has been reaped.
  void Leave(const std::string& scope);

 private:
  struct Holder {
    uint32_t user = 0;
    uint32_t workers = 0;
  };
  const uint32_t first_;
  const uint32_t count_;
  std::string problem_;
  std::map<std::string, Holder> scopes_;
  std::map<uint32_t, std::string> users_;
};

}  // namespace causeway::daemon
