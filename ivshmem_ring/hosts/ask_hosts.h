// SPDX-License-Identifier: Apache-2.0
// Asks several hosts at once how loaded they are (pool_messages.h).
#pragma once
#include <vector>

#include "ivshmem_ring/hosts/host_choice.h"
#include "ivshmem_ring/hosts/host_list.h"

namespace causeway {

// How long it waits from the beginning: for all answers, and for the rest of them once one host would serve a session. A host that
// must start to read its figures takes up to 1.5 s (host_backend/daemon/servers/stream_session.cc).
inline constexpr int kAskLimitMs = 3000;
inline constexpr int kAskMoreMs = 2000;

// An answer for each host, in their order; of one that has not answered in time, kDown. Each host is asked by a thread of its own that
// blocks all signals. One whose host is silent, or whose look-up of a name is, may outlive the call and ends by itself; what this
// code is in stays loaded for it. `patient`: waits for all of them up to kAskLimitMs. Any thread.
std::vector<HostAnswer> AskHosts(const std::vector<HostAddress>& hosts, bool patient);

}  // namespace causeway
