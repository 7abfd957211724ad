// SPDX-License-Identifier: Apache-2.0
// From opcode to handler: generic rows run through their shape, the others through a function written by
// hand. Sessions are made here, because this is the one unit that knows all parts of a session.
#pragma once
#include <memory>

#include "host_backend/worker/addresses/region_view.h"
#include "host_backend/worker/session/session.h"

namespace causeway::host {

// `region`: as it is mapped; empty for a guest without shared memory.
std::unique_ptr<Session> MakeSession(std::unique_ptr<ServerTransport> transport, const RegionView& region);

}  // namespace causeway::host
