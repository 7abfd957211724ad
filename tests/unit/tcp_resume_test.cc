// SPDX-License-Identifier: Apache-2.0
// Connections that are lost and made again: every record is executed once, in order, and nothing waits for ever.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstring>
#include <optional>

#include "ivshmem_ring/messages/resume_messages.h"
#include "tests/unit/cut_link.h"

#ifdef __SANITIZE_THREAD__
// The keeper sends a staging buffer again, and the reply, which the peer makes of what it got, is received into the same buffer by another
// thread. The network orders the two, of which TSan knows nothing: it notes what sendmsg has read when sendmsg has returned.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race:causeway::SentBytes::From\n";
}
#endif

namespace causeway::test {
namespace {

std::unique_ptr<std::byte[]> MemoryOf(std::span<const std::byte> bytes) {
  auto memory = std::make_unique<std::byte[]>(bytes.size());
  std::copy(bytes.begin(), bytes.end(), memory.get());
  return memory;
}

TEST(SentBytes, GivesAgainWhatWasNotForgotten) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    SentBytes sent;
    std::vector<std::byte> all;  // everything that was ever sent
    std::list<std::vector<std::byte>> elsewhere;
    for (int step = 0; step < 400; ++step) {
      std::vector<std::byte> bytes(random() % 3 == 0 ? random() % 90'000 : random() % 300);
      FillBody(bytes, random());
      const bool copied = random() % 4 != 0;
      if (sent.HasRoom(copied ? bytes.size() : 0, copied ? 0 : bytes.size())) {
        all.insert(all.end(), bytes.begin(), bytes.end());
        if (copied)
          sent.Copy(bytes);
        else if (random() % 2 == 0)
          sent.Refer(elsewhere.emplace_back(std::move(bytes)));
        else
          sent.Keep(MemoryOf(bytes), bytes.size());
      }
      ASSERT_EQ(sent.end(), all.size());
      if (random() % 3 == 0) sent.Forget(sent.begin() + random() % (sent.end() - sent.begin() + 1));
      const uint64_t from = sent.begin() + random() % (sent.end() - sent.begin() + 1);
      std::vector<std::byte> again;
      ASSERT_TRUE(sent.From(from, [&](std::span<const std::byte> piece) {
        again.insert(again.end(), piece.begin(), piece.end());
        return true;
      }));
      ASSERT_EQ(again.size(), all.size() - from);
      // Not byte by byte, of which ThreadSanitizer would make the longest part of this program.
      ASSERT_TRUE(again.empty() || std::memcmp(again.data(), all.data() + from, again.size()) == 0);
    }
  }
}

TEST(SentBytes, IsBounded) {
  SentBytes sent;
  const std::vector<std::byte> some(1000), much(kBulkBytes);
  while (sent.HasRoom(some.size(), 0)) sent.Copy(some);
  EXPECT_LE(sent.end(), SentBytes::kMostCopied);
  EXPECT_TRUE(sent.HasRoom(0, much.size()));
  while (sent.HasRoom(0, much.size())) sent.Refer(much);
  EXPECT_LE(sent.end(), SentBytes::kMostKept);
  sent.Forget(sent.end());
  const uint64_t begin = sent.end();
  while (sent.HasRoom(0, much.size())) sent.Keep(MemoryOf(much), much.size());
  EXPECT_LE(sent.end() - begin, SentBytes::kMostKept);
  sent.Forget(sent.end());
  EXPECT_TRUE(sent.HasRoom(0, 2 * SentBytes::kMostKept)) << "what is larger than the limit goes alone";
}

// Memory of a program that lends it: it is gone with this object, and a thread that still looked at it would fault.
class ShortLived {
 public:
  ShortLived()
      : mapped_(mmap(nullptr, kBulkBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (mapped_ == MAP_FAILED) abort();
  }
  // Not unmapped: another thread's mapping could take its place.
  ~ShortLived() { mprotect(mapped_, kBulkBytes, PROT_NONE); }
  ShortLived(const ShortLived&) = delete;
  ShortLived& operator=(const ShortLived&) = delete;
  std::byte* bytes() { return static_cast<std::byte*>(mapped_); }

 private:
  void* mapped_;
};

// Threads that post, ask and copy both ways, until `rounds` each.
void Work(CutSession& session, int rounds) {
  TcpClient& client = session.client();
  std::mutex posting;
  uint64_t& posted = session.posted;
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (uint32_t channel = 0; channel < 4; ++channel) {
    threads.emplace_back([&, channel] {
      for (int round = 0; round < rounds; ++round) {
        uint64_t before = 0;
        {
          const std::lock_guard lock(posting);
          for (int i = 0; i < round % 20; ++i)
            if (!Post(client, kPostValue, posted++, sizeof(RecordHeader) + 8 + size_t(round % 50) * 20))
              ++failures;
          before = posted;
        }
        if (!Request(client, channel, kOrder, {})) ++failures;
        auto reply = client.AwaitReply(channel);
        if (reply.empty() || ReplyWord(reply, 0) < before || ReplyWord(reply, 1) != 0) ++failures;
        const uint32_t bytes = round % 5 == 0 ? kBulkBytes : 5000;
        std::optional<ShortLived> own;
        if (round % 2 == 0) client.LendOwn(channel, own.emplace().bytes());
        const std::span<std::byte> bulk(own ? own->bytes() : session.BulkBuffer(channel), bytes);
        const uint64_t seed = uint64_t(round) * 31 + channel;
        FillBody(bulk, seed);
        if (!Request(client, channel, kInvertBulk, {}, kBulkToHost | kBulkToGuest, channel, bytes))
          ++failures;
        reply = client.AwaitReply(channel);
        for (std::byte& byte : bulk) byte = ~byte;
        if (reply.empty() || !BodyMatches(bulk, seed)) ++failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures.load(), 0) << client.LossReason() << session.server().CorruptReason();
  ASSERT_TRUE(Request(client, 0, kOrder, {}));
  const auto reply = client.AwaitReply(0);
  ASSERT_FALSE(reply.empty()) << client.LossReason();
  EXPECT_EQ(ReplyWord(reply, 0), posted) << "executed";
  EXPECT_EQ(ReplyWord(reply, 1), 0u) << "out of order, or twice";
}

void WorkThroughCuts(CutPlan plan, int rounds) {
  std::random_device device;
  const uint64_t seed = device();
  SCOPED_TRACE("seed " + std::to_string(seed));
  CutSession session(plan, seed);
  Work(session, rounds);
  EXPECT_GT(session.losses(), 0u);
  EXPECT_EQ(session.losses(), session.returns());
}

TEST(Resume, NothingIsLostOrExecutedTwice) {
  WorkThroughCuts({.cuts = 60, .least = 1, .most = 600'000}, 30);
}
TEST(Resume, NothingIsLostOrExecutedTwiceEncrypted) {
  WorkThroughCuts({.encrypted = true, .cuts = 60, .least = 1, .most = 600'000}, 30);
}
// Not even a header passes whole at a time.
TEST(Resume, GoesOnFromAnyByte) {
  WorkThroughCuts({.cuts = 400, .least = 1, .most = 100}, 3);
  WorkThroughCuts({.encrypted = true, .cuts = 400, .least = 1, .most = 100}, 3);
}
TEST(Resume, SeveralAttemptsMayFail) {
  WorkThroughCuts({.cuts = 5, .least = 1, .most = 50'000, .refused = 3}, 5);
}

// Either side that reads it gives the connection up, which the other must not take for the end of the session.
TEST(Resume, AForgedRecordCostsTheConnectionAlone) {
  WorkThroughCuts({.encrypted = true, .cuts = 12, .least = 1, .most = 1'000'000, .spoils = true}, 6);
}

// Nothing is under way, and nobody sends: the loss is noticed nevertheless, and the next call finds another connection.
TEST(Resume, AnIdleSessionGoesOn) {
  CutSession session({}, 1);
  Work(session, 2);
  for (uint32_t i = 1; i <= 20; ++i) {
    session.server().Break("a test breaks it");
    SleepUntil([&] { return session.returns() >= i; });
    if (i % 5 == 0) Work(session, 1);
  }
}

// The client's calls end with a reason, and the server ends: no hang.
TEST(Resume, AfterTheGracePeriodBothSidesEnd) {
  CutSession session({.grace_s = 1}, 1);
  ASSERT_TRUE(Request(session.client(), 0, kNeverReply, {}));
  std::thread waiter([&] { EXPECT_TRUE(session.client().AwaitReply(0).empty()); });
  session.Forbid();
  session.server().Break("a test breaks it");
  waiter.join();
  EXPECT_NE(session.client().LossReason().find("could not be made again within 1 s: a test refuses it"),
            std::string::npos)
      << session.client().LossReason();
  EXPECT_EQ(session.client().ReserveRequest(1, sizeof(RecordHeader)), nullptr);
  SleepUntil([&] { return !session.server().EndReason().empty(); });
  EXPECT_NE(session.server().EndReason().find("within 1 s"), std::string::npos)
      << session.server().EndReason();
}

// Copies are under way in both directions when the session is lost for good.
TEST(Resume, WhatWasLentIsLeftAloneAfterALoss) {
  for (const bool encrypted : {false, true}) {
    for (uint64_t seed = 1; seed <= 4; ++seed) {  // each takes a second
      CutSession session({.encrypted = encrypted, .cuts = 1, .least = 1, .most = 6'000'000, .grace_s = 1},
                         seed);
      session.Forbid();
      TcpClient& client = session.client();
      std::vector<std::thread> threads;
      for (uint32_t channel = 0; channel < 2; ++channel) {
        threads.emplace_back([&, channel] {
          for (bool lost = false; !lost;) {
            ShortLived own[2];
            uint32_t sent = 0;
            for (const uint16_t flags : {uint16_t{kBulkToHost}, uint16_t{kBulkToGuest}}) {
              const uint16_t op = flags == kBulkToHost ? kSumBulk : kFillBulk;
              client.LendOwn(channel, own[sent].bytes());
              if (!Request(client, channel, op, BytesOf(seed), flags, 2 * channel + sent, kBulkBytes)) break;
              ++sent;
            }
            lost = sent < 2;
            for (uint32_t i = 0; i < sent; ++i) lost = client.AwaitReply(channel).empty() || lost;
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
      EXPECT_NE(client.LossReason(), "");
    }
  }
}

TEST(Resume, AClientThatEndsInOrderIsNotWaitedFor) {
  for (const bool says_goodbye : {true, false}) {
    const auto [client_fd, server_fd] = TcpPair();
    std::atomic<bool> waited{false};
    TcpServer server(server_fd, nullptr, nullptr, {60, [&](bool) { waited = true; }});
    auto client = std::make_unique<TcpClient>(
        client_fd, nullptr,
        ConnectAgain{
            [](uint64_t, uint64_t, FreshSocket*, std::string*) { return SocketSource::Got::kNothing; }, 60});
    ASSERT_TRUE(Request(*client, 0, kEcho, {}));
    std::span<const std::byte> record;
    ASSERT_EQ(server.ReceiveRequest(0, &record), ReceiveStatus::kRecord);
    if (says_goodbye) client->SayGoodbye();
    client.reset();
    EXPECT_EQ(server.ReceiveRequest(0, &record), ReceiveStatus::kStopped);
    EXPECT_FALSE(waited.load());
  }
}

TEST(Resume, AServerThatEndsInOrderIsNotDialledAgain) {
  const auto [client_fd, server_fd] = TcpPair();
  TcpServer server(server_fd, nullptr, nullptr, {60, [](bool) {}});
  std::atomic<bool> dialled{false};
  TcpClient client(client_fd, nullptr,
                   ConnectAgain{[&](uint64_t, uint64_t, FreshSocket*, std::string*) {
                                  dialled = true;
                                  return SocketSource::Got::kNothing;
                                },
                                60});
  ASSERT_TRUE(Request(client, 0, kNeverReply, {}));
  std::span<const std::byte> record;
  ASSERT_EQ(server.ReceiveRequest(0, &record), ReceiveStatus::kRecord);
  server.SayGoodbye();
  server.Stop();
  EXPECT_TRUE(client.AwaitReply(0).empty());
  EXPECT_NE(client.LossReason().find("the host has ended the session"), std::string::npos)
      << client.LossReason();
  EXPECT_FALSE(dialled.load());
}

// A peer that acknowledges nothing gets no more than what is kept for it, and the sender goes on or ends when it may.
TEST(Resume, WhatIsNotAcknowledgedIsBounded) {
  const auto [fd, far] = TcpPair();
  TcpConnection connection(fd);
  connection.MakeResumable([] {}, true);
  const std::vector<std::byte> record(4000);
  const FrameHeader frame{0, uint32_t(record.size()), 0, FrameKind::kRecord};
  std::atomic<uint64_t> sent{0};
  std::string failure;
  std::thread sender([&] {
    while ((failure = connection.Send(frame, record, {})).empty()) sent += sizeof frame + record.size();
  });
  std::thread reader([&, from = far] {
    std::byte bytes[65'536];
    while (recv(from, bytes, sizeof bytes, 0) > 0) {
    }
  });
  constexpr uint64_t kNearly = SentBytes::kMostCopied - 2 * kBatchBytes;
  SleepUntil([&] { return sent >= kNearly; });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_LE(sent.load(), SentBytes::kMostCopied);
  EXPECT_TRUE(connection.TakeAcknowledgement(sent));
  SleepUntil([&] { return sent >= 2 * kNearly; });
  EXPECT_FALSE(connection.TakeAcknowledgement(sent * 2));
  connection.Shutdown();
  sender.join();
  EXPECT_NE(failure, "");
  reader.join();
  close(far);
}

TEST(Resume, NumbersThatCannotBeEndTheSession) {
  const auto [fd, far] = TcpPair();
  TcpConnection connection(fd);
  connection.MakeResumable([] {}, true);
  const std::vector<std::byte> record(100);
  ASSERT_EQ(connection.Send({0, 100, 0, FrameKind::kRecord}, record, {}), "");
  ASSERT_TRUE(connection.TakeAcknowledgement(50));
  // It sleeps, so that it finds the loss also where it begins before that.
  constexpr WaitPolicy kSleep{.spin_us = 0};
  std::thread reader([&] { EXPECT_EQ(connection.Fill(&kSleep), TcpConnection::Filled::kEnded); });
  connection.Break("a test breaks it");
  uint64_t received = 1, lost_us = 0;
  ASSERT_EQ(connection.AwaitLoss(40'000'000, &received, &lost_us), Resumption::Parked::kYes);
  EXPECT_EQ(received, 0u);
  EXPECT_LE(lost_us, NowUs());
  const auto [next, next_far] = TcpPair();
  EXPECT_FALSE(connection.GoOn(next, nullptr, 49));   // before what it has acknowledged
  EXPECT_FALSE(connection.GoOn(next, nullptr, 117));  // more than there was
  connection.Shutdown();
  reader.join();
  for (const int each : {next, next_far, far}) close(each);
}

// While a queue is full nobody reads, so that nobody notices: the time runs all the same.
TEST(Resume, TheTimeRunsFromTheLossAlsoWhileNobodyReads) {
  const auto [fd, far] = TcpPair();
  TcpConnection connection(fd);
  connection.MakeResumable([] {}, true);
  connection.Break("a test breaks it");
  uint64_t received = 0, lost_us = 0;
  EXPECT_EQ(connection.AwaitLoss(1000, &received, &lost_us), Resumption::Parked::kLate);
  EXPECT_GE(NowUs(), lost_us + 1000);
  connection.Shutdown();
  EXPECT_EQ(connection.AwaitLoss(40'000'000, &received, &lost_us), Resumption::Parked::kOver);
  close(far);
}

TEST(ResumeMessages, TellWhatIsNoGrant) {
  LocalReply reply{kLocalMagic, 1, 0, 0, ""};
  EXPECT_FALSE(GrantOf(reply));
  SessionToken token{};
  token.secret[31] = 7;
  PutGrant(token, 60, &reply);
  ASSERT_TRUE(GrantOf(reply));
  EXPECT_EQ(GrantOf(reply)->grace_s, 60u);
  EXPECT_TRUE(SameToken(GrantOf(reply)->token, token));
  for (size_t i = 0; i < sizeof token; ++i) {
    SessionToken other = token;
    reinterpret_cast<uint8_t*>(&other)[i] ^= 0x80;
    EXPECT_FALSE(SameToken(token, other)) << i;
  }
  LocalReply refused = reply;
  refused.accepted = 0;
  EXPECT_FALSE(GrantOf(refused));
  PutGrant(token, 0, &reply);
  EXPECT_FALSE(GrantOf(reply));
  PutGrant(token, kMaxResumeGraceS + 1, &reply);
  EXPECT_FALSE(GrantOf(reply));
}

}  // namespace
}  // namespace causeway::test
