// SPDX-License-Identifier: Apache-2.0
// The TCP transport's server against any bytes on its connection, its client against any host, and one against the other.
//
// Input: byte 0 chooses the side, the link that has a thread of its own, and whether both sides may compress, then a script of frames, or
// of what a client sends to a server.
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/fuzz/guest_stream.h"

namespace causeway {
namespace {

using namespace fuzz;

void Server(Input& input, uint8_t choice, bool compresses) {
  const Stream stream = GuestStream(input, false, compresses);
  int pair[2];
  Require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
  Fill(pair[0], stream);
  {
    static auto& flight = *new FlightImage{};
    TcpServer server(pair[1], &flight, nullptr, {}, {.agreed = compresses});
    const uint32_t link = choice % 5 == 4 ? kMain : choice % 5;
    std::thread others([&] { ServeOthers(server, link); });
    ReceiveStatus status;
    while ((status = ServeOne(server, link)) == ReceiveStatus::kRecord) {
    }
    others.join();
    Require((status == ReceiveStatus::kCorrupt) == (*server.CorruptReason() != '\0'));
    if (stream.valid) Require(status == ReceiveStatus::kStopped);
  }
  close(pair[0]);
}

// Our client asked on two channels; any bytes answer. Whatever they are, each wait ends with a reply of a
// sound size or with a reason.
void Client(Input& input, bool compresses) {
  int pair[2];
  Require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
  Stream stream;
  const bool lends = input.Byte() < 24;
  uint64_t sequences[2] = {};
  while (!input.empty() && stream.bytes.size() < kMaxStreamBytes) {
    const uint8_t choice = input.Byte();
    if (choice < 8) {
      const auto raw = input.Bytes(input.Byte());
      stream.Append(raw.data(), raw.size());
      continue;
    }
    FrameParts parts{};
    const uint32_t channel = choice % 2;
    const auto reply_bytes = static_cast<uint32_t>(sizeof(RecordHeader) + input.Byte() % 200);
    parts.frame = {channel, reply_bytes, 0, FrameKind::kRecord};
    if (choice % 8 == 2) parts.frame = {kMainLink, 8, 0, FrameKind::kAsyncError};
    if (choice % 8 == 4) parts.frame = {kMainLink, 0, 0, FrameKind::kBeat};
    parts.record.bytes = parts.frame.record_bytes;
    if (parts.frame.kind == FrameKind::kRecord) parts.record.sequence = sequences[channel]++;
    if (compresses && choice % 8 == 6) parts.frame = {kMainLink, 8, 0, FrameKind::kArrivalRate};
    if (choice % 16 == 3) parts.frame.bulk_bytes = input.Byte();
    const uint32_t record_bytes = parts.frame.record_bytes;
    std::vector<std::byte> bulk(parts.frame.bulk_bytes);
    if (compresses && !bulk.empty() && choice % 32 == 3) Compress(input, &parts, &stream, &bulk);
    if (choice < 40) Break(input, &parts);
    stream.Append(&parts.frame, sizeof parts.frame);
    const size_t from = stream.bytes.size();
    stream.bytes.resize(from + record_bytes);
    std::memcpy(&stream.bytes[0] + from, &parts.record, std::min<size_t>(record_bytes, sizeof parts.record));
    stream.Append(bulk.data(), bulk.size());
  }
  {
    TcpClient client(pair[1], nullptr, {}, {.agreed = compresses});
    for (uint32_t i = 0; i < 6; ++i) {
      std::byte* record = client.ReserveRequest(i % 2, sizeof(RecordHeader));
      if (record == nullptr) break;
      RecordHeader header{};
      if (lends && i < 2) {
        header.flags = kBulkToGuest;
        header.bulk_offset = i;
        header.bulk_bytes = 100;
      }
      std::memcpy(record, &header, sizeof header);
      client.PublishRequest(i % 2, sizeof header);
    }
    Fill(pair[0], stream);
    for (uint32_t i = 0; i < 6; ++i) {
      const auto reply = client.AwaitReply(i % 2);
      if (reply.empty()) Require(!client.LossReason().empty());
      if (!reply.empty())
        Require(reply.size() >= sizeof(RecordHeader) && reply.size() <= kMaxChannelRecordBytes);
    }
    (void)client.AsyncError();
  }
  close(pair[0]);
}

// Bytes that shrink to nearly nothing, or not at all, by their seed.
std::byte PatternAt(uint8_t seed, size_t at) {
  return std::byte(seed % 2 == 0 ? seed : (seed + at * 2654435761u) >> 13);
}
void MakePattern(uint8_t seed, std::span<std::byte> out) {
  for (size_t at = 0; at < out.size(); ++at) out[at] = PatternAt(seed, at);
}
void RequirePattern(uint8_t seed, std::span<const std::byte> bytes) {
  for (size_t at = 0; at < bytes.size(); ++at) Require(bytes[at] == PatternAt(seed, at));
}

// Behind each request's header is the seed of the bytes that it lends; what comes back has the next one.
void AnswerAll(TcpServer& server) {
  std::span<const std::byte> record;
  while (server.ReceiveRequest(0, &record) == ReceiveStatus::kRecord) {
    const auto header = ReadHeader<RecordHeader>(record);
    Require(record.size() == sizeof header + 1);
    const auto seed = uint8_t(record[sizeof header]);
    const std::span<std::byte> bulk = server.BulkOf(0, header);
    Require(bulk.size() == header.bulk_bytes);
    if ((header.flags & kBulkToHost) != 0) RequirePattern(seed, bulk);
    if ((header.flags & kBulkToGuest) != 0) MakePattern(uint8_t(seed + 1), bulk);
    std::byte* const reply = server.ReserveReply(0, sizeof header);
    if (reply == nullptr) return;
    RecordHeader answer{};
    answer.bulk_bytes = header.bulk_bytes;
    std::memcpy(reply, &answer, sizeof answer);
    server.DoneRequest(0);
    server.PublishReply(0, sizeof answer);
  }
}

void Ask(TcpClient& client, Input& input, std::vector<std::byte>& own) {
  constexpr uint32_t kLarge = 300u << 10;  // a sample is compressed, then the rest, and its arrival measured
  const uint8_t choice = input.Byte(), seed = input.Byte();
  RecordHeader header{};
  header.op = 1;
  header.flags = uint16_t(choice % 4 << 2);
  header.bulk_offset = choice / 4 % kBulkBuffers;
  const bool lends = (header.flags & (kBulkToHost | kBulkToGuest)) != 0;
  if (lends) header.bulk_bytes = choice >= 224 ? kLarge + seed : 1 + seed;
  own.resize(kLarge + 256);
  std::span<std::byte> bulk(
      choice % 32 < 16 || !lends ? own.data() : client.BulkBuffer(uint32_t(header.bulk_offset)),
      header.bulk_bytes);
  if ((header.flags & kBulkToHost) != 0) MakePattern(seed, bulk);
  std::byte* const request = client.ReserveRequest(0, sizeof header + 1);
  if (request == nullptr) return;
  if (lends && bulk.data() == own.data()) client.LendOwn(0, own.data());
  std::memcpy(request, &header, sizeof header);
  request[sizeof header] = std::byte(seed);
  client.PublishRequest(0, sizeof header + 1);
  const auto reply = client.AwaitReply(0);
  Require(reply.size() == sizeof header && client.LossReason().empty());
  if ((header.flags & kBulkToGuest) != 0) RequirePattern(uint8_t(seed + 1), bulk);
}

void Post(TcpClient& client, std::mutex& main, size_t bytes) {
  std::unique_lock lock(main);
  std::byte* const record = client.ReserveMain(bytes, lock);
  Require(record != nullptr);
  std::memset(record, int(client.main_sequence() & 0xff), bytes);
  PostedHeader header{};
  header.op = 1;
  std::memcpy(record, &header, sizeof header);
  client.PublishMain(bytes);
}

// A link so slow that compressing pays wherever bytes shrink.
void Pair(Input& input, bool compresses) {
  int pair[2];
  Require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
  static auto& flight = *new FlightImage{};
  constexpr uint64_t kSlowLink = 1'000'000;
  const Compression compression{compresses, kSlowLink};
  TcpServer server(pair[1], &flight, nullptr, {}, compression);
  std::atomic<uint64_t> executed{0};
  uint64_t posted = 0;
  std::thread dispatcher([&] {
    std::span<const std::byte> record;
    for (; server.ReceiveMain(&record) == ReceiveStatus::kRecord; ++executed) {
      const auto header = ReadHeader<PostedHeader>(record);
      Require(header.op == 1 && header.sequence == executed && header.bytes == record.size());
      for (const std::byte each : record.subspan(sizeof header)) Require(each == std::byte(executed.load()));
      if (record.size() % 64 == 0) server.PostAsyncError(1);
      server.DoneMain();
    }
  });
  std::thread channel([&] { AnswerAll(server); });
  {
    TcpClient client(pair[0], nullptr, {}, compression);
    std::mutex main;
    std::vector<std::byte> own;
    while (!input.empty()) {
      const uint8_t choice = input.Byte();
      for (uint32_t times = choice % 2 == 0 ? 1 + choice / 16 : 0; times > 0; --times, ++posted)
        Post(client, main, sizeof(PostedHeader) + choice * (choice % 8 == 0 ? 64u : 1u));
      if (choice % 2 != 0) Ask(client, input, own);
    }
    Ask(client, input, own);  // sends what waits to be sent together
    test::YieldUntil([&] { return executed == posted; });
  }
  dispatcher.join();
  channel.join();
}

}  // namespace
}  // namespace causeway

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  causeway::fuzz::Input input(data, size);
  const uint8_t choice = input.Byte();
  const bool compresses = choice >= 128;
  if (choice % 16 == 1) {
    causeway::Pair(input, compresses);
  } else if (choice % 4 == 0) {
    causeway::Client(input, compresses);
  } else {
    causeway::Server(input, choice / 4, compresses);
  }
  return 0;
}
