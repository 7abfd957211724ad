// SPDX-License-Identifier: Apache-2.0
// The lock of cuCheckpointProcessLock: while it is held by another process no call begins in this one, and
// every call that had begun has ended. Calls that calls make pass.
#pragma once

#include <chrono>

namespace causeway::software_gpu {

class CallGate {
 public:
  static void Enter();
  static void Leave();
  // False: a call did not end within the limit, and the gate is open again. 0: no limit.
  static bool Close(std::chrono::milliseconds limit);
  static void Open();
};

}  // namespace causeway::software_gpu
