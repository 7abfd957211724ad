// SPDX-License-Identifier: Apache-2.0
// `causeway set`, `pause` and `resume` with a running daemon: what they change, until when, and each of their mistakes.
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>

#include "host_backend/command/attach/control_client.h"
#include "host_backend/command/command.h"
#include "host_backend/common/control_socket.h"
#include "tests/unit/daemon_fixture.h"

namespace causeway::test {
namespace {

constexpr const char* kGpu = "GPU-00000000-0000-0000-0000-000000000001";
constexpr const char* kOtherGpu = "GPU-00000000-0000-0000-0000-000000000002";

struct Outcome {
  int exit_code = -1;
  std::string output;
};

class ShareRequestsTest : public DaemonFixture {
 protected:
  ShareRequestsTest() : added_("test-" + std::to_string(getpid())) {}
  ~ShareRequestsTest() override {
    std::filesystem::remove(std::string(kRegionFolder) + kRegionPrefix + added_);
  }
  void SetUp() override { std::filesystem::create_directory(folder() + "/state"); }
  std::string More(const std::string& more) const {
    return "state_folder = \"" + folder() + "/state\"\n" + more;
  }
  void Start(const std::string& more) {
    std::filesystem::remove(folder() + "/log");  // StartDaemon waits for a line of it
    StartDaemon("ok", More(more));
  }
  std::string Ask(const Json& request) const {
    const auto answer = command::AskControl(ControlSocketOf(socket()), request);
    return answer.ok() ? JsonText(answer.value()) : answer.error();
  }
  std::string Reload(const std::string& more) const {
    std::ofstream(folder() + "/config.toml") << Config("ok", More(more));
    return Ask({{"do", "reload"}});
  }
  void Add() const {
    EXPECT_TRUE(Has(Ask({{"do", "add"}, {"name", added_}, {"memory_mib", 64}}), "\"added\":true"));
  }
  // The command with these arguments; standard output and error together.
  Outcome Causeway(const std::string& command, const std::string& arguments) const {
    Outcome outcome;
    const std::string line = std::string(CAUSEWAY_PATH) + " " + command + " --control-socket " +
                             ControlSocketOf(socket()) + " " + arguments + " 2>&1";
    FILE* pipe = popen(line.c_str(), "r");
    char buffer[4096];
    while (fgets(buffer, sizeof(buffer), pipe) != nullptr) outcome.output += buffer;
    const int status = pclose(pipe);
    if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
    return outcome;
  }
  void Succeeds(const std::string& command, const std::string& arguments, const std::string& output) const {
    const Outcome outcome = Causeway(command, arguments);
    EXPECT_EQ(outcome.output, output + "\n") << command << " " << arguments;
    EXPECT_EQ(outcome.exit_code, 0) << command << " " << arguments;
  }
  void Fails(const std::string& command, const std::string& arguments, const std::string& sentence,
             int exit_code = 1) const {
    const Outcome outcome = Causeway(command, arguments);
    EXPECT_EQ(outcome.output, "causeway: " + sentence + "\n") << command << " " << arguments;
    EXPECT_EQ(outcome.exit_code, exit_code) << command << " " << arguments;
  }
  // What the status says of that scope's shares.
  Json Scope(const std::string& name) const {
    const Json status = Json::parse(Status());
    for (const Json& scope : status["scopes"]) {
      if (scope["scope"] == name) return scope;
    }
    return {};
  }
  static bool Has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }

