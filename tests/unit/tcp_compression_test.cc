// SPDX-License-Identifier: Apache-2.0
// Compressed bulk bytes on a connection: what travels, what a hostile peer may send in their place, and that they survive cuts.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <random>

#include "tests/unit/bare_wire.h"
#include "tests/unit/cut_link.h"

namespace causeway::test {
namespace {

constexpr Compression kFast{.agreed = true};
constexpr Compression kSlow{.agreed = true, .assumed_rate = 1'000'000};
constexpr FrameKind kCompressedFrame = FrameKind::kCompressed;

enum class Data { kZeros, kWords, kRandom };

// Of each kind, different for each seed.
void Fill(std::span<std::byte> bytes, Data data, uint64_t seed) {
  std::fill(bytes.begin(), bytes.end(), std::byte(seed));
  if (data == Data::kRandom) FillBody(bytes, seed);
  if (data != Data::kWords) return;
  std::minstd_rand random(static_cast<uint32_t>(seed + 1));
  static constexpr std::string_view kWords[] = {"bytes ", "of ",     "a ",   "program ",
                                                "that ",  "repeat ", "them "};
  for (size_t at = 0; at < bytes.size();) {
    const std::string_view word = kWords[random() % std::size(kWords)];
    const size_t step = std::min(word.size(), bytes.size() - at);
    std::memcpy(&bytes[at], word.data(), step);
    at += step;
  }
}

std::vector<std::byte> Made(size_t bytes, Data data, uint64_t seed = 7) {
  std::vector<std::byte> made(bytes);
  Fill(made, data, seed);
  return made;
}

CompressedBulk CompressAtOnce(std::span<const std::byte> bytes) {
  return BulkCompressor(1).Compress(bytes);
}

// Reads a compressed frame's record and block, and gives the bytes that it stands for.
std::vector<std::byte> ReadCompressed(Wire& wire, FrameHeader frame, size_t* travelled) {
  const uint32_t plain = std::exchange(frame.bulk_bytes, 4);
  const std::vector<std::byte> rest = wire.ReadRest(frame);
  uint32_t bytes = 0;
  std::memcpy(&bytes, &rest[frame.record_bytes], sizeof bytes);
  EXPECT_GT(bytes, 0u);
  EXPECT_LT(bytes, plain);
  const std::vector<std::byte> block = wire.ReadRest({0, 0, bytes, kCompressedFrame});
  std::vector<std::byte> out(plain);
  EXPECT_TRUE(BulkCompressor::Decompress(block, out));
  *travelled = bytes;
  return out;
}

TEST(BulkCompressor, GivesBackWhatItWasGiven) {
  for (const Data data : {Data::kZeros, Data::kWords})
    for (const size_t bytes : {size_t{16} << 10, size_t{65'537}, size_t{200'001}, size_t{kBulkBytes}}) {
      const std::vector<std::byte> in = Made(bytes, data);
      const CompressedBulk made = CompressAtOnce(in);
      ASSERT_NE(made.bytes, nullptr) << bytes;
      ASSERT_LT(made.size, bytes);
      uint32_t block = 0;
      std::memcpy(&block, made.bytes.get(), sizeof block);
      ASSERT_EQ(made.size, sizeof block + block);
      std::vector<std::byte> out(bytes);
      const std::span<const std::byte> all(made.bytes.get() + sizeof block, block);
      EXPECT_TRUE(BulkCompressor::Decompress(all, out));
      EXPECT_EQ(in, out);
      // One byte less or more on either side is another piece.
      std::vector<std::byte> less(bytes - 1), more(bytes + 1);
      EXPECT_FALSE(BulkCompressor::Decompress(all, less));
      EXPECT_FALSE(BulkCompressor::Decompress(all, more));
      EXPECT_FALSE(BulkCompressor::Decompress(all.first(block - 1), out));
    }
  EXPECT_EQ(CompressAtOnce(Made(kBulkBytes, Data::kRandom)).bytes, nullptr);
}

TEST(BulkCompressor, TakesAnyBytesForABlock) {
  std::mt19937_64 random(1);
  std::vector<std::byte> out(10'000);
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::byte> block(random() % 500);
    FillBody(block, random());
    (void)BulkCompressor::Decompress(block, out);
  }
  const CompressedBulk made = CompressAtOnce(Made(100'000, Data::kWords));
  out.resize(100'000);
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::byte> block(made.bytes.get() + 4, made.bytes.get() + made.size);
    for (int change = 0; change < 3; ++change) block[random() % block.size()] = std::byte(random());
    (void)BulkCompressor::Decompress(block, out);
  }
}

// A request with those bytes, for which nobody waits.
void SendOne(TcpClient& client, uint32_t index, const std::vector<std::byte>& bytes) {
  std::memcpy(client.BulkBuffer(index), bytes.data(), bytes.size());
  ASSERT_TRUE(Request(client, 0, kEcho, {}, kBulkToHost, index, uint32_t(bytes.size())));
}

TEST(TcpCompression, OnASlowLinkBytesThatShrinkTravelCompressed) {
  const auto [client_fd, server_fd] = TcpPair();
  Wire wire(server_fd);
  TcpClient client(client_fd, nullptr, {}, kSlow);
  const std::vector<std::byte> words = Made(300'000, Data::kWords), random = Made(300'000, Data::kRandom);
  std::thread sender([&] {
    SendOne(client, 0, words);
    SendOne(client, 1, random);
  });
  FrameHeader frame{};
  size_t travelled = 0;
  ASSERT_TRUE(wire.ReadReply(&frame));
  ASSERT_EQ(frame.kind, kCompressedFrame);
  ASSERT_EQ(frame.bulk_bytes, words.size());
  EXPECT_EQ(ReadCompressed(wire, frame, &travelled), words);
  EXPECT_LT(travelled, words.size() / 2);
  ASSERT_TRUE(wire.ReadReply(&frame));
  ASSERT_EQ(frame.kind, kRecordFrame);
  const std::vector<std::byte> rest = wire.ReadRest(frame);
  EXPECT_TRUE(std::equal(random.begin(), random.end(), rest.begin() + frame.record_bytes));
  sender.join();
}

TEST(TcpCompression, OnAFastLinkNothingDoesUntilThePeerSaysThatItIsSlow) {
  const auto [client_fd, server_fd] = TcpPair();
  Wire wire(server_fd);
  TcpClient client(client_fd, nullptr, {}, kFast);
  const std::vector<std::byte> zeros = Made(100'000, Data::kZeros);
  FrameHeader frame{};
  size_t travelled = 0;
  uint32_t sent = 0;
  const auto send = [&](FrameKind expected) {
    std::thread sender([&] { SendOne(client, sent++, zeros); });
    ASSERT_TRUE(wire.ReadReply(&frame));
    EXPECT_EQ(frame.kind, expected);
    if (frame.kind == kCompressedFrame) {
      EXPECT_EQ(ReadCompressed(wire, frame, &travelled), zeros);
    } else {
      wire.ReadRest(frame);
    }
    sender.join();
  };
  send(kRecordFrame);
  const struct {
    FrameHeader frame;
    uint64_t rate;
  } said[] = {{{kMainLink, 8, 0, FrameKind::kArrivalRate}, 10'000'000},
              {{kMainLink, 8, 0, FrameKind::kArrivalRate}, kFastLink}};
  // The reply shows that the client has read what came before it.
  wire.Send(&said[0], sizeof said[0]);
  wire.SendFrame({0, 48, 0, kRecordFrame}, Header(48, 0));
  ASSERT_FALSE(client.AwaitReply(0).empty()) << client.LossReason();
  send(kCompressedFrame);
  wire.Send(&said[1], sizeof said[1]);
  wire.SendFrame({0, 48, 0, kRecordFrame}, Header(48, 1));
  ASSERT_FALSE(client.AwaitReply(0).empty()) << client.LossReason();
  send(kRecordFrame);
}

TEST(TcpCompression, WhoReceivesFromASlowLinkSaysSo) {
  const auto [client_fd, server_fd] = TcpPair();
  Wire wire(client_fd);
  TcpServer server(server_fd, nullptr, nullptr, {}, kFast);
  constexpr uint32_t kBytes = 512u << 10, kStep = 32u << 10;
  std::thread sender([&] {
    const std::vector<std::byte> step(kStep);
    for (uint32_t i = 0; i < 3; ++i) {
      wire.SendFrame({0, 48, kBytes, kRecordFrame}, BulkHeader(kBulkToHost, i, kBytes, i));
      for (uint32_t sent = 0; sent < kBytes; sent += kStep) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        wire.Send(step.data(), step.size());
      }
    }
  });
  std::span<const std::byte> record;
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(server.ReceiveRequest(0, &record), ReceiveStatus::kRecord);
    server.DoneRequest(0);
  }
  sender.join();
  RecordHeader answer{};
  std::memcpy(server.ReserveReply(0), &answer, sizeof answer);
  server.PublishReply(0, sizeof answer);
  FrameHeader frame{};
  ASSERT_TRUE(wire.ReadReply(&frame));
  ASSERT_EQ(frame.kind, FrameKind::kArrivalRate);
  uint64_t rate = 0;
  const std::vector<std::byte> rest = wire.ReadRest(frame);
  ASSERT_EQ(rest.size(), sizeof rate);
  std::memcpy(&rate, rest.data(), sizeof rate);
  EXPECT_GT(rate, 0u);
  EXPECT_LE(rate, kStep * 1100u) << "32 KiB a millisecond, or less";
  ASSERT_TRUE(wire.ReadReply(&frame));
  EXPECT_EQ(frame.kind, kRecordFrame);
}

// A block with that length in front of it.
std::vector<std::byte> BlockOf(uint32_t said, std::span<const std::byte> block) {
  std::vector<std::byte> bytes(sizeof said + block.size());
  std::memcpy(bytes.data(), &said, sizeof said);
  std::copy(block.begin(), block.end(), bytes.begin() + sizeof said);
  return bytes;
}

std::vector<std::byte> ZerosBlock(size_t bytes) {
  const CompressedBulk made = CompressAtOnce(std::vector<std::byte>(bytes));
  return {made.bytes.get() + sizeof(uint32_t), made.bytes.get() + made.size};
}

constexpr uint32_t kSaid = 20'000;

TEST(TcpCompression, AHostileGuestsBlocksEndItsSession) {
  const std::vector<std::byte> good = ZerosBlock(kSaid), short_of_it = ZerosBlock(kSaid - 1),
                               beyond = ZerosBlock(kBulkBytes), any = Made(100, Data::kRandom);
  const uint32_t length = uint32_t(good.size());
  const struct {
    const char* reason;
    FrameHeader frame;
    std::vector<std::byte> bytes;
    bool agreed = true;
  } cases[] = {
      {"", {0, 48, kSaid, kCompressedFrame}, BlockOf(length, good)},
      {"frame of a kind that a guest may not send", {0, 48, kSaid, kCompressedFrame}, {}, false},
      {"frame of a kind that a guest may not send", {kMainLink, 8, 0, FrameKind::kArrivalRate}, {}, false},
      {"rate of a wrong size", {kMainLink, 7, 0, FrameKind::kArrivalRate}, {}},
      {"rate of a wrong size", {kMainLink, 8, 1, FrameKind::kArrivalRate}, {}},
      {"compressed frame without bulk bytes", {0, 48, 0, kCompressedFrame}, {}},
      {"bulk larger than a buffer", {0, 48, kBulkBytes + 1, kCompressedFrame}, {}},
      {"bulk bytes with a posted record", {kMainLink, 48, kSaid, kCompressedFrame}, {}},
      {"request and frame disagree on the bulk bytes", {0, 48, kSaid + 1, kCompressedFrame}, {}},
      {"compressed bytes that are not what was said", {0, 48, kSaid, kCompressedFrame}, BlockOf(0, good)},
      {"compressed bytes that are not what was said", {0, 48, kSaid, kCompressedFrame}, BlockOf(kSaid, good)},
      {"compressed bytes that are not what was said",
       {0, 48, kSaid, kCompressedFrame},
       BlockOf(0xffffffff, good)},
      {"compressed bytes that are not what was said",
       {0, 48, kSaid, kCompressedFrame},
       BlockOf(length - 1, good)},
      {"compressed bytes that are not what was said",
       {0, 48, kSaid, kCompressedFrame},
       BlockOf(uint32_t(short_of_it.size()), short_of_it)},
      {"compressed bytes that are not what was said",
       {0, 48, kSaid, kCompressedFrame},
       BlockOf(uint32_t(beyond.size()), beyond)},
      {"compressed bytes that are not what was said",
       {0, 48, kSaid, kCompressedFrame},
       BlockOf(uint32_t(any.size()), any)},
  };
  for (const auto& each : cases) {
    const auto [client_fd, server_fd] = TcpPair();
    Wire wire(client_fd);
    TcpServer server(server_fd, nullptr, nullptr, {}, {.agreed = each.agreed});
    wire.SendFrame(each.frame, BulkHeader(kBulkToHost, 0, kSaid));
    if (!each.bytes.empty()) wire.Send(each.bytes.data(), each.bytes.size());
    std::span<const std::byte> record;
    const bool good_one = *each.reason == '\0';
    EXPECT_EQ(server.ReceiveRequest(0, &record), good_one ? ReceiveStatus::kRecord : ReceiveStatus::kCorrupt)
        << each.reason;
    EXPECT_STREQ(server.CorruptReason(), each.reason);
    if (good_one) {
      EXPECT_EQ(server.BulkOf(0, HeaderOf(record)).size(), kSaid);
    }
  }
}

TEST(TcpCompression, AHostileHostsBlocksEndTheSession) {
  const std::string lost = "the connection to the host is lost: ";
  const std::vector<std::byte> good = ZerosBlock(kSaid), beyond = ZerosBlock(kBulkBytes);
  const struct {
    std::string reason;
    FrameHeader frame;
    std::vector<std::byte> bytes;
    bool agreed = true;
  } cases[] = {
      {"", {0, 48, kSaid, kCompressedFrame}, BlockOf(uint32_t(good.size()), good)},
      {"the host sent a frame of an unknown kind", {0, 48, kSaid, kCompressedFrame}, {}, false},
      {"the host sent a frame of an unknown kind", {kMainLink, 8, 0, FrameKind::kArrivalRate}, {}, false},
      {"the host sent a rate of a wrong size", {kMainLink, 9, 0, FrameKind::kArrivalRate}, {}},
      {"the host compressed what has no bulk bytes", {0, 48, 0, kCompressedFrame}, {}},
      {"the host sent more bulk bytes than were asked for", {0, 48, kSaid + 1, kCompressedFrame}, {}},
      {"the host sent compressed bytes that are not what it said",
       {0, 48, kSaid, kCompressedFrame},
       BlockOf(uint32_t(beyond.size()), beyond)},
      {"the host sent compressed bytes that are not what it said",
       {0, 48, kSaid, kCompressedFrame},
       BlockOf(kSaid + 1, good)},
      // Fewer than were asked for may come, and this block is not theirs.
      {"the host sent compressed bytes that are not what it said",
       {0, 48, kSaid - 1, kCompressedFrame},
       BlockOf(uint32_t(good.size()), good)},
  };
  for (const auto& each : cases) {
    const auto [client_fd, server_fd] = TcpPair();
    TcpClient client(client_fd, nullptr, {}, {.agreed = each.agreed});
    Wire wire(server_fd);
    ASSERT_TRUE(Request(client, 0, kEcho, {}, kBulkToGuest, 0, kSaid));
    wire.SendFrame(each.frame, Header(48));
    if (!each.bytes.empty()) wire.Send(each.bytes.data(), each.bytes.size());
    EXPECT_EQ(client.AwaitReply(0).empty(), !each.reason.empty());
    EXPECT_EQ(client.LossReason(), each.reason.empty() ? "" : lost + each.reason);
  }
}

// Threads that copy both ways, bytes of all kinds.
void CopyBothWays(CutSession& session, int rounds) {
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (uint32_t channel = 0; channel < 4; ++channel) {
    threads.emplace_back([&, channel] {
      TcpClient& client = session.client();
      for (int round = 0; round < rounds; ++round) {
        const uint64_t seed = uint64_t(round) * 31 + channel;
        const auto bytes = round % 3 == 0 ? kBulkBytes : uint32_t(20'000 + seed * 7 % 300'000);
        // Random bytes at the end, after which the next pieces are not compressed.
        const auto data = round < rounds * 2 / 3 ? round % 2 == 0 ? Data::kZeros : Data::kWords
                                                 : static_cast<Data>(round % 3);
        std::vector<std::byte> own(bytes);
        if (round % 2 == 0) client.LendOwn(channel, own.data());
        const std::span<std::byte> bulk(round % 2 == 0 ? own.data() : session.BulkBuffer(channel), bytes);
        Fill(bulk, data, seed);
        if (!Request(client, channel, kInvertBulk, {}, kBulkToHost | kBulkToGuest, channel, bytes))
          ++failures;
        if (client.AwaitReply(channel).empty()) ++failures;
        for (std::byte& byte : bulk) byte = ~byte;
        const std::vector<std::byte> expected = Made(bytes, data, seed);
        if (!std::equal(bulk.begin(), bulk.end(), expected.begin(), expected.end())) ++failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures.load(), 0) << session.client().LossReason() << session.server().CorruptReason();
}

TEST(TcpCompression, SurvivesCuts) {
  std::random_device device;
  const uint64_t seed = device();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  for (const bool encrypted : {false, true})
    for (const uint64_t most : {2'000u, 300'000u}) {
      const CutPlan plan{
          .encrypted = encrypted, .cuts = most == 2'000 ? 100u : 20u, .most = most, .compression = kSlow};
      CutSession session(plan, seed + most);
      CopyBothWays(session, 12);
      EXPECT_GE(session.losses(), 1u);
    }
}

TEST(TcpCompression, WhatWasAgreedOnAFastLinkChangesNothing) {
  CutSession session({.compression = kFast}, 1);
  CopyBothWays(session, 12);
  EXPECT_EQ(session.losses(), 0u);
}

}  // namespace
}  // namespace causeway::test
