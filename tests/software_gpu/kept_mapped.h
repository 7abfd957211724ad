// SPDX-License-Identifier: Apache-2.0
// Managed memory is unmapped when it is freed, while a copy that was checked before may only be about to
// touch it.
#pragma once
#include <shared_mutex>

namespace causeway::software_gpu {

// Held shared while a copy looks once more at what it touches and copies; held alone to unmap. Taken last.
std::shared_mutex& KeptMapped();

}  // namespace causeway::software_gpu
