// SPDX-License-Identifier: Apache-2.0
// Sessions outlive their daemon: the next one goes on with them, whether the first left in order or was killed.
#include <signal.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>

#include "host_backend/command/command.h"
#include "tests/unit/daemon_fixture.h"

namespace causeway::test {
namespace {

class TakeoverTest : public DaemonFixture {
 protected:
  void Start(const std::string& more = "keep_sessions_s = 60\n") {
    std::filesystem::remove(folder() + "/log");  // StartDaemon waits for a line of it
    StartDaemon("ok", more + VmConfig());
  }
  // What `systemctl restart` does with the daemon that runs.
  void LeaveSessions() {
    kill(daemon_pid(), SIGUSR1);
    ASSERT_TRUE(WaitFor([&] { return Has(LogText(), "causewayd leaves "); })) << LogText();
    ASSERT_EQ(StopDaemon(), 0);
  }
  std::vector<pid_t> Workers() const {
    std::vector<pid_t> pids;
    for (const auto& session : command::JsonObjects(Status(), "sessions"))
      pids.push_back(std::atoi(command::StatusValue(session, "", "worker_pid").c_str()));
    return pids;
  }
  static bool Lives(pid_t pid) { return kill(pid, 0) == 0; }
  static bool Has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }
  void OpenLocal(LocalClient& client) const {
    ASSERT_EQ(client.RequestSession().accepted, 1u);
    client.region().Open(0, 1);
    ASSERT_TRUE(client.SendReady());
    ASSERT_TRUE(client.region().WaitForHostWord(0, 1, SlotHostState::kServing)) << client.region().refusal(0);
  }
};

TEST_F(TakeoverTest, SessionsGoOnWithTheirWorkers) {
  Start();
  GuestRegion guest(region_file());
  guest.Open(2, 7);
  ASSERT_TRUE(guest.WaitForHostWord(2, 7, SlotHostState::kServing)) << guest.refusal(2);
  LocalClient local(socket());
  OpenLocal(local);
  const std::vector<pid_t> workers = Workers();
  ASSERT_EQ(workers.size(), 2u);
  const uint64_t epoch = guest.superblock().host_epoch;
  for (const bool killed : {false, true, false, true}) {
    SCOPED_TRACE(killed ? "killed" : "left");
    if (killed) {
      KillDaemon();
    } else {
      LeaveSessions();
    }
    EXPECT_EQ(guest.host_page().slot[2], SlotWord(7, uint32_t(SlotHostState::kServing)));
    Start();
    EXPECT_TRUE(Has(LogText(), "has taken over 2 sessions")) << LogText();
    EXPECT_EQ(Workers(), workers);
    EXPECT_EQ(guest.superblock().host_epoch, epoch);
    EXPECT_EQ(guest.host_page().slot[2], SlotWord(7, uint32_t(SlotHostState::kServing)));
    EXPECT_EQ(guest.host_page().state, HostState::kRunning);
    const uint64_t beat = guest.host_page().beat;
    EXPECT_TRUE(WaitFor([&] { return guest.host_page().beat != beat; }));
  }
  // Both end as if nothing had been, and others begin.
  guest.SetWord(2, 7, SlotGuestState::kDying);
  EXPECT_TRUE(guest.WaitForHostWord(2, 7, SlotHostState::kClosed));
  local.Close();
  EXPECT_TRUE(WaitForNoSession());
  for (const pid_t worker : workers) EXPECT_TRUE(WaitFor([&] { return !Lives(worker); }));
  guest.Open(2, 8);
  EXPECT_TRUE(guest.WaitForHostWord(2, 8, SlotHostState::kServing)) << guest.refusal(2);
  LocalClient next(socket());
  OpenLocal(next);
}

TEST_F(TakeoverTest, WhatEndsMeanwhileHasEnded) {
  Start();
  GuestRegion guest(region_file());
  for (const uint32_t slot : {0u, 1u}) {
    guest.Open(slot, 1);
    ASSERT_TRUE(guest.WaitForHostWord(slot, 1, SlotHostState::kServing)) << guest.refusal(slot);
  }
  LocalClient local(socket());
  OpenLocal(local);
  const std::vector<pid_t> workers = Workers();
  ASSERT_EQ(workers.size(), 3u);
  KillDaemon();
  kill(workers[0], SIGKILL);  // slot 0's
  guest.SetWord(1, 1, SlotGuestState::kDying);
  local.Close();
  guest.Open(3, 1);
  Start();
  EXPECT_TRUE(guest.WaitForHostWord(0, 1, SlotHostState::kFatal));
  EXPECT_TRUE(Has(guest.refusal(0), "was killed by signal 9")) << guest.refusal(0);
  EXPECT_TRUE(guest.WaitForHostWord(1, 1, SlotHostState::kClosed));
  EXPECT_TRUE(guest.WaitForHostWord(3, 1, SlotHostState::kServing)) << guest.refusal(3);
  for (const pid_t worker : workers) EXPECT_TRUE(WaitFor([&] { return !Lives(worker); }));
}

TEST_F(TakeoverTest, WithoutANextDaemonAllEnds) {
  Start("keep_sessions_s = 1\n");
  GuestRegion guest(region_file());
  guest.Open(0, 1);
  ASSERT_TRUE(guest.WaitForHostWord(0, 1, SlotHostState::kServing)) << guest.refusal(0);
  const std::vector<pid_t> workers = Workers();
  KillDaemon();
  for (const pid_t worker : workers) EXPECT_TRUE(WaitFor([&] { return !Lives(worker); }));
  Start();
  EXPECT_TRUE(guest.WaitForHostWord(0, 1, SlotHostState::kFatal));
  EXPECT_TRUE(Has(guest.refusal(0), "was restarted")) << guest.refusal(0);
}

TEST_F(TakeoverTest, AStopEndsAll) {
  Start();
  GuestRegion guest(region_file());
  guest.Open(0, 1);
  ASSERT_TRUE(guest.WaitForHostWord(0, 1, SlotHostState::kServing)) << guest.refusal(0);
  const std::vector<pid_t> workers = Workers();
  LeaveSessions();
  Start();
  EXPECT_EQ(StopDaemon(), 0);
  for (const pid_t worker : workers) EXPECT_TRUE(WaitFor([&] { return !Lives(worker); }));
  EXPECT_EQ(guest.host_page().state, HostState::kStopped);
}

}  // namespace
}  // namespace causeway::test
