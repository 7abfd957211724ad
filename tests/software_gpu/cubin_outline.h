// SPDX-License-Identifier: Apache-2.0
// A cubin as PTX: the same names, parameters and variables, and kernels that do nothing.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "tests/software_gpu/driver.h"

namespace causeway::software_gpu {

// `ptx` may be what `image` looks at. 200 when the ELF file makes no sense; *error is a sentence then.
CUresult OutlineCubin(std::string_view image, std::string* ptx, std::string* error);

// The size of a cubin that begins there.
size_t CubinBytes(const void* image);

}  // namespace causeway::software_gpu
