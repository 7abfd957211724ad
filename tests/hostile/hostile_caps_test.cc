// SPDX-License-Identifier: Apache-2.0
// What a session may make its worker hold, and messages that no library sends, which end it with one line.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>
#include <vector>

#include "ivshmem_ring/messages/address_windows.h"
#include "ivshmem_ring/messages/copy_messages.h"
#include "ivshmem_ring/messages/sharing_messages.h"
#include "tests/hostile/hostile_guest.h"
#include "tests/hostile/settled.h"

namespace causeway::test {
namespace {

constexpr uint64_t kMib = 1 << 20;

class HostileCaps : public ::testing::Test {
 protected:
  void Open() {
    ASSERT_TRUE(guest_.Open()) << guest_.refusal();
    guest_.RetainPrimary();
  }
  void ExpectViolation(const std::string& why) {
    EXPECT_EQ(EndOf(daemon_, guest_.worker()), "ended with exit status 3");
    EXPECT_EQ(daemon_.CountInLog("the guest broke the protocol: " + why), 1u) << daemon_.Log();
  }
  HostileDaemon daemon_;
  HostileGuest guest_{daemon_};
};

TEST_F(HostileCaps, ThreadsAreTheChannelsAndAFew) {
  Open();
  const size_t before = Settled([&] { return guest_.worker().Threads(); });
  for (int again = 0; again < 3; ++again) {
    for (uint32_t channel = 1; channel < kChannelCount; ++channel) {
      if (guest_.OpenChannel(channel).lost) return;
    }
  }
  EXPECT_LE(guest_.worker().Threads(), before + kChannelCount);
  EXPECT_EQ(guest_.HowItEnded(), "");
}

TEST_F(HostileCaps, DescriptorsAreLimited) {
  Open();
  std::ifstream limits("/proc/" + std::to_string(guest_.worker().pid()) + "/limits");
  std::string text;
  for (std::string line; std::getline(limits, line);) {
    if (line.rfind("Max open files", 0) == 0) text = line;
  }
  EXPECT_NE(text.find("4096                 4096"), std::string::npos) << text;
}

TEST_F(HostileCaps, AMarkElsewhereEndsTheSession) {
  Open();
  guest_.Post(Op::kMark, Pack(MarkBody{0, guest_.region_bytes() - 4}));
  guest_.AwaitPosted();
  ExpectViolation("it wants a mark where it has no word");
}

TEST_F(HostileCaps, LentBytesElsewhereEndTheSession) {
  Open();
  const uint64_t device = guest_.AllocateDevice(4096);
  guest_.Post(Op::kCopyToDevice, Pack(CopyBody{device, 4096, 0, CopyForm::kSynchronous, BytesIn::kRegion},
                                      LentBody{guest_.region_bytes() - 4096, guest_.first_slice()}));
  guest_.AwaitPosted();
  ExpectViolation("it lends bytes that are not its own");
}

TEST_F(HostileCaps, AnAddressThatNobodyHasEndsTheSession) {
  Open();
  const uint64_t device = guest_.AllocateDevice(4096);
  guest_.Call(Op::cuMemcpyHtoD_v2, Pack(device, ~uint64_t{0} - 100, uint64_t{4096}));
  ExpectViolation("it copies at an address that no process has");
}

TEST_F(HostileCaps, MemoryThatIsNoLongerPinnedIsAnError) {
  Open();
  const uint64_t device = guest_.AllocateDevice(4096);
  const Answer answer =
      guest_.Call(Op::cuMemcpyHtoD_v2, Pack(device, guest_.window() + guest_.first_slice(), uint64_t{4096}));
  EXPECT_FALSE(answer.lost);
  EXPECT_EQ(answer.result, uint32_t(CUDA_ERROR_INVALID_VALUE));
  EXPECT_EQ(guest_.HowItEnded(), "");
}

TEST_F(HostileCaps, AgreeingTwiceEndsTheSession) {
  Open();
  guest_.Call(Op::kAgreeOnAddresses, Pack(AddressBody{guest_.window(), 0, 0}));
  ExpectViolation("it agrees on addresses a second time");
}

TEST_F(HostileCaps, TakenRangesElsewhereEndTheSession) {
  Open();
  guest_.Call(Op::kAgreeOnAddresses, Pack(AddressBody{guest_.window(), 1, 0}, TakenRange{4096, 8192}));
  ExpectViolation("it names taken addresses outside of the device's");
}

// A worker looks when it becomes its scope's user.
TEST(CompiledKernels, AFolderBeyondItsQuotaIsEmptied) {
  if (geteuid() != 0) GTEST_SKIP() << "own users need root";
  if (getenv("CAUSEWAY_TEST_SOCKET") != nullptr) GTEST_SKIP() << "another's daemon has another's folder";
  char pattern[] = "/tmp/causeway-test-XXXXXX";
  const std::string base = mkdtemp(pattern);
  chmod(base.c_str(), 0755);
  const HostileDaemonOptions options{.more = "compiled_kernels_mib = 1\n",
                                     .environment = {{"CUDA_CACHE_PATH", base}}};
  std::string folder;
  for (const size_t mib : {0, 4}) {
    if (mib != 0) {
      struct stat owner {};
      ASSERT_EQ(stat(folder.c_str(), &owner), 0) << folder;
      std::ofstream(folder + "/kernel") << std::string(mib * kMib, 'k');
      ASSERT_EQ(chown((folder + "/kernel").c_str(), owner.st_uid, owner.st_gid), 0);
    }
    const HostileDaemon daemon(options);
    chmod(daemon.folder().c_str(), 0711);  // its links to the folders are there, and workers are other users
    HostileGuest guest(daemon);
    ASSERT_TRUE(guest.Open()) << guest.refusal();
    // The folder that belongs to the worker's user, by its name (launcher/cache_folder.h).
    for (const auto& entry : std::filesystem::recursive_directory_iterator(base)) {
      if (!entry.is_symlink() && entry.path().filename() == "kernels") folder = entry.path();
    }
    ASSERT_NE(folder, "");
    if (mib == 0) continue;
    EXPECT_TRUE(WaitFor([&] { return !std::filesystem::exists(folder + "/kernel"); }));
    // And while the session goes on, whatever its worker writes there: before the next look, and when nobody has looked for
    // longer than the daemon pauses between two of them, because it waits for the kernel to tell of a change.
    for (const int pause_s : {0, 7}) {
      std::this_thread::sleep_for(std::chrono::seconds(pause_s));
      const std::string late = folder + "/late";
      std::ofstream(late) << std::string(mib * kMib, 'k');
      EXPECT_TRUE(WaitFor([&] { return !std::filesystem::exists(late); })) << pause_s;
    }
    EXPECT_EQ(guest.HowItEnded(), "");
  }
  std::filesystem::remove_all(base);
}

// A guest of that user in a process of its own, which has a session until `go_on` is closed.
pid_t StartGuestOf(uid_t user, const HostileDaemon& daemon, const int (&has_opened)[2],
                   const int (&go_on)[2]) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  close(go_on[1]);
  if (setresgid(user, user, user) != 0 || setresuid(user, user, user) != 0) _exit(2);
  HostileGuest guest(daemon);
  char word = guest.Open() ? 'y' : 'n';
  if (write(has_opened[1], &word, 1) != 1 || read(go_on[0], &word, 1) != 0) _exit(3);
  _exit(0);
}

// What one scope has compiled is no other's to find: by the time of a compilation it would learn what that one runs.
TEST(CompiledKernels, EachScopeHasAFolderThatNoOtherCanEnter) {
  if (geteuid() != 0) GTEST_SKIP() << "own users need root";
  if (getenv("CAUSEWAY_TEST_SOCKET") != nullptr) GTEST_SKIP() << "another's daemon has another's folder";
  char pattern[] = "/tmp/causeway-test-XXXXXX";
  const std::string base = mkdtemp(pattern);
  chmod(base.c_str(), 0755);
  const HostileDaemon daemon({.environment = {{"CUDA_CACHE_PATH", base}}});
  chmod(daemon.folder().c_str(), 0755);
  chmod(daemon.socket().c_str(), 0666);
  int has_opened[2], go_on[2];
  ASSERT_EQ(pipe(has_opened), 0);
  ASSERT_EQ(pipe(go_on), 0);
  std::vector<pid_t> guests;
  for (const uid_t user : {0, 12345, 12346}) {
    guests.push_back(StartGuestOf(user, daemon, has_opened, go_on));
    char word = 0;
    ASSERT_EQ(read(has_opened[0], &word, 1), 1);
    EXPECT_EQ(word, 'y') << "user " << user;
  }
  std::set<std::string> folders, linked;
  std::set<uid_t> owners;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(base)) {
    // By its daemon's link each worker's driver finds one of them; a spare's leads nowhere.
    if (entry.is_symlink()) {
      const auto target = std::filesystem::read_symlink(entry.path());
      if (target.filename() == "kernels") linked.insert(target);
    }
    if (entry.is_symlink() || entry.path().filename() != "kernels") continue;
    folders.insert(entry.path());
    struct stat found {};
    ASSERT_EQ(stat(entry.path().c_str(), &found), 0);
    EXPECT_EQ(found.st_mode & 07777, 0700u) << entry.path();
    owners.insert(found.st_uid);
  }
  EXPECT_EQ(folders.size(), 3u);
  EXPECT_EQ(owners.size(), 3u);
  EXPECT_EQ(owners.count(0), 0u);
  EXPECT_EQ(linked, folders);
  close(go_on[1]);
  for (const pid_t guest : guests) {
    int status = -1;
    EXPECT_EQ(waitpid(guest, &status, 0), guest);
    EXPECT_EQ(status, 0);
  }
  for (const int end : {has_opened[0], has_opened[1], go_on[0]}) close(end);
  std::filesystem::remove_all(base);
}

}  // namespace
}  // namespace causeway::test
