// SPDX-License-Identifier: Apache-2.0
// Files that the driver would read lie in the guest: they are read here.
#pragma once
#include <cstddef>
#include <vector>

namespace causeway::guest {

bool ReadFile(const char* path, std::vector<std::byte>* bytes);

}  // namespace causeway::guest
