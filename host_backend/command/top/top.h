// SPDX-License-Identifier: Apache-2.0
// `causeway top`: what sessions do, again and again. Of one thread.
#pragma once
#include <cstdint>
#include <string>

namespace causeway::command {

struct TopOptions {
  std::string socket;
  double delay_s = 3;
  uint64_t iterations = 0;  // 0: until it is ended
  bool batch = false;       // plain lines, no keys
  bool json = false;        // one line for each refresh
  bool scopes = false;
  bool shares = false;
  std::string sort = "gpu";
};
// Each refresh shows what was done since the one before; the first one shows the first `delay_s`.
int RunTop(const TopOptions& options);

}  // namespace causeway::command
