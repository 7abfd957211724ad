// SPDX-License-Identifier: Apache-2.0
// What the hook reads of a container's state and configuration.
#include "tools/containers/container_state.h"

#include <gtest/gtest.h>

namespace causeway::containers {
namespace {

using Folders = std::vector<std::string>;

Result<Container> Read(const std::string& environment) {
  return ReadContainer("/run/c",
                       R"({"root": {"path": "rootfs"}, "process": {"env": [)" + environment + "]}}");
}

TEST(ContainerState, HasItsBundleAndRoot) {
  EXPECT_EQ(BundleOf(R"({"bundle": "/run/c", "id": "x"})").value(), "/run/c");
  EXPECT_FALSE(BundleOf(R"({"bundle": "run/c"})").ok());
  EXPECT_FALSE(BundleOf(R"({"bundle": "/run/\u0000c"})").ok());
  EXPECT_FALSE(BundleOf("").ok());
  EXPECT_EQ(Read("").value().root, "/run/c/rootfs");
  EXPECT_EQ(ReadContainer("/run/c", R"({"root": {"path": "/r"}})").value().root, "/r");
  EXPECT_FALSE(ReadContainer("/run/c", R"({"root": {"path": "/r\u0000"}})").ok());
  EXPECT_FALSE(ReadContainer("/run/c", R"({"root": "/r"})").ok());
}

// The loader takes both characters between two folders.
TEST(ContainerState, LibraryFoldersAreSeparatedAsTheLoaderDoes) {
  EXPECT_EQ(Read(R"("PATH=/bin", "LD_LIBRARY_PATH=/a:/b;/c:/a::d;")").value().library_folders,
            (Folders{"/a", "/b", "/c"}));
  EXPECT_EQ(Read(R"("LD_LIBRARY_PATH=/a\u0000b:/c", "LD_LIBRARY_PATH=")").value().library_folders,
            Folders{"/c"});
  EXPECT_FALSE(Read("7").ok());
}

TEST(ContainerState, CountsFoldersToOneBeyondItsLimit) {
  std::string list;
  for (int folder = 0; folder < 200; ++folder) list += "/" + std::to_string(folder) + ";";
  EXPECT_EQ(Read("\"LD_LIBRARY_PATH=" + list + '"').value().library_folders.size(), kMostFolders + 1);
}

}  // namespace
}  // namespace causeway::containers
