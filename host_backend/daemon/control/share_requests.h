// SPDX-License-Identifier: Apache-2.0
// `causeway set`, `pause` and `resume`: what a VM, a user or a peer is to have of the GPUs' time is changed while the daemon
// runs. The daemon's thread calls all functions.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "host_backend/common/json.h"
#include "host_backend/daemon/control/control_request.h"
#include "host_backend/daemon/control/vm_set.h"
#include "host_backend/daemon/shares/share_settings.h"
#include "host_backend/daemon/shares/share_status.h"

namespace causeway::daemon {

class ShareRequests {
 public:
  using Answer = std::function<void(const Json&)>;

  // All outlive this. `path` is the configuration's file; `shares` says which shares use which GPUs, and `share_of` with which
  // name a scope takes part (Scope::share).
  ShareRequests(ShareSettings& settings, VmSet& vms, const std::string& path,
                std::function<std::vector<ShareStatus>()> shares,
                std::function<std::string(const std::string& scope)> share_of)
      : settings_(settings),
        vms_(vms),
        path_(path),
        shares_(std::move(shares)),
        share_of_(std::move(share_of)) {}

  // Of kSet, kPause and kResume. `answer` is called once, now or later, from the event loop.
  void Handle(const ControlRequest& request, const Answer& answer);

 private:
  void Set(const ControlRequest& request, const std::string& scope, const Answer& answer);
  Json SetTurn(const ControlRequest& request);
  bool IsKnownGpu(const std::string& gpu) const;
  std::string WhyNotKept(const std::string& scope, const ShareChange& change) const;
  Json Done(const std::string& scope) const;

  ShareSettings& settings_;
  VmSet& vms_;
  const std::string& path_;
  const std::function<std::vector<ShareStatus>()> shares_;
  const std::function<std::string(const std::string& scope)> share_of_;
};

}  // namespace causeway::daemon
