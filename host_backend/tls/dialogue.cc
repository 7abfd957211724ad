// SPDX-License-Identifier: Apache-2.0
#include "host_backend/tls/dialogue.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string_view>

namespace causeway::tls {
namespace {

// What a process of a connection says may be a stranger's: nothing of it but printable characters gets into the log.
std::string Printable(std::string_view text) {
  std::string safe(text);
  for (char& c : safe)
    if (c < ' ' || c > '~') c = '?';
  return safe;
}

template <size_t kSize>
std::string_view TextOf(const char (&field)[kSize]) {
  return {field, strnlen(field, kSize)};
}

}  // namespace

Reading ReadQuestion(int control, TlsQuestion* question) {
  *question = {};
  // Descriptors that come with it are closed by the kernel, as there is no room for any. MSG_TRUNC: how long it really is.
  const ssize_t got = recv(control, question, sizeof *question, MSG_DONTWAIT | MSG_TRUNC);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Reading::kNothing;
  return got == ssize_t(sizeof *question) ? Reading::kMessage : Reading::kEnd;
}

Dialogue::Said Dialogue::Take(const TlsQuestion& question) {
  if (failed_) return Violates{};
  if (question.word == Word::kSecret && id_.empty()) {
    const std::string_view id = TextOf(question.id);
    if (!IsKeyId(id)) return Violates{};
    id_ = id;
    return AsksForSecret{};
  }
  if (question.word == Word::kProved && !id_.empty() && !refused_ && !proved_) {
    proved_ = true;
    return Proves{};
  }
  if (question.word != Word::kFailed || proved_) return Violates{};
  failed_ = true;
  return Fails{Printable(TextOf(question.text))};
}

}  // namespace causeway::tls
