// SPDX-License-Identifier: Apache-2.0
// The hash of the API rows that this build serves.
#pragma once
#include <cstdint>

namespace causeway {

uint64_t ApiHash();

}  // namespace causeway
