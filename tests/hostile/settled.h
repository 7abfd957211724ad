// SPDX-License-Identifier: Apache-2.0
// What another process has, once it has come to rest: what it begins or ends aside may not be done when a test looks first.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <utility>

namespace causeway::test {

// What `read` gives when it has given the same for 0.2 s; a failure of the test after 30 s.
template <class Read>
auto Settled(const Read& read) {
  auto last = read();
  int rounds = 0;
  for (int same = 0; same < 10; ++rounds) {
    if (rounds == 1'500) {
      ADD_FAILURE() << "it does not come to rest within 30 s";
      break;
    }
    usleep(20'000);
    auto now = read();
    same = now == last ? same + 1 : 0;
    last = std::move(now);
  }
  return last;
}

}  // namespace causeway::test
