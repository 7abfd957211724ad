// SPDX-License-Identifier: Apache-2.0
// Asks causewayd by its control socket (host_backend/common/control_socket.h).
#pragma once
#include <string>

#include "host_backend/common/json.h"
#include "host_backend/common/result.h"

namespace causeway::command {

// The daemon's answer, whose "ok" is true, or the sentence of its refusal. Waits at most 60 s.
Result<Json> AskControl(const std::string& socket, const Json& request);
// What the answer to an "add" notes beside it, with a space before it; empty: nothing.
std::string NoteOf(const Json& answer);

}  // namespace causeway::command
