// SPDX-License-Identifier: Apache-2.0
// Remote guests: causewayd with a fake worker, causeway-tls in front of it, the command that makes keys, and peers of any kind.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <random>
#include <thread>

#include "ivshmem_ring/messages/resume_messages.h"
#include "tests/unit/remote_fixture.h"

namespace causeway::test {
namespace {

TEST_F(RemoteTest, AGuestWithAKeyIsServedByAWorker) {
  const Key key = MakeKey("one");
  Start();
  Guest guest(Dial(), key);
  ASSERT_TRUE(guest.accepted());
  const LocalReply reply = guest.Open(StreamOpenBlock());
  ASSERT_EQ(reply.accepted, 1u) << reply.text;
  EXPECT_TRUE(guest.Echoes("record"));
  const std::string session = WaitForSession("serving");
  EXPECT_EQ(StatusValue(session, "", "kind"), "tls");
  EXPECT_EQ(StatusValue(session, "", "vm"), "guest2");
  EXPECT_TRUE(WaitForLog("a session with key one of VM guest2"));
}

// All addresses of IPv6 and none of IPv4, so that one of each may stand in `listen`.
TEST_F(RemoteTest, AGuestComesInByIpV6) {
  const Place any("::1", 0);
  const UniqueFd probe(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!probe || bind(probe.get(), any.get(), any.bytes) != 0)
    GTEST_SKIP() << "this machine has no address of IPv6";
  const Key key = MakeKey("one");
  Start("[::]:0");
  Guest guest(Dial("::1", "::1"), key);
  ASSERT_TRUE(guest.accepted());
  const LocalReply reply = guest.Open(StreamOpenBlock());
  ASSERT_EQ(reply.accepted, 1u) << reply.text;
  EXPECT_TRUE(guest.Echoes("record"));
  EXPECT_EQ(StatusValue(WaitForSession("serving"), "", "vm"), "guest2");
  EXPECT_NE(TlsLog().find("TLS sessions are accepted at [::]:" + std::to_string(port_)), std::string::npos);
  EXPECT_TRUE(WaitForLog(": a session with key one of VM guest2"));
  EXPECT_NE(TlsLog().find(" [::1]:"), std::string::npos);
  const Place other(kHost, port_);
  const UniqueFd v4(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_NE(connect(v4.get(), other.get(), other.bytes), 0);
}

// causeway-tls and its processes are the daemon's neighbours, and the launcher keeps the daemon's end of each connection.
TEST_F(RemoteTest, SessionsGoOnWithTheNextDaemon) {
  const std::string kept = "keep_sessions_s = 60\n";
  const Key key = MakeKey("one"), other_key = MakeKey("other");
  StartDaemonWith(kept);
  StartTls();
  Guest guest(Dial(), key), other(Dial(), other_key);
  ASSERT_EQ(guest.Open(StreamOpenBlock()).accepted, 1u);
  ASSERT_EQ(other.Open(StreamOpenBlock()).accepted, 1u);
  EXPECT_TRUE(guest.Echoes("before"));
  const std::string served_by = "\"worker_pid\":" + StatusValue(WaitForSession("serving"), "", "worker_pid");
  for (const bool killed : {false, true}) {
    SCOPED_TRACE(killed ? "killed" : "left");
    if (killed) {
      KillDaemon();
    } else {
      kill(daemon_pid(), SIGUSR1);
      ASSERT_TRUE(WaitFor([&] { return LogText().find("causewayd leaves ") != std::string::npos; }));
      ASSERT_EQ(StopDaemon(), 0);
    }
    EXPECT_TRUE(guest.Echoes("nobody there"));
    Guest meanwhile(Dial(), key);
    ASSERT_TRUE(meanwhile.accepted());
    const OpenBlock block = StreamOpenBlock();
    meanwhile.Send(std::as_bytes(std::span(&block, 1)));
    StartDaemonWith(kept);
    LocalReply reply{};
    ASSERT_TRUE(meanwhile.Read(std::as_writable_bytes(std::span(&reply, 1)))) << "it waited in vain";
    EXPECT_EQ(reply.accepted, 1u) << reply.text;
    EXPECT_TRUE(meanwhile.Echoes("begun"));
    EXPECT_TRUE(guest.Echoes("after"));
    EXPECT_NE(Status().find(served_by), std::string::npos) << Status();
  }
  // Each session ends as if nothing had been: by its key, and by its guest.
  EXPECT_EQ(Keys("revoke other").status, 0);
  std::byte byte;
  EXPECT_FALSE(other.Read(std::span(&byte, 1)));
  EXPECT_TRUE(guest.Echoes("still here"));
  guest = Guest(Dial(), other_key);
  EXPECT_TRUE(WaitForNoSession());
  EXPECT_TRUE(WaitFor([&] { return Processes() == 0; }));
}

// Guest, worker and configuration, of which each may be of an earlier release or forbid it.
TEST_F(RemoteTest, BothSidesCompressWhereGuestWorkerAndConfigurationAgree) {
  const Key key = MakeKey("one");
  const struct {
    const char *worker, *configuration;
    uint64_t features;
    bool compresses;
  } cases[] = {{"compresses", "", kCompressesFeature, true},
               {"compresses", "remote_compression = true\n", kCompressesFeature | 4, true},
               {"compresses", "", 0, false},
               {"compresses", "remote_compression = false\n", kCompressesFeature, false},
               {"ok", "", kCompressesFeature, false}};
  for (const auto& each : cases) {
    StartDaemonWith(each.configuration, "127.0.0.1:0", each.worker);
    StartTls();
    {
      Guest guest(Dial(), key);
      ASSERT_TRUE(guest.accepted());
      OpenBlock block = StreamOpenBlock();
      block.abi_minor = kAbiMinor;
      block.features = each.features;
      const LocalReply reply = guest.Open(block);
      EXPECT_EQ(reply.accepted, 1u) << reply.text;
      EXPECT_EQ(GrantsCompression(reply), each.compresses) << each.worker << " " << each.configuration;
      if (std::string(each.worker) == "compresses") {
        char told = 0;
        ASSERT_TRUE(guest.Read(std::as_writable_bytes(std::span(&told, 1))));
        EXPECT_EQ(told, each.compresses ? '1' : '0') << "what the worker knows is what the guest does";
      }
      EXPECT_TRUE(guest.Echoes("bytes"));
      EXPECT_EQ(command::StatusValue(Status(), "sessions", "compression"),
                each.compresses ? "true" : "false");
    }
    StopTls();
    unlink((folder() + "/tls.log").c_str());  // which says where the last one listened
    EXPECT_EQ(StopDaemon(), 0);
  }
}

TEST_F(RemoteTest, TheEndOfTheGuestIsTheEndOfTheSession) {
  const Key key = MakeKey("one");
  Start();
  {
    Guest guest(Dial(), key);
    ASSERT_EQ(guest.Open(StreamOpenBlock()).accepted, 1u);
    WaitForSession("serving");
  }
  EXPECT_TRUE(WaitForNoSession());
  EXPECT_TRUE(WaitFor([&] { return Processes() == 0; }));
}

TEST_F(RemoteTest, BadKeysAreRefusedAndTheLogSaysWhy) {
  const Key good = MakeKey("good"), revoked = MakeKey("revoked"), expired = MakeKey("expired");
  EXPECT_EQ(Keys("revoke revoked").status, 0);
  // As if it had been made a while ago.
  EXPECT_EQ(Shell("sed -i '/^secret/i expires 2020-01-01T00:00:00Z' " + keys() + "/expired.key").status, 0);
  Key foreign = good;
  foreign.id = std::string(kKeyIdDigits, '0');
  Key guessed = good;
  guessed.secret.fill(1);
  Start();
  for (const Key& key : {revoked, expired, foreign, guessed}) EXPECT_FALSE(Guest(Dial(), key).accepted());
  EXPECT_TRUE(WaitForLog("refused: key revoked was revoked at "));
  EXPECT_TRUE(WaitForLog("refused: key expired expired at 2020-01-01T00:00:00Z"));
  EXPECT_TRUE(WaitForLog("refused: key with id " + foreign.id + " is not known here"));
  EXPECT_TRUE(WaitForLog("refused: it named key good, but: "));
  EXPECT_TRUE(Guest(Dial(), good).accepted());
  EXPECT_EQ(Counter("sessions"), 0u);
}

TEST_F(RemoteTest, ARevokedKeyEndsItsSessionsAndNoOthers) {
  const Key key = MakeKey("one"), other_key = MakeKey("other");
  Start();
  Guest guest(Dial(), key), other(Dial(), other_key);
  ASSERT_EQ(guest.Open(StreamOpenBlock()).accepted, 1u);
  ASSERT_EQ(other.Open(StreamOpenBlock()).accepted, 1u);
  EXPECT_EQ(Keys("revoke one").status, 0);
  std::byte byte;
  EXPECT_FALSE(guest.Read(std::span(&byte, 1)));
  EXPECT_TRUE(WaitForLog("ended: key one was revoked at "));
  EXPECT_TRUE(other.Echoes("still here"));
  EXPECT_FALSE(Guest(Dial(), key).accepted());
}

TEST_F(RemoteTest, AKeyOfTwoFilesEndsWithTheFirstOfThem) {
  const Key key = MakeKey("alpha");
  // No command makes the second file; an administrator may.
  std::filesystem::copy_file(keys() + "/alpha.key", keys() + "/beta.key");
  Start();
  Guest guest(Dial(), key);
  ASSERT_EQ(guest.Open(StreamOpenBlock()).accepted, 1u);
  EXPECT_EQ(Keys("revoke beta").status, 0);
  std::byte byte;
  EXPECT_FALSE(guest.Read(std::span(&byte, 1)));
  EXPECT_FALSE(Guest(Dial(), key).accepted());
}

TEST_F(RemoteTest, AKeyIsKnownAsSoonAsItIsMade) {
  MakeKey("one");
  Start();
  const Key later = MakeKey("later");
  EXPECT_TRUE(WaitForLog("2 keys are known"));
  EXPECT_TRUE(Guest(Dial(), later).accepted());
}

TEST_F(RemoteTest, AVmThatIsNotConfiguredIsRefusedInASentence) {
  EXPECT_EQ(Keys("create lost --output " + KeyFile("lost")).status, 0);
  Key key;
  ASSERT_EQ(ReadKeyFile(KeyFile("lost"), &key), "");
  Start();
  Guest guest(Dial(), key);
  ASSERT_TRUE(guest.accepted());
  const LocalReply reply = guest.Open(StreamOpenBlock());
  EXPECT_EQ(reply.accepted, 0u);
  EXPECT_NE(std::string(reply.text).find("key lost is one of VM lost"), std::string::npos) << reply.text;
}

TEST_F(RemoteTest, AnotherVersionIsRefusedInASentence) {
  const Key key = MakeKey("one");
  Start();
  Guest guest(Dial(), key);
  OpenBlock block = StreamOpenBlock();
  block.api_hash ^= 2;
  const LocalReply reply = guest.Open(block);
  EXPECT_EQ(reply.accepted, 0u);
  EXPECT_NE(std::string(reply.text).find("has no worker: install causeway-worker-"), std::string::npos);
}

TEST_F(RemoteTest, WithoutADaemonTheGuestIsTold) {
  const Key key = MakeKey("one");
  Start();
  EXPECT_EQ(StopDaemon(), 0);
  Guest guest(Dial(), key);
  ASSERT_TRUE(guest.accepted());
  EXPECT_NE(std::string(guest.Open(StreamOpenBlock()).text).find("causewayd cannot be reached"),
            std::string::npos);
  StartDaemon("ok", "");  // the fixture ends one
}

// What has proved nothing holds a few processes for a few seconds, and keeps nobody else out.
TEST_F(RemoteTest, SilentPeersAreBoundedAndEnd) {
  const Key key = MakeKey("one");
  Start();
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 40; ++i) silent.push_back(Dial("127.0.0.2"));
  EXPECT_TRUE(WaitForLog("refused: 16 connections of 127.0.0.2 are in their handshakes"));
  EXPECT_LE(Processes(), 16u);
  Guest guest(Dial(), key);
  ASSERT_TRUE(guest.accepted());
  EXPECT_EQ(guest.Open(StreamOpenBlock()).accepted, 1u);
  char byte;
  for (const UniqueFd& fd : silent) EXPECT_LE(recv(fd.get(), &byte, 1, 0), 0);
  EXPECT_TRUE(WaitForLog("ended: its handshake took longer than 5 s"));
  EXPECT_TRUE(guest.Echoes("undisturbed"));
}

// A job whose processes start at once comes with more connections than one address may have in their handshakes: they wait for their turn.
TEST_F(RemoteTest, ManyGuestsOfOneAddressGetTheirTurns) {
  const Key key = MakeKey("one");
  Start();
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 16; ++i) silent.push_back(Dial());
  ASSERT_TRUE(WaitFor([&] { return Processes() == 16; }));
  std::atomic<uint32_t> accepted{0};
  std::vector<std::thread> guests;
  for (int i = 0; i < 20; ++i) {
    guests.emplace_back([&] {
      Guest guest(Dial(), key);
      if (guest.accepted()) ++accepted;
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // so that they have to wait
  EXPECT_EQ(accepted, 0u);
  silent.clear();
  for (std::thread& guest : guests) guest.join();
  EXPECT_EQ(accepted, 20u);
  EXPECT_EQ(TlsLog().find("of its address are in their handshakes"), std::string::npos);
}

TEST_F(RemoteTest, AnyBytesAreRefused) {
  const Key key = MakeKey("one");
  Start();
  std::mt19937 random(5);
  for (int round = 0; round < 30; ++round) {
    UniqueFd fd = Dial();
    std::string bytes(1 + random() % 20'000, '\0');
    for (char& c : bytes) c = char(random());
    if (round % 2 == 0) bytes.replace(0, 3, "\x16\x03\x01");  // a record of a handshake
    if (round % 5 == 0)
      bytes.assign(reinterpret_cast<const char*>(std::make_unique<OpenBlock>(StreamOpenBlock()).get()), 64);
    (void)!send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    shutdown(fd.get(), SHUT_WR);
    char back[512];
    while (recv(fd.get(), back, sizeof back, 0) > 0) {
    }
  }
  EXPECT_TRUE(WaitForLog("refused: "));
  EXPECT_TRUE(WaitFor([&] { return Processes() == 0; }));
  EXPECT_EQ(Counter("sessions"), 0u);
  EXPECT_TRUE(Guest(Dial(), key).accepted());
  EXPECT_LT(TlsLog().size(), 20'000u);
}

TEST_F(RemoteTest, LargeTransfersArriveWhole) {
  const Key key = MakeKey("one");
  Start();
  Guest guest(Dial(), key);
  ASSERT_EQ(guest.Open(StreamOpenBlock()).accepted, 1u);
  std::string text(50'000, '\0');
  std::mt19937 random(9);
  for (char& c : text) c = char(random());
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(guest.Echoes(text)) << i;
}

TEST_F(RemoteTest, KeysCommandMakesFilesThatOnlyTheHostReads) {
  const Key key = MakeKey("one", "--expires 90d");
  struct stat found {};
  ASSERT_EQ(stat(keys().c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0007, 0u);
  ASSERT_EQ(stat((keys() + "/one.key").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0137, 0u);
  ASSERT_EQ(stat(KeyFile("one").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
  const Outcome list = Keys("list");
  EXPECT_NE(list.output.find(key.id), std::string::npos) << list.output;
  EXPECT_NE(list.output.find("good until "), std::string::npos) << list.output;
  EXPECT_EQ(list.output.find("secret"), std::string::npos);
  EXPECT_EQ(Keys("show one").output.find("secret"), std::string::npos);
  EXPECT_EQ(Keys("show one --secret").output, Shell("cat " + KeyFile("one")).output);
}

TEST_F(RemoteTest, EachMistakeWithKeysIsASentence) {
  MakeKey("one");
  const auto fails = [&](const std::string& what, const std::string& words) {
    const Outcome outcome = Keys(what);
    EXPECT_EQ(outcome.status, 1) << what;
    EXPECT_NE(outcome.output.find(words), std::string::npos) << outcome.output;
    EXPECT_EQ(std::count(outcome.output.begin(), outcome.output.end(), '\n'), 1) << outcome.output;
  };
  fails("create one", "There is a key one already");
  fails("create ../x", "is no name");
  fails("create two --expires yesterday", "is no time that lies ahead");
  fails("create two --output " + KeyFile("one"), "File exists.");
  fails("show two", "There is no key two in ");
  fails("revoke two", "There is no key two in ");
  EXPECT_EQ(Keys("revoke one").status, 0);
  fails("revoke one", "The key one was revoked at ");
  fails("show one --secret", "has no secret any more");
  fails("create one --from " + KeyFile("one"),
        "is one of " + keys() + " already, and was revoked; make another one.");
  MakeKey("two");
  fails("create three --from " + KeyFile("two"), "is two of " + keys() + " already; make another one.");
  EXPECT_EQ(Shell("grep -c secret " + keys() + "/one.key").output, "0\n");
}

TEST_F(RemoteTest, MistakesInTheConfigurationAreNamed) {
  const auto fails = [&](const std::string& more, const std::string& words) {
    const std::string said = FailingDaemon(Config("ok", more));
    EXPECT_NE(said.find(words), std::string::npos) << said;
  };
  fails("[tls]\nkeys = \"/keys\"\n", "[tls] listen is missing");
  fails("[tls]\nlisten = \"0.0.0.0:7471\"\n", "[tls] listen must be a list of 1 to 16 addresses");
  fails("[tls]\nlisten = [\"host:7471\"]\n", "must be a numeric address and a port such as \"0.0.0.0:7471\"");
  fails("[tls]\nlisten = [\"127.0.0.1:7471\"]\nuser = \"nobody-here\"\n",
        "[tls] user names no user of this host");
  fails("[[remote]]\nname = \"a b\"\n", "[[remote]] name has other characters");
  fails("[[remote]]\nname = \"a\"\n[[remote]]\nname = \"a\"\n", "is used twice");
}

}  // namespace
}  // namespace causeway::test
