// SPDX-License-Identifier: Apache-2.0
// Guests that come back to their sessions after their connections were lost, and those that want what is not theirs.
#include <gtest/gtest.h>

#include <ctime>
#include <list>
#include <random>

#include "ivshmem_ring/messages/resume_messages.h"
#include "tests/unit/remote_fixture.h"

namespace causeway::test {
namespace {

OpenBlock OpeningThatMayReturn() {
  OpenBlock block = StreamOpenBlock();
  block.abi_minor = kAbiMinor;
  block.features = kResumesFeature;
  return block;
}

OpenBlock Returning(const SessionToken& token, uint64_t attempt, uint64_t received = 0) {
  OpenBlock block = StreamOpenBlock();
  block.kind = kResumeKind;
  block.features = kResumesFeature;
  PutRequest({token, attempt, received}, &block);
  return block;
}

class RemoteReturnTest : public RemoteTest {
 protected:
  void StartBoth(const std::string& more = "") {
    StartDaemonWith(more, "127.0.0.1:0", "waits");
    StartTls();
  }
  // A session whose connection is lost, after the guest's own words came back. *token: what it was given.
  void LoseOne(const Key& key, SessionToken* token) {
    Guest guest(Dial(), key);
    ASSERT_TRUE(guest.accepted());
    const LocalReply reply = guest.Open(OpeningThatMayReturn());
    ASSERT_TRUE(GrantOf(reply)) << reply.text;
    *token = GrantOf(reply)->token;
    ASSERT_TRUE(guest.Echoes("before"));
    guest.Reset();
    EXPECT_NE(WaitForSession("waiting"), "");
  }
  LocalReply Answer(const Key& key, const OpenBlock& block) {
    Guest guest(Dial(), key);
    return guest.accepted() ? guest.Open(block) : LocalReply{};
  }
  void EndsWithItsConnection(const OpenBlock& block) {
    const Key key = MakeKey("one");
    Guest guest(Dial(), key);
    const LocalReply reply = guest.Open(block);
    ASSERT_EQ(reply.accepted, 1u) << reply.text;
    EXPECT_FALSE(GrantOf(reply));
    EXPECT_EQ(reply.reserved, 0u);
    EXPECT_EQ(reply.text[0], '\0');
    guest.Reset();
    EXPECT_TRUE(WaitForNoSession());
  }
  // The guest comes back, and its worker is the same.
  void ComesBack(const Key& key, const SessionToken& token, uint64_t attempt) {
    Guest guest(Dial(), key);
    ASSERT_TRUE(guest.accepted());
    const LocalReply reply = guest.Open(Returning(token, attempt, 77));
    ASSERT_EQ(reply.accepted, 1u) << reply.text;
    ResumeGreeting greeting{};
    ASSERT_TRUE(guest.Read(std::as_writable_bytes(std::span(&greeting, 1))));
    EXPECT_EQ(greeting.magic, kResumeMagic);
    EXPECT_EQ(greeting.received, 77u) << "what the guest has received got to the worker";
    EXPECT_TRUE(guest.Echoes("after"));
    EXPECT_NE(WaitForSession("serving"), "");
    guest.Reset();
  }
};

TEST_F(RemoteReturnTest, AGuestComesBackToItsWorkerAsOftenAsItLikes) {
  const Key key = MakeKey("one");
  StartBoth();
  SessionToken token{};
  LoseOne(key, &token);
  const std::string worker = StatusValue(WaitForSession("waiting"), "", "worker_pid");
  for (uint64_t attempt = 1; attempt <= 5; ++attempt) {
    ComesBack(key, token, attempt);
    EXPECT_EQ(StatusValue(WaitForSession("waiting"), "", "worker_pid"), worker);
  }
  EXPECT_EQ(Counter("sessions"), 1u);
  EXPECT_TRUE(WaitFor([&] { return Processes() <= 1; })) << "connections that are no more leave no process";
}

TEST_F(RemoteReturnTest, WhatIsNotItsOwnIsRefused) {
  const Key key = MakeKey("one"), other_key = MakeKey("other");  // of the same VM
  EXPECT_EQ(Keys("create stranger --vm guest3 --output " + KeyFile("stranger")).status, 0);
  Key stranger;
  ASSERT_EQ(ReadKeyFile(KeyFile("stranger"), &stranger), "");
  StartBoth("[[remote]]\nname = \"guest3\"\n");
  SessionToken token{};
  LoseOne(key, &token);
  for (const Key& foreign : {other_key, stranger}) {
    const LocalReply reply = Answer(foreign, Returning(token, 1));
    EXPECT_EQ(reply.accepted, 0u) << "the right secret, and another key";
    EXPECT_EQ(reply.reserved, kSessionGone);
  }
  std::mt19937 random(7);
  for (int i = 0; i < 60; ++i) {
    OpenBlock block = Returning(token, 1);
    if (i < 48)
      block.reserved[i] ^= uint8_t(1u << random() % 8);  // one bit of the token
    else
      for (uint8_t& byte : block.reserved) byte = uint8_t(random());
    const LocalReply reply = Answer(key, block);
    ASSERT_EQ(reply.accepted, 0u) << i;
    ASSERT_EQ(reply.reserved, kSessionGone) << i;
  }
  EXPECT_NE(WaitForSession("waiting"), "") << "it waits undisturbed";
  ComesBack(key, token, 3);
  for (const uint64_t attempt : {0, 1, 3}) {
    const LocalReply reply = Answer(key, Returning(token, attempt));
    EXPECT_EQ(reply.accepted, 0u) << "a message that was recorded, or comes late";
    EXPECT_EQ(reply.reserved, 0u);
  }
  ComesBack(key, token, 4);
}

// The guest has given up the first of them. The host may see both, one after the other, or the second one first.
TEST_F(RemoteReturnTest, OfTwoConnectionsAtOnceTheNewerOneCounts) {
  const Key key = MakeKey("one");
  StartBoth();
  SessionToken token{};
  LoseOne(key, &token);
  for (uint64_t attempt = 1; attempt < 20; attempt += 2) {
    Guest first(Dial(), key), second(Dial(), key);
    ASSERT_TRUE(first.accepted() && second.accepted());
    const OpenBlock one = Returning(token, attempt), two = Returning(token, attempt + 1);
    first.Send(std::as_bytes(std::span(&one, 1)));
    second.Send(std::as_bytes(std::span(&two, 1)));
    LocalReply reply{};
    ASSERT_TRUE(second.Read(std::as_writable_bytes(std::span(&reply, 1))));
    EXPECT_EQ(reply.accepted, 1u) << reply.text;
    ResumeGreeting greeting{};
    ASSERT_TRUE(second.Read(std::as_writable_bytes(std::span(&greeting, 1))));
    EXPECT_TRUE(second.Echoes("the newer one"));
    first.Reset();
    EXPECT_TRUE(second.Echoes("still"));
    second.Reset();
    EXPECT_NE(WaitForSession("waiting"), "");
  }
}

TEST_F(RemoteReturnTest, ARevokedKeyEndsASessionThatWaits) {
  const Key key = MakeKey("one"), other_key = MakeKey("other");
  StartBoth();
  SessionToken token{}, other{};
  LoseOne(key, &token);
  LoseOne(other_key, &other);
  EXPECT_EQ(Keys("revoke one").status, 0);
  EXPECT_TRUE(WaitFor([&] { return LogText().find("its key is good no more") != std::string::npos; }));
  ComesBack(other_key, other, 1);
  EXPECT_EQ(Answer(other_key, Returning(token, 1)).reserved, kSessionGone);
}

TEST_F(RemoteReturnTest, AKeyThatExpiresEndsASessionThatWaits) {
  const Key key = MakeKey("one"), other_key = MakeKey("other");
  StartBoth();
  SessionToken token{}, other{};
  LoseOne(key, &token);
  LoseOne(other_key, &other);
  const std::string end = TimeText(std::time(nullptr) + 1);
  EXPECT_EQ(Shell("sed -i '/^secret/i expires " + end + "' " + keys() + "/one.key").status, 0);
  EXPECT_TRUE(WaitFor([&] { return LogText().find("its key is good no more") != std::string::npos; }));
  ComesBack(other_key, other, 1);
  EXPECT_FALSE(Guest(Dial(), key).accepted());
  EXPECT_EQ(Answer(other_key, Returning(token, 1)).reserved, kSessionGone);
}

TEST_F(RemoteReturnTest, TheSessionEndsWhenTheTimeIsOver) {
  const Key key = MakeKey("one");
  StartBoth("wait_for_guests_s = 1\n");
  SessionToken token{};
  LoseOne(key, &token);
  EXPECT_TRUE(WaitForNoSession()) << "the daemon ends a worker that goes on waiting";
  EXPECT_EQ(Answer(key, Returning(token, 1)).reserved, kSessionGone);
}

TEST_F(RemoteReturnTest, AGuestThatCannotComeBackIsNotWaitedFor) {
  MakeKey("first");
  StartBoth();
  EndsWithItsConnection(StreamOpenBlock());
}

TEST_F(RemoteReturnTest, AHostThatDoesNotWaitGrantsNothing) {
  MakeKey("first");
  StartBoth("wait_for_guests_s = 0\n");
  EndsWithItsConnection(OpeningThatMayReturn());
}

TEST_F(RemoteReturnTest, ASessionThatWaitsCountsForItsVm) {
  const Key key = MakeKey("one");
  StartBoth();
  SessionToken token{};
  LoseOne(key, &token);
  std::list<Guest> others;
  for (int i = 1; i < 8; ++i)
    EXPECT_EQ(others.emplace_back(Dial(), key).Open(OpeningThatMayReturn()).accepted, 1u) << i;
  EXPECT_EQ(Answer(key, OpeningThatMayReturn()).accepted, 0u) << "max_sessions is 8";
  ComesBack(key, token, 1);  // which takes no further place
}

TEST_F(RemoteReturnTest, TheNextDaemonWaitsToo) {
  const std::string kept = "keep_sessions_s = 60\n";
  const Key key = MakeKey("one");
  StartBoth(kept);
  SessionToken token{};
  LoseOne(key, &token);
  KillDaemon();
  StartDaemonWith(kept, "127.0.0.1:0", "waits");
  EXPECT_NE(WaitForSession("waiting"), "");
  ComesBack(key, token, 1);
}

}  // namespace
}  // namespace causeway::test
