// SPDX-License-Identifier: Apache-2.0
// What a client of the control socket asks (host_backend/common/control_socket.h), decoded. A client is root
// or a member of one group, and still any bytes may come: what this returns is checked in every field.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "host_backend/common/json.h"
#include "host_backend/common/result.h"
#include "host_backend/daemon/process/config.h"
#include "host_backend/daemon/shares/share_settings.h"

namespace causeway::daemon {

struct ControlRequest {
  enum class What { kAdd, kRemove, kList, kReload, kDrain, kUpgrade, kSet, kPause, kResume };
  What what = What::kList;
  // IsPlainName; empty for kList, kReload, kUpgrade, and a kDrain of all. Of kSet, kPause and kResume any text without
  // control characters: what it names is not looked at.
  std::string name;
  uint64_t memory_mib = 0;        // of kAdd: a power of two that a region may have
  std::string xen_domain;         // of kAdd: its name, and then neither group nor user; empty: a VM of QEMU
  std::string group;              // of kAdd: a group's name, or empty; whether it exists is not looked at
  uint32_t user = 0;              // of kAdd: a person's id; 0: none. Not both of them
  std::vector<std::string> gpus;  // of kAdd: UUIDs, none twice; empty: all
  bool doorbell = false;          // of kAdd: QEMU connects to the VM's doorbell; never of a Xen domain
  bool force = false;             // of kRemove
  bool undo = false;              // of kDrain: sessions may begin again
  ShareChange change;             // of kSet: something, or else turn_ms
  std::optional<double> turn_ms;  // of kSet: of a GPU
  bool persist = false;           // of kSet: beyond the next reload
};

// The packet's request, or one sentence for the client. Reads nothing but the packet, and keeps no pointer to it.
Result<ControlRequest> DecodeControlRequest(std::string_view packet);
// The answer to a request that is refused, with the reason.
Json Refused(const std::string& sentence);

// The VM that a kAdd asks for; what is guaranteed to it is not decided yet. `socket` is the tenants', beside which the VM's
// doorbell lies.
VmConfig AddedVm(const ControlRequest& request, const std::string& socket);

}  // namespace causeway::daemon
