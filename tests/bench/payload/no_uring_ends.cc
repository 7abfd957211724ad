// SPDX-License-Identifier: Apache-2.0
// In the place of uring_ends.cc where liburing was not found when this was built.
#include "tests/bench/payload/ends.h"

namespace causeway::payload {

std::unique_ptr<SendingEnd> MakeUringSendingEnd(Sends, int, std::span<std::byte>, Outcome* outcome) {
  *outcome = {Status::kLacks, "this program was built without liburing (liburing-dev)"};
  return nullptr;
}

std::unique_ptr<ReceivingEnd> MakeUringReceivingEnd(Receives, std::span<std::byte>, Outcome* outcome) {
  *outcome = {Status::kLacks, "this program was built without liburing (liburing-dev)"};
  return nullptr;
}

}  // namespace causeway::payload
