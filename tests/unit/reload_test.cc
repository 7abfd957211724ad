// SPDX-License-Identifier: Apache-2.0
// A running daemon's configuration is read again, by SIGHUP and by the control socket, and it is drained.
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "host_backend/command/attach/control_client.h"
#include "host_backend/command/command.h"
#include "host_backend/common/control_socket.h"
#include "tests/unit/daemon_fixture.h"

namespace causeway::test {
namespace {

using command::AskControl;

class ReloadTest : public DaemonFixture {
 protected:
  void SetUp() override { std::filesystem::create_directory(folder() + "/state"); }
  std::string More(const std::string& more) const {
    return "state_folder = \"" + folder() + "/state\"\n" + more;
  }
  void Start(const std::string& more) { StartDaemon("ok", More(more)); }
  void Write(const std::string& more) const {
    std::ofstream(folder() + "/config.toml") << Config("ok", More(more));
  }
  std::string Ask(const Json& request) const {
    const auto answer = AskControl(ControlSocketOf(socket()), request);
    return answer.ok() ? JsonText(answer.value()) : answer.error();
  }
  // What the daemon says to a reload of a configuration with that text.
  std::string Reload(const std::string& more) const {
    Write(more);
    return Ask({{"do", "reload"}});
  }
  static bool Has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }
  std::string SecondVm() const {
    return "[[vm]]\nname = \"second\"\nregion_file = \"" + folder() + "/second\"\nregion_mib = 64\n";
  }
  // A session that the daemon serves, or the sentence that it is refused with.
  std::string OpenLocal(LocalClient& client) const {
    const LocalReply reply = client.RequestSession();
    if (reply.accepted == 0) return reply.text;
    client.region().Open(0, 1);
    client.SendReady();
    return client.region().WaitForHostWord(0, 1, SlotHostState::kServing) ? "" : client.region().refusal(0);
  }
};

TEST_F(ReloadTest, AnErrorChangesNothingAndNamesTheLine) {
  Start("max_sessions = 1\nreserved_sessions = 0\n");
  const std::string wrong = Reload("max_sessions = 5\nno_such_key = 1\n");
  EXPECT_TRUE(Has(wrong, "config.toml:8: no_such_key is not a known key")) << wrong;
  EXPECT_TRUE(Has(Reload("max_sessions = \n"), "config.toml:7: not valid TOML"));
  EXPECT_TRUE(Has(LogText(), "the configuration stays as it was: "));
  LocalClient first(socket()), second(socket());
  EXPECT_EQ(OpenLocal(first), "");
  EXPECT_TRUE(Has(OpenLocal(second), "serves 1 sessions, as many as max_sessions"))
      << "max_sessions has changed";
}

TEST_F(ReloadTest, LimitsChangeUnderSessionsThatGoOn) {
  Start("max_sessions = 1\nreserved_sessions = 0\n" + VmConfig());
  GuestRegion guest(region_file());
  guest.Open(0, 1);
  ASSERT_TRUE(guest.WaitForHostWord(0, 1, SlotHostState::kServing)) << guest.refusal(0);
  const std::string pid = command::StatusValue(WaitForSession("serving"), "", "worker_pid");
  Write("max_sessions = 8\nreserved_sessions = 1\nlocal_max_sessions = 1\n" + VmConfig());
  kill(daemon_pid(), SIGHUP);
  ASSERT_TRUE(WaitFor([&] { return Has(LogText(), "config.toml is in force."); }));
  guest.Open(1, 1);
  EXPECT_TRUE(guest.WaitForHostWord(1, 1, SlotHostState::kServing)) << guest.refusal(1);
  LocalClient first(socket()), second(socket());
  EXPECT_EQ(OpenLocal(first), "");
  EXPECT_TRUE(Has(OpenLocal(second), "local_max_sessions"));
  EXPECT_TRUE(Has(Reload("max_sessions = 8\nlocal_max_sessions = 2\n" + VmConfig()), "is in force"));
  LocalClient third(socket());
  EXPECT_EQ(OpenLocal(third), "") << "of a user that is known already";
  EXPECT_TRUE(Has(Status(), "\"worker_pid\":" + pid)) << "the worker of the first session has changed";
}

TEST_F(ReloadTest, SparesFollow) {
  Start("spare_workers = 1\n");
  const auto ready = [&](const char* count) {
    return WaitFor([&] { return command::StatusValue(Status(), "workers", "spare_ready") == count; });
  };
  EXPECT_TRUE(ready("1")) << Status();
  EXPECT_TRUE(Has(Reload("spare_workers = 3\n"), "is in force"));
  EXPECT_TRUE(ready("3")) << Status();
  EXPECT_TRUE(Has(Reload("spare_workers = 0\n"), "is in force"));
  EXPECT_TRUE(ready("0")) << Status();
}

TEST_F(ReloadTest, WhatOnlyAStartReadsIsNamed) {
  Start("");
  std::ofstream(folder() + "/config.toml")
      << Config("other", More("socket_mode = \"0600\"\nimage_cache_mib = 1\n"));
  const std::string answer = Ask({{"do", "reload"}});
  EXPECT_TRUE(Has(answer, "stopped and started: socket_mode, driver_library, image_cache_mib.")) << answer;
  struct stat info {};
  ASSERT_EQ(stat(socket().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0660u);
}

TEST_F(ReloadTest, AVmIsAddedAndOneThatHasSessionsIsDrained) {
  Start(VmConfig());
  GuestRegion guest(region_file());
  guest.Open(0, 1);
  ASSERT_TRUE(guest.WaitForHostWord(0, 1, SlotHostState::kServing)) << guest.refusal(0);
  const std::string answer = Reload(SecondVm());
  EXPECT_TRUE(Has(answer, "VM guest was taken out of the configuration of causewayd; its 1 sessions go on"))
      << answer;
  EXPECT_TRUE(Has(answer, "VM second is served from now on.")) << answer;
  // A region is zeroed beside the daemon's loop before it is ready, and what a guest writes until then is lost.
  ASSERT_TRUE(WaitFor([&] { return Has(LogText(), "VM second: region "); })) << LogText();
  GuestRegion second(folder() + "/second");
  second.Open(0, 1);
  EXPECT_TRUE(second.WaitForHostWord(0, 1, SlotHostState::kServing)) << second.refusal(0);

  guest.Open(1, 1);
  EXPECT_TRUE(guest.WaitForHostWord(1, 1, SlotHostState::kRefused));
  EXPECT_TRUE(Has(guest.refusal(1), "no program of it can start")) << guest.refusal(1);
  guest.SetWord(1, 1, SlotGuestState::kDying);
  EXPECT_TRUE(guest.WaitForHostWord(1, 1, SlotHostState::kClosed));
  EXPECT_EQ(guest.host_page().state, HostState::kRunning);
  EXPECT_EQ(SlotState(guest.host_page().slot[0]), uint32_t(SlotHostState::kServing));

  guest.SetWord(0, 1, SlotGuestState::kDying);
  EXPECT_TRUE(guest.WaitForHostWord(0, 1, SlotHostState::kClosed));
  EXPECT_TRUE(WaitFor([&] { return guest.host_page().state == HostState::kStopped; }));
  EXPECT_TRUE(std::filesystem::exists(region_file()));
  EXPECT_FALSE(Has(Ask({{"do", "list"}}), "\"guest\""));
  EXPECT_TRUE(Has(Reload(SecondVm() + VmConfig()), "VM guest is served from now on."));
}

TEST_F(ReloadTest, AVmThatComesBackBeforeItsSessionsEndedIsServed) {
  Start(VmConfig());
  GuestRegion guest(region_file());
  guest.Open(0, 1);
  ASSERT_TRUE(guest.WaitForHostWord(0, 1, SlotHostState::kServing)) << guest.refusal(0);
  EXPECT_TRUE(Has(Reload(""), "its 1 sessions go on"));
  EXPECT_FALSE(Has(Reload(VmConfig()), "VM guest"));
  guest.Open(1, 1);
  EXPECT_TRUE(guest.WaitForHostWord(1, 1, SlotHostState::kServing)) << guest.refusal(1);
  for (const uint32_t slot : {0u, 1u}) {
    guest.SetWord(slot, 1, SlotGuestState::kDying);
    EXPECT_TRUE(guest.WaitForHostWord(slot, 1, SlotHostState::kClosed));
  }
  guest.Open(2, 1);
  EXPECT_TRUE(guest.WaitForHostWord(2, 1, SlotHostState::kServing)) << guest.refusal(2);
}

// The file of a region that has another size now is refused until it is deleted; the VM is tried again each second.
TEST_F(ReloadTest, AnotherRegionWaitsForTheSessionsOfTheFirst) {
  Start(VmConfig());
  GuestRegion guest(region_file());
  guest.Open(0, 1);
  ASSERT_TRUE(guest.WaitForHostWord(0, 1, SlotHostState::kServing)) << guest.refusal(0);
  EXPECT_TRUE(Has(Reload(VmConfig(128)), "VM guest has another region"));
  EXPECT_EQ(SlotState(guest.host_page().slot[0]), uint32_t(SlotHostState::kServing));
  std::filesystem::remove(region_file());
  guest.SetWord(0, 1, SlotGuestState::kDying);
  EXPECT_TRUE(WaitFor([&] {
    struct stat info {};
    return stat(region_file().c_str(), &info) == 0 && info.st_size == 128 << 20;
  }));
}

TEST_F(ReloadTest, DrainRefusesWhatBeginsUntilItIsUndone) {
  Start(VmConfig());
  LocalClient first(socket());
  ASSERT_EQ(OpenLocal(first), "");
  EXPECT_TRUE(Has(Ask({{"do", "drain"}}), "\"sessions\":1"));
  LocalClient second(socket());
  EXPECT_TRUE(Has(OpenLocal(second), "is being drained"));
  GuestRegion guest(region_file());
  guest.Open(0, 1);
  EXPECT_TRUE(guest.WaitForHostWord(0, 1, SlotHostState::kRefused));
  guest.SetWord(0, 1, SlotGuestState::kDying);
  EXPECT_TRUE(guest.WaitForHostWord(0, 1, SlotHostState::kClosed));
  EXPECT_TRUE(Has(Ask({{"do", "drain"}, {"undo", true}}), "\"sessions\":1"));
  EXPECT_TRUE(Has(Ask({{"do", "drain"}, {"name", "guest"}}), "\"sessions\":0"));
  guest.Open(0, 2);
  EXPECT_TRUE(guest.WaitForHostWord(0, 2, SlotHostState::kRefused));
  LocalClient third(socket());
  EXPECT_EQ(OpenLocal(third), "");
  EXPECT_TRUE(Has(Ask({{"do", "drain"}, {"name", "nobody"}}), "serves no VM nobody"));
}

}  // namespace
}  // namespace causeway::test
