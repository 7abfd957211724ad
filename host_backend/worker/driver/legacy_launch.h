// SPDX-License-Identifier: Apache-2.0
// Launches of before CUDA 4: the driver writes to whatever offset it is given.
#pragma once
#include "host_backend/worker/driver/driver.h"

namespace causeway::host {

// Puts checks before those rows.
void GuardLegacyLaunches(Driver& driver);

}  // namespace causeway::host
