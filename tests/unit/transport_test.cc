// SPDX-License-Identifier: Apache-2.0
// One suite over every transport, between threads and between processes.
#include "ivshmem_ring/transport/transport.h"

#include <mutex>

#include "ivshmem_ring/transport/crowding.h"
#include "ivshmem_ring/transport/waiter.h"
#include "tests/unit/transport_harness.h"
#include "tests/yield_until.h"

namespace causeway::test {
namespace {

using Clock = std::chrono::steady_clock;

class Transport : public ::testing::TestWithParam<Kind> {};
class TransportThreads : public Transport {};
class TransportProcesses : public Transport {};

TEST_P(Transport, PostsArriveInOrderAndBeforeTheCallsThatFollow) {
  TestSession session(GetParam());
  ClientTransport& client = session.client();
  Random random{3};
  uint64_t posted = 0;
  for (int round = 0; round < 20; ++round) {
    for (uint64_t i = random.Below(2'000 / kLongRunDivisor); i > 0; --i) {
      const bool large = random.Below(50) == 0;
      const size_t most = large ? kMaxMainRecordBytes : 300;
      const size_t bytes = sizeof(RecordHeader) + 8 + random.Below(most - sizeof(RecordHeader) - 8 + 1);
      ASSERT_TRUE(Post(client, kPostValue, posted++, bytes));
    }
    ASSERT_EQ(client.main_sequence(), posted);
    ASSERT_TRUE(Request(client, 0, kOrder, {}));
    const auto reply = client.AwaitReply(0);
    EXPECT_EQ(ReplyWord(reply, 0), posted);
    EXPECT_EQ(ReplyWord(reply, 1), 0u);
  }
  EXPECT_EQ(client.LossReason(), "");
}

TEST_P(Transport, CallsOfEverySizeComeBack) {
  TestSession session(GetParam());
  ClientTransport& client = session.client();
  std::vector<std::byte> body;
  for (size_t bytes = 0; bytes <= kMaxChannelRecordBytes - sizeof(RecordHeader); bytes += 13) {
    body.resize(bytes);
    FillBody(body, bytes);
    ASSERT_TRUE(Request(client, 1, kEcho, body));
    const auto reply = client.AwaitReply(1);
    ASSERT_EQ(reply.size(), sizeof(RecordHeader) + bytes);
    ASSERT_EQ(HeaderOf(reply).bytes, reply.size());
    ASSERT_TRUE(BodyMatches(reply.subspan(sizeof(RecordHeader)), bytes)) << bytes;
  }
}

TEST_P(Transport, SixteenThreadsCallAtOnce) {
  TestSession session(GetParam());
  ClientTransport& client = session.client();
  std::mutex main_mutex;
  std::atomic<int> failures{0};
  uint64_t posted = 0;
  std::vector<std::thread> threads;
  for (uint32_t channel = 0; channel < kServedChannels; ++channel) {
    threads.emplace_back([&, channel] {
      Random random{channel};
      for (uint64_t i = 0; i < 1'000 / kLongRunDivisor; ++i) {
        if (random.Below(4) == 0) {
          std::lock_guard lock(main_mutex);
          if (!Post(client, kPostValue, posted++)) failures.fetch_add(1);
        }
        std::vector<std::byte> body(random.Below(600));
        const uint64_t seed = random.Next();
        FillBody(body, seed);
        if (!Request(client, channel, kEcho, body)) failures.fetch_add(1);
        const auto reply = client.AwaitReply(channel);
        if (reply.size() != sizeof(RecordHeader) + body.size() ||
            !BodyMatches(reply.subspan(sizeof(RecordHeader)), seed))
          failures.fetch_add(1);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(failures.load(), 0);
  ASSERT_TRUE(Request(client, 0, kOrder, {}));
  const auto reply = client.AwaitReply(0);
  EXPECT_EQ(ReplyWord(reply, 0), posted);
  EXPECT_EQ(ReplyWord(reply, 1), 0u);
}

TEST_P(Transport, BulkBuffersTravelBothWaysAtOnce) {
  TestSession session(GetParam());
  ClientTransport& client = session.client();
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kBulkBuffers; ++i) {
    threads.emplace_back([&, i] {
      const Bulk bulk = session.BulkAt(i);
      for (const uint32_t bytes : {1u, 7u, 4096u, 100'000u, static_cast<uint32_t>(kBulkBytes)}) {
        const std::span<std::byte> buffer(bulk.bytes, bytes);
        const auto expect = [&](bool right) { failures.fetch_add(right ? 0 : 1); };
        FillBody(buffer, i + bytes);
        uint64_t sum = 0;
        for (const std::byte byte : buffer) sum += static_cast<uint64_t>(byte);
        expect(Request(client, i, kSumBulk, {}, kBulkToHost, bulk.offset, bytes));
        auto reply = client.AwaitReply(i);
        expect(ReplyWord(reply, 0) == sum && ReplyWord(reply, 1) == bytes);

        const uint64_t seed = 1000 * bytes + i;
        expect(Request(client, i, kFillBulk, BytesOf(seed), kBulkToGuest, bulk.offset, bytes));
        reply = client.AwaitReply(i);
        expect(!reply.empty() && HeaderOf(reply).bulk_bytes == bytes && BodyMatches(buffer, seed));

        expect(Request(client, i, kInvertBulk, {}, kBulkToHost | kBulkToGuest, bulk.offset, bytes));
        reply = client.AwaitReply(i);
        for (std::byte& byte : buffer) byte = ~byte;
        expect(!reply.empty() && BodyMatches(buffer, seed));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(failures.load(), 0) << client.LossReason();
}

TEST_P(Transport, SeveralRequestsOfOneChannelMayBeUnderWay) {
  TestSession session(GetParam());
  ClientTransport& client = session.client();
  for (uint64_t round = 0; round < 100; ++round) {
    for (uint64_t i = 0; i < 4; ++i) {
      const Bulk bulk = session.BulkAt(static_cast<uint32_t>(i));
      const uint64_t seed = round * 4 + i;
      ASSERT_TRUE(Request(client, 2, kFillBulk, BytesOf(seed), kBulkToGuest, bulk.offset, 999));
    }
    for (uint64_t i = 0; i < 4; ++i) {
      ASSERT_FALSE(client.AwaitReply(2).empty());
      ASSERT_TRUE(BodyMatches({session.BulkAt(static_cast<uint32_t>(i)).bytes, 999}, round * 4 + i));
    }
  }
}

TEST_P(Transport, ErrorsOfPostedCallsAreSeenAtTheNextCall) {
  TestSession session(GetParam());
  ClientTransport& client = session.client();
  EXPECT_EQ(client.AsyncError(), 0u);
  for (uint64_t count = 1; count <= 100; ++count) {
    ASSERT_TRUE(Post(client, kPostError, 700 + count));
    ASSERT_TRUE(Request(client, 0, kEcho, {}));
    ASSERT_FALSE(client.AwaitReply(0).empty());
    EXPECT_EQ(client.AsyncError(), count << 32 | (700 + count));
  }
}

TEST_P(Transport, PostingWaitsForAServerThatIsBehind) {
  TestSession session(GetParam());
  ClientTransport& client = session.client();
  ASSERT_TRUE(Post(client, kPostPause, 200));
  // 24 MiB: more than ring, queue and socket buffers hold.
  for (uint64_t i = 0; i < 400; ++i) ASSERT_TRUE(Post(client, kPostValue, i, 60'000));
  ASSERT_TRUE(Request(client, 0, kOrder, {}));
  const auto reply = client.AwaitReply(0);
  EXPECT_EQ(ReplyWord(reply, 0), 401u);
  EXPECT_EQ(ReplyWord(reply, 1), 0u);
}

// Threads that wait for room give the lock back meanwhile, and take each other's place.
TEST_P(Transport, ThreadsWaitForRoomTogether) {
  constexpr uint64_t kThreads = 4, kPosts = 3000;
  constexpr size_t kBytes = 400;
  TestSession session(GetParam());
  ClientTransport& client = session.client();
  ASSERT_TRUE(Post(client, kPostPause, 100));
  std::mutex main_lock;
  uint64_t next = 0;  // guarded by main_lock, given once the record has its place
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (uint64_t post = 0; post < kPosts; ++post) {
        std::unique_lock lock(main_lock);
        std::byte* record = client.ReserveMain(kBytes, lock);
        ASSERT_NE(record, nullptr);
        RecordHeader header{};
        header.op = kPostValue;
        std::memcpy(record, &header, sizeof header);
        std::memcpy(record + sizeof header, &next, sizeof next);
        ++next;
        client.PublishMain(kBytes);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  ASSERT_TRUE(Request(client, 0, kOrder, {}));
  const auto reply = client.AwaitReply(0);
  EXPECT_EQ(ReplyWord(reply, 0), kThreads * kPosts + 1);
  EXPECT_EQ(ReplyWord(reply, 1), 0u);
}

TEST_P(TransportProcesses, AKilledServerEndsEveryWaitWithAReason) {
  TestSession session(GetParam());
  ClientTransport& client = session.client();
  ASSERT_TRUE(Request(client, 0, kEcho, {}));
  ASSERT_FALSE(client.AwaitReply(0).empty());
  std::atomic<int> waiting{0}, ended{0};
  std::vector<std::thread> threads;
  for (uint32_t channel = 0; channel < 4; ++channel) {
    threads.emplace_back([&, channel] {
      Request(client, channel, kNeverReply, {});
      ++waiting;
      EXPECT_TRUE(client.AwaitReply(channel).empty());
      ++ended;
    });
  }
  threads.emplace_back([&] {
    ++waiting;
    while (Post(client, kPostValue, 0, 50'000)) {
    }
    ++ended;
  });
  test::YieldUntil([&] { return waiting.load() == 5; });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  session.KillServer();
  const auto killed = Clock::now();
  test::YieldUntil([&] { return ended.load() == 5; });
  EXPECT_LT(Clock::now() - killed, std::chrono::seconds(20));
  for (auto& thread : threads) thread.join();
  EXPECT_NE(client.LossReason(), "");
  std::mutex main_mutex;
  std::unique_lock lock(main_mutex);
  EXPECT_EQ(client.ReserveMain(1000 * 60, lock), nullptr) << "and later calls fail at once";
  Request(client, 5, kEcho, {});
  EXPECT_TRUE(client.AwaitReply(5).empty());
}

TEST_P(TransportProcesses, AKilledClientEndsTheServersWaits) {
  const Kind kind = GetParam();
  SharedMemory memory(kGranuleBytes);
  int client_fd = -1, server_fd = -1;
  if (!IsRing(kind)) std::tie(client_fd, server_fd) = TcpPair();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (server_fd >= 0) close(server_fd);
    std::unique_ptr<ClientTransport> client;
    if (IsRing(kind))
      client = std::make_unique<RingClient>(
          RingClientOptions{.slot = memory.data(), .futex = true, .loss = [] { return std::string(); }});
    else
      client = std::make_unique<TcpClient>(client_fd);
    for (uint64_t i = 0;; ++i) Post(*client, kPostValue, i, 100 + i % 1000);
  }
  if (client_fd >= 0) close(client_fd);
  std::unique_ptr<ServerTransport> transport;
  if (IsRing(kind))
    transport = MakeRingServer(memory.data(), kGranuleBytes);
  else
    transport = std::make_unique<TcpServer>(server_fd);
  TestServer server(*transport);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status)) << "it should have been posting";
  const auto killed = Clock::now();
  if (IsRing(kind)) transport->Stop();  // whoever serves a region watches its processes and says so
  server.Join();
  EXPECT_LT(Clock::now() - killed, std::chrono::seconds(20));
  EXPECT_FALSE(server.corrupt()) << transport->CorruptReason();
}

TEST_P(TransportThreads, StopEndsAServerWhosePeerNeverPauses) {
  const Kind kind = GetParam();
  SharedMemory memory(kGranuleBytes);
  std::atomic<bool> over{false};
  std::unique_ptr<ServerTransport> transport;
  std::unique_ptr<ClientTransport> client;
  if (IsRing(kind)) {
    transport = MakeRingServer(memory.data(), kGranuleBytes);
    client = std::make_unique<RingClient>(RingClientOptions{
        .slot = memory.data(), .futex = true, .loss = [&] { return std::string(over ? "over" : ""); }});
  } else {
    const auto [client_fd, server_fd] = TcpPair();
    transport = std::make_unique<TcpServer>(server_fd);
    client = std::make_unique<TcpClient>(client_fd);
  }
  TestServer server(*transport);
  std::thread poster([&] {
    for (uint64_t i = 0; Post(*client, kPostValue, i); ++i) {
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const auto stopped = Clock::now();
  transport->Stop();
  server.Join();
  EXPECT_LT(Clock::now() - stopped, std::chrono::seconds(20));
  std::span<const std::byte> record;
  EXPECT_EQ(transport->ReceiveMain(&record), ReceiveStatus::kStopped) << "now and later";
  EXPECT_EQ(transport->ReceiveRequest(40, &record), ReceiveStatus::kStopped);
  over = true;
  poster.join();
  EXPECT_NE(client->LossReason(), "");
}

TEST(RingClientTest, ReasonOfALossThatWasSeenOnceIsKept) {
  SharedMemory memory(kGranuleBytes);
  int asked = 0;
  RingClient client(RingClientOptions{
      .slot = memory.data(), .futex = true, .loss = [&] { return std::string(++asked == 1 ? "once" : ""); }});
  Request(client, 5, kEcho, {});
  EXPECT_TRUE(client.AwaitReply(5).empty());
  EXPECT_EQ(client.LossReason(), "once");
}

// Of a crowd the dispatcher learns by yields that take long; here it is told.
TEST(RingServerTest, InACrowdPostedRecordsGatherUntilSomebodyWaits) {
  SharedMemory memory(kGranuleBytes);
  const auto transport = MakeRingServer(memory.data(), kGranuleBytes);
  RingClient client(
      RingClientOptions{.slot = memory.data(), .futex = true, .loss = [] { return std::string(); }});
  TestServer server(*transport);
  const HotWord& waiting =
      reinterpret_cast<const HostControl*>(memory.data() + kHostControlOffset)->main_waiting;
  const auto until = Clock::now() + std::chrono::seconds(60);
  uint64_t posted = 0;
  bool gathered = false;
  while (!gathered && Clock::now() < until) {
    Crowding::OfProcess().Yielded(NowUs(), Crowding::kSliceUs);
    for (int i = 0; i < 8; ++i) ASSERT_TRUE(Post(client, kPostValue, posted++));
    for (int i = 0; i < 1000 && !gathered; ++i)
      gathered = LoadAcquire(waiting) == static_cast<uint64_t>(DispatcherSleep::kGathers);
    for (int i = 0; i < 8; ++i) ASSERT_TRUE(Post(client, kPostValue, posted++));
    ASSERT_TRUE(Request(client, 0, kOrder, {}));
    const auto reply = client.AwaitReply(0);
    ASSERT_EQ(ReplyWord(reply, 0), posted);
    ASSERT_EQ(ReplyWord(reply, 1), 0u);
  }
  EXPECT_TRUE(gathered);
  transport->Stop();
}

std::string KindName(const ::testing::TestParamInfo<Kind>& tested) {
  return NameOf(tested.param);
}
INSTANTIATE_TEST_SUITE_P(Over, Transport,
                         ::testing::Values(Kind::kRingThreads, Kind::kRingProcesses, Kind::kTcpThreads,
                                           Kind::kTcpProcesses),
                         KindName);
INSTANTIATE_TEST_SUITE_P(Over, TransportThreads, ::testing::Values(Kind::kRingThreads, Kind::kTcpThreads),
                         KindName);
INSTANTIATE_TEST_SUITE_P(Over, TransportProcesses,
                         ::testing::Values(Kind::kRingProcesses, Kind::kTcpProcesses), KindName);

}  // namespace
}  // namespace causeway::test
