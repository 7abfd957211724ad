// SPDX-License-Identifier: Apache-2.0
#include "ivshmem_ring/tls/tls_session.h"

#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <cstring>

namespace causeway {
namespace {

// Both have the hash of the keys, SHA-256. The second is for processors without instructions for AES.
constexpr char kCiphers[] = "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256";
constexpr unsigned char kKeyCipher[] = {0x13, 0x01};  // TLS_AES_128_GCM_SHA256

// OpenSSL still names the alert of a refusal after SSL 3, which nobody uses here.
std::string OpenSslText() {
  const unsigned long code = ERR_peek_last_error();
  if (ERR_GET_REASON(code) == SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE) {
    ERR_clear_error();
    return "the other side refused the handshake";
  }
  const char* reason = code != 0 ? ERR_reason_error_string(code) : nullptr;
  ERR_clear_error();
  return reason != nullptr ? reason : "the connection ended";
}

// The form in which OpenSSL takes a key that was not made by an earlier session.
SSL_SESSION* SessionOf(SSL* ssl, const KeySecret& secret) {
  SSL_SESSION* session = SSL_SESSION_new();
  const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl, kKeyCipher);
  if (session == nullptr || cipher == nullptr ||
      SSL_SESSION_set1_master_key(session, secret.data(), secret.size()) != 1 ||
      SSL_SESSION_set_cipher(session, cipher) != 1 ||
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) != 1) {
    SSL_SESSION_free(session);
    return nullptr;
  }
  return session;
}

}  // namespace

struct TlsSession::Parts {
  OSSL_LIB_CTX* library = nullptr;
  SSL_CTX* context = nullptr;
  SSL* ssl = nullptr;

  ~Parts() {
    SSL_free(ssl);
    SSL_CTX_free(context);
    OSSL_LIB_CTX_free(library);
  }

  static TlsSession& Of(const SSL* ssl) { return *static_cast<TlsSession*>(SSL_get_app_data(ssl)); }

  static int FindSession(SSL* ssl, const unsigned char* id, size_t bytes, SSL_SESSION** session) {
    TlsSession& self = Of(ssl);
    *session = nullptr;
    const std::string text(reinterpret_cast<const char*>(id), std::min<size_t>(bytes, 2 * kKeyIdDigits));
    // The first one counts: a peer asks for one key.
    if (!self.key_id_.empty() || !IsKeyId(text)) return 1;
    self.key_id_ = text;
    KeySecret secret{};
    if (self.find_(text, &secret)) *session = SessionOf(ssl, secret);
    OPENSSL_cleanse(secret.data(), secret.size());
    return 1;
  }

  static int UseSession(SSL* ssl, const EVP_MD* /*hash*/, const unsigned char** id, size_t* bytes,
                        SSL_SESSION** session) {
    TlsSession& self = Of(ssl);
    *session = SessionOf(ssl, self.key_.secret);
    *id = reinterpret_cast<const unsigned char*>(self.key_.id.data());
    *bytes = self.key_.id.size();
    return *session != nullptr ? 1 : 0;
  }

  // Lines as "CLIENT_TRAFFIC_SECRET_0 RANDOM SECRET", in hexadecimal digits.
  static void NoteSecret(const SSL* ssl, const char* line) {
    TlsSession& self = Of(ssl);
    const std::string text(line);
    const std::string name = text.substr(0, text.find(' '));
    TrafficSecret* const secret = name == "CLIENT_TRAFFIC_SECRET_0"   ? &self.client_secret_
                                  : name == "SERVER_TRAFFIC_SECRET_0" ? &self.server_secret_
                                                                      : nullptr;
    const std::string digits = text.substr(text.rfind(' ') + 1);
    size_t bytes = 0;
    if (secret == nullptr || digits.size() != 2 * secret->size()) return;
    OPENSSL_hexstr2buf_ex(secret->data(), secret->size(), &bytes, digits.c_str(), '\0');
    if (bytes == secret->size()) ++self.secrets_;
  }

  static int ReadBio(BIO* bio, char* out, size_t room, size_t* got) {
    auto& input = static_cast<TlsSession*>(BIO_get_data(bio))->input_;
    BIO_clear_retry_flags(bio);
    *got = std::min(room, input.size());
    if (*got == 0) {
      BIO_set_retry_read(bio);
      return 0;
    }
    std::memcpy(out, input.data(), *got);
    input = input.subspan(*got);
    return 1;
  }

  static int WriteBio(BIO* bio, const char* bytes, size_t count, size_t* written) {
    auto& output = static_cast<TlsSession*>(BIO_get_data(bio))->output_;
    const auto* from = reinterpret_cast<const std::byte*>(bytes);
    output.insert(output.end(), from, from + count);
    *written = count;
    return 1;
  }

  static long ControlBio(BIO* /*bio*/, int command, long /*number*/, void* /*pointer*/) {
    return command == BIO_CTRL_FLUSH ? 1 : 0;
  }

  static int MakeBio(BIO* bio) {
    BIO_set_init(bio, 1);
    return 1;
  }

