// SPDX-License-Identifier: Apache-2.0
// A scope's folder of compiled kernels holds no more than its quota when a session begins.
#include "host_backend/sandbox/cache_quota.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>

#include "host_backend/common/unique_fd.h"

namespace causeway::sandbox {
namespace {

namespace fs = std::filesystem;

class CacheQuotaTest : public ::testing::Test {
 protected:
  CacheQuotaTest() {
    for (std::string path : {"/dev/shm/causeway-test-XXXXXX", "/tmp/causeway-test-XXXXXX"}) {
      if (base_.empty() && mkdtemp(path.data()) != nullptr) base_ = path;
    }
    fs::create_directories(base_ / "cache/1/2");
    folder_ = UniqueFd(open((base_ / "cache").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
  ~CacheQuotaTest() override {
    EXPECT_EQ(seteuid(getuid()), 0);
    fs::remove_all(base_);
  }

  void Write(const std::string& name, size_t bytes) {
    std::ofstream(base_ / name) << std::string(bytes, 'k');
  }
  // The owner of the folders, whom their permissions bind.
  void BecomeOrdinary() {
    constexpr uid_t kUser = 65'534;
    if (geteuid() != 0) return;
    for (const char* name : {"cache", "cache/1", "cache/1/2"})
      ASSERT_EQ(chown((base_ / name).c_str(), kUser, kUser), 0);
    chmod(base_.c_str(), 0711);
    ASSERT_EQ(seteuid(kUser), 0);
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
  fs::create_directories(base_ / "cache/z/z");
  EXPECT_TRUE(Hold(uint64_t{1} << 40).emptied);
  EXPECT_TRUE(IsEmpty());
}

TEST_F(CacheQuotaTest, WhatItsOwnerMayNotChangeGoesToo) {
  BecomeOrdinary();
  Write("cache/1/2/kernel", 100);
  for (const char* name : {"cache/1/2", "cache/1"}) chmod((base_ / name).c_str(), 0500);
  EXPECT_TRUE(Hold(10).emptied);
  EXPECT_TRUE(IsEmpty());
}

// Two of them together have more bytes than a number counts, where the file system allows them.
TEST_F(CacheQuotaTest, FilesThatSayTheyAreHugeCount) {
  for (const char* name : {"cache/a", "cache/b"}) {
    Write(name, 1);
    if (truncate((base_ / name).c_str(), INT64_MAX) != 0)
      GTEST_SKIP() << "this file system has no such files";
  }
  EXPECT_TRUE(Hold(1 << 20).emptied);
}

TEST_F(CacheQuotaTest, AFileWithHolesCountsAsWhatItMayBecome) {
  Write("cache/holes", 1);
  fs::resize_file(base_ / "cache/holes", 2 << 20);
  EXPECT_TRUE(Hold(1 << 20).emptied);
  EXPECT_TRUE(IsEmpty());
}

TEST_F(CacheQuotaTest, WhatItsOwnerHasClosedIsCounted) {
  BecomeOrdinary();
  Write("cache/1/2/large", 2 << 20);
  chmod((base_ / "cache/1").c_str(), 0300);
  EXPECT_TRUE(Hold(1 << 20).emptied);
  EXPECT_TRUE(IsEmpty());
}

// What changes the folder's size or depth tells at once; what does not, and its own looks, tell nothing.
TEST_F(CacheQuotaTest, EveryGrowthIsTold) {
  const auto watch = [&] {
    UniqueFd changes(inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
    const CacheUse use = HoldToQuota(folder_.get(), 1 << 20, kMostCacheFiles, changes.get());
    EXPECT_TRUE(use.watched);
    return changes;
  };
  const auto told = [](const UniqueFd& changes) {
    pollfd asked{changes.get(), POLLIN, 0};
    return poll(&asked, 1, 0) == 1;
  };
  Write("cache/1/2/kernel", 100);
  const UniqueFd quiet = watch();
  EXPECT_FALSE(Hold(1 << 20).emptied);
  EXPECT_FALSE(told(quiet));
  const std::pair<const char*, std::function<void()>> growths[] = {
      {"a file", [&] { Write("cache/new", 1); }},
      {"a folder", [&] { fs::create_directory(base_ / "cache/1/2/3"); }},
      {"below a new folder", [&] { Write("cache/1/2/3/kernel", 1); }},
      {"a longer file", [&] { std::ofstream(base_ / "cache/1/2/kernel", std::ios::app) << "more"; }},
      {"a file with a hole", [&] { fs::resize_file(base_ / "cache/new", 100'000); }},
      {"a moved file", [&] { fs::rename(base_ / "cache/new", base_ / "cache/1/moved"); }},
      {"a link", [&] { fs::create_hard_link(base_ / "cache/1/moved", base_ / "cache/link"); }},
  };
  for (const auto& [what, grow] : growths) {
    const UniqueFd changes = watch();
    EXPECT_FALSE(told(changes)) << what;
    grow();
    EXPECT_TRUE(told(changes)) << what;
  }
  // A folder that had to be emptied is to be looked at again.
  Write("cache/large", 2 << 20);
  const UniqueFd changes(inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  const CacheUse use = HoldToQuota(folder_.get(), 1 << 20, kMostCacheFiles, changes.get());
  EXPECT_TRUE(use.emptied);
  EXPECT_FALSE(use.watched);
}

}  // namespace
}  // namespace causeway::sandbox
