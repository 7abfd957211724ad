// SPDX-License-Identifier: Apache-2.0
// From opcode to handler: generic rows run through their shape, the others through a function written by
// hand. With them a session is whole: the one place that knows all its parts is here.
#pragma once
#include <memory>

#include "host_backend/worker/addresses/region_view.h"
#include "host_backend/worker/session/session.h"

namespace causeway::host {

// `region`: as it is mapped; empty for a guest without shared memory.
std::unique_ptr<Session> MakeSession(std::unique_ptr<ServerTransport> transport, const RegionView& region);

}  // namespace causeway::host
