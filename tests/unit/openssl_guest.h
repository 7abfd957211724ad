// SPDX-License-Identifier: Apache-2.0
// A guest's side of TLS that is OpenSSL's own: the reference for our records, and a peer that does what our guests never do.
#pragma once
#include <openssl/ssl.h>

#include <memory>
#include <string>
#include <vector>

#include "ivshmem_ring/tls/tls_session.h"

namespace causeway::test {

class OpenSslGuest {
 public:
  using Bytes = std::vector<std::byte>;

  // `most_early`: how many bytes of early data it believes that the host takes.
  explicit OpenSslGuest(const Key& key, uint32_t most_early = 0)
      : key_(key),
        most_early_(most_early),
        context_(SSL_CTX_new(TLS_client_method())),
        ssl_(SSL_new(context_)) {
    SSL_CTX_set_min_proto_version(context_, TLS1_3_VERSION);
    SSL_set_app_data(ssl_, this);
    SSL_set_psk_use_session_callback(ssl_, &UseKey);
    SSL_set_bio(ssl_, in_, out_);
    SSL_set_connect_state(ssl_);
  }
  ~OpenSslGuest() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }
  OpenSslGuest(const OpenSslGuest&) = delete;
  OpenSslGuest& operator=(const OpenSslGuest&) = delete;

  SSL* ssl() { return ssl_; }
  Bytes Output() {
    Bytes bytes(BIO_ctrl_pending(out_));
    if (!bytes.empty()) BIO_read(out_, bytes.data(), int(bytes.size()));
    return bytes;
  }
  void Input(const Bytes& bytes) { BIO_write(in_, bytes.data(), int(bytes.size())); }
  // Its first message, which offers early data, and a record with `early` behind it. Empty: OpenSSL does not do that.
  Bytes HelloWith(const Bytes& early) {
    size_t written = 0;
    const bool done = SSL_write_early_data(ssl_, early.data(), early.size(), &written) == 1;
    return done && written == early.size() ? Output() : Bytes();
  }
  // Shakes hands with a host that knows its key; `sent` was said before. Null: the host has failed.
  std::unique_ptr<TlsRecords> Meet(Bytes sent = {}) {
    std::string error;
    auto host = TlsSession::Server(
        [this](const std::string& id, KeySecret* secret) {
          *secret = key_.secret;
          return id == key_.id;
        },
        &error);
    Bytes wire;
    for (int round = 0; round < 4; ++round) {
      if (sent.empty()) {
        SSL_do_handshake(ssl_);
        sent = Output();
      }
      host->Received(sent);
      const TlsSession::Progress progress = host->Handshake();
      if (progress == TlsSession::Progress::kDone) return host->Established();
      if (progress == TlsSession::Progress::kFailed) return nullptr;
      host->TakeOutput(wire);
      Input(wire);
      sent.clear();
    }
    return nullptr;
  }
  Bytes Read(size_t bytes) {
    Bytes got(bytes);
    size_t at = 0, count = 0;
    while (at < bytes && SSL_read_ex(ssl_, &got[at], bytes - at, &count) == 1) at += count;
    got.resize(at);
    return got;
  }

 private:
  static int UseKey(SSL* ssl, const EVP_MD*, const unsigned char** id, size_t* bytes, SSL_SESSION** session) {
    const auto* self = static_cast<OpenSslGuest*>(SSL_get_app_data(ssl));
    const unsigned char cipher[] = {0x13, 0x01};
    *session = SSL_SESSION_new();
    SSL_SESSION_set1_master_key(*session, self->key_.secret.data(), self->key_.secret.size());
    SSL_SESSION_set_cipher(*session, SSL_CIPHER_find(ssl, cipher));
    SSL_SESSION_set_protocol_version(*session, TLS1_3_VERSION);
    SSL_SESSION_set_max_early_data(*session, self->most_early_);
    *id = reinterpret_cast<const unsigned char*>(self->key_.id.data());
    *bytes = self->key_.id.size();
    return 1;
  }
  const Key key_;
  const uint32_t most_early_;
  SSL_CTX* context_;
  SSL* ssl_;
  BIO* in_ = BIO_new(BIO_s_mem());
  BIO* out_ = BIO_new(BIO_s_mem());
};

// `wire` without its records of data, which early data are as long as nothing else is encrypted.
inline OpenSslGuest::Bytes WithoutData(const OpenSslGuest::Bytes& wire) {
  constexpr size_t kHeader = 5;
  constexpr std::byte kData{23};
  OpenSslGuest::Bytes rest;
  for (size_t at = 0; at + kHeader <= wire.size();) {
    const size_t end = at + kHeader + (size_t(wire[at + 3]) << 8 | size_t(wire[at + 4]));
    if (wire[at] != kData)
      rest.insert(rest.end(), wire.begin() + ptrdiff_t(at), wire.begin() + ptrdiff_t(end));
    at = end;
  }
  return rest;
}

}  // namespace causeway::test