  // Lives as long as the process.
  static BIO_METHOD* Method() {
    static BIO_METHOD* const method = [] {
      BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "causeway");
      if (made == nullptr) return made;
      BIO_meth_set_read_ex(made, &ReadBio);
      BIO_meth_set_write_ex(made, &WriteBio);
      BIO_meth_set_ctrl(made, &ControlBio);
      BIO_meth_set_create(made, &MakeBio);
      return made;
    }();
    return method;
  }

  static bool SetUp(SSL_CTX* context, bool server) {
    SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_keylog_callback(context, &NoteSecret);
    // Without certificates to trust: a host that answers with one instead of the key is refused.
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
    if (server) {
      SSL_CTX_set_verify(context, SSL_VERIFY_NONE, nullptr);
      SSL_CTX_set_psk_find_session_callback(context, &FindSession);
    } else {
      SSL_CTX_set_psk_use_session_callback(context, &UseSession);
    }
    return SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
           SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) == 1 &&
           SSL_CTX_set_ciphersuites(context, kCiphers) == 1 && SSL_CTX_set_num_tickets(context, 0) == 1 &&
           SSL_CTX_set_max_early_data(context, 0) == 1 && SSL_CTX_set_recv_max_early_data(context, 0) == 1;
  }
};

TlsSession::TlsSession() : parts_(std::make_unique<Parts>()) {}

TlsSession::~TlsSession() {
  OPENSSL_cleanse(key_.secret.data(), key_.secret.size());
  OPENSSL_cleanse(client_secret_.data(), client_secret_.size());
  OPENSSL_cleanse(server_secret_.data(), server_secret_.size());
}

std::string TlsSession::Begin(bool server) {
  // No configuration of the system's OpenSSL, and no work at the end of the process, when a fork or other threads may be there.
  constexpr uint64_t kAlone = OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_ATEXIT;
  if (OPENSSL_init_ssl(kAlone, nullptr) != 1) return OpenSslText();
  parts_->library = OSSL_LIB_CTX_new();
  if (parts_->library == nullptr) return OpenSslText();
  parts_->context =
      SSL_CTX_new_ex(parts_->library, nullptr, server ? TLS_server_method() : TLS_client_method());
  if (parts_->context == nullptr || !Parts::SetUp(parts_->context, server)) return OpenSslText();
  parts_->ssl = SSL_new(parts_->context);
  BIO* bio = BIO_new(Parts::Method());
  if (parts_->ssl == nullptr || bio == nullptr) {
    BIO_free(bio);
    return OpenSslText();
  }
  BIO_set_data(bio, this);
  SSL_set_bio(parts_->ssl, bio, bio);
  SSL_set_app_data(parts_->ssl, this);
  server_ = server;
  server ? SSL_set_accept_state(parts_->ssl) : SSL_set_connect_state(parts_->ssl);
  return {};
}

std::unique_ptr<TlsSession> TlsSession::Client(const Key& key, std::string* error) {
  std::unique_ptr<TlsSession> session(new TlsSession());
  session->key_ = key;
  *error = session->Begin(false);
  return error->empty() ? std::move(session) : nullptr;
}

std::unique_ptr<TlsSession> TlsSession::Server(FindSecret find, std::string* error) {
  std::unique_ptr<TlsSession> session(new TlsSession());
  session->find_ = std::move(find);
  *error = session->Begin(true);
  return error->empty() ? std::move(session) : nullptr;
}

void TlsSession::Fail() {
  if (failure_.empty()) failure_ = OpenSslText();
}

TlsSession::Progress TlsSession::Handshake() {
  ERR_clear_error();
  const int result = SSL_do_handshake(parts_->ssl);
  if (result == 1) {
    // The key was used, and nothing else could have been.
    if (SSL_session_reused(parts_->ssl) == 1) return Progress::kDone;
    failure_ = "the peer did not use the key";
    return Progress::kFailed;
  }
  if (SSL_get_error(parts_->ssl, result) == SSL_ERROR_WANT_READ) return Progress::kNeedsMore;
  Fail();
  return Progress::kFailed;
}

std::unique_ptr<TlsRecords> TlsSession::Established() {
  const SSL_CIPHER* cipher = SSL_get_current_cipher(parts_->ssl);
  if (SSL_is_init_finished(parts_->ssl) != 1 || secrets_ != 2 || cipher == nullptr) return nullptr;
  TlsTraffic traffic{};
  traffic.reading.secret = server_ ? client_secret_ : server_secret_;
  traffic.writing.secret = server_ ? server_secret_ : client_secret_;
  traffic.cipher = SSL_CIPHER_get_protocol_id(cipher);
  auto records = TlsRecords::Make(traffic);
  OPENSSL_cleanse(&traffic, sizeof traffic);
  if (records == nullptr) return nullptr;
  records->Received(input_);
  records->KeepReceived();
  return records;
}

void TlsSession::TakeOutput(std::vector<std::byte>& wire) {
  wire.clear();
  std::swap(wire, output_);
}

void TlsSession::Received(std::span<const std::byte> wire) {
  input_ = wire;
}

void TlsSession::KeepReceived() {
  kept_.assign(input_.begin(), input_.end());
  input_ = kept_;
}

}  // namespace causeway
