// SPDX-License-Identifier: Apache-2.0
// `causeway pool`: the remote hosts that this machine may use, how loaded they are, and which one a program would use now.
#pragma once
#include <string>
#include <vector>

#include "ivshmem_ring/hosts/host_choice.h"
#include "ivshmem_ring/hosts/host_list.h"

namespace causeway::pool {

struct PoolOptions {
  std::vector<std::string> hosts;  // as arguments; empty: CAUSEWAY, or kHostsFile
  bool json = false;
};

// The hosts of the variable CAUSEWAY, or of `file` where it is not set. Empty, or a sentence without its full stop.
std::string NamedHosts(const std::string& file, std::vector<HostAddress>* hosts);

// "up", "full", "down", or "unknown": it is there, and says nothing of its load.
const char* StateName(HostAnswer::State state);

// The exit status: 0 a program would find a host; 1 none, or the list of hosts is wrong, after a sentence.
int RunPool(const PoolOptions& options);

}  // namespace causeway::pool
