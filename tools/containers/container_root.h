// SPDX-License-Identifier: Apache-2.0
// What the hook does to the root folder of a container that is about to start. The folder's files are an image's and may be
// hostile: every path is looked up below the root by the kernel, no link leads out of it, and nothing of it is executed.
// The process is in the container's mount namespace and holds the rights of the runtime. One thread uses all this. A text as
// a result is empty, or one sentence that says what failed.
#pragma once
#include <string>
#include <vector>

#include "host_backend/common/unique_fd.h"

namespace causeway::containers {

// Where the libraries are in every container: a mount that the runtime has made.
inline constexpr char kLibraryFolder[] = "usr/lib/causeway";

// Puts the libraries over those of the same names in folders of the image that LD_LIBRARY_PATH leads to (`folders`, as the
// container sees them). What lies on other mounts, volumes of the host for example, is left alone.
std::string CoverOtherLibraries(int root, const std::vector<std::string>& folders);

// Makes the loader's cache of the image anew, the libraries' folder first, by this system's own ldconfig. It sees the image
// and the libraries and no other mount, and holds no right but to write files.
std::string RefreshLoaderCache(int root);

}  // namespace causeway::containers
