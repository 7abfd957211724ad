// SPDX-License-Identifier: Apache-2.0
// What the commands `causeway attach`, `detach` and `list` were told.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace causeway::command {

inline constexpr uint64_t kMib = 1u << 20;

// Of all commands that talk to both sides.
struct HostOptions {
  std::string connect;  // libvirt's URI; empty: its default
  std::string control_socket;
};

// How guest and host wake each other (docs/doorbells.md). kChoose: as it is already, or what Attachment::Choose says.
enum class RegionMode { kChoose, kPlain, kDoorbell };

struct AttachOptions {
  HostOptions host;
  std::string domain;         // a name or UUID
  std::string name;           // causewayd's for the VM; empty: the domain's, or the one that it has already
  uint64_t memory_bytes = 0;  // 0: as much as it has already, or 1 GiB
  std::vector<std::string> gpus;
  RegionMode mode = RegionMode::kChoose;
  bool config = false;  // for the next start alone, also where the VM runs
};

struct DetachOptions {
  HostOptions host;
  std::string domain;  // a name or UUID, or the VM's name in causewayd
  bool force = false;  // also while programs use the GPU
  uint32_t timeout_s = 30;
};

struct ListOptions {
  HostOptions host;
  bool json = false;
};

}  // namespace causeway::command
