// SPDX-License-Identifier: Apache-2.0
// How a worker gives up what it does not need, in the order in which it can: docs/sandbox.md.
#pragma once
#include <string>

#include "host_backend/sandbox/filter.h"
#include "host_backend/worker_control.h"

namespace causeway::host {

class Confinement {
 public:
  explicit Confinement(sandbox::Mode mode) : mode_(mode) {}

  // First of all, with one thread: what threads inherit.
  void BeforeDriver();
  // Once the library is open and started: chooses the profile and builds the filter. `address`: of any of its
  // functions. ready->sandbox says what there is.
  std::string AfterDriver(void* address, sandbox::Kind kind, WorkerReady* ready);
  // With the session's descriptors in hand and before a byte of the guest is looked at. From here on nothing
  // is mapped of the region unless the daemon agrees. "" or the reason why this worker must not serve.
  std::string Enter(int control, const WorkerAssignment& assignment);

 private:
  const sandbox::Mode mode_;
  sandbox::Program filter_;
  bool notifies_ = false;
};

}  // namespace causeway::host
