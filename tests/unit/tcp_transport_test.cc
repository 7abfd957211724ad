// SPDX-License-Identifier: Apache-2.0
// What only the TCP transport has: frames that break the rules, queues that fill, beats.
#include "ivshmem_ring/tcp/tcp_transport.h"

#include <gtest/gtest.h>

#include "ivshmem_ring/protocol/operation.h"
#include "tests/unit/bare_wire.h"

namespace causeway::test {
namespace {

struct Violation {
  const char* reason;
  FrameHeader frame;
  RecordHeader record;
};

TEST(TcpServer, EveryViolationEndsTheSessionWithItsReason) {
  const uint32_t too_long_main = kMaxMainRecordBytes + 1, too_long = kMaxChannelRecordBytes + 1;
  const uint32_t too_much = kBulkBytes + 1;
  const Violation violations[] = {
      {"frame of a kind that a guest may not send", {0, 48, 0, FrameKind::kBeat}, Header(48)},
      {"frame of a kind that a guest may not send", {0, 48, 0, FrameKind{77}}, Header(48)},
      {"frame for no link", {kChannelCount, 48, 0, kRecordFrame}, Header(48)},
      {"frame for no link", {0xfffffffe, 48, 0, kRecordFrame}, Header(48)},
      {"record smaller than its header", {0, 47, 0, kRecordFrame}, Header(47)},
      {"record smaller than its header", {kMainLink, 0, 0, kRecordFrame}, Header(0)},
      {"record larger than its kind allows", {0, too_long, 0, kRecordFrame}, Header(too_long)},
      {"record larger than its kind allows",
       {kMainLink, too_long_main, 0, kRecordFrame},
       Header(too_long_main)},
      {"record larger than its kind allows", {kMainLink, 0xffffffff, 0, kRecordFrame}, Header(48)},
      {"bulk larger than a buffer", {0, 48, too_much, kRecordFrame}, BulkHeader(kBulkToHost, 0, too_much)},
      {"bulk larger than a buffer", {0, 48, 0, kRecordFrame}, BulkHeader(kBulkToGuest, 0, too_much)},
      {"record and frame disagree on the size", {0, 48, 0, kRecordFrame}, Header(49)},
      {"record out of sequence", {0, 48, 0, kRecordFrame}, Header(48, 1)},
      {"bulk bytes with a posted record", {kMainLink, 48, 8, kRecordFrame}, BulkHeader(kBulkToHost, 0, 8)},
      {"request and frame disagree on the bulk bytes",
       {0, 48, 8, kRecordFrame},
       BulkHeader(kBulkToHost, 0, 9)},
      {"request and frame disagree on the bulk bytes", {0, 48, 8, kRecordFrame}, BulkHeader(0, 0, 8)},
      {"bulk buffer out of range", {0, 48, 8, kRecordFrame}, BulkHeader(kBulkToHost, kBulkBuffers, 8)},
      {"bulk buffer out of range", {0, 48, 0, kRecordFrame}, BulkHeader(kBulkToGuest, ~uint64_t{0}, 8)},
  };
  for (const Violation& violation : violations) {
    const auto [client_fd, server_fd] = TcpPair();
    Wire wire(client_fd);
    TcpServer server(server_fd);
    FrameHeader frame = violation.frame;
    wire.Send(&frame, sizeof frame);
    wire.Send(&violation.record, sizeof violation.record);
    std::span<const std::byte> record;
    EXPECT_EQ(server.ReceiveMain(&record), ReceiveStatus::kCorrupt) << violation.reason;
    EXPECT_EQ(server.ReceiveRequest(3, &record), ReceiveStatus::kCorrupt);
    EXPECT_STREQ(server.CorruptReason(), violation.reason);
  }
}

TEST(TcpServer, ABulkBufferIsLentOnceAtATime) {
  const auto [client_fd, server_fd] = TcpPair();
  Wire wire(client_fd);
  TcpServer server(server_fd);
  wire.SendFrame({0, 48, 8, kRecordFrame}, BulkHeader(kBulkToHost, 1, 8), 8);
  std::span<const std::byte> record;
  ASSERT_EQ(server.ReceiveRequest(0, &record), ReceiveStatus::kRecord);
  EXPECT_EQ(server.BulkOf(0, HeaderOf(record)).size(), 8u);
  EXPECT_TRUE(server.BulkOf(0, BulkHeader(kBulkToHost, 2, 8)).empty());
  EXPECT_TRUE(server.BulkOf(1, HeaderOf(record)).empty());
  server.DoneRequest(0);
  std::byte* reply = server.ReserveReply(0);
  RecordHeader answer{};
  std::memcpy(reply, &answer, sizeof answer);
  server.PublishReply(0, sizeof answer);
  FrameHeader frame{};
  ASSERT_TRUE(wire.ReadReply(&frame));
  EXPECT_EQ(frame.link, 0u);
  EXPECT_EQ(frame.bulk_bytes, 0u);
  // Answered, so it may be lent again; twice at once it may not.
  wire.SendFrame({0, 48, 8, kRecordFrame}, BulkHeader(kBulkToHost, 1, 8, 1), 8);
  ASSERT_EQ(server.ReceiveRequest(0, &record), ReceiveStatus::kRecord);
  wire.SendFrame({5, 48, 8, kRecordFrame}, BulkHeader(kBulkToHost, 1, 8), 8);
  EXPECT_EQ(server.ReceiveMain(&record), ReceiveStatus::kCorrupt);
  EXPECT_STREQ(server.CorruptReason(), "bulk buffer lent twice");
}

// Replies may wait for the device while the next requests are received. Each takes its own request's buffer along, and gives it back.
TEST(TcpServer, RequestsAreReceivedAheadOfTheirReplies) {
  const auto [client_fd, server_fd] = TcpPair();
  Wire wire(client_fd);
  TcpServer server(server_fd);
  for (uint64_t i = 0; i < 3; ++i)
    wire.SendFrame({0, 48, 0, kRecordFrame}, BulkHeader(kBulkToGuest, i, 8 + uint32_t(i), i), 0);
  for (uint64_t i = 0; i < 3; ++i) {
    std::span<const std::byte> record;
    ASSERT_EQ(server.ReceiveRequest(0, &record), ReceiveStatus::kRecord);
    const std::span<std::byte> bulk = server.BulkOf(0, HeaderOf(record));
    ASSERT_EQ(bulk.size(), 8 + i);
    std::fill(bulk.begin(), bulk.end(), std::byte(i + 1));
    server.DoneRequest(0);
  }
  for (uint64_t i = 0; i < 3; ++i) {
    std::byte* reply = server.ReserveReply(0);
    RecordHeader answer{};
    answer.bulk_bytes = 8 + uint32_t(i);
    std::memcpy(reply, &answer, sizeof answer);
    server.PublishReply(0, sizeof answer);
    FrameHeader frame{};
    ASSERT_TRUE(wire.ReadReply(&frame));
    ASSERT_EQ(frame.bulk_bytes, 8 + i);
    EXPECT_EQ(wire.ReadRest(frame).back(), std::byte(i + 1));
  }
  // All may be lent again.
  for (uint64_t i = 0; i < 3; ++i)
    wire.SendFrame({0, 48, 8, kRecordFrame}, BulkHeader(kBulkToHost, i, 8, 3 + i), 8);
  for (uint64_t i = 0; i < 3; ++i) {
    std::span<const std::byte> record;
    EXPECT_EQ(server.ReceiveRequest(0, &record), ReceiveStatus::kRecord) << server.CorruptReason();
  }
}

TEST(TcpServer, AClosedConnectionIsAStopNotAViolation) {
  for (const size_t sent : {size_t{0}, size_t{5}, sizeof(FrameHeader), sizeof(FrameHeader) + 20}) {
    const auto [client_fd, server_fd] = TcpPair();
    Wire wire(client_fd);
    TcpServer server(server_fd);
    std::byte bytes[sizeof(FrameHeader) + 48] = {};
    const FrameHeader frame{kMainLink, 48, 0, kRecordFrame};
    std::memcpy(bytes, &frame, sizeof frame);
    if (sent > 0) wire.Send(bytes, sent);
    wire.Close();
    std::span<const std::byte> record;
    EXPECT_EQ(server.ReceiveMain(&record), ReceiveStatus::kStopped) << sent;
    EXPECT_STREQ(server.CorruptReason(), "");
    EXPECT_EQ(server.ReserveReply(0), nullptr);
  }
}

TEST(TcpServer, AQueueThatNobodyDrainsStopsTheSenderWithinItsBound) {
  const auto [client_fd, server_fd] = TcpPair();
  Wire wire(client_fd);
  TcpServer server(server_fd);
  const FrameHeader frame{kMainLink, 64 << 10, 0, kRecordFrame};
  std::vector<std::byte> bytes(sizeof frame + frame.record_bytes);
  std::memcpy(bytes.data(), &frame, sizeof frame);
  size_t accepted = 0;
  uint64_t sequence = 0;
  int full = 0;
  while (full < 20 && accepted < (64u << 20)) {
    const RecordHeader header = Header(frame.record_bytes, sequence);
    std::memcpy(bytes.data() + sizeof frame, &header, sizeof header);
    size_t at = 0;
    while (at < bytes.size() && full < 20) {
      const ssize_t sent = send(client_fd, &bytes[at], bytes.size() - at, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent > 0) {
        at += static_cast<size_t>(sent);
        full = 0;
      } else {
        ++full;
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    }
    accepted += at;
    ++sequence;
  }
  EXPECT_EQ(full, 20) << "the server took " << accepted << " bytes that nobody asked for";
  std::span<const std::byte> record;
  for (uint64_t i = 0; i + 1 < sequence && i < 4; ++i) {
    ASSERT_EQ(server.ReceiveMain(&record), ReceiveStatus::kRecord);
    EXPECT_EQ(HeaderOf(record).sequence, i);
    server.DoneMain();
  }
}

// Whether the first one's thread was expected to read again at once or not.
TEST(TcpServer, ReadsARequestWhileAnotherIsExecuted) {
  for (const Op op : {Op::cuMemGetInfo_v2, Op::cuStreamSynchronize, Op::kAwaitCallback}) {
    const auto [client_fd, server_fd] = TcpPair();
    Wire wire(client_fd);
    TcpServer server(server_fd);
    std::atomic<bool> received{false};
    std::thread second([&] {
      std::span<const std::byte> record;
      received = server.ReceiveRequest(1, &record) == ReceiveStatus::kRecord;
    });
    RecordHeader request = Header(48);
    request.op = static_cast<uint16_t>(op);
    wire.SendFrame({0, 48, 0, kRecordFrame}, request);
    std::span<const std::byte> record;
    EXPECT_EQ(server.ReceiveRequest(0, &record), ReceiveStatus::kRecord);
    wire.SendFrame({1, 48, 0, kRecordFrame}, Header(48));
    YieldUntil([&] { return received.load(); });
    second.join();
  }
}

TEST(TcpServer, BeatsWhileTheGuestIsQuietAndWhileItOnlyPosts) {
  const auto [client_fd, server_fd] = TcpPair();
  Wire wire(client_fd);
  TcpServer server(server_fd);
  FrameHeader frame{};
  ASSERT_TRUE(wire.ReadFrame(&frame, 5000));
  EXPECT_EQ(frame.kind, FrameKind::kBeat);
  std::atomic<bool> over{false};
  std::thread drain([&] {
    std::span<const std::byte> record;
    while (server.ReceiveMain(&record) == ReceiveStatus::kRecord) server.DoneMain();
  });
  std::thread poster([&] {
    for (uint64_t i = 0; !over; ++i) {
      wire.SendFrame({kMainLink, 48, 0, kRecordFrame}, Header(48, i));
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(wire.ReadFrame(&frame, 5000));
  over = true;
  poster.join();
  server.Stop();
  drain.join();
}

// What a client says after the far end sent `frame` and `record` as the answer to one request of channel 0.
std::string LossAfter(FrameHeader frame, RecordHeader record, uint16_t flags, uint32_t bulk_bytes) {
  const auto [client_fd, server_fd] = TcpPair();
  TcpClient client(client_fd);
  Wire wire(server_fd);
  if (!Request(client, 0, kEcho, {}, flags, 0, bulk_bytes)) return "not sent";
  wire.SendFrame(frame, record);
  EXPECT_TRUE(client.AwaitReply(0).empty());
  return client.LossReason();
}

TEST(TcpClient, ChecksWhatTheHostSends) {
  const std::string lost = "the connection to the host is lost: ";
  const auto loss = [](FrameHeader frame, RecordHeader record) { return LossAfter(frame, record, 0, 0); };
  EXPECT_EQ(loss({0, 48, 0, FrameKind{9}}, Header(48)), lost + "the host sent a frame of an unknown kind");
  EXPECT_EQ(loss({kChannelCount, 48, 0, kRecordFrame}, Header(48)),
            lost + "the host replied on a channel that does not exist");
  EXPECT_EQ(loss({0, 40, 0, kRecordFrame}, Header(40)),
            lost + "the host sent a reply whose size is out of range");
  EXPECT_EQ(loss({0, 4097, 0, kRecordFrame}, Header(4097)),
            lost + "the host sent a reply whose size is out of range");
  EXPECT_EQ(loss({0, 48, 0, kRecordFrame}, Header(56)),
            lost + "the host sent a reply whose two sizes differ");
  EXPECT_EQ(loss({0, 48, 0, kRecordFrame}, Header(48, 1)), lost + "the host sent a reply out of sequence");
  EXPECT_EQ(loss({1, 48, 0, kRecordFrame}, Header(48)),
            lost + "the host sent a reply that no request waits for");
  EXPECT_EQ(loss({0, 48, 1, kRecordFrame}, Header(48)),
            lost + "the host sent more bulk bytes than were asked for");
  EXPECT_EQ(LossAfter({0, 48, 9, kRecordFrame}, Header(48), kBulkToGuest, 8),
            lost + "the host sent more bulk bytes than were asked for");
  EXPECT_EQ(LossAfter({0, 48, 8, kRecordFrame}, Header(48), kBulkToHost, 8),
            lost + "the host sent more bulk bytes than were asked for");
}

TEST(TcpClient, AClosedConnectionIsALossAndNoSignal) {
  const auto [client_fd, server_fd] = TcpPair();
  TcpClient client(client_fd);
  close(server_fd);
  bool posted = true;
  for (int i = 0; posted && i < 1000; ++i) {
    posted = Post(client, kPostValue, 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_FALSE(posted);
  EXPECT_EQ(client.LossReason().rfind("the connection to the host is lost: ", 0), 0u) << client.LossReason();
  EXPECT_TRUE(client.AwaitReply(0).empty());
}

TEST(TcpClient, AForkedChildLeavesItsParentsConnectionAlone) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "a child that frees memory waits for the locks that other threads held in a sanitizer's "
                  "allocator at the fork";
#endif
  TestSession session(Kind::kTcpThreads);
  ClientTransport& client = session.client();
  ASSERT_TRUE(Request(client, 0, kEcho, {}));
  ASSERT_FALSE(client.AwaitReply(0).empty());
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    client.~ClientTransport();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  ASSERT_TRUE(Request(client, 0, kEcho, {}));
  EXPECT_FALSE(client.AwaitReply(0).empty());
  EXPECT_EQ(client.LossReason(), "");
}

}  // namespace
}  // namespace causeway::test
