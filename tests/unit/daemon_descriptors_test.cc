// SPDX-License-Identifier: Apache-2.0
// The kernel refuses to send a descriptor over a UNIX socket (ETOOMANYREFS) while all processes of the sender's
// user together have more of them on their way than the sender may have open. Any process of that user, a hostile
// worker among them, can bring the count there: it may cost a session, and never the daemon.
#include <linux/securebits.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <fstream>

#include "host_backend/command/command.h"
#include "host_backend/common/unique_fd.h"
#include "ivshmem_ring/transport/packet.h"
#include "tests/unit/daemon_fixture.h"

namespace causeway::test {
namespace {

class DescriptorsTest : public DaemonFixture {
 protected:
  // More than the processes that are tried may have open; other tests' processes keep their own, higher limit.
  static constexpr rlim_t kLimit = 256;
  static constexpr size_t kOnTheirWay = 2 * kLimit;

  // What these tests start has no capabilities, also where they run as root: with CAP_SYS_ADMIN, which the launcher
  // of a daemon of root has, a process may send descriptors without limit.
  void SetUp() override {
    secure_bits_ = prctl(PR_GET_SECUREBITS);
    if (geteuid() == 0) {
      ASSERT_EQ(prctl(PR_SET_SECUREBITS, secure_bits_ | SECBIT_NOROOT), 0) << strerror(errno);
    }
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    own_.reset(ends[0]);
    other_.reset(ends[1]);
  }
  void TearDown() override { prctl(PR_SET_SECUREBITS, secure_bits_); }
  void Fill() {
    const std::vector<int> copies(128, own_.get());
    for (size_t sent = 0; sent < kOnTheirWay; sent += copies.size())
      ASSERT_TRUE(SendPacket(own_.get(), "", 1, copies)) << strerror(errno);
  }
  void Drain() {
    char byte;
    while (recv(other_.get(), &byte, 1, MSG_DONTWAIT) == 1) {
    }
  }
  static void Limit(pid_t process) {
    const rlimit limit{kLimit, kLimit};
    ASSERT_EQ(prlimit(process, RLIMIT_NOFILE, &limit, nullptr), 0) << strerror(errno);
  }
  pid_t Launcher() const {
    const std::string pid = std::to_string(daemon_pid());
    std::ifstream children("/proc/" + pid + "/task/" + pid + "/children");
    pid_t launcher = 0;
    children >> launcher;
    return launcher;
  }
  // The worker that is ready for the next session.
  pid_t SpareWorker() const {
    pid_t spare = 0;
    EXPECT_TRUE(WaitFor([&] { return HasSpare(); }));
    const std::string log = LogText(), end = " is ready";
    const size_t at = log.rfind(end);
    if (at != std::string::npos) spare = std::atoi(log.c_str() + log.rfind(' ', at - 1) + 1);
    EXPECT_GT(spare, 0) << log;
    return spare;
  }
  bool IsServed() {
    LocalClient client(socket());
    if (!client.connected() || client.RequestSession().accepted != 1) return false;
    client.region().Open(0, 1);
    return client.SendReady() && client.region().WaitForHostWord(0, 1, SlotHostState::kServing);
  }
  bool HasSpare() const { return command::StatusValue(Status(), "workers", "spare_ready") == "1"; }
  // While `limited` cannot send any descriptor: a worker is wanted and not started, and nothing else ends.
  void TryWith(const std::function<pid_t()>& limited, const std::function<void()>& meanwhile) {
    StartDaemon("ok");
    ASSERT_TRUE(IsServed());
    ASSERT_TRUE(WaitForNoSession());
    const pid_t spare = SpareWorker(), process = limited();
    ASSERT_GT(process, 0);
    Limit(process);
    Fill();
    meanwhile();
    kill(spare, SIGKILL);
    EXPECT_TRUE(WaitFor([&] {
      return LogText().find(
                 "worker could not be started. A worker process cannot be started: Too many references") !=
             std::string::npos;
    })) << LogText();
    Drain();
    EXPECT_TRUE(WaitFor([&] { return HasSpare(); })) << LogText();
    EXPECT_TRUE(IsServed());
    EXPECT_TRUE(WaitForNoSession());
    EXPECT_EQ(LogText().find("the launcher ended"), std::string::npos);
  }

 private:
  int secure_bits_ = 0;
  UniqueFd own_, other_;
};

TEST_F(DescriptorsTest, TheDaemonCannotSendAny) {
  TryWith([&] { return daemon_pid(); },
          [&] {
            LocalClient client(socket());
            ASSERT_TRUE(client.connected());
            const LocalReply reply = client.RequestSession();
            EXPECT_EQ(reply.accepted, 0u);
            EXPECT_NE(std::string(reply.text).find("Too many references"), std::string::npos) << reply.text;
          });
}

TEST_F(DescriptorsTest, TheLauncherCannotSendAny) {
  TryWith([&] { return Launcher(); }, [] {});
}

}  // namespace
}  // namespace causeway::test
