// SPDX-License-Identifier: Apache-2.0
// Finds the PTX text in what a program passes as a module image.
#pragma once

#include <string>

#include "tests/software_gpu/driver.h"

namespace causeway::software_gpu {

// The compute capability that this device claims: 9.0.
inline constexpr unsigned kArchitecture = 90;

// `image` is PTX text, a fatbin, an ELF file, or (with accept_wrapper) the compiler's fatbin wrapper.
// Where the environment wants cubins, those without PTX are outlined (cubin_outline.h). Returns 200 for
// something else, 209 when the image holds no PTX for this device; *error is a sentence then.
CUresult ExtractPtx(const void* image, bool accept_wrapper, std::string* ptx, std::string* error);

}  // namespace causeway::software_gpu
