// SPDX-License-Identifier: Apache-2.0
// That the hostile guest of these tests is served at all: what it does when it behaves. A case that ends in
// an error proves nothing where everything does.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/hostile/hostile_guest.h"

namespace causeway::test {
namespace {

TEST(HostileSession, IsServedOverSharedMemory) {
  HostileDaemon daemon;
  HostileGuest guest(daemon);
  ASSERT_TRUE(guest.Open()) << guest.refusal();
  guest.RetainPrimary();
  guest.AddArena(guest.first_slice(), 2 << 20);
  const uint64_t device = guest.AllocateDevice(4096);
  const uint64_t offset = guest.first_slice();
  std::memset(guest.base() + offset, 0x5a, 4096);
  const CopyBody copy{device, 4096, 0, CopyForm::kSynchronous, BytesIn::kRequestBuffer};
  const Wire lent{.bulk_offset = offset, .bulk_bytes = 4096};
  EXPECT_EQ(guest.Call(Op::kCopyToDevice, Pack(copy), lent).result, CUDA_SUCCESS);
  std::memset(guest.base() + offset, 0, 4096);
  const Answer back = guest.Call(Op::kCopyToHost, Pack(copy), lent);
  EXPECT_EQ(back.result, CUDA_SUCCESS);
  EXPECT_EQ(back.bulk_bytes, 4096u);
  EXPECT_EQ(guest.base()[offset + 4095], std::byte{0x5a});
  ASSERT_GT(guest.worker().pid(), 0);
  EXPECT_EQ(guest.HowItEnded(), "");
  EXPECT_EQ(guest.worker().MapAt(guest.window() + offset).permissions, "rw-s");
}

TEST(HostileSession, IsServedOverTcp) {
  HostileDaemon daemon({.tcp = true});
  HostileGuest guest(daemon);
  ASSERT_TRUE(guest.OpenTcp()) << guest.refusal();
  guest.RetainPrimary();
  const uint64_t device = guest.AllocateDevice(4096);
  const uint64_t sent = 0x0123456789abcdef;
  Bytes body = Pack(CopyBody{device, sizeof sent, 0, CopyForm::kSynchronous, BytesIn::kMessage}, sent);
  guest.Post(Op::kCopyToDevice, body);
  const Answer got = guest.Call(
      Op::kCopyToHost, Pack(CopyBody{device, sizeof sent, 0, CopyForm::kSynchronous, BytesIn::kMessage}),
      {.main_sequence = guest.posted()});
  EXPECT_EQ(got.result, CUDA_SUCCESS);
  EXPECT_EQ(got.Get<uint64_t>(), sent);
  EXPECT_EQ(guest.AsyncError(), 0u);
  EXPECT_EQ(guest.HowItEnded(), "");
}

TEST(HostileSession, SaysHowItsWorkerEnded) {
  HostileDaemon daemon;
  HostileGuest guest(daemon);
  ASSERT_TRUE(guest.Open()) << guest.refusal();
  // A request that waits for a posted record that never was: a violation, which ends the session.
  EXPECT_TRUE(guest.Call(Op::cuCtxSynchronize, {}, {.main_sequence = uint64_t{1} << 40}).lost);
  EXPECT_EQ(EndOf(daemon, guest.worker()), "ended with exit status 3");
  EXPECT_FALSE(guest.Lives());
  guest.ExpectNoCrash();
  EXPECT_EQ(daemon.CountInLog("the guest broke the protocol"), 1u);
  EXPECT_TRUE(daemon.Serves());
}

// As in a cgroup that has as many as it may have: the session ends with a sentence, by no signal. The limit
// is one of users, so the worker must be somebody's; its parents are root, for whom it does not count.
TEST(HostileSession, EndsInOrderWhereNoThreadCanBeMade) {
  if (geteuid() != 0) GTEST_SKIP() << "only root has workers that are somebody's";
  constexpr rlim_t kThreads = 24;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NPROC, &before), 0);
  const rlimit few{kThreads, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NPROC, &few), 0);
  HostileDaemon daemon;
  setrlimit(RLIMIT_NPROC, &before);
  if (daemon.IsOthers()) GTEST_SKIP() << "that daemon has no such limit";
  HostileGuest guest(daemon);
  // Workers of other daemons count as well where they belong to the same user: the session may end as it opens.
  if (guest.Open()) {
    uint32_t channel = 1;
    while (channel < kThreads && !guest.OpenChannel(channel).lost) ++channel;
    EXPECT_LT(channel, kThreads);
    EXPECT_EQ(EndOf(daemon, guest.worker()), "ended with exit status 3");
  }
  EXPECT_TRUE(WaitFor([&] { return daemon.CountInLog("ended with exit status 3") != 0; }));
  EXPECT_EQ(daemon.CountInLog("no thread can be made"), 1u);
  EXPECT_EQ(daemon.CountInLog("was killed"), 0u);
  EXPECT_EQ(daemon.CountInLog("broke the protocol"), 0u);
}

}  // namespace
}  // namespace causeway::test
