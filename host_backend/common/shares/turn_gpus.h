// SPDX-License-Identifier: Apache-2.0
// On which GPUs the workers of a scope may take part in turns. A worker names its GPUs on a page of its own, and one that was
// taken over may name any: another VM's GPU, where it would take turns without working there, or ones that do not exist.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "host_backend/common/named_devices.h"

namespace causeway {

struct TurnGpus {
  bool any = true;                 // which ones there are cannot be told
  std::vector<uint64_t> hashes{};  // DeviceHash of each, where it can

  bool Allows(uint64_t hash) const;
  // And those of the other: workers of the scope live that began before its configuration was changed.
  void Add(const TurnGpus& other);
};

// `gpus`: what the scope's configuration names, of which each may be the beginning of a UUID; empty: all GPUs. `shown`: those that
// the driver shows, none where no worker has said so. `has_parts`: GPUs are divided (MIG), and parts are shown only to
// those who name them.
TurnGpus TurnGpusOf(const std::vector<std::string>& gpus, const std::vector<NamedDevice>& shown,
                    bool has_parts);

// Whether this host's GPUs are divided into parts. `capabilities`: where NVIDIA's driver shows them.
bool HostHasParts(const std::string& capabilities = "/proc/driver/nvidia/capabilities");

}  // namespace causeway
