// SPDX-License-Identifier: Apache-2.0
// One call of cuCheckpointProcess* about a worker, by a process of its own (worker_control.h): workers reach
// no other process.
#pragma once
#include <sys/types.h>

#include <string>

#include "host_backend/sandbox/filter.h"

namespace causeway::host {

// The program: 0, or 1 where no answer could be given.
int RunCheckpointer(int control, pid_t target, const std::string& driver_path, sandbox::Mode mode);

}  // namespace causeway::host
