// SPDX-License-Identifier: Apache-2.0
// A UNIX socket that clients find by its path.
#pragma once
#include <sys/socket.h>
#include <sys/types.h>

#include <string>

#include "host_backend/common/result.h"
#include "host_backend/daemon/loop/worker_fd.h"

namespace causeway::daemon {

struct ListenerPlan {
  std::string path;
  std::string key;  // of the configuration, for sentences
  mode_t mode = 0660;
  std::string group;  // empty: the daemon's own
  std::string group_key;
  int type = SOCK_SEQPACKET;
  bool takes_descriptors = false;
};

// Binds a listener that never blocks and takes descriptors from clients only where planned, as far as the kernel can refuse
// them, and replaces a socket that an earlier daemon left: the
// caller holds a lock that says that no other daemon lives. Nobody gets in before mode and group are as
// planned. The caller unlinks the path at its end. Errors are sentences.
Result<WorkerFd> BindListener(const ListenerPlan& plan);

}  // namespace causeway::daemon
