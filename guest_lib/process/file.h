// SPDX-License-Identifier: Apache-2.0
// Reads files that the program names in calls: they lie in the guest, where the host's driver cannot read.
#pragma once
#include <cstddef>
#include <vector>

namespace causeway::guest {

// Appends all bytes of the file to *bytes. False: it cannot be read.
bool ReadFile(const char* path, std::vector<std::byte>* bytes);

}  // namespace causeway::guest
