// SPDX-License-Identifier: Apache-2.0
// Which process is taken for a VM's: one that maps the region and could open it, whatever others call their
// folders and themselves.
#include "host_backend/launcher/vm_search.h"

#include <gtest/gtest.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <memory>
#include <string>

namespace causeway::launcher {
namespace {

using File = std::unique_ptr<FILE, int (*)(FILE*)>;

File TextFile(const std::string& text) {
  File file(tmpfile(), &fclose);
  EXPECT_EQ(fwrite(text.data(), 1, text.size(), file.get()), text.size());
  rewind(file.get());
  return file;
}

constexpr unsigned kMajor = 0xfd, kMinor = 0x1a;
constexpr ino_t kInode = 4711;
const std::string kMapping = "7f0000000000-7f0000200000 rw-s 00000000 fd:1a 4711    ";
const std::string kOther = "7f0000000000-7f0000200000 rw-s 00000000 fd:1b 4711    ";

bool Maps(const std::string& text) {
  return MapsFile(TextFile(text).get(), makedev(kMajor, kMinor), kInode);
}

TEST(VmSearch, FindsItsFileAmongOthers) {
  EXPECT_TRUE(Maps(kOther + "/a\n" + kMapping + "/dev/shm/region\n"));
  EXPECT_TRUE(Maps(kOther + std::string(10'000, 'a') + "\n" + kMapping + std::string(10'000, 'b') + "\n"));
  EXPECT_FALSE(Maps(kOther + "/a\n"));
  EXPECT_FALSE(Maps("7f0000000000-7f0000200000 rw-s 00000000 fd:1a 47110    /a\n"));
  EXPECT_FALSE(Maps(""));
}

// As a reader with a buffer of any size up to two pages would take a piece of a long name for a line.
TEST(VmSearch, ANameIsNeverALine) {
  for (size_t before = 0; before < 8300; ++before) {
    ASSERT_FALSE(Maps(kOther + "/" + std::string(before, 'd') + kMapping + "/region\n")) << before;
  }
}

struct stat RegionOf(uid_t user, gid_t group, mode_t mode) {
  struct stat info {};
  info.st_uid = user;
  info.st_gid = group;
  info.st_mode = S_IFREG | mode;
  return info;
}

std::string StatusOf(unsigned user, unsigned group, const std::string& groups) {
  const std::string u = std::to_string(user), g = std::to_string(group);
  return "Name:\tqemu Uid: 0 0 0 0\nUmask:\t0022\nState:\tS (sleeping)\nPPid:\t1\nUid:\t7\t" + u +
         "\t7\t7\nGid:\t7\t" + g + "\t7\t7\nFDSize:\t64\nGroups:\t" + groups + " \nVmPeak:\t 1 kB\n";
}

bool MayOpenIt(const std::string& status, const struct stat& file) {
  return MayOpen(TextFile(status).get(), file);
}

TEST(VmSearch, AProcessThatMayNotOpenTheRegionIsNotItsVm) {
  const struct stat region = RegionOf(500, 36, 0660);
  EXPECT_TRUE(MayOpenIt(StatusOf(0, 0, ""), region));
  EXPECT_TRUE(MayOpenIt(StatusOf(500, 1, ""), region));
  EXPECT_TRUE(MayOpenIt(StatusOf(64055, 36, ""), region));
  EXPECT_TRUE(MayOpenIt(StatusOf(64055, 64055, "10 36 64055"), region));
  std::string many;
  for (int i = 100; i < 5000; ++i) many += std::to_string(i) + " ";
  EXPECT_TRUE(MayOpenIt(StatusOf(64055, 64055, many + "36"), region));
  EXPECT_FALSE(MayOpenIt(StatusOf(64055, 64055, many), region));
  EXPECT_FALSE(MayOpenIt(StatusOf(1000, 1000, ""), region));
  EXPECT_FALSE(MayOpenIt(StatusOf(1000, 1000, "3 6 360 136"), region));
  EXPECT_FALSE(MayOpenIt(StatusOf(64055, 36, ""), RegionOf(500, 36, 0600)));
  EXPECT_FALSE(MayOpenIt("Name:\tqemu\n", region));
  EXPECT_FALSE(MayOpenIt("", region));
  EXPECT_FALSE(MayOpen(nullptr, region));
}

// The texts are the kernel's: this process maps a file that it may open.
TEST(VmSearch, FindsThisProcess) {
  const File file(tmpfile(), &fclose);
  ASSERT_EQ(ftruncate(fileno(file.get()), 4096), 0);
  struct stat info {};
  ASSERT_EQ(fstat(fileno(file.get()), &info), 0);
  const File status(fopen("/proc/self/status", "re"), &fclose);
  EXPECT_TRUE(MayOpen(status.get(), info));
}

}  // namespace
}  // namespace causeway::launcher