  const std::string added_;
};

TEST_F(ShareRequestsTest, WhatIsSetHoldsForLiveSessionsUntilTheNextReload) {
  Start(VmConfig(64, "weight = 200\ncap = 50\n"));
  GuestRegion guest(region_file());
  guest.Open(0, 1);
  ASSERT_TRUE(guest.WaitForHostWord(0, 1, SlotHostState::kServing)) << guest.refusal(0);
  EXPECT_EQ(Scope("vm:guest")["weight"], 200);
  Succeeds("set", "guest weight=300 class=latency",
           "vm:guest: weight 300, cap 50 %, reserve 0 %, class latency; some of it until the next reload.");
  Succeeds("set", "vm:guest reserve=10",
           "vm:guest: weight 300, cap 50 %, reserve 10 %, class latency; some of it until the next reload.");
  Succeeds("set", "guest cap=60 --json",
           "{\"ok\":true,\"scope\":\"vm:guest\",\"weight\":300,\"cap\":60,\"reserve\":10,\"class\":"
           "\"latency\",\"pcie_mib_per_s\":0,"
           "\"paused\":false,\"until_reload\":true}");
  const Json scope = Scope("vm:guest");
  EXPECT_EQ(JsonText(scope),
            "{\"scope\":\"vm:guest\",\"sessions\":1,\"weight\":300,\"cap\":60,\"reserve\":10,\"class\":"
            "\"latency\",\"pcie_mib_per_s\":0,"
            "\"paused\":false,\"until_reload\":true,\"worker_deaths\":0}");
  EXPECT_TRUE(Has(Reload(VmConfig(64, "weight = 9\ncap = 8\n")), "is in force"));
  EXPECT_EQ(Scope("vm:guest")["weight"], 9);
  EXPECT_EQ(Scope("vm:guest")["cap"], 8);
  EXPECT_EQ(Scope("vm:guest")["until_reload"], false);
  EXPECT_EQ(SlotState(guest.host_page().slot[0]), uint32_t(SlotHostState::kServing));
}

TEST_F(ShareRequestsTest, CopiesAreCapped) {
  Start(VmConfig(64, "pcie_mib_per_s = 500\n"));
  EXPECT_EQ(Scope("vm:guest")["pcie_mib_per_s"], 500);
  Succeeds(
      "set", "guest pcie_mib_per_s=800",
      "vm:guest: weight 100, cap 100 %, reserve 0 %, class normal, 800 MiB/s of copies each way; some of it "
      "until the next reload.");
  EXPECT_EQ(Scope("vm:guest")["pcie_mib_per_s"], 800);
  Succeeds("set", "guest pcie_mib_per_s=0",
           "vm:guest: weight 100, cap 100 %, reserve 0 %, class normal; some of it until the next reload.");
  const std::string wrong = Reload(VmConfig(64, "pcie_mib_per_s = 1000001\n"));
  EXPECT_TRUE(Has(wrong, "config.toml:11: [[vm]] pcie_mib_per_s is 1000001 but must be from 0 to 1000000."))
      << wrong;
  EXPECT_EQ(Scope("vm:guest")["pcie_mib_per_s"], 0) << "what was set is in force";
  EXPECT_TRUE(Has(Reload(VmConfig(64, "pcie_mib_per_s = 500\n")), "is in force"));
  EXPECT_EQ(Scope("vm:guest")["pcie_mib_per_s"], 500);
}

TEST_F(ShareRequestsTest, UsersAndPeersAreNamedAsTheStatusNamesThem) {
  Start("local_weight = 40\n[[user]]\nuid = 5\nweight = 50\n");
  Succeeds("set", "uid:5 cap=60",
           "uid:5: weight 50, cap 60 %, reserve 0 %, class normal; some of it until the next reload.");
  Succeeds("set", "uid:6 cap=60",
           "uid:6: weight 40, cap 60 %, reserve 0 %, class normal; some of it until the next reload.");
  Succeeds("pause", "container:uid:7",
           "container:uid:7: weight 40, cap 100 %, reserve 0 %, class normal, paused.");
  Succeeds("set", "tcp:10.0.0.5 weight=1",
           "tcp:10.0.0.5: weight 1, cap 100 %, reserve 0 %, class normal; some of it until the next reload.");
  EXPECT_EQ(Scope("uid:6")["sessions"], 0);
}

TEST_F(ShareRequestsTest, PauseOutlivesAReloadAndNoSessionEnds) {
  Start(VmConfig());
  GuestRegion guest(region_file());
  guest.Open(0, 1);
  ASSERT_TRUE(guest.WaitForHostWord(0, 1, SlotHostState::kServing)) << guest.refusal(0);
  Succeeds("pause", "guest", "vm:guest: weight 100, cap 100 %, reserve 0 %, class normal, paused.");
  EXPECT_EQ(Scope("vm:guest")["paused"], true);
  EXPECT_TRUE(Has(LogText(), "vm:guest is paused: no work of it starts"));
  EXPECT_TRUE(Has(Reload(VmConfig()), "is in force"));
  EXPECT_EQ(Scope("vm:guest")["paused"], true);
  guest.Open(1, 1);
  EXPECT_TRUE(guest.WaitForHostWord(1, 1, SlotHostState::kServing)) << "sessions begin: their work waits";
  Succeeds("resume", "guest --json",
           "{\"ok\":true,\"scope\":\"vm:guest\",\"weight\":100,\"cap\":100,\"reserve\":0,\"class\":"
           "\"normal\",\"pcie_mib_per_s\":0,"
           "\"paused\":false,\"until_reload\":false}");
  EXPECT_EQ(Scope("vm:guest")["paused"], false);
  EXPECT_EQ(SlotState(guest.host_page().slot[0]), uint32_t(SlotHostState::kServing));
}

TEST_F(ShareRequestsTest, PersistIsForAddedVms) {
  Start(VmConfig() + "[[remote]]\nname = \"far\"\n");
  Add();
  Succeeds("set", added_ + " weight=7",
           "vm:" + added_ +
               ": weight 7, cap 100 %, reserve 0 %, class normal; some of it until the "
               "next reload.");
  Succeeds("set", added_ + " cap=30 reserve=20 class=background --persist",
           "vm:" + added_ +
               ": weight 7, cap 30 %, reserve 20 %, class background; some of it until the next reload.");
  EXPECT_TRUE(Has(Reload(VmConfig() + "[[remote]]\nname = \"far\"\n"), "is in force"));
  EXPECT_EQ(Scope("vm:" + added_)["weight"], 100);
  EXPECT_EQ(Scope("vm:" + added_)["cap"], 30);
  // What is stored by itself has to be right by itself.
  Succeeds("set", added_ + " cap=90",
           "vm:" + added_ +
               ": weight 100, cap 90 %, reserve 20 %, class background; some of it until the next reload.");
  Fails("set", added_ + " reserve=60 --persist",
        "VM " + added_ + " would be stored with a reserve of 60 % above its stored cap of 30 %; store both.");
  const std::string file = "of " + folder() + "/config.toml and run `causeway reload`; nothing was changed.";
  Fails(
      "set", "guest weight=200 class=latency --persist",
      "VM guest is in causewayd's configuration file, which --persist does not write; write `weight = 200`, "
      "`class = \"latency\"` into its table " +
          file);
  Fails(
      "set", "far cap=5 --persist",
      "VM far is in causewayd's configuration file, which --persist does not write; write `cap = 5` into its "
      "table " +
          file);
  Fails("set", "uid:5 reserve=5 --persist",
        "--persist does not write causewayd's configuration file; write `reserve = 5` into a [[user]] table "
        "with "
        "`uid = 5` " +
            file);
  Fails("set", "tcp:10.0.0.5 cap=5 --persist",
        "Nothing is stored for tcp:10.0.0.5 alone; what is set for it lasts until the next reload.");
  EXPECT_EQ(Scope("vm:guest")["weight"], 100);
  // The added VM's reservation counts beside those of a configuration that is read later.
  EXPECT_TRUE(
      Has(Reload(VmConfig(64, "reserve = 81\n")),
          "The reserve of VM " + added_ + ", which `causeway attach` has added, with what VM guest have"));
  EXPECT_EQ(Scope("vm:guest")["reserve"], 0) << "nothing of that file is in force";
  EXPECT_TRUE(Has(Ask({{"do", "list"}}), "\"" + added_ + "\""));
  KillDaemon();
  Start(VmConfig());
  EXPECT_EQ(Scope("vm:" + added_)["reserve"], 20);
  EXPECT_EQ(Scope("vm:" + added_)["class"], "background");
  EXPECT_TRUE(Has(Ask({{"do", "remove"}, {"name", added_}}), "\"ok\":true"));
  Fails("set", added_ + " weight=1",
        "causewayd serves no VM " + added_ +
            "; see `causeway status`, which also names users (uid:NUMBER) and peers.");
}

TEST_F(ShareRequestsTest, TurnsAreSetForKnownGpus) {
  Start("local_gpus = [\"" + std::string(kGpu) + "\"]\n");
  Succeeds("set", std::string(kGpu) + " turn_ms=0.5",
           std::string(kGpu) + ": turns of 0.5 ms, until the next reload.");
  Fails(
      "set", std::string(kOtherGpu) + " turn_ms=4",
      "causewayd knows no GPU " + std::string(kOtherGpu) +
          ": its configuration does not name it and no session has shared it; `nvidia-smi -L` shows UUIDs.");
  Fails("set", std::string(kGpu) + " turn_ms=0.4", "turn_ms must be a number from 0.5 to 50.0.");
  Fails("set", std::string(kGpu) + " turn_ms=4 --persist",
        "--persist does not write causewayd's configuration file; write `turn_ms = 4.0` into a [[gpu]] table "
        "with "
        "`uuid = \"" +
            std::string(kGpu) + "\"` of " + folder() +
            "/config.toml and run `causeway reload`; nothing was changed.");
}

TEST_F(ShareRequestsTest, EachMistakeIsOneSentenceAndChangesNothing) {
  Start(VmConfig(64, "cap = 50\nreserve = 20\n") + "[[user]]\nuid = 5\nreserve = 30\n");
  const Json before = Scope("vm:guest");
  const std::string settings =
      "` is no setting; settings are weight=, cap=, reserve=, class= and pcie_mib_per_s= of a VM, and "
      "turn_ms= of a GPU.";
  Fails("set", "guest weight=0", "weight must be a whole number from 1 to 10000.");
  Fails("set", "guest weight=10001", "weight must be a whole number from 1 to 10000.");
  Fails("set", "guest weight=-1", "weight must be a whole number from 1 to 10000.");
  Fails("set", "guest weight=1.5", "weight must be a whole number from 1 to 10000.");
  Fails("set", "guest weight=many", "weight must be a whole number from 1 to 10000.");
  Fails("set", "guest cap=0", "cap must be a whole number from 1 to 100.");
  Fails("set", "guest cap=101", "cap must be a whole number from 1 to 100.");
  Fails("set", "guest reserve=101", "reserve must be a whole number from 0 to 100.");
  Fails("set", "guest pcie_mib_per_s=-1", "pcie_mib_per_s must be a whole number from 0 to 1000000.");
  Fails("set", "guest pcie_mib_per_s=1000001", "pcie_mib_per_s must be a whole number from 0 to 1000000.");
  Fails("set", "guest class=fast", "class must be latency, normal or background.");
  Fails("set", "guest cap=19", "VM guest would have a reserve of 20 % above its cap of 19 %; change both.");
  Fails("set", "guest cap=80 reserve=71",
        "The reserve of VM guest with what uid:5 have makes 101 % of one GPU, of which 100 % is all; lower "
        "one of "
        "them.");
  Fails("set", "guest weight=1 turn_ms=2",
        "What is set is weight, cap, reserve, class or pcie_mib_per_s of a VM, or turn_ms of a GPU.");
  Fails("set", "guest turn_ms=2",
        "causewayd knows no GPU guest: its configuration does not name it and no session has shared it; "
        "`nvidia-smi "
        "-L` shows UUIDs.");
  Fails("set", "guest wieght=1", "`wieght=1" + settings, 2);
  Fails("set", "guest weight", "`weight" + settings, 2);
  Fails("set", "guest weight=", "`weight=" + settings, 2);
  Fails("set", "guest weight=1 weight=2", "weight is set twice.", 2);
  EXPECT_EQ(Causeway("set", "guest").exit_code, 2);
  for (const char* command : {"pause", "resume"}) {
    Fails(command, "nobody",
          "causewayd serves no VM nobody; see `causeway status`, which also names users (uid:NUMBER) and "
          "peers.");
  }
  EXPECT_EQ(Scope("vm:guest"), before);
  EXPECT_EQ(Ask({{"do", "set"}, {"name", "guest"}}),
            "What is set is weight, cap, reserve, class or pcie_mib_per_s of a VM, or turn_ms of a GPU.");
  EXPECT_EQ(Ask({{"do", "set"}, {"name", "a\nb"}, {"cap", 1}}),
            "A VM, user or peer is named as `causeway status` shows it.");
  EXPECT_EQ(Ask({{"do", "pause"}, {"name", "guest"}, {"for_s", 1}}),
            "This request has a field that this causewayd does not know; install command and daemon of one "
            "version.");
  StopDaemon();
  EXPECT_TRUE(Has(Causeway("pause", "guest").output, "causewayd cannot be reached at its control socket"));
  EXPECT_EQ(Causeway("set", "guest cap=1").exit_code, 1);
}

TEST_F(ShareRequestsTest, AReloadWithAMistakeChangesNothing) {
  Start(VmConfig(64, "weight = 200\n"));
  Succeeds("set", "guest cap=30",
           "vm:guest: weight 200, cap 30 %, reserve 0 %, class normal; some of it until the next "
           "reload.");
  const std::string wrong = Reload(VmConfig(64, "weight = 0\n"));
  EXPECT_TRUE(Has(wrong, "config.toml:11: [[vm]] weight is 0 but must be from 1 to 10000.")) << wrong;
  EXPECT_EQ(Scope("vm:guest")["weight"], 200);
  EXPECT_EQ(Scope("vm:guest")["cap"], 30) << "what was set is in force as well";
}

TEST_F(ShareRequestsTest, AVmThatLeavesKeepsItsSharesForItsSessions) {
  Start(VmConfig(64, "cap = 30\nreserve = 20\n"));
  GuestRegion guest(region_file());
  guest.Open(0, 1);
  ASSERT_TRUE(guest.WaitForHostWord(0, 1, SlotHostState::kServing)) << guest.refusal(0);
  EXPECT_TRUE(Has(Reload(""), "its 1 sessions go on"));
  EXPECT_EQ(Scope("vm:guest")["cap"], 30);
  EXPECT_EQ(Scope("vm:guest")["reserve"], 0) << "what was kept for it is free";
  EXPECT_TRUE(Has(Reload(VmConfig(64, "cap = 40\nreserve = 20\n")), "is in force"));
  EXPECT_EQ(Scope("vm:guest")["cap"], 40);
  EXPECT_EQ(Scope("vm:guest")["reserve"], 20);
}

}  // namespace
}  // namespace causeway::test
