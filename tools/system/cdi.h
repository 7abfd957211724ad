// SPDX-License-Identifier: Apache-2.0
// `causeway cdi`: a specification of the Container Device Interface, by which podman, Docker and containerd give a container the
// GPU (docs/containers.md).
#pragma once
#include <string>

#include "host_backend/common/result.h"
#include "tools/system/machine.h"

namespace causeway::cdi {

inline constexpr char kUsualFile[] = "/etc/cdi/causeway.json";
// Where runtimes look, the last first.
inline constexpr const char* kFolders[] = {"/etc/cdi", "/var/run/cdi"};

struct CdiOptions {
  std::string side;    // "host", "guest", or empty: as what is installed says
  std::string config;  // the daemon's
  std::string output;  // empty: standard output
};

// The specification as JSON for this system, or one sentence that says what it lacks. `config`: the daemon's, on a host.
Result<std::string> Specification(const machine::Machine& machine, bool guest, const std::string& config);

// The exit status: 0, or 1 after a sentence on standard error. A file that is there already stays as it is unless the new
// one is complete.
int RunCdi(const CdiOptions& options);

}  // namespace causeway::cdi
