// SPDX-License-Identifier: Apache-2.0
// The private table by which NVRTC and nvJitLink find what they compiled before.
#pragma once

namespace causeway::software_gpu {

const void* const* CompileCacheTable();

}  // namespace causeway::software_gpu
