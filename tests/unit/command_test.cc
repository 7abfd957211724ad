// SPDX-License-Identifier: Apache-2.0
// The `causeway` command as a user meets it: exit codes, signals, errors, and nothing left behind.
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/unit/daemon_fixture.h"

namespace causeway::test {
namespace {

struct Outcome {
  int exit_code = -1;
  std::string output;
};

class CommandTest : public DaemonFixture {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(folder() + "/guest");
    std::ofstream(folder() + "/guest/libcuda.so.1") << "not loaded by these tests";
    std::filesystem::create_directory(folder() + "/runtime");
  }

  std::string Causeway(const std::string& arguments) const {
    return "XDG_RUNTIME_DIR=" + folder() + "/runtime " CAUSEWAY_PATH " " + arguments;
  }
  std::string Run(const std::string& options, const std::string& command) const {
    return Causeway("run --guest-library " + folder() + "/guest " + options + " -- " + command);
  }
  Outcome Shell(const std::string& command) const {
    Outcome outcome;
    FILE* pipe = popen(("{ " + command + "; } 2>&1").c_str(), "r");
    char buffer[4096];
    while (std::fgets(buffer, sizeof(buffer), pipe) != nullptr) outcome.output += buffer;
    const int status = pclose(pipe);
    outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return outcome;
  }
  void ExpectNothingLeft() const { EXPECT_TRUE(std::filesystem::is_empty(folder() + "/runtime")); }
};

TEST_F(CommandTest, RunGivesTheCommandItsSurroundings) {
  const Outcome local = Shell(Run("", "sh -c 'echo \"$CAUSEWAY $LD_LIBRARY_PATH\"'"));
  EXPECT_EQ(local.exit_code, 0);
  EXPECT_EQ(local.output.rfind("local:" + folder() + "/runtime/causeway-", 0), 0u) << local.output;
  EXPECT_NE(local.output.find("/socket " + folder() + "/guest"), std::string::npos) << local.output;
  const Outcome tcp = Shell(Run("--tcp", "sh -c 'echo $CAUSEWAY'"));
  EXPECT_EQ(tcp.output.rfind("tcp://127.0.0.1:", 0), 0u) << tcp.output;
  ExpectNothingLeft();
}

TEST_F(CommandTest, RunReturnsTheExitCode) {
  EXPECT_EQ(Shell(Run("", "sh -c 'exit 42'")).exit_code, 42);
  EXPECT_EQ(Shell(Run("", "sh -c 'kill -KILL $$'")).exit_code, 128 + SIGKILL);
  const Outcome missing = Shell(Run("", "/no/such/command"));
  EXPECT_EQ(missing.exit_code, 127);
  EXPECT_NE(missing.output.find("the command /no/such/command cannot be started: No such file or directory"),
            std::string::npos);
  ExpectNothingLeft();
}

TEST_F(CommandTest, RunPassesSignalsOn) {
  const Outcome trapped = Shell(
      Run("", "sh -c 'trap \"echo got it; exit 9\" TERM; kill -TERM $PPID; while :; do sleep 0.05; done'"));
  EXPECT_EQ(trapped.exit_code, 9);
  EXPECT_EQ(trapped.output, "got it\n");
  ExpectNothingLeft();
}

TEST_F(CommandTest, RunFailsWithTheDaemonsSentence) {
  const Outcome size = Shell(Run("--region-mib 65", "true"));
  EXPECT_EQ(size.exit_code, 125);
  EXPECT_NE(size.output.find("local_region_mib is 65 but must be a power of two."), std::string::npos)
      << size.output;
  const Outcome library = Shell(Causeway("run --guest-library /nowhere -- true"));
  EXPECT_EQ(library.exit_code, 125);
  EXPECT_NE(library.output.find("libcuda.so.1 was not found in /nowhere; build it or name its folder"),
            std::string::npos);
  const Outcome driver = Shell(Run("--driver /nowhere/libcuda.so.1", "true"));
  EXPECT_NE(driver.output.find("The driver library /nowhere/libcuda.so.1 does not exist; correct --driver."),
            std::string::npos);
  ExpectNothingLeft();
}

TEST_F(CommandTest, Trace) {
  const std::string at = " --socket " + socket();
  EXPECT_NE(Shell(Causeway("trace" + at)).output.find("No daemon answers at "), std::string::npos);
  StartDaemon("ok");
  const Outcome nobody = Shell(Causeway("trace" + at));
  EXPECT_EQ(nobody.exit_code, 1);
  EXPECT_NE(nobody.output.find("No session has been served that you may look into."), std::string::npos);
  EXPECT_EQ(Shell(Causeway("trace --list" + at)).output, "no sessions\n");
  {
    LocalClient client(socket());
    ASSERT_EQ(client.RequestSession().accepted, 1u);
    client.region().Open(0, 1);
    ASSERT_TRUE(client.SendReady());
    WaitForSession("serving");
    // The guest's side is whatever the guest has written.
    std::memset(client.region().base() + SlotOffset(0) + kGuestFlightOffset, 0x5a, sizeof(FlightImage));
    EXPECT_EQ(Shell(Causeway("trace --last" + at + " | python3 -m json.tool > /dev/null")).output, "");
  }
  ASSERT_TRUE(WaitForNoSession());
  EXPECT_NE(Shell(Causeway("trace --list" + at)).output.find("ended"), std::string::npos);
  EXPECT_EQ(Shell(Causeway("trace --session 1 --out " + folder() + "/trace" + at)).output, "");
  EXPECT_TRUE(std::filesystem::exists(folder() + "/trace"));
  EXPECT_NE(Shell(Causeway("trace --session 2" + at)).output.find("no session of that number"),
            std::string::npos);
}

TEST_F(CommandTest, Status) {
  const Outcome nobody = Shell(Causeway("status --socket " + socket()));
  EXPECT_EQ(nobody.exit_code, 1);
  EXPECT_NE(
      nobody.output.find("No daemon answers at " + socket() + ": No such file or directory; start causewayd"),
      std::string::npos);
  StartDaemon("ok", VmConfig());
  LocalClient client(socket());
  ASSERT_EQ(client.RequestSession().accepted, 1u);
  client.region().Open(0, 1);
  ASSERT_TRUE(client.SendReady());
  WaitForSession("serving");
  const Outcome text = Shell(Causeway("status --socket " + socket()));
  EXPECT_EQ(text.exit_code, 0);
  for (const char* part : {"up ", "driver: ok, version 13000, 1 devices", "1 sessions, 0 refused",
                           "64 MiB, 0 of 4 slots in use, 27 of 27 slices free", "local  -            pid "}) {
    EXPECT_NE(text.output.find(part), std::string::npos) << part << " in " << text.output;
  }
  // The text is JSON for others too.
  const Outcome json =
      Shell(Causeway("status --json --socket " + socket()) +
            " | python3 -c 'import json,sys; print(len(json.load(sys.stdin)[\"sessions\"]))'");
  EXPECT_EQ(json.output, "1\n");
}

// Whoever made the socket, and whatever it answers: nothing of it commands the terminal.
TEST_F(CommandTest, StatusPrintsNoControlCharacters) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  socket().copy(address.sun_path, sizeof(address.sun_path) - 1);
  const UniqueFd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(listener.get(), 1), 0);
  const auto ask = [&](const char* option, bool accepted, const std::string& text) {
    std::thread daemon([&] {
      const UniqueFd client(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      LocalReply reply{kLocalMagic, accepted ? 1u : 0u, 0, 0, ""};
      if (!accepted) text.copy(reply.text, sizeof(reply.text) - 1);
      LocalRequest request{};
      EXPECT_EQ(recv(client.get(), &request, sizeof(request), 0), ssize_t(sizeof(request)));
      send(client.get(), &reply, sizeof(reply), MSG_NOSIGNAL);
      if (accepted) send(client.get(), text.data(), text.size(), MSG_NOSIGNAL);
    });
    const std::string output = Shell(Causeway("status --socket " + socket() + option)).output;
    daemon.join();
    EXPECT_EQ(output.find_first_of("\x1b\x07\x7f\x9b"), std::string::npos) << output;
    return output;
  };
  EXPECT_NE(ask("", true, R"({"version": "\u001b]0;\u0007", "tcp": "\u009b2J"})").find(R"(\u001b]0;\u0007)"),
            std::string::npos);
  EXPECT_NE(ask(" --json", true, "{\x1b[2J\x7f}").find(R"({\u001b[2J\u007f})"), std::string::npos);
  EXPECT_NE(ask("", false, "No.\x1b[2J \x9b").find(R"(No.\u001b[2J)"), std::string::npos);
}

}  // namespace
}  // namespace causeway::test
