// SPDX-License-Identifier: Apache-2.0
// This system's ldconfig, run in another root folder whose files may be hostile.
#pragma once
#include <functional>
#include <string>

#include "host_backend/common/unique_fd.h"

namespace causeway::containers {

// A sealed copy in memory, so that nothing in the container can write to this system's program by way of its process. Empty:
// there is none, or it needs a loader, which would be the image's.
UniqueFd CopyOwnLdconfig();

// Runs it in a child process, which first calls `enter` and from then on has no right but to write files, for a minute at most.
// Empty, or one sentence that says what failed.
std::string RunApart(int program, const std::function<void(std::string* why)>& enter);

}  // namespace causeway::containers
