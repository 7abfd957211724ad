// SPDX-License-Identifier: Apache-2.0
// What the listener takes from the process of a connection (messages.h), which may be a stranger's by now: each message once and in
// its order, and nothing else.
#pragma once
#include <string>
#include <variant>

#include "host_backend/tls/messages.h"

namespace causeway::tls {

// Reads one message of that socket, without waiting. kEnd: the process has ended, or has sent what is no message.
enum class Reading { kMessage, kNothing, kEnd };
Reading ReadQuestion(int control, TlsQuestion* question);

// Of one connection.
class Dialogue {
 public:
  struct AsksForSecret {};  // of id()
  struct Proves {};
  struct Fails {
    std::string why;  // printable
  };
  struct Violates {};  // its process is to be ended
  using Said = std::variant<AsksForSecret, Proves, Fails, Violates>;

  Said Take(const TlsQuestion& question);
  // The key that was named is not good: it cannot be proved any more.
  void Refuse() { refused_ = true; }

  const std::string& id() const { return id_; }  // of the key; empty: none was named yet
  bool proved() const { return proved_; }

 private:
  std::string id_;
  bool refused_ = false, proved_ = false, failed_ = false;
};

}  // namespace causeway::tls
