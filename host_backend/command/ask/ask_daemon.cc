// SPDX-License-Identifier: Apache-2.0
#include "host_backend/command/ask/ask_daemon.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "host_backend/common/json.h"
#include "host_backend/common/unique_fd.h"
#include "ivshmem_ring/messages/local_protocol.h"
#include "ivshmem_ring/transport/layout.h"

namespace causeway::command {
namespace {

constexpr time_t kAnswerLimitSeconds = 5;

}  // namespace

Result<std::string> AskDaemon(const std::string& socket_path, const void* request, size_t request_bytes) {
  sockaddr_un address{};
  if (socket_path.size() >= sizeof(address.sun_path))
    return Error{"The socket's path " + socket_path + " is too long."};
  address.sun_family = AF_UNIX;
  socket_path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const timeval limit{kAnswerLimitSeconds, 0};
  for (const int wait : {SO_RCVTIMEO, SO_SNDTIMEO})
    setsockopt(fd.get(), SOL_SOCKET, wait, &limit, sizeof(limit));
  if (!fd ||
      TEMP_FAILURE_RETRY(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address))) != 0) {
    return Error{"No daemon answers at " + socket_path + ": " + ErrnoText() +
                 "; start causewayd or name its socket with --socket."};
  }
  LocalReply reply{};
  // A receive with a limit is interrupted also where a stopped process goes on (signal(7)).
  const auto receive = [&](void* to, size_t bytes) {
    return TEMP_FAILURE_RETRY(recv(fd.get(), to, bytes, 0));
  };
  if (TEMP_FAILURE_RETRY(send(fd.get(), request, request_bytes, MSG_NOSIGNAL)) != ssize_t(request_bytes) ||
      receive(&reply, sizeof(reply)) != sizeof(reply) || reply.magic != kLocalMagic) {
    return Error{"The daemon at " + socket_path + " did not answer as causewayd does; check --socket."};
  }
  reply.text[sizeof(reply.text) - 1] = '\0';
  if (reply.accepted == 0) return Error{PrintableText(reply.text)};
  std::string text;
  std::string packet(64u << 10, '\0');
  ssize_t bytes = 0;
  while ((bytes = receive(packet.data(), packet.size())) > 0) text.append(packet, 0, size_t(bytes));
  if (bytes < 0) return Error{"The daemon at " + socket_path + " stopped in the middle of its answer."};
  return text;
}

Result<std::string> QueryStatus(const std::string& socket_path) {
  const LocalRequest request{kLocalMagic, kAbiMajor, kAbiMinor, LocalRequestKind::kStatus};
  return AskDaemon(socket_path, &request, sizeof(request));
}

namespace {

// What follows the name `section` at the top of the text: of an array, its first element. Null where there is none.
Json Section(const std::string& text, const std::string& section) {
  Json json = Json::parse(text, nullptr, false);
  if (!section.empty()) json = json.is_object() ? json.value(section, Json()) : Json();
  return json.is_array() && !json.empty() ? json[0] : json;
}

std::string TextOf(const Json& value) {
  return value.is_string() ? PrintableText(value.get<std::string>()) : JsonText(value);
}

}  // namespace

std::string StatusValue(const std::string& json, const std::string& section, const std::string& key) {
  const Json object = Section(json, section);
  return object.is_object() && object.contains(key) ? TextOf(object[key]) : "";
}

std::vector<std::string> JsonObjects(const std::string& text, const std::string& name) {
  std::vector<std::string> objects;
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains(name) || !json[name].is_array()) return objects;
  for (const Json& object : json[name]) objects.push_back(JsonText(object));
  return objects;
}

}  // namespace causeway::command
