// SPDX-License-Identifier: Apache-2.0
// The primary contexts that the guest holds.
#pragma once
#include <map>
#include <mutex>

#include "host_backend/worker/session/session.h"

namespace causeway::host {

// Each primary context has one number as long as the session lasts.
struct Primaries : SessionPart {
  std::mutex mutex;  // held while one is made or ended
  std::map<CUdevice, CUcontext> held;
  std::map<CUdevice, WireHandle> numbers;
};

}  // namespace causeway::host
