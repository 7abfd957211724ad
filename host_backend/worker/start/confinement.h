// SPDX-License-Identifier: Apache-2.0
// How a worker gives up what it does not need, in the order in which it can: docs/sandbox.md.
#pragma once
#include <string>
#include <utility>

#include "host_backend/common/worker_control.h"
#include "host_backend/sandbox/filter.h"

namespace causeway::host {

struct ConfinementOptions {
  sandbox::Mode mode = sandbox::Mode::kEnforce;
  std::string namespaces;  // host_backend/launcher/worker_child.h
  std::string cache;       // folder below which the driver may keep compiled kernels; empty: nowhere
  // From the launcher, and never from the daemon, which may have been taken: the users that this process may
  // become (count 0: it stays what it is), and the group that opens GPUs where not everybody may (0: none).
  uint32_t first_user = 0, user_count = 0;
  uint32_t device_group = 0;
  std::string gpus;  // UUIDs of the GPUs whose device nodes it may open, with commas between them; empty: all
};

class Confinement {
 public:
  explicit Confinement(ConfinementOptions options) : options_(std::move(options)) {}

  // First of all, with one thread: what threads inherit. `library`: the driver's, as configured.
  void BeforeDriver(const std::string& library);
  // Once the library is open and started: chooses the profile and builds the filter. `address`: of any of its
  // functions. ready->sandbox says what there is.
  std::string AfterDriver(void* address, sandbox::Kind kind, WorkerReady* ready);
  // Before the session, where its scope is known: becomes that scope's user, which on a busy host takes long,
  // because each thread of the process has to run for it. Enter tells what fails.
  void Belong(const WorkerScope& scope);
  // With the session's descriptors in hand and before a byte of the guest is looked at. From here on nothing
  // is mapped of the region unless the daemon agrees. "" or the reason why this worker must not serve.
  std::string Enter(int control, const WorkerAssignment& assignment);

 private:
  void OpenPipes() const;
  void GrowDescriptorTable() const;
  void LeaveGroups();
  std::string BecomeUser(uint32_t user) const;
  void HoldCache(const WorkerScope& scope) const;

  const ConfinementOptions options_;
  std::string problem_;  // found before the session
  uint32_t user_ = 0;    // what it has become
  int files_ = 0;        // version of the interface that confines them
  std::string nodes_;
  sandbox::Program filter_;
  bool notifies_ = false;
};

}  // namespace causeway::host
