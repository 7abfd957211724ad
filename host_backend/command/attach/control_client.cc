// SPDX-License-Identifier: Apache-2.0
#include "host_backend/command/attach/control_client.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "host_backend/common/control_socket.h"
#include "host_backend/common/unique_fd.h"

namespace causeway::command {
namespace {

Error CannotConnect(const std::string& path, int error) {
  if (error == EACCES || error == EPERM) {
    return {"You may not use causewayd's control socket " + path +
            "; run this as root, or join the group of control_group (causeway)."};
  }
  return {"causewayd cannot be reached at its control socket " + path + ": " + ErrnoText(error) +
          "; start it (`systemctl start causewayd`), and see that its configuration has state_folder."};
}

}  // namespace

Result<Json> AskControl(const std::string& path, const Json& request) {
  constexpr timeval kAnswerLimit{60, 0};
  sockaddr_un address{};
  if (path.size() >= sizeof(address.sun_path)) return Error{"The socket's path " + path + " is too long."};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  for (const int wait : {SO_RCVTIMEO, SO_SNDTIMEO})
    setsockopt(fd.get(), SOL_SOCKET, wait, &kAnswerLimit, sizeof(kAnswerLimit));
  if (!fd ||
      TEMP_FAILURE_RETRY(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address))) != 0)
    return CannotConnect(path, errno);
  const std::string text = JsonText(request);
  // A daemon that refuses the client at once has answered and closed by now, with this text unread: the kernel says so
  // once, and then hands out the answer.
  const bool sent = TEMP_FAILURE_RETRY(send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL)) > 0;
  std::string answer, packet(64u << 10, '\0');
  // A receive with a limit is interrupted also where a stopped process goes on (signal(7)).
  const auto receive = [&] { return TEMP_FAILURE_RETRY(recv(fd.get(), packet.data(), packet.size(), 0)); };
  ssize_t bytes = receive();
  if (bytes < 0 && (errno == ECONNRESET || !sent)) bytes = receive();
  while (bytes > 0) {
    answer.append(packet, 0, size_t(bytes));
    bytes = receive();
  }
  const Json json = Json::parse(answer, nullptr, false);
  if (bytes < 0 && errno == EAGAIN) return Error{"causewayd did not answer at " + path + " within 60 s."};
  if (!json.is_object() || !json.contains("ok") || !json["ok"].is_boolean())
    return Error{"What answers at " + path + " is no causewayd; check --control-socket."};
  if (!json["ok"].get<bool>()) return Error{json.value("error", "causewayd refused without a reason.")};
  return json;
}

std::string NoteOf(const Json& answer) {
  const std::string note = answer.value("note", "");
  return note.empty() ? "" : " " + note;
}

}  // namespace causeway::command
