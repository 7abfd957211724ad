// SPDX-License-Identifier: Apache-2.0
// What a session over a stream knows its guest by when the guest comes back after its connection was lost
// (ivshmem_ring/messages/resume_messages.h).
#pragma once
#include <optional>
#include <string>

#include "host_backend/common/json.h"
#include "ivshmem_ring/messages/resume_messages.h"

namespace causeway {

class GuestReturn {
 public:
  // None is waited for.
  GuestReturn() = default;
  // A token that nobody knows. None where the kernel gives no random bytes.
  static GuestReturn Grant(uint32_t grace_s);
  // As Keep has left it; none where the record has none.
  static GuestReturn Of(const Json& record);
  void Keep(Json* record) const;

  // For so long the guest is waited for; 0: it is not.
  uint32_t grace_s() const { return grace_s_; }
  const SessionToken& token() const { return token_; }
  bool Knows(const ResumeRequest& request) const { return grace_s_ != 0 && SameToken(token_, request.token); }
  // Takes the attempt. False: a later one has come before, so that this one is late, or not the guest's.
  bool Take(const ResumeRequest& request);

 private:
  SessionToken token_{};
  uint32_t grace_s_ = 0;
  uint64_t attempt_ = 0;  // the newest
};

}  // namespace causeway
