// SPDX-License-Identifier: Apache-2.0
// The VMs that were added while a daemon ran, as files that the next daemon reads: STATE/vms.d/NAME.toml.
#pragma once
#include <string>
#include <vector>

#include "host_backend/daemon/process/config.h"

namespace causeway::daemon {

class VmStore {
 public:
  // `state_folder` is the configuration's; empty: nothing is kept, and Save refuses.
  explicit VmStore(const std::string& state_folder);

  // What was added before, in the order of the names. A file that cannot be used is left out, and a sentence
  // about it is appended to `problems`.
  std::vector<VmConfig> Load(std::vector<std::string>& problems) const;

  // Each is empty, or one sentence. Both wait for the disk, so that what was answered survives a power cut; any thread may
  // call them, one at a time.
  std::string Save(const VmConfig& vm) const;
  std::string Delete(const std::string& name) const;

 private:
  std::string folder_;  // empty: none
};

}  // namespace causeway::daemon
