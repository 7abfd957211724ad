// SPDX-License-Identifier: Apache-2.0
// `causeway attach`, `detach`, `list` and `xml`: regions for VMs of libvirt. Each step is undone if a later one fails. The
// Run functions print and return the command's exit status: 0 done, 1 refused or failed.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "host_backend/command/libvirt/snippets.h"

namespace causeway::command {

// Of all commands that talk to both sides.
struct HostOptions {
  std::string connect;  // libvirt's URI; empty: its default
  std::string control_socket;
};

struct AttachOptions {
  HostOptions host;
  std::string domain;         // a name or UUID
  std::string name;           // causewayd's for the VM; empty: the domain's, or the one that it has already
  uint64_t memory_bytes = 0;  // 0: as much as it has already, or 1 GiB
  std::vector<std::string> gpus;
  bool config = false;  // for the next start alone, also where the VM runs
};
int RunAttach(const AttachOptions& options);

struct DetachOptions {
  HostOptions host;
  std::string domain;  // a name or UUID, or the VM's name in causewayd
  bool force = false;  // also while programs use the GPU
  uint32_t timeout_s = 30;
};
int RunDetach(const DetachOptions& options);

struct ListOptions {
  HostOptions host;
  bool json = false;
};
int RunList(const ListOptions& options);

int RunXml(const XmlOptions& options);

}  // namespace causeway::command
