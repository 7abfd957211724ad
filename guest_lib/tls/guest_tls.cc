// SPDX-License-Identifier: Apache-2.0
// libcauseway-tls.so.1: OpenSSL for the guest's libraries, in a library of its own that they load when the way to the host is
// tls://, so that programs that go another way neither load nor relocate it. It exports two functions.
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "ivshmem_ring/tls/guest_tls.h"
#include "ivshmem_ring/tls/tls_session.h"

namespace causeway {
namespace {

constexpr std::chrono::seconds kHandshakeLimit{10};

bool SendAll(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(sent));
  }
  return true;
}

// Empty, or why there is no session. The socket's own time limits bound each of its waits.
std::string ShakeHands(int fd, TlsSession& session) {
  const auto end = std::chrono::steady_clock::now() + kHandshakeLimit;
  std::vector<std::byte> received(16u << 10), output;
  while (true) {
    const TlsSession::Progress progress = session.Handshake();
    session.TakeOutput(output);
    const bool sent = SendAll(fd, output);
    if (progress == TlsSession::Progress::kDone && sent) break;
    if (progress == TlsSession::Progress::kFailed) return session.failure();
    if (!sent) return strerror(errno);
    if (std::chrono::steady_clock::now() > end) return "it took longer than 10 s";
    const ssize_t got = recv(fd, received.data(), received.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) return "the host ended the connection";
    if (got < 0)
      return errno == EAGAIN ? "the host did not answer within 10 s" : std::string(strerror(errno));
    session.Received(std::span(received).first(static_cast<size_t>(got)));
  }
  session.KeepReceived();
  return {};
}

std::unique_ptr<TlsRecords> Connect(int fd, const char* key_file, std::string* error) {
  Key key;
  *error = ReadKeyFile(key_file, &key);
  if (error->empty() && !key.has_secret)
    *error =
        std::string("the key file ") + key_file + " has no secret; ask the host's administrator for a key";
  if (!error->empty()) return nullptr;
  auto session = TlsSession::Client(key, error);
  if (session != nullptr) *error = ShakeHands(fd, *session);
  auto records = error->empty() ? session->Established() : nullptr;
  if (records != nullptr) return records;
  if (error->empty()) *error = "OpenSSL gave no keys for it";
  *error = "no encrypted connection with the key in " + std::string(key_file) + ": " + *error +
           "; if the host refused it, its log has the reason, and `causeway keys list` there shows the key";
  return nullptr;
}

}  // namespace
}  // namespace causeway

extern "C" __attribute__((visibility("default"))) causeway::StreamLayer* causeway_tls_connect_2(
    int fd, const char* key_file, char* error, size_t error_bytes) noexcept {
  std::string text;
  std::unique_ptr<causeway::TlsRecords> records;
  try {
    records = causeway::Connect(fd, key_file, &text);
  } catch (const std::bad_alloc&) {
    text = "there is not enough memory for an encrypted connection";
  }
  std::snprintf(error, error_bytes, "%s", text.c_str());
  return records.release();
}

extern "C" __attribute__((visibility("default"))) const char* causeway_tls_keep_host_1(
    const char* host) noexcept {
  static std::atomic<const char*> kept{nullptr};
  const char* found = kept.load(std::memory_order_acquire);
  if (found != nullptr || host == nullptr) return found != nullptr ? found : "";
  char* const own = strdup(host);
  if (own == nullptr) return "";
  if (kept.compare_exchange_strong(found, own)) return own;
  free(own);
  return found;
}
