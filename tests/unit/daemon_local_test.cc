// SPDX-License-Identifier: Apache-2.0
// Sessions over the local socket and TCP, with every way in which one of the three processes can end.
#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <list>

#include "host_backend/command/command.h"
#include "host_backend/common/control_socket.h"
#include "host_backend/daemon/region/region.h"
#include "ivshmem_ring/release/build_stamp.h"
#include "tests/unit/daemon_fixture.h"
#include "tests/unit/lingering_socket.h"

namespace causeway::test {
namespace {

using command::StatusValue;

class LocalTest : public DaemonFixture {
 protected:
  // A served session.
  void Serve(LocalClient& client) {
    ASSERT_TRUE(client.connected());
    const LocalReply reply = client.RequestSession();
    ASSERT_EQ(reply.accepted, 1u) << reply.text;
    client.region().Open(0, 1);
    ASSERT_TRUE(client.SendReady());
    ASSERT_TRUE(client.region().WaitForHostWord(0, 1, SlotHostState::kServing)) << client.region().refusal(0);
    ASSERT_TRUE(WaitFor([&] { return client.region().host_control(0).ready.value == 1; }));
  }
  // Of a child process, which does all that a client does until it is served.
  static void GetReady(LocalClient& client) {
    client.RequestSession();
    client.region().Open(0, 1);
    client.SendReady();
  }
  void ExpectRefused(const OpenBlock& block, const std::string& sentence) {
    LocalClient client(socket());
    ASSERT_EQ(client.RequestSession().accepted, 1u);
    client.region().Open(0, 1, block);
    ASSERT_TRUE(client.SendReady());
    ASSERT_TRUE(client.region().WaitForHostWord(0, 1, SlotHostState::kRefused));
    EXPECT_NE(client.region().refusal(0).find(sentence), std::string::npos) << client.region().refusal(0);
  }
  pid_t WorkerPid(const std::string& session) {
    return std::atoi(StatusValue(session, "", "worker_pid").c_str());
  }
};

TEST_F(LocalTest, SessionIsServedAndClosed) {
  StartDaemon("fill");
  LocalClient client(socket());
  Serve(client);
  const Superblock block = client.region().superblock();
  EXPECT_EQ(block.magic, kRegionMagic);
  EXPECT_EQ(block.api_hash, kBuildStamp.api_hash);
  EXPECT_EQ(client.region().host_page().state, HostState::kRunning);
  EXPECT_EQ(client.region().host_control(0).main_head.value, kDefaultWindowAddress)
      << "the window as assigned";
  EXPECT_EQ(client.region().host_control(0).async_error.value, 1u) << "the session as assigned";
  const std::string session = WaitForSession("serving");
  EXPECT_EQ(StatusValue(session, "", "kind"), "local");
  EXPECT_EQ(StatusValue(session, "", "pid"), std::to_string(getpid()));
  EXPECT_TRUE(WaitFor([&] { return StatusValue(WaitForSession("serving"), "", "device_bytes") == "1"; }))
      << "ADDR_COMPAT_LAYOUT";
  EXPECT_TRUE(WaitFor([&] { return StatusValue(Status(), "workers", "spare_ready") == "1"; })) << "refilled";

  // Slices that belong to the slot are given back to the system when it closes.
  for (uint32_t granule = 5; granule < 9; ++granule) client.region().owners()[granule] = 1;
  struct stat before {};
  fstat(client.region().fd(), &before);
  ASSERT_GE(before.st_blocks * 512, 8 << 20);
  client.Close();
  EXPECT_TRUE(client.region().WaitForHostWord(0, 1, SlotHostState::kClosed));
  // A thread beside the loop does it, after the slot is closed: the region is nobody else's.
  const auto given_back = [&] {
    struct stat after {};
    fstat(client.region().fd(), &after);
    return after.st_blocks * 512 < (4 << 20);  // what is left may be a large page
  };
  EXPECT_TRUE(WaitFor(given_back)) << "memory is not given back";
  EXPECT_EQ(client.region().granule(5)[0], 0);
  EXPECT_TRUE(WaitForNoSession());
  EXPECT_EQ(Counter("sessions"), 1u);
  EXPECT_EQ(Counter("worker_deaths"), 0u);
}

// Whoever it is: this test's user, root in most places, sees all of them at the socket for the host.
TEST_F(LocalTest, AClientAtTheContainersSocketSeesItsOwnScopeAlone) {
  const std::string containers = folder() + "/containers";
  StartDaemon("ok", "container_folder = \"" + containers + "\"\n" + VmConfig());
  const std::string container_socket = containers + kContainerSocket;
  LocalClient of_host(socket());
  Serve(of_host);
  const std::string before = command::QueryStatus(container_socket).value();
  EXPECT_TRUE(command::JsonObjects(before, "sessions").empty()) << before;
  LocalClient in_container(container_socket);
  Serve(in_container);
  const std::string scope = "container:uid:" + std::to_string(geteuid());
  const std::string seen = command::QueryStatus(container_socket).value();
  const auto sessions = command::JsonObjects(seen, "sessions");
  ASSERT_EQ(sessions.size(), 1u) << seen;
  EXPECT_EQ(StatusValue(sessions[0], "", "scope"), scope);
  EXPECT_EQ(StatusValue(seen, "", "of_all"), "false");
  EXPECT_TRUE(command::JsonObjects(seen, "regions").empty()) << seen;
  EXPECT_TRUE(StatusValue(seen, "counters", "sessions").empty()) << seen;
  for (const auto& account : command::JsonObjects(seen, "accounts"))
    EXPECT_EQ(StatusValue(account, "", "scope"), scope);

  EXPECT_EQ(StatusValue(Status(), "", "of_all"), "true");
  EXPECT_EQ(command::JsonObjects(Status(), "sessions").size(), 2u);
  EXPECT_EQ(command::JsonObjects(Status(), "regions").size(), 1u);
}

TEST_F(LocalTest, KilledClientIsNoticed) {
  StartDaemon("stubborn");
  const pid_t child = fork();
  if (child == 0) {
    LocalClient client(socket());
    GetReady(client);
    pause();
  }
  const pid_t worker = WorkerPid(WaitForSession("serving"));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(WaitForNoSession()) << "a worker that does not end must be killed";
  EXPECT_NE(kill(worker, 0), 0);
}

TEST_F(LocalTest, ForkedChildDoesNotKeepTheSession) {
  StartDaemon("ok");
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    LocalClient client(socket());
    GetReady(client);
    client.region().WaitForHostWord(0, 1, SlotHostState::kServing);
    const pid_t grandchild = fork();
    if (grandchild == 0) pause();  // holds the socket
    [[maybe_unused]] const ssize_t written = write(pipe_ends[1], &grandchild, sizeof(grandchild));
    pause();
  }
  pid_t grandchild = 0;
  ASSERT_EQ(read(pipe_ends[0], &grandchild, sizeof(grandchild)), ssize_t(sizeof(grandchild)));
  WaitForSession("serving");
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(WaitForNoSession());
  kill(grandchild, SIGKILL);
}

TEST_F(LocalTest, KilledWorkerEndsItsSessionOnly) {
  StartDaemon("ok");
  LocalClient first(socket());
  LocalClient second(socket());
  Serve(first);
  const pid_t worker = WorkerPid(WaitForSession("serving"));
  Serve(second);
  kill(worker, SIGKILL);
  EXPECT_TRUE(first.region().WaitForHostWord(0, 1, SlotHostState::kFatal));
  EXPECT_NE(first.region().refusal(0).find("was killed by signal 9 (Killed); its GPU work is lost"),
            std::string::npos)
      << first.region().refusal(0);
  EXPECT_EQ(second.region().host_page().slot[0], SlotWord(1, uint32_t(SlotHostState::kServing)));
  EXPECT_EQ(Counter("worker_deaths"), 1u);
  first.Close();
  EXPECT_TRUE(first.region().WaitForHostWord(0, 1, SlotHostState::kClosed));
}

// A region with huge pages cannot be sealed against that.
TEST_F(LocalTest, TruncatedRegionEndsItsSessionOnly) {
  StartDaemon("ok");
  LocalClient first(socket());
  LocalClient second(socket());
  Serve(first);
  Serve(second);
  if (ftruncate(first.region().fd(), 4096) != 0) {
    EXPECT_EQ(errno, EPERM);
    GTEST_SKIP() << "sealed: the daemon may not mount here";
  }
  const uint64_t beat = second.region().host_page().beat;
  EXPECT_TRUE(WaitFor([&] { return second.region().host_page().beat > beat + 2; }));
  LocalClient third(socket());
  Serve(third);
  EXPECT_EQ(second.region().host_page().slot[0], SlotWord(1, uint32_t(SlotHostState::kServing)));
  first.Close();
  second.Close();
  third.Close();
  EXPECT_TRUE(WaitForNoSession());
  EXPECT_EQ(StopDaemon(), 0);
}

// Huge pages need a file system of the daemon's own; without the right to mount one, memory files do.
TEST(RegionFileTest, WithoutPrivilegesItIsASealedMemoryFile) {
  const pid_t child = fork();
  if (child == 0) {
    if (getuid() == 0 && setuid(65534) != 0) _exit(2);
    const auto region = daemon::Region::Create(64u << 20);
    _exit(region.ok() && (fcntl(region.value()->fd(), F_GET_SEALS) & F_SEAL_SHRINK) != 0 ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(LocalTest, WorkersOwnReasonIsKept) {
  StartDaemon("violation");
  LocalClient client(socket());
  ASSERT_EQ(client.RequestSession().accepted, 1u);
  client.region().Open(0, 1);
  ASSERT_TRUE(client.SendReady());
  EXPECT_TRUE(client.region().WaitForHostWord(0, 1, SlotHostState::kFatal));
  EXPECT_EQ(client.region().refusal(0), "The fake worker saw a malformed record.");
  EXPECT_EQ(Counter("violations"), 1u);
}

TEST_F(LocalTest, MismatchesAreRefusedWithASentence) {
  StartDaemon("ok");
  {
    LocalClient client(socket());
    const LocalReply reply = client.RequestSession(9);
    EXPECT_EQ(reply.accepted, 0u);
    EXPECT_NE(std::string(reply.text)
                  .find("speaks version 9.1 and this host 1.1; install the same Causeway release"),
              std::string::npos);
    EXPECT_TRUE(client.WaitForEnd());
  }
  OpenBlock block{};
  ExpectRefused(block, "has the wrong magic 0x0");
  {
    LocalClient client(socket());
    client.RequestSession();
    block = client.region().GoodOpenBlock();
  }
  const OpenBlock good = block;
  block.abi_major = 2;
  ExpectRefused(block, "The guest library speaks version 2.1 of the region and this host 1.1");
  block = good;
  block.api_hash ^= 1;
  ExpectRefused(block, "has no worker: install causeway-worker-");
  for (const uint64_t window :
       {uint64_t{0}, uint64_t{0x400000000001}, uint64_t{0x2aaa00000000}, uint64_t{0x7fffffffffff000}}) {
    block = good;
    block.window_address = window;
    ExpectRefused(block, "asks for its shared memory at 0x");
  }
  block = good;
  block.kind = static_cast<SessionKind>(7);
  ExpectRefused(block, "asks for a session of kind 7");
  block = good;
  block.environment_bytes = kOpenTextBytes + 1;
  ExpectRefused(block, "environment block is malformed");
  block.environment_bytes = 3;
  std::memcpy(block.environment, "A=B", 3);
  ExpectRefused(block, "environment block is malformed");
  EXPECT_EQ(Counter("sessions"), 0u);
  EXPECT_TRUE(WaitForNoSession());
}

TEST_F(LocalTest, OnlyListedVariablesReachTheWorker) {
  StartDaemon("ok");
  LocalClient client(socket());
  ASSERT_EQ(client.RequestSession().accepted, 1u);
  OpenBlock block = client.region().GoodOpenBlock();
  constexpr char kVariables[] =
      "CUDA_CACHE_PATH=/etc\0LD_PRELOAD=/x.so\0CUDA_DEVICE_MAX_CONNECTIONS=17\0=x\0nothing";
  std::memcpy(block.environment, kVariables, sizeof(kVariables));
  block.environment_bytes = sizeof(kVariables);
  client.region().Open(0, 1, block);
  ASSERT_TRUE(client.SendReady());
  ASSERT_TRUE(client.region().WaitForHostWord(0, 1, SlotHostState::kServing)) << client.region().refusal(0);
  EXPECT_TRUE(WaitFor([&] { return StatusValue(WaitForSession("serving"), "", "calls") == "17"; }));
  EXPECT_EQ(StatusValue(WaitForSession("serving"), "", "pinned_bytes"), "0") << "CUDA_CACHE_PATH crossed";
}

// What a guest asks for and every worker does anyway needs no worker of its own.
class LazyLoadingTest : public LocalTest {
 protected:
  // Whether the worker was started with what the guest asks for.
  std::string ToldTo(const std::string& worker_mode) {
    StartDaemon(worker_mode);
    LocalClient client(socket());
    EXPECT_TRUE(WaitFor([&] { return StatusValue(Status(), "workers", "spare_ready") != "0"; }));
    EXPECT_EQ(client.RequestSession().accepted, 1u);
    OpenBlock block = client.region().GoodOpenBlock();
    constexpr char kVariables[] = "CUDA_MODULE_LOADING=LAZY";
    std::memcpy(block.environment, kVariables, sizeof(kVariables));
    block.environment_bytes = sizeof(kVariables);
    client.region().Open(0, 1, block);
    EXPECT_TRUE(client.SendReady());
    EXPECT_TRUE(client.region().WaitForHostWord(0, 1, SlotHostState::kServing)) << client.region().refusal(0);
    EXPECT_TRUE(WaitFor([&] { return StatusValue(WaitForSession("serving"), "", "device_bytes") == "1"; }));
    return StatusValue(WaitForSession("serving"), "", "pinned_bytes");
  }
};

TEST_F(LazyLoadingTest, ASpareServesWhereItIsTheDefault) {
  EXPECT_EQ(ToldTo("lazy"), "0");
}

TEST_F(LazyLoadingTest, AWorkerOfItsOwnWhereItIsNot) {
  EXPECT_EQ(ToldTo("ok"), "1");
}

// The fake worker reports as its calls how many CUDA sessions of the same user the daemon told it of.
TEST_F(LocalTest, AManagementSessionHasItsOwnWorkerAndKnowsItsTenant) {
  StartDaemon("ok");
  LocalClient first(socket()), second(socket()), manager(socket());
  Serve(first);
  Serve(second);
  ASSERT_EQ(manager.RequestSession().accepted, 1u);
  OpenBlock block = manager.region().GoodOpenBlock();
  block.kind = SessionKind::kManagement;
  manager.region().Open(0, 1, block);
  ASSERT_TRUE(manager.SendReady());
  ASSERT_TRUE(manager.region().WaitForHostWord(0, 1, SlotHostState::kServing)) << manager.region().refusal(0);
  EXPECT_TRUE(WaitFor([&] {
    const auto sessions = command::JsonObjects(Status(), "sessions");
    return std::any_of(sessions.begin(), sessions.end(),
                       [](const std::string& session) { return StatusValue(session, "", "calls") == "2"; });
  })) << Status();
}

TEST_F(LocalTest, WithoutNvmlOnlyManagementIsRefused) {
  StartDaemon("ok", "nvml_library = \"fail\"\n");
  LocalClient client(socket());
  Serve(client);
  LocalClient other(socket());
  ASSERT_EQ(other.RequestSession().accepted, 1u);
  OpenBlock block = other.region().GoodOpenBlock();
  block.kind = SessionKind::kManagement;
  ExpectRefused(block, "cannot be opened");
  LocalClient next(socket());
  Serve(next);
}

TEST_F(LocalTest, MissingDriverRefusesEachSessionWithTheReason) {
  StartDaemon("fail");
  for (int i = 0; i < 3; ++i) {
    LocalClient client(socket());
    ASSERT_EQ(client.RequestSession().accepted, 1u);
    client.region().Open(0, 1);
    ASSERT_TRUE(client.SendReady());
    EXPECT_TRUE(client.region().WaitForHostWord(0, 1, SlotHostState::kRefused));
    EXPECT_EQ(client.region().refusal(0), "The driver library /missing/libcuda.so.1 cannot be opened.");
  }
  const std::string log = LogText();
  const std::string line = "no worker can serve: The driver library";
  ASSERT_NE(log.find(line), std::string::npos);
  EXPECT_EQ(log.find(line, log.find(line) + 1), std::string::npos) << "the reason is logged once";
}

// On a full GPU no driver starts: a scope that asks for workers of its own all the same has few starts, and
// all are refused in the end.
TEST_F(LocalTest, WorkersThatFailAreStartedAtAPace) {
  StartDaemon("fail");
  const auto begin = std::chrono::steady_clock::now();
  std::list<LocalClient> clients;
  for (int i = 0; i < 6; ++i) {
    LocalClient& client = clients.emplace_back(socket());
    ASSERT_EQ(client.RequestSession().accepted, 1u);
    OpenBlock block = client.region().GoodOpenBlock();
    constexpr char kVariables[] = "CUDA_DEVICE_MAX_CONNECTIONS=17";
    std::memcpy(block.environment, kVariables, sizeof(kVariables));
    block.environment_bytes = sizeof(kVariables);
    client.region().Open(0, 1, block);
    ASSERT_TRUE(client.SendReady());
  }
  for (LocalClient& client : clients)
    EXPECT_TRUE(client.region().WaitForHostWord(0, 1, SlotHostState::kRefused));
  // Two at once, and a second after each.
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(1'900));
}

TEST_F(LocalTest, CrashingWorkersRefuseAndBackOff) {
  StartDaemon("crash");
  LocalClient client(socket());
  ASSERT_EQ(client.RequestSession().accepted, 1u);
  client.region().Open(0, 1);
  ASSERT_TRUE(client.SendReady());
  EXPECT_TRUE(client.region().WaitForHostWord(0, 1, SlotHostState::kRefused));
  EXPECT_NE(client.region().refusal(0).find("ended with exit status 3 before it"), std::string::npos)
      << client.region().refusal(0);
  EXPECT_NE(LogText().find("the fake worker crashes on purpose"), std::string::npos)
      << "its output is in the log";
  usleep(500'000);
  size_t starts = 0;
  const std::string log = LogText();
  for (size_t at = 0; (at = log.find(" started", at)) != std::string::npos; ++at) ++starts;
  EXPECT_LE(starts, 4u) << "a crash loop must back off";
}

TEST_F(LocalTest, SessionsAreLimited) {
  StartDaemon("ok", "max_sessions = 1\n");
  LocalClient first(socket());
  Serve(first);
  LocalClient second(socket());
  const LocalReply reply = second.RequestSession();
  EXPECT_EQ(reply.accepted, 0u);
  EXPECT_NE(std::string(reply.text).find("serves 1 sessions, as many as max_sessions"), std::string::npos)
      << reply.text;
}

TEST_F(LocalTest, GarbagePacketsEndOnlyTheirConnection) {
  StartDaemon("ok");
  LocalClient good(socket());
  Serve(good);
  const std::string garbage[] = {"x", std::string(16, '\xff'), std::string(4096, 'a')};
  for (const auto& packet : garbage) {
    LocalClient client(socket());
    ASSERT_TRUE(client.Send(packet.data(), packet.size()));
    EXPECT_TRUE(client.WaitForEnd());
  }
  LocalClient impatient(socket());
  ASSERT_EQ(impatient.RequestSession().accepted, 1u);
  ASSERT_TRUE(impatient.Send("zz", 2));
  EXPECT_TRUE(impatient.WaitForEnd());
  EXPECT_EQ(good.region().host_page().slot[0], SlotWord(1, uint32_t(SlotHostState::kServing)));
}

// Where the kernel lets the client send it at all; a daemon that closed it itself would answer nobody for an hour.
TEST_F(LocalTest, ADescriptorThatAClientSendsKeepsNobody) {
  StartDaemon("ok");
  for (const bool leaves : {false, true}) {
    LocalClient client(socket());
    LingeringSocket lingering;
    if (!lingering.SendAway(client.fd())) {
      EXPECT_EQ(errno, EPERM);
      EXPECT_TRUE(client.Send("x", 1));
    }
    if (leaves) continue;
    EXPECT_TRUE(client.WaitForEnd());
  }
  LocalClient good(socket());
  Serve(good);
}

TEST_F(LocalTest, StopTellsItsSessions) {
  StartDaemon("ok");
  LocalClient client(socket());
  Serve(client);
  EXPECT_EQ(StopDaemon(), 0);
  EXPECT_EQ(client.region().host_page().slot[0], SlotWord(1, uint32_t(SlotHostState::kFatal)));
  EXPECT_EQ(client.region().host_page().state, HostState::kStopped);
  EXPECT_NE(client.region().refusal(0).find("The host daemon was stopped"), std::string::npos);
  EXPECT_TRUE(client.WaitForEnd());
}

TEST_F(LocalTest, WorkersDieWithTheDaemon) {
  StartDaemon("stubborn");
  LocalClient client(socket());
  Serve(client);
  const pid_t worker = WorkerPid(WaitForSession("serving"));
  KillDaemon();
  EXPECT_TRUE(client.WaitForEnd());
  EXPECT_TRUE(WaitFor([&] { return kill(worker, 0) != 0; }));
}

class TcpTest : public DaemonFixture {
 protected:
  UniqueFd Connect() {
    const std::string address = StatusValue(Status(), "", "tcp");
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(uint16_t(std::atoi(address.substr(address.rfind(':') + 1).c_str())));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
    return fd;
  }
  static LocalReply Exchange(int fd, const OpenBlock& block) {
    LocalReply reply{};
    // In two pieces, with the first record right behind: not a byte of it may be lost.
    const char* bytes = reinterpret_cast<const char*>(&block);
    send(fd, bytes, 100, 0);
    usleep(20'000);
    std::string rest(bytes + 100, sizeof(block) - 100);
    rest += "record";
    send(fd, rest.data(), rest.size(), MSG_NOSIGNAL);
    EXPECT_EQ(recv(fd, &reply, sizeof(reply), MSG_WAITALL), ssize_t(sizeof(reply)));
    return reply;
  }
};

TEST_F(TcpTest, SessionIsHandedToAWorker) {
  StartDaemon("ok", "[tcp]\nlisten = \"127.0.0.1:0\"\n");
  UniqueFd fd = Connect();
  const LocalReply reply = Exchange(fd.get(), StreamOpenBlock());
  ASSERT_EQ(reply.accepted, 1u) << reply.text;
  char echoed[7] = {};
  ASSERT_EQ(recv(fd.get(), echoed, 6, MSG_WAITALL), 6);
  EXPECT_STREQ(echoed, "record");
  EXPECT_EQ(StatusValue(WaitForSession("serving"), "", "kind"), "tcp");
  fd.reset();
  EXPECT_TRUE(WaitForNoSession());
}

TEST_F(TcpTest, WrongHashIsRefused) {
  StartDaemon("ok", "[tcp]\nlisten = \"127.0.0.1:0\"\n");
  UniqueFd fd = Connect();
  OpenBlock block = StreamOpenBlock();
  block.api_hash ^= 2;
  const LocalReply reply = Exchange(fd.get(), block);
  EXPECT_EQ(reply.accepted, 0u);
  EXPECT_NE(std::string(reply.text).find("has no worker: install causeway-worker-"), std::string::npos);
  EXPECT_EQ(Counter("refused"), 1u);
}

}  // namespace
}  // namespace causeway::test
