// SPDX-License-Identifier: Apache-2.0
// How a worker gives up what it does not need (docs/sandbox.md). The functions are called once each, in their
// order, by the worker's first thread; Belong only if the daemon says so.
#pragma once
#include <sys/resource.h>

#include <string>
#include <utility>

#include "host_backend/common/worker_control.h"
#include "host_backend/sandbox/filter.h"

namespace causeway::host {

struct ConfinementOptions {
  sandbox::Mode mode = sandbox::Mode::kEnforce;
  std::string namespaces;  // which ones it has, as letters (host_backend/launcher/worker_child.h)
  std::string cache;       // folder below which the driver may keep compiled kernels; empty: nowhere
  // From the launcher, and never from the daemon, which may have been taken over: the user ids that this
  // process may take (count 0: it keeps its own), and the group that may open GPUs (0: all may).
  uint32_t first_user = 0, user_count = 0;
  uint32_t device_group = 0;
  std::string gpus;  // UUIDs of the GPUs whose device nodes it may open, with commas between them; empty: all
};

// Lowers the process's limit, the hard one as well, to `most`, unless it is lower.
void LimitResource(__rlimit_resource resource, rlim_t most);

class Confinement {
 public:
  explicit Confinement(ConfinementOptions options) : options_(std::move(options)) {}

  // To be called while the process has one thread: sets what threads inherit. `library` is the driver's path,
  // as configured. A failure is kept for Enter.
  void BeforeDriver(const std::string& library);
  // To be called when the driver has started: chooses the profile and builds the filter. `address` is any
  // function's in the driver. ready->sandbox says what confines the worker. Empty, or why it must not serve.
  std::string AfterDriver(void* address, sandbox::Kind kind, WorkerReady* ready);
  // To be called when the scope is known before the session: takes that scope's user id, which is slow on a
  // busy host, because each thread of the process has to run for it. A failure is kept for Enter.
  void Belong(const WorkerScope& scope);
  // To be called with the session's descriptors, before a byte of the guest is looked at. From here on the
  // worker can map nothing of the region unless the daemon agrees. Empty, or why it must not serve.
  std::string Enter(int control, const WorkerAssignment& assignment);

 private:
  void OpenPipes() const;
  void GrowDescriptorTable() const;
  void LeaveGroups();
  std::string BecomeUser(uint32_t user) const;
  void HoldCache(const WorkerScope& scope) const;

  const ConfinementOptions options_;
  std::string problem_;  // what failed before the session
  uint32_t user_ = 0;    // the user id that it has taken; 0: none
  int files_ = 0;        // the version of Landlock that confines files; 0: none
  std::string nodes_;    // which GPUs' device nodes it may open, for the log
  sandbox::Program filter_;
  bool notifies_ = false;  // the kernel can ask the daemon about mappings
};

}  // namespace causeway::host
