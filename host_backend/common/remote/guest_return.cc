// SPDX-License-Identifier: Apache-2.0
#include "host_backend/common/remote/guest_return.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "ivshmem_ring/tls/hexadecimal.h"

namespace causeway {

GuestReturn GuestReturn::Grant(uint32_t grace_s) {
  GuestReturn made;
  if (getrandom(&made.token_, sizeof made.token_, 0) == ssize_t(sizeof made.token_)) made.grace_s_ = grace_s;
  return made;
}

GuestReturn GuestReturn::Of(const Json& record) {
  GuestReturn kept;
  std::array<uint8_t, sizeof kept.token_> bytes{};
  if (!ReadHexadecimal(record.value("token", ""), bytes)) return kept;
  std::memcpy(&kept.token_, bytes.data(), bytes.size());
  kept.grace_s_ = uint32_t(std::min<uint64_t>(record.value("grace_s", uint64_t{0}), kMaxResumeGraceS));
  kept.attempt_ = record.value("attempt", uint64_t{0});
  return kept;
}

void GuestReturn::Keep(Json* record) const {
  if (grace_s_ == 0) return;
  (*record)["token"] = HexadecimalText({reinterpret_cast<const uint8_t*>(&token_), sizeof token_});
  (*record)["grace_s"] = grace_s_;
  (*record)["attempt"] = attempt_;
}

bool GuestReturn::Take(const ResumeRequest& request) {
  if (request.attempt <= attempt_) return false;
  attempt_ = request.attempt;
  return true;
}

}  // namespace causeway
