// SPDX-License-Identifier: Apache-2.0
// The driver with everything that stands before its functions: what counts memory, what knows of captures,
// host nodes and user objects, and what keeps addresses in their windows. There is no other way to open it,
// so none of that can be left out.
#pragma once
#include <string>

namespace causeway::host {

struct Driver;

// Fills TheDriver(); once, before other threads use it. False and one sentence in *error if the library
// cannot be opened or lacks what nothing works without.
bool OpenDriver(const std::string& path, std::string* error);

// OpenDriver's second half, for one that a test has filled itself (tests/fuzz/fake_driver.cc).
void GuardDriver(Driver& driver);

}  // namespace causeway::host
