// SPDX-License-Identifier: Apache-2.0
// The daemon's control socket: VMs are added and removed while it runs, survive it, and are root's and one group's to change.
#include <grp.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "host_backend/command/attach/control_client.h"
#include "host_backend/command/command.h"
#include "host_backend/common/control_socket.h"
#include "tests/unit/daemon_fixture.h"

namespace causeway::test {
namespace {

using command::AskControl;

class VmRequestsTest : public DaemonFixture {
 protected:
  VmRequestsTest() : name_("test-" + std::to_string(getpid())) {}
  ~VmRequestsTest() override { std::filesystem::remove(file()); }

  void Start(const std::string& more = "", const std::string& worker_mode = "ok") {
    std::filesystem::remove(folder() + "/log");  // StartDaemon waits for a line of it
    StartDaemon(worker_mode, "state_folder = \"" + folder() + "/state\"\n" + more);
  }
  void SetUp() override { std::filesystem::create_directory(folder() + "/state"); }
  std::string control() const { return ControlSocketOf(socket()); }
  std::string file() const { return std::string(kRegionFolder) + kRegionPrefix + name_; }
  std::string kept() const { return folder() + "/state/vms.d/" + name_ + ".toml"; }
  Json AddRequest() const { return {{"do", "add"}, {"name", name_}, {"memory_mib", 64}}; }
  Json RemoveRequest(bool force = false) const {
    return {{"do", "remove"}, {"name", name_}, {"force", force}};
  }
  // The answer as text, or the sentence of the refusal.
  std::string Ask(const Json& request) const {
    const auto answer = AskControl(control(), request);
    return answer.ok() ? JsonText(answer.value()) : answer.error();
  }
  Json Listed() const {
    const auto answer = AskControl(control(), {{"do", "list"}});
    return answer.ok() ? answer.value()["vms"] : Json(answer.error());
  }
  static bool Has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }

