// SPDX-License-Identifier: Apache-2.0
// Asks a running daemon over its socket, at most five seconds long for each packet of the answer, and reads its status.
// Results that are errors are one sentence. Any thread may call.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "host_backend/common/result.h"

namespace causeway::command {

// What the daemon at `socket` answers to a request of ivshmem_ring/messages/local_protocol.h.
Result<std::string> AskDaemon(const std::string& socket, const void* request, size_t request_bytes);

// The status of the daemon at `socket` as JSON.
Result<std::string> QueryStatus(const std::string& socket);

// From the status: the value of `key` in the object `section` (empty: at the top), or in the first object of
// that array. Empty: there is none, or the text is no JSON. Characters other than plain ASCII are escaped, so
// the value may be printed.
std::string StatusValue(const std::string& json, const std::string& section, const std::string& key);

// The objects of the array `name` in such a text, each as text.
std::vector<std::string> JsonObjects(const std::string& json, const std::string& name);

}  // namespace causeway::command
