// SPDX-License-Identifier: Apache-2.0
// What guest processes give each other, kept for them under random tokens. Everything belongs to a scope, a
// VM or a user without one; a token of one scope is unknown in every other. A token is unguessable as well:
// inside a scope only a process to which it was given can use it, as natively with the handle.
//
// The driver's 64 bytes end with the session that made them: natively too they open nothing once that process
// has ended. Descriptors keep memory alive by themselves natively, until the last copy is closed anywhere.
// Here the session that made one says when the last copy in its VM is gone
// (guest_lib/memory/shared_descriptor.h); after its end that cannot be known, and the descriptor stays as
// long as its scope has any session.
//
// The next daemon goes on with them, but for those beyond the bounds of what is kept: the launcher has room for so many records,
// and without bounds one scope would take the places of others' sessions.
#pragma once
#include <array>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "host_backend/common/worker_control.h"
#include "host_backend/daemon/loop/worker_fd.h"
#include "host_backend/daemon/takeover/vault.h"

namespace causeway::daemon {

using Token = std::array<uint8_t, kTokenBytes>;
using SharedBytes = std::array<uint8_t, kSharedBytes>;

class SharedObjects {
 public:
  static constexpr size_t kMaxPerSession = 16384;
  static constexpr size_t kMaxDescriptorsPerSession = 1024;
  static constexpr size_t kMaxPerScope = 4 * kMaxPerSession;  // with those of sessions that have ended
  static constexpr size_t kMaxKeptOfScope = 512, kMaxKept = 4096;
  explicit SharedObjects(size_t max_descriptors) : max_descriptors_(max_descriptors) {}
  SharedObjects(const SharedObjects&) = delete;
  SharedObjects& operator=(const SharedObjects&) = delete;

  // Where objects are kept for the next daemon; it outlives this. Before the first Put; without it none is kept.
  void Use(Vault* vault) { vault_ = vault; }
  // Those that a daemon of before has left, when its sessions were taken over. `lives` says whether that session of the scope does,
  // with session 0 whether any does. Answers the largest number of a session among them, also of one that has ended.
  uint64_t Resume(const std::function<bool(const std::string& scope, uint64_t session)>& lives);

  // `session` is a number that means something to the caller only. The same bytes of the same session get the
  // same token again. kFull: a bound above is reached, or the scope would have more than half of the
  // descriptors that the others leave.
  SharingResult Put(const std::string& scope, uint64_t session, SharedKind kind, const SharedBytes& bytes,
                    WorkerFd descriptor, Token* token);
  // *descriptor is a new one.
  SharingResult Get(const std::string& scope, SharedKind kind, const Token& token, SharedBytes* bytes,
                    UniqueFd* descriptor) const;
  SharingResult Drop(const std::string& scope, uint64_t session, const Token& token);
  // `last`: no other session of the scope lives.
  void EndSession(const std::string& scope, uint64_t session, bool last);

  size_t size() const;
  size_t descriptors() const { return descriptors_; }

 private:
  struct Object {
    uint64_t session;
    SharedKind kind;
    SharedBytes bytes;
    WorkerFd descriptor;
    uint64_t key = 0;  // of its record
  };
  struct Own {  // of one session
    std::map<std::pair<SharedKind, SharedBytes>, Token> bytes;
    size_t objects = 0, descriptors = 0;
  };
  struct Scope {
    std::map<Token, Object> objects;
    std::map<uint64_t, Own> own;
    size_t descriptors = 0, kept = 0;
  };
  void Insert(Scope& scope, const Token& token, Object object);
  void Keep(const std::string& name, Scope& scope, const Token& token);
  void Forget(Scope& scope, Object& object);
  void Erase(Scope& scope, const Token& token);

  Vault* vault_ = nullptr;
  const size_t max_descriptors_;
  size_t descriptors_ = 0, kept_ = 0;
  std::map<std::string, Scope> scopes_;
};

}  // namespace causeway::daemon