  const std::string name_;
};

TEST_F(VmRequestsTest, AnAddedVmIsServedAndKept) {
  Start();
  EXPECT_EQ(Listed(), Json::array());
  const Json added = {{"ok", true}, {"file", file()}, {"added", true}, {"doorbell", ""}};
  EXPECT_EQ(Ask(AddRequest()), JsonText(added));
  struct stat info {};
  ASSERT_EQ(stat(file().c_str(), &info), 0);
  EXPECT_EQ(info.st_size, 64 << 20);
  EXPECT_EQ(info.st_mode & 07777, 0660u);
  {
    GuestRegion guest(file());
    EXPECT_EQ(guest.superblock().magic, kRegionMagic);
    guest.Open(0, 1);
    EXPECT_TRUE(guest.WaitForHostWord(0, 1, SlotHostState::kServing)) << guest.refusal(0);
  }
  EXPECT_TRUE(Has(Ask(AddRequest()), "\"added\":false")) << "the same again is no change";
  Json other = AddRequest();
  other["memory_mib"] = 128;
  EXPECT_TRUE(Has(Ask(other), "serves VM " + name_ + " already, with another size"));

  KillDaemon();
  Start();
  ASSERT_EQ(Listed().size(), 1u);
  EXPECT_EQ(Listed()[0]["name"], name_);
  EXPECT_EQ(Listed()[0]["memory_mib"], 64);
  EXPECT_EQ(Listed()[0]["problem"], "");
  EXPECT_TRUE(Has(Ask(RemoveRequest(true)), "\"file_left\":false"));
  EXPECT_FALSE(std::filesystem::exists(file()));
  EXPECT_FALSE(std::filesystem::exists(kept()));
  EXPECT_EQ(Listed(), Json::array());
  EXPECT_TRUE(Has(Ask(RemoveRequest()), "serves no VM " + name_));
}

TEST_F(VmRequestsTest, ADoorbellIsMadeAndKept) {
  Start();
  const std::string doorbell = folder() + "/doorbell-" + name_;
  Json request = AddRequest();
  request["doorbell"] = true;
  EXPECT_TRUE(Has(Ask(request), "\"doorbell\":\"" + doorbell + "\""));
  EXPECT_TRUE(std::filesystem::is_socket(doorbell));
  EXPECT_EQ(Listed()[0]["doorbell"], doorbell);
  EXPECT_EQ(Listed()[0]["polled"], false) << "nothing has the region yet";
  EXPECT_EQ(Listed()[0]["xen_domain"], "");
  EXPECT_EQ(Listed()[0]["granted"], false) << "it is no domain of Xen";
  EXPECT_TRUE(Has(Ask(request), "\"added\":false"));
  EXPECT_TRUE(Has(Ask(AddRequest()), "\"added\":false")) << "a plain device is served as well";
  KillDaemon();
  Start();
  EXPECT_EQ(Listed()[0]["doorbell"], doorbell);
  EXPECT_TRUE(std::filesystem::is_socket(doorbell));
  EXPECT_TRUE(Has(Ask(RemoveRequest()), "\"ok\":true"));
  EXPECT_FALSE(std::filesystem::exists(doorbell));
  EXPECT_TRUE(Has(Ask(AddRequest()), "\"added\":true"));
  EXPECT_TRUE(Has(Ask(request), "in plain mode; detach it first"));
  EXPECT_TRUE(Has(Ask(RemoveRequest()), "\"ok\":true"));
}

TEST_F(VmRequestsTest, GpusThatAreNotThereAreRefused) {
  const std::string there = "GPU-face0200-0000-0000-0000-000000000000";
  Json request = AddRequest();
  const auto ask = [&](const std::string& gpu) {
    request["gpus"] = {gpu};
    return Ask(request);
  };
  Start("", "whole");
  ASSERT_TRUE(WaitFor([&] { return Has(Status(), "\"spare_ready\":1"); })) << Status();
  EXPECT_EQ(ask("GPU-face0300-0000-0000-0000-000000000000"),
            "causewayd's driver has no GPU GPU-face0300-0000-0000-0000-000000000000; it has "
            "GPU-face0100-0000-0000-0000-000000000000, " +
                there + ": correct --gpu.");
  EXPECT_EQ(Listed(), Json::array()) << "nothing is half done";
  EXPECT_FALSE(std::filesystem::exists(file()));
  for (const std::string& name : {there, std::string("GPU-FACE02")}) {
    const std::string added = ask(name);
    EXPECT_TRUE(Has(added, "\"added\":true") && !Has(added, "note")) << added;
    EXPECT_TRUE(Has(Ask(RemoveRequest()), "\"ok\":true"));
  }
  const std::string part = ask("MIG-face02");
  EXPECT_TRUE(Has(part, "\"added\":true") && Has(part, "could not be looked up")) << part;

  KillDaemon();
  Start();  // whose workers do not say what they have
  EXPECT_TRUE(Has(Ask(RemoveRequest()), "\"ok\":true"));
  const std::string unknown = ask("GPU-face0300");
  EXPECT_TRUE(Has(unknown, "\"added\":true") &&
              Has(unknown, "Whether this host has GPU-face0300 could not be"))
      << unknown;
}

TEST_F(VmRequestsTest, SessionsKeepAVmUnlessForced) {
  Start();
  ASSERT_TRUE(Has(Ask(AddRequest()), "\"added\":true"));
  GuestRegion guest(file());
  guest.Open(3, 1);
  ASSERT_TRUE(guest.WaitForHostWord(3, 1, SlotHostState::kServing)) << guest.refusal(3);
  EXPECT_TRUE(Has(Ask(RemoveRequest()), "has 1 sessions"));
  EXPECT_TRUE(std::filesystem::exists(kept()));
  EXPECT_TRUE(Has(Ask(RemoveRequest(true)), "\"ok\":true"));
  EXPECT_TRUE(WaitFor([&] { return guest.host_page().state == HostState::kStopped; }));
  EXPECT_TRUE(guest.WaitForHostWord(3, 1, SlotHostState::kClosed));
  EXPECT_TRUE(WaitForNoSession());
  // The name is free again, and what its VM was guaranteed.
  EXPECT_TRUE(Has(Ask(AddRequest()), "\"added\":true"));
  EXPECT_TRUE(Has(Ask(RemoveRequest()), "\"ok\":true"));
}

TEST_F(VmRequestsTest, ConfiguredVmsAreTheFilesMatter) {
  Start("[[vm]]\nname = \"" + name_ + "\"\nregion_file = \"" + file() + "\"\nregion_mib = 64\n");
  EXPECT_TRUE(Has(Ask(AddRequest()), "\"added\":false"));
  EXPECT_TRUE(Has(Ask(RemoveRequest()), "is in causewayd's configuration file"));
  EXPECT_EQ(Listed()[0]["added"], false);
}

TEST_F(VmRequestsTest, AFileThatCannotBeUsedIsLeftOut) {
  std::filesystem::create_directory(folder() + "/state/vms.d");
  const std::string start = "[[vm]]\nname = \"" + name_ + "\"\nregion_mib = 64\nregion_file = \"";
  std::ofstream(folder() + "/state/vms.d/broken.toml") << "[[vm]]\nname = ";
  std::ofstream(folder() + "/state/vms.d/other.toml") << start << file() << "\"\n";
  std::ofstream(kept()) << start << "/dev/shm\"\n";
  Start();
  EXPECT_TRUE(Has(LogText(), "broken.toml"));
  EXPECT_TRUE(Has(LogText(), "holds a VM of another name"));
  // One whose region cannot be had is served when it can.
  ASSERT_EQ(Listed().size(), 1u);
  EXPECT_TRUE(Has(Listed()[0]["problem"].get<std::string>(), "/dev/shm"));
}

TEST_F(VmRequestsTest, WhatIsNotKeptIsNotServed) {
  std::ofstream(folder() + "/state/vms.d") << "no folder";
  Start();
  EXPECT_TRUE(Has(Ask(AddRequest()), "cannot be written"));
  EXPECT_EQ(Listed(), Json::array());
  EXPECT_FALSE(std::filesystem::exists(file()));
}

TEST_F(VmRequestsTest, GroupsAndUsersAreTheConfigurations) {
  Start("attach_groups = []\n");
  Json request = AddRequest();
  request["group"] = "daemon";
  EXPECT_TRUE(Has(Ask(request), "QEMU runs as group daemon, to which causewayd gives no region"));
  request.erase("group");
  request["user"] = 0;
  EXPECT_TRUE(Has(Ask(request), "user must be a whole number from 1000"));
  EXPECT_FALSE(std::filesystem::exists(file()));
  if (geteuid() != 0) GTEST_SKIP() << "the rest needs root";
  request["user"] = 3001;
  EXPECT_TRUE(Has(Ask(request), "\"added\":true"));
  struct stat info {};
  ASSERT_EQ(stat(file().c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, 3001u);
  KillDaemon();
  Start();
  EXPECT_EQ(Listed()[0]["problem"], "") << "the daemon reads what it has given away";
  Ask(RemoveRequest());
}

// A packet from a process of that user, whatever the socket's mode would say.
std::string AskAs(uid_t user, const std::string& path, const std::string& packet) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    if (setgroups(0, nullptr) != 0 || setgid(user) != 0 || setuid(user) != 0) _exit(1);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    const int client = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    char answer[1024];
    ssize_t bytes = -1;
    if (connect(client, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
      send(client, packet.data(), packet.size(), MSG_NOSIGNAL);
      bytes = recv(client, answer, sizeof(answer), 0);
      // It was refused before it asked: the kernel says so once, and then hands out the answer.
      if (bytes < 0 && errno == ECONNRESET) bytes = recv(client, answer, sizeof(answer), 0);
    }
    const bool written = bytes > 0 && write(ends[1], answer, size_t(bytes)) == bytes;
    _exit(written ? 0 : 1);
  }
  close(ends[1]);
  char text[1024];
  const ssize_t bytes = read(ends[0], text, sizeof(text));
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return bytes > 0 ? std::string(text, size_t(bytes)) : "";
}

TEST_F(VmRequestsTest, OthersAreRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "becoming others needs root";
  Start();
  std::filesystem::permissions(folder(), std::filesystem::perms(0755));
  EXPECT_EQ(AskAs(3002, control(), "{\"do\":\"list\"}"), "") << "its mode keeps others out";
  chmod(control().c_str(), 0666);
  EXPECT_TRUE(Has(AskAs(3002, control(), "{\"do\":\"list\"}"), "You may not change what causewayd serves"));
  EXPECT_TRUE(Has(AskAs(0, control(), "{\"do\":\"list\"}"), "\"vms\":[]"));
  EXPECT_TRUE(Has(AskAs(0, control(), "nonsense"), "not a request of the causeway command"));
  EXPECT_TRUE(Has(AskAs(0, control(), std::string(100'000, 'x')), "at most 4096 bytes"));
  // Clients that say nothing keep nobody out for longer than their limit.
  EXPECT_EQ(Listed(), Json::array());
}

TEST_F(VmRequestsTest, AMemberOfTheGroupAddsVmsAndChangesNoShares) {
  if (geteuid() != 0) GTEST_SKIP() << "becoming others needs root";
  constexpr uid_t kDaemon = 1;  // user and group of that name, on every Debian
  Start("control_group = \"daemon\"\n[[user]]\nuid = 5\n");
  std::filesystem::permissions(folder(), std::filesystem::perms(0755));
  EXPECT_TRUE(Has(AskAs(kDaemon, control(), "{\"do\":\"list\"}"), "\"vms\":[]"));
  for (const char* what : {"set\",\"cap\":1", "pause\"", "resume\""}) {
    const std::string request = std::string("{\"name\":\"uid:5\",\"do\":\"") + what + "}";
    EXPECT_TRUE(
        Has(AskAs(kDaemon, control(), request), "Only root and the user of causewayd may ask for that."))
        << request;
    EXPECT_TRUE(Has(AskAs(0, control(), request), "\"scope\":\"uid:5\"")) << request;
  }
}

TEST_F(VmRequestsTest, NoStateFolderNoSocket) {
  StartDaemon("ok");
  EXPECT_TRUE(Has(Ask({{"do", "list"}}), "its configuration has state_folder"));
}

}  // namespace
}  // namespace causeway::test
