// SPDX-License-Identifier: Apache-2.0
// A scope's folder of compiled kernels holds no more than its quota when a session begins.
#include "host_backend/sandbox/cache_quota.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "host_backend/common/unique_fd.h"

namespace causeway::sandbox {
namespace {

namespace fs = std::filesystem;

class CacheQuotaTest : public ::testing::Test {
 protected:
  CacheQuotaTest() {
    char pattern[] = "/tmp/causeway-test-XXXXXX";
    base_ = mkdtemp(pattern);
    fs::create_directories(base_ / "cache/1/2");
    folder_ = UniqueFd(open((base_ / "cache").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
  ~CacheQuotaTest() override { fs::remove_all(base_); }

  void Write(const std::string& name, size_t bytes) {
    std::ofstream(base_ / name) << std::string(bytes, 'k');
  }
  CacheUse Hold(uint64_t bytes) { return HoldToQuota(folder_.get(), bytes); }
  bool IsEmpty() { return fs::is_empty(base_ / "cache"); }

  fs::path base_;
  UniqueFd folder_;
};

TEST_F(CacheQuotaTest, WhatFitsStays) {
  Write("cache/index", 100);
  Write("cache/1/2/kernel", 100'000);
  const CacheUse use = Hold(1 << 20);
  EXPECT_FALSE(use.emptied);
  EXPECT_GE(use.bytes, 100'100u);
  EXPECT_EQ(use.files, 4u);
  EXPECT_TRUE(fs::exists(base_ / "cache/1/2/kernel"));
}

TEST_F(CacheQuotaTest, WhatDoesNotFitGoesWithItsIndex) {
  Write("cache/index", 100);
  for (int i = 0; i < 20; ++i) Write("cache/1/2/kernel" + std::to_string(i), 100'000);
  EXPECT_TRUE(Hold(1 << 20).emptied);
  EXPECT_TRUE(IsEmpty());
  EXPECT_FALSE(Hold(1 << 20).emptied);
}

TEST_F(CacheQuotaTest, LinksLeadNowhere) {
  fs::create_directories(base_ / "others");
  Write("others/file", 1000);
  fs::create_directory_symlink(base_ / "others", base_ / "cache/1/folder");
  fs::create_symlink(base_ / "others/file", base_ / "cache/1/file");
  fs::create_hard_link(base_ / "others/file", base_ / "cache/1/same");
  mkfifo((base_ / "cache/pipe").c_str(), 0600);
  Write("cache/large", 2 << 20);
  EXPECT_TRUE(Hold(1 << 20).emptied);
  EXPECT_TRUE(IsEmpty());
  EXPECT_EQ(fs::file_size(base_ / "others/file"), 1000u);
}

TEST_F(CacheQuotaTest, TooManyFilesAndTooDeepOnesGo) {
  constexpr uint64_t kMost = 500;
  for (uint64_t i = 0; i < kMost + 10; ++i) {
    const std::string name = base_ / ("cache/" + std::to_string(i));
    close(open(name.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  }
  EXPECT_FALSE(Hold(uint64_t{1} << 40).emptied);
  const CacheUse use = HoldToQuota(folder_.get(), uint64_t{1} << 40, kMost);
  EXPECT_TRUE(use.emptied);
  EXPECT_TRUE(IsEmpty());
  fs::path deep = base_ / "cache";
  for (int i = 0; i < 40; ++i) deep /= "d";
  fs::create_directories(deep);
  EXPECT_TRUE(Hold(uint64_t{1} << 40).emptied);
}

}  // namespace
}  // namespace causeway::sandbox
