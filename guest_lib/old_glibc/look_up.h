// SPDX-License-Identifier: Apache-2.0
// Functions that this system's C library may or may not have. Base of guest_lib: includes nothing of it.
#pragma once

namespace causeway::guest {

// The address of the function `name` in the C library that the process runs with, or null. Any thread may call it. It
// takes the dynamic loader's lock. Tests define it otherwise, to be an old system.
void* LookUpInLibc(const char* name);

}  // namespace causeway::guest
