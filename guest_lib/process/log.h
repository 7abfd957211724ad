// SPDX-License-Identifier: Apache-2.0
// The library's own words, on stderr: one sentence each, a bounded number per process. CAUSEWAY_LOG=off
// silences; CAUSEWAY_LOG=debug adds what was chosen.
#pragma once
#include <string>

namespace causeway::guest {

void Complain(const std::string& sentence);
// The same from a thread of its own, for those who must not wait for whoever holds stderr up.
void ComplainElsewhere(const std::string& sentence);
void Explain(const std::string& sentence);

}  // namespace causeway::guest
