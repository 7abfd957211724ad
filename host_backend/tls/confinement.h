// SPDX-License-Identifier: Apache-2.0
// What confines the process of one connection.
#pragma once
#include <string>

namespace causeway::tls {

// To be called when all files are open and OpenSSL is set up. From then on the process may use the descriptors that it has, take
// memory up to a limit, and end; it opens nothing, makes no socket or process, and is ended by any other system call. Empty, or
// a sentence that says what is missing.
std::string ConfineConnection();

}  // namespace causeway::tls
