// SPDX-License-Identifier: Apache-2.0
// What one user or VM cannot do to the others, against a daemon that runs: sessions, connections, what they
// see, files of others in the daemon's way, floods of words.
#include <arpa/inet.h>
#include <fcntl.h>
#include <grp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <list>

#include "host_backend/command/command.h"
#include "ivshmem_ring/release/build_stamp.h"
#include "tests/unit/daemon_fixture.h"

namespace causeway::test {
namespace {

using command::StatusValue;
constexpr uid_t kNobody = 65534;

class ScopeTest : public DaemonFixture {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "other users are needed: this runs as root only";
    chmod(folder().c_str(), 0755);
  }
  // Runs `body` as another user; its answer.
  static int AsNobody(const std::function<int()>& body) {
    const pid_t child = fork();
    if (child == 0) {
      if (setgroups(0, nullptr) != 0 || setgid(kNobody) != 0 || setuid(kNobody) != 0) _exit(99);
      _exit(body());
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 98;
  }
  static bool Serve(LocalClient& client) {
    if (!client.connected() || client.RequestSession().accepted != 1) return false;
    client.region().Open(0, 1);
    return client.SendReady() && client.region().WaitForHostWord(0, 1, SlotHostState::kServing);
  }
  static size_t LinesWith(const std::string& text, const std::string& what) {
    size_t count = 0;
    for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
    return count;
  }
};

TEST_F(ScopeTest, AUserLeavesSessionsToTheNext) {
  StartDaemon("ok", "socket_mode = \"0666\"\nmax_sessions = 8\nreserved_sessions = 2\n");
  std::vector<std::unique_ptr<LocalClient>> clients;
  for (;;) {
    auto client = std::make_unique<LocalClient>(socket());
    ASSERT_TRUE(client->connected());
    const LocalReply reply = client->RequestSession();
    if (reply.accepted == 0) {
      EXPECT_NE(std::string(reply.text).find("keeps 1 for others"), std::string::npos) << reply.text;
      break;
    }
    clients.push_back(std::move(client));
    ASSERT_LE(clients.size(), 8u);
  }
  EXPECT_EQ(clients.size(), 7u);
  EXPECT_EQ(AsNobody([this] {
              LocalClient client(socket());
              return Serve(client) ? 0 : 1;
            }),
            0);
}

TEST_F(ScopeTest, NobodyElseIsServedByAUsersOwnSpare) {
  StartDaemon("ok", "socket_mode = \"0666\"\nspare_workers = 0\n[[user]]\nuid = 65534\nown_spares = 1\n");
  const std::string ready = R"("own_spares":[{"scope":"uid:65534","wanted":1,"ready":1}])";
  ASSERT_TRUE(WaitFor([&] { return Status().find(ready) != std::string::npos; })) << Status();
  const std::string log = LogText();
  const size_t end = log.find(" is ready\n");
  ASSERT_NE(end, std::string::npos);
  const std::string spare = log.substr(log.rfind(' ', end - 1) + 1, end - log.rfind(' ', end - 1) - 1);
  std::list<LocalClient> others;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Serve(others.emplace_back(socket())));
  EXPECT_NE(Status().find(ready), std::string::npos) << Status();
  EXPECT_EQ(LogText().find("is served by worker " + spare + " "), std::string::npos) << LogText();
  EXPECT_EQ(AsNobody([this] {
              LocalClient client(socket());
              return Serve(client) ? 0 : 1;
            }),
            0);
  EXPECT_NE(LogText().find("uid 65534) is served by worker " + spare + " "), std::string::npos) << LogText();
  EXPECT_TRUE(WaitFor([&] { return Status().find(ready) != std::string::npos; })) << "and it is replaced";
}

TEST_F(ScopeTest, ABurstOfRequestsIsAnsweredAtItsPace) {
  StartDaemon("ok", "socket_mode = \"0666\"\n");
  constexpr int kClients = 40;
  EXPECT_EQ(
      AsNobody([this] {
        std::vector<std::unique_ptr<LocalClient>> clients;
        for (int i = 0; i < kClients; ++i) {
          clients.push_back(std::make_unique<LocalClient>(socket()));
          const LocalRequest request{kLocalMagic, kAbiMajor, kAbiMinor, LocalRequestKind::kStatus};
          if (!clients.back()->connected() || !clients.back()->Send(&request, sizeof request)) return 1;
        }
        for (const auto& client : clients) {
          LocalReply reply{};
          if (recv(client->fd(), &reply, sizeof(reply), 0) != ssize_t(sizeof(reply)) || reply.accepted != 1)
            return 2;
        }
        return 0;
      }),
      0);
  LocalClient client(socket());
  EXPECT_TRUE(Serve(client));
}

TEST_F(ScopeTest, SparesThatNobodyWantsAnyMoreEnd) {
  StartDaemon("slow", "spare_workers = 0\n");
  LocalClient client(socket());
  ASSERT_EQ(client.RequestSession().accepted, 1u);
  client.region().Open(0, 1);
  ASSERT_TRUE(client.SendReady());
  const auto says = [this](const char* text) {
    return WaitFor([&] { return Status().find(text) != std::string::npos; });
  };
  ASSERT_TRUE(says(R"("starting":1)")) << Status();
  client.Close();
  EXPECT_TRUE(says(R"("spare_ready":1)")) << Status();
  EXPECT_TRUE(says(R"("starting":0,"all":0)")) << Status();
}

TEST_F(ScopeTest, SparesFollowTheDemandAndGoWithIt) {
  StartDaemon("slow", "spare_workers = 1\nmax_spare_workers = 5\n");
  const auto workers = [this](const char* key) { return StatusValue(Status(), "workers", key); };
  EXPECT_EQ(workers("spare_wanted"), "1");
  ASSERT_TRUE(WaitFor([&] { return workers("spare_ready") == "1"; })) << Status();
  {
    // One finds the spare, the others wait together: so one more is kept at least, and of all that this host
    // has room for one user makes no more than half be kept.
    std::list<LocalClient> clients;
    for (int i = 0; i < 4; ++i) {
      LocalClient& client = clients.emplace_back(socket());
      ASSERT_EQ(client.RequestSession().accepted, 1u);
      client.region().Open(0, 1);
      ASSERT_TRUE(client.SendReady());
    }
    EXPECT_TRUE(WaitFor([&] { return workers("spare_wanted") >= "2"; })) << Status();
    EXPECT_LE(workers("spare_wanted"), "3") << Status();
    EXPECT_TRUE(WaitFor([&] { return workers("spare_ready") >= "2"; })) << Status();
    for (LocalClient& client : clients)
      EXPECT_TRUE(client.region().WaitForHostWord(0, 1, SlotHostState::kServing));
  }
  EXPECT_TRUE(WaitFor([&] { return workers("all") == "1" && workers("spare_ready") == "1"; })) << Status();
  EXPECT_EQ(workers("spare_wanted"), "1");
}

TEST_F(ScopeTest, NoDriverStartsBesideTheOneThatALoneSessionWaitsFor) {
  StartDaemon("slow", "spare_workers = 1\n");
  LocalClient client(socket());
  ASSERT_EQ(client.RequestSession().accepted, 1u);
  client.region().Open(0, 1);
  ASSERT_TRUE(client.SendReady());
  WaitForSession("opening");
  EXPECT_EQ(StatusValue(Status(), "workers", "all"), "1") << "the first spare, which is on its way to it";
  ASSERT_TRUE(client.region().WaitForHostWord(0, 1, SlotHostState::kServing));
  EXPECT_TRUE(WaitFor([&] { return StatusValue(Status(), "workers", "all") == "2"; })) << "and now the next";
}

TEST_F(ScopeTest, NoMoreSparesThanTheConfigurationLets) {
  StartDaemon("slow", "spare_workers = 1\nmax_spare_workers = 1\n");
  std::list<LocalClient> clients;
  for (int i = 0; i < 3; ++i) {
    LocalClient& client = clients.emplace_back(socket());
    ASSERT_EQ(client.RequestSession().accepted, 1u);
    client.region().Open(0, 1);
    ASSERT_TRUE(client.SendReady());
  }
  for (LocalClient& client : clients) {
    EXPECT_TRUE(client.region().WaitForHostWord(0, 1, SlotHostState::kServing));
    EXPECT_EQ(StatusValue(Status(), "workers", "spare_wanted"), "1");
  }
}

TEST_F(ScopeTest, AUserHoldsOnlySoManyIdleConnections) {
  StartDaemon("ok", "socket_mode = \"0666\"\n");
  EXPECT_EQ(AsNobody([this] {
              std::vector<std::unique_ptr<LocalClient>> idle;
              for (int i = 0; i < 64; ++i) {
                idle.push_back(std::make_unique<LocalClient>(socket()));
                if (!idle.back()->connected()) return 1;
              }
              LocalClient one_more(socket());
              LocalReply reply{};
              if (recv(one_more.fd(), &reply, sizeof(reply), 0) != ssize_t(sizeof(reply))) return 2;
              if (reply.accepted != 0 || std::strstr(reply.text, "has too many connections") == nullptr)
                return 3;
              // Meanwhile everybody else is served: this status is asked for by the test's own process.
              return idle[0]->connected() ? 0 : 4;
            }),
            0);
  LocalClient client(socket());
  EXPECT_TRUE(Serve(client));
}

// A session that was refused is none any more: its connection counts as one that waits.
TEST_F(ScopeTest, RefusedSessionsOfAUserKeepNobodyOut) {
  StartDaemon("ok", "socket_mode = \"0666\"\n");
  EXPECT_EQ(AsNobody([this] {
              std::vector<std::unique_ptr<LocalClient>> refused;
              for (int i = 0; i < 64; ++i) {
                refused.push_back(std::make_unique<LocalClient>(socket()));
                LocalClient& client = *refused.back();
                if (client.RequestSession().accepted == 0) return 1;
                client.region().Open(0, 1, OpenBlock{});
                if (!client.SendReady() || !client.region().WaitForHostWord(0, 1, SlotHostState::kRefused))
                  return 2;
              }
              LocalClient one_more(socket());
              LocalReply reply{};
              if (recv(one_more.fd(), &reply, sizeof(reply), 0) != ssize_t(sizeof(reply))) return 3;
              if (reply.accepted != 0 || std::strstr(reply.text, "has too many connections") == nullptr)
                return 4;
              // Each of them may still read why.
              return refused[0]->region().refusal(0).empty() ? 5 : 0;
            }),
            0);
  LocalClient client(socket());
  EXPECT_TRUE(Serve(client));
}

TEST_F(ScopeTest, AUserSeesOnlyItsOwnSessions) {
  StartDaemon("ok", VmConfig() + "");
  chmod(socket().c_str(), 0666);
  LocalClient of_root(socket());
  ASSERT_TRUE(Serve(of_root));
  WaitForSession("serving");
  EXPECT_EQ(AsNobody([this] {
              LocalClient client(socket());
              if (!Serve(client)) return 1;
              const std::string status = command::QueryStatus(socket()).value();
              const auto sessions = command::JsonObjects(status, "sessions");
              if (sessions.size() != 1 || StatusValue(sessions[0], "", "uid") != "65534") return 2;
              if (!command::JsonObjects(status, "regions").empty()) return 3;
              for (const auto& account : command::JsonObjects(status, "accounts")) {
                if (StatusValue(account, "", "scope") != "uid:65534") return 4;
              }
              if (!StatusValue(status, "counters", "sessions").empty()) return 5;
              return StatusValue(status, "", "of_all") == "false" ? 0 : 6;
            }),
            0);
  EXPECT_EQ(StatusValue(Status(), "", "of_all"), "true");
  EXPECT_EQ(command::JsonObjects(Status(), "regions").size(), 1u);
}

TEST_F(ScopeTest, AMemberOfTheAdminGroupSeesAll) {
  StartDaemon("ok", "admin_group = \"nogroup\"\n" + VmConfig());
  chmod(socket().c_str(), 0666);
  EXPECT_EQ(AsNobody([this] {
              const std::string status = command::QueryStatus(socket()).value();
              return command::JsonObjects(status, "regions").size() == 1 ? 0 : 1;
            }),
            0);
}

// What a user is answered that opens a session over TCP.
std::string AnswerOverTcp(const std::string& address) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(uint16_t(std::stoul(address.substr(address.rfind(':') + 1))));
  const UniqueFd connection(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (connect(connection.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) return "no connection";
  OpenBlock block{};
  block.magic = kRegionMagic;
  block.abi_major = kAbiMajor;
  block.abi_minor = kAbiMinor;
  block.api_hash = kBuildStamp.api_hash;
  LocalReply reply{};
  if (send(connection.get(), &block, sizeof(block), MSG_NOSIGNAL) != ssize_t(sizeof(block)) ||
      recv(connection.get(), &reply, sizeof(reply), MSG_WAITALL) != ssize_t(sizeof(reply))) {
    return "no answer";
  }
  return reply.accepted != 0 ? "accepted" : reply.text;
}

TEST_F(ScopeTest, TcpOverLoopbackIsHeldToTheSocketsPermissions) {
  StartDaemon("ok", "socket_mode = \"0660\"\n[tcp]\nlisten = \"127.0.0.1:0\"\n");
  const std::string address = StatusValue(Status(), "", "tcp");
  EXPECT_EQ(AnswerOverTcp(address), "accepted");
  EXPECT_EQ(AsNobody([&] {
              return AnswerOverTcp(address).find("held to socket_mode and socket_group") != std::string::npos
                         ? 0
                         : 1;
            }),
            0);
}

TEST_F(ScopeTest, TcpOverLoopbackOfTheSocketsGroup) {
  StartDaemon("ok", "socket_group = \"nogroup\"\n[tcp]\nlisten = \"127.0.0.1:0\"\n");
  const std::string address = StatusValue(Status(), "", "tcp");
  EXPECT_EQ(AsNobody([&] { return AnswerOverTcp(address) == "accepted" ? 0 : 1; }), 0);
}

// Where everybody may make files, as in /dev/shm.
TEST_F(ScopeTest, AnothersFileInARegionsPlaceKeepsNobodyElseWaiting) {
  std::ofstream(region_file()) << "";
  chmod(region_file().c_str(), 0660);
  ASSERT_EQ(chown(region_file().c_str(), kNobody, gid_t(-1)), 0);
  StartDaemon("ok", VmConfig(64));
  const auto problem = [this] { return StatusValue(Status(), "regions", "problem"); };
  EXPECT_NE(problem().find("belongs to user 65534, who could have made it"), std::string::npos) << problem();
  EXPECT_NE(LogText().find("belongs to user 65534"), std::string::npos);
  EXPECT_EQ(std::filesystem::file_size(region_file()), 0u) << "it was adopted";
  std::filesystem::remove(region_file());
  EXPECT_TRUE(WaitFor([&] { return problem().empty(); })) << problem();
}

TEST_F(ScopeTest, AForeignRegionFileIsRefused) {
  const auto says = [this](const std::string& more = "") {
    return WhatItSays(Config("ok", VmConfig(64, more)));
  };
  const std::string file = region_file();
  const auto make = [&] {
    std::filesystem::remove(file);
    std::ofstream(file) << "";
    chmod(file.c_str(), 0660);
  };
  make();
  ASSERT_EQ(chown(file.c_str(), 0, 7), 0);
  EXPECT_NE(says().find("is accessible to group 7 instead of 0"), std::string::npos);
  make();
  chmod(file.c_str(), 02660);
  EXPECT_NE(says().find("has mode 2660 instead of 0660"), std::string::npos);
  make();
  ASSERT_EQ(link(file.c_str(), (folder() + "/second").c_str()), 0);
  EXPECT_NE(says().find("has 2 names"), std::string::npos);
  make();
  // As setfacl writes it: version 2; owner rw, user 65534 rw, group -, mask rw, others -.
  const struct {
    uint32_t version = 2;
    struct {
      uint16_t tag, permissions;
      uint32_t id;
    } entry[5] = {{1, 6, ~0u}, {2, 6, kNobody}, {4, 6, ~0u}, {16, 6, ~0u}, {32, 0, ~0u}};
  } list;
  if (setxattr(file.c_str(), "system.posix_acl_access", &list, sizeof(list), 0) == 0) {
    EXPECT_NE(says().find("has an access list"), std::string::npos);
  }
  std::filesystem::remove(file);
  ASSERT_EQ(mkfifo(file.c_str(), 0660), 0);
  EXPECT_NE(says().find("is not a regular file"), std::string::npos);
  std::filesystem::remove(file);
  std::ofstream(folder() + "/target") << "";
  ASSERT_EQ(symlink((folder() + "/target").c_str(), file.c_str()), 0);
  EXPECT_NE(says().find("is a symbolic link"), std::string::npos);
}

TEST_F(ScopeTest, ForeignLockAndLogFilesAreRefused) {
  const std::string lock = socket() + ".lock";
  std::ofstream(lock) << "";
  ASSERT_EQ(chown(lock.c_str(), kNobody, gid_t(-1)), 0);
  EXPECT_NE(FailingDaemon(Config("ok", "")).find("belongs to user 65534"), std::string::npos);
  std::filesystem::remove(lock);
  const std::string log = folder() + "/daemon.log", victim = folder() + "/victim";
  std::ofstream(victim) << "";
  ASSERT_EQ(symlink(victim.c_str(), log.c_str()), 0);
  EXPECT_NE(FailingDaemon(Config("ok", "log_file = \"" + log + "\"\n")).find("cannot be opened"),
            std::string::npos);
  EXPECT_EQ(std::filesystem::file_size(victim), 0u);
  std::filesystem::remove(log);
  ASSERT_EQ(link(victim.c_str(), log.c_str()), 0);
  EXPECT_NE(FailingDaemon(Config("ok", "log_file = \"" + log + "\"\n")).find("has 2 names"),
            std::string::npos);
}

// Words that mean nothing, sessions that are opened and left, as fast as they can be written: the log stays
// short, and what was left out is counted.
TEST_F(ScopeTest, AFloodOfWordsIsBounded) {
  StartDaemon("ok", VmConfig());
  GuestRegion guest(region_file());
  const uint32_t slots = guest.superblock().slot_count;
  const auto begin = std::chrono::steady_clock::now();
  uint32_t number = 0;
  while (std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(1500)) {
    ++number;
    for (uint32_t slot = 0; slot < slots; ++slot) {
      if (slot % 2 == 0) {
        guest.SetWord(slot, number, SlotGuestState(number % 200 + 4));
      } else {
        guest.SetWord(slot, number / 8, number % 8 < 4 ? SlotGuestState::kOpen : SlotGuestState::kDying);
      }
    }
    usleep(300);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_GT(Counter("violations"), 100u);
  const size_t lines = LinesWith(LogText(), "VM guest");
  EXPECT_LE(lines, size_t(20 * (took.count() + 2))) << "of one VM in " << took.count() << " s";
  LocalClient client(socket());
  EXPECT_TRUE(Serve(client)) << "others are served";
}

// A region of 256 MiB that is full, given back while the daemon goes on: its own work between two looks at
// what comes stays short. Measured in processor time of the daemon's thread, so that other load does not
// count.
TEST_F(ScopeTest, AResetOfAFullRegionDoesNotBlockTheLoop) {
  StartDaemon("ok", VmConfig(256));
  GuestRegion guest(region_file());
  __atomic_store_n(&guest.guest_page().epoch, 1, __ATOMIC_RELEASE);
  const auto acknowledged = [&](uint64_t epoch) {
    return WaitFor(
        [&] { return __atomic_load_n(&guest.host_page().reset_acknowledged, __ATOMIC_ACQUIRE) == epoch; });
  };
  ASSERT_TRUE(acknowledged(1));
  const uint32_t granules = guest.superblock().granule_count;
  for (uint64_t epoch = 2; epoch < 6; ++epoch) {
    std::memset(guest.granule(1), 0x5a, uint64_t(granules - 1) * kGranuleBytes);
    __atomic_store_n(&guest.guest_page().epoch, epoch, __ATOMIC_RELEASE);
    ASSERT_TRUE(acknowledged(epoch));
    for (uint32_t granule = 1; granule < granules; ++granule) ASSERT_EQ(guest.granule(granule)[77], 0);
  }
  const std::string status = Status();
  std::printf(
      "loop_busy p99 %s ms, max %s ms; loop_late p99 %s ms, max %s ms\n",
      StatusValue(status, "loop_busy", "p99_ms").c_str(), StatusValue(status, "loop_busy", "max_ms").c_str(),
      StatusValue(status, "loop_late", "p99_ms").c_str(), StatusValue(status, "loop_late", "max_ms").c_str());
  EXPECT_GT(std::stod(StatusValue(status, "loop_busy", "rounds")), 10);
  // A reset was 30 to 120 ms of it in one round; pieces are a granule, or 1 ms, whichever is longer.
  EXPECT_LT(std::stod(StatusValue(status, "loop_busy", "p99_ms")), 10);
}

}  // namespace
}  // namespace causeway::test
