// SPDX-License-Identifier: Apache-2.0
// Reads files for calls in which the program names one: the file lies in the guest, so the host's driver
// cannot read it.
#pragma once
#include <cstddef>
#include <vector>

namespace causeway::guest {

// Appends all bytes of the file to *bytes. False: it cannot be read.
bool ReadFile(const char* path, std::vector<std::byte>* bytes);

}  // namespace causeway::guest
