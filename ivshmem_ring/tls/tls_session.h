// SPDX-License-Identifier: Apache-2.0
// TLS 1.3 on one connection, by OpenSSL, with keys of key_file.h on both sides and nothing else: no certificates, no earlier
// protocol, no tickets, no resumption, no early data, no renegotiation; keys are exchanged by Diffie-Hellman, so that a secret
// that becomes known later opens nothing that was recorded. Each session has a library context of its own: it shares no lock
// and no state with another OpenSSL of the process, nor with a session that a forked child left behind.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "ivshmem_ring/tls/key_file.h"
#include "ivshmem_ring/tls/tls_records.h"

namespace causeway {

class TlsSession {
 public:
  // The secret of the key with that id, which is no more than what the peer has sent. False: there is none.
  using FindSecret = std::function<bool(const std::string& id, KeySecret* secret)>;

  // Null: OpenSSL has failed, and *error says how.
  static std::unique_ptr<TlsSession> Client(const Key& key, std::string* error);
  static std::unique_ptr<TlsSession> Server(FindSecret find, std::string* error);
  ~TlsSession();

  // Goes as far as the received bytes allow. After each call what TakeOutput gives has to be sent.
  enum class Progress { kNeedsMore, kDone, kFailed };
  Progress Handshake();
  // What carries the connection's bytes after kDone, with what was received behind the handshake. To be called once. Null: OpenSSL has
  // failed.
  std::unique_ptr<TlsRecords> Established();

  // Exchanges `wire`, which is made empty before, for what is to be sent now.
  void TakeOutput(std::vector<std::byte>& wire);
  // Bytes of the socket. They have to stay where they are until Handshake has answered, or KeepReceived was called, which copies
  // those that are not used yet.
  void Received(std::span<const std::byte> wire);
  void KeepReceived();

  // The key that the peer named, and has proved once the handshake is done; of a server. Empty: none yet.
  const std::string& key_id() const { return key_id_; }
  // What failed, in OpenSSL's words.
  const std::string& failure() const { return failure_; }

 private:
  struct Parts;
  friend struct Parts;
  TlsSession();
  std::string Begin(bool server);
  void Fail();

  bool server_ = false;
  std::unique_ptr<Parts> parts_;
  FindSecret find_;
  Key key_;
  std::string key_id_;
  std::string failure_;
  std::span<const std::byte> input_;
  std::vector<std::byte> kept_;  // of the input
  std::vector<std::byte> output_;
  TrafficSecret client_secret_{}, server_secret_{};
  int secrets_ = 0;  // of these two, that are known
};

}  // namespace causeway
