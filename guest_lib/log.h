// SPDX-License-Identifier: Apache-2.0
// The library's own words, on stderr: one sentence each, a bounded number per process. CAUSEWAY_LOG=off
// silences.
#pragma once
#include <string>

namespace causeway::guest {

void Complain(const std::string& sentence);

}  // namespace causeway::guest
