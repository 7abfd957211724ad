// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>

#include "tools/bench/crew/crew.h"

namespace causeway::bench {

// NVIDIA's MPS control daemon, started by this user with folders of its own under /tmp; the GPU's compute mode stays as it is.
// Ends with its servers, and its folders go, when the object does.
class MpsServer {
 public:
  MpsServer();  // throws Failure where the program is missing or does not start
  ~MpsServer();
  MpsServer(const MpsServer&) = delete;
  MpsServer& operator=(const MpsServer&) = delete;

  // What a client needs in its environment.
  Environment environment() const;
  // Sends a line to the daemon and returns its answer; bounded to five seconds.
  std::string Ask(const std::string& line) const;

 private:
  Environment folders() const;
  std::string folder_;
  pid_t pid_ = -1;
};

}  // namespace causeway::bench
