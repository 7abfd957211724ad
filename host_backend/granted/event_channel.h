// SPDX-License-Identifier: Apache-2.0
// One event channel between this domain of Xen and another one, by the kernel's device /dev/xen/evtchn.
#pragma once
#include <cstdint>

#include "host_backend/common/result.h"
#include "host_backend/common/unique_fd.h"

namespace causeway {

struct EventChannel {
  UniqueFd
      fd;  // readable after the other side has rung; it has this channel alone and never another domain's
  uint32_t port = 0;  // by which the other side binds it

  // That domain may bind it from now on, and bind it again after it has let go. It ends with the descriptor and its
  // copies. Errors are sentences.
  static Result<EventChannel> Open(uint16_t domain);
};

// Whether it was rung since the last time; several rings may be one. Never waits. Until this is called again the kernel
// tells of no further ring, so that a domain which rings all the time costs one ring for each call.
bool TakeEvents(int channel);

// Interrupts the domain that has bound it; else nothing happens.
void RingChannel(int channel, uint32_t port);

}  // namespace causeway
