// SPDX-License-Identifier: Apache-2.0
// What the hook reads of a container: the state that the runtime gives to it, and the bundle's config.json, whose environment the
// image's author has written. Both are texts here; who calls this reads the files. Throws nothing but for want of memory.
#pragma once
#include <string>
#include <vector>

#include "host_backend/common/result.h"

namespace causeway::containers {

inline constexpr size_t kMostFolders = 64;

// What of the container's configuration the hook needs.
struct Container {
  std::string root;
  // Of LD_LIBRARY_PATH, each once, and absolute; kMostFolders + 1 where there are more.
  std::vector<std::string> library_folders;
};

// The bundle's folder, an absolute path, by the container's state.
Result<std::string> BundleOf(const std::string& state);
// `configuration`: the text of the bundle's config.json.
Result<Container> ReadContainer(const std::string& bundle, const std::string& configuration);

}  // namespace causeway::containers
