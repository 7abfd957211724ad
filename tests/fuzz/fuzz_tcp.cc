// SPDX-License-Identifier: Apache-2.0
// The TCP transport's server against any bytes on its connection, and its client against any host.
//
// Input: byte 0 chooses the side and the link that has a thread of its own, then a script of frames.
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "ivshmem_ring/tcp/tcp_transport.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/yield_until.h"

namespace causeway {
namespace {

using fuzz::Input;
using fuzz::Require;

constexpr size_t kMaxStreamBytes = 6u
                                   << 10;  // the replies fit into the socket, so that nobody need read them

// Frames from a script. `valid`: none of them breaks a rule.
struct Stream {
  std::vector<std::byte> bytes;
  bool valid = true;

  void Append(const void* data, size_t size) {
    const auto* begin = static_cast<const std::byte*>(data);
    bytes.insert(bytes.end(), begin, begin + size);
  }
};

struct FrameParts {
  FrameHeader frame;
  RecordHeader record;
};

// Sets one field to anything. What comes out may be valid by chance only for fields that nobody checks.
void Break(Input& input, FrameParts* parts) {
  const uint64_t value = input.Byte() % 2 == 0 ? input.Word() : input.Byte();
  switch (input.Byte() % 9) {
    case 0:
      parts->frame.link = static_cast<uint32_t>(value);
      break;
    case 1:
      parts->frame.record_bytes = static_cast<uint32_t>(value);
      break;
    case 2:
      parts->frame.bulk_bytes = static_cast<uint32_t>(value);
      break;
    case 3:
      parts->frame.kind = static_cast<FrameKind>(value);
      break;
    case 4:
      parts->record.bytes = static_cast<uint32_t>(value);
      break;
    case 5:
      parts->record.sequence = value;
      break;
    case 6:
      parts->record.bulk_offset = value;
      break;
    case 7:
      parts->record.bulk_bytes = static_cast<uint32_t>(value);
      break;
    default:
      parts->record.flags = static_cast<uint16_t>(value);
      break;
  }
}

Stream GuestStream(Input& input) {
  Stream stream;
  uint64_t main_sequence = 0;
  uint64_t sequences[kChannelCount] = {};
  uint32_t lent = 0;
  const bool lends = input.Byte() < 24;  // buffers are large, and cost most of an execution
  while (!input.empty() && stream.bytes.size() < kMaxStreamBytes) {
    const uint8_t choice = input.Byte();
    if (choice < 8) {
      const auto raw = input.Bytes(input.Byte());
      stream.Append(raw.data(), raw.size());
      if (!raw.empty()) stream.valid = false;
      continue;
    }
    FrameParts parts{};
    const bool main = choice % 2 == 0;
    const uint32_t channel = input.Byte() % 4;
    parts.frame.link = main ? kMainLink : channel;
    parts.frame.kind = FrameKind::kRecord;
    parts.frame.record_bytes = static_cast<uint32_t>(sizeof(RecordHeader) + input.Byte() % 200);
    parts.record.op = 1;
    parts.record.bytes = parts.frame.record_bytes;
    parts.record.sequence = main ? main_sequence++ : sequences[channel]++;
    const uint32_t buffer = input.Byte() % kBulkBuffers;
    // No buffer is lent again: the guest has not seen its reply.
    if (lends && !main && choice % 4 == 1 && (lent >> buffer & 1) == 0) {
      lent |= 1u << buffer;
      parts.record.flags = static_cast<uint16_t>((input.Byte() % 4) << 2);
      parts.record.bulk_offset = buffer;
      parts.record.bulk_bytes = 1 + input.Byte();
      if ((parts.record.flags & kBulkToHost) != 0) parts.frame.bulk_bytes = parts.record.bulk_bytes;
    }
    const uint32_t record_bytes = parts.frame.record_bytes;
    const uint32_t bulk_bytes = parts.frame.bulk_bytes;
    if (choice < 40) {
      Break(input, &parts);
      stream.valid = false;
    }
    stream.Append(&parts.frame, sizeof parts.frame);
    stream.Append(&parts.record, sizeof parts.record);
    stream.bytes.resize(stream.bytes.size() + record_bytes - sizeof parts.record + bulk_bytes);
  }
  return stream;
}

// The stream's bytes wait in `far`'s peer, with the end behind them.
void Fill(int far, const Stream& stream) {
  size_t sent = 0;
  while (sent < stream.bytes.size()) {
    const ssize_t step = send(far, &stream.bytes[sent], stream.bytes.size() - sent, MSG_NOSIGNAL);
    if (step <= 0) break;  // the peer has seen enough already
    sent += static_cast<size_t>(step);
  }
  shutdown(far, SHUT_WR);
}

constexpr uint32_t kMain = kChannelCount;  // as a link

// Serves the link's next message. What it was when there is none.
ReceiveStatus ServeOne(TcpServer& server, uint32_t link) {
  std::span<const std::byte> record;
  const ReceiveStatus status =
      link == kMain ? server.ReceiveMain(&record) : server.ReceiveRequest(link, &record);
  if (status != ReceiveStatus::kRecord) return status;
  RecordHeader header;
  Require(record.size() >= sizeof header && record.size() <= kMaxMainRecordBytes);
  std::memcpy(&header, record.data(), sizeof header);
  Require(header.bytes == record.size());
  if (link == kMain) {
    server.DoneMain();
    return status;
  }
  const std::span<std::byte> bulk = server.BulkOf(link, header);
  Require(bulk.size() == header.bulk_bytes);
  std::fill(bulk.begin(), bulk.end(), std::byte{1});
  std::byte* reply = server.ReserveReply(link);
  if (reply == nullptr) return status;
  RecordHeader answer{};
  answer.bulk_bytes = header.bulk_bytes;
  std::memcpy(reply, &answer, sizeof answer);
  server.DoneRequest(link);
  server.PublishReply(link, sizeof answer);
  return status;
}

// All links but one, in turn. A worker has a thread for each that is in use; the reader waits where one's
// queue is full.
void ServeOthers(TcpServer& server, uint32_t left_out) {
  test::YieldUntil([&] {
    for (uint32_t link = 0; link <= kMain; ++link) {
      if (link == left_out || !(link == kMain ? server.MainReady() : server.RequestReady(link))) continue;
      if (ServeOne(server, link) != ReceiveStatus::kRecord) return true;
    }
    return false;
  });
}

void Server(Input& input, uint8_t choice) {
  const Stream stream = GuestStream(input);
  int pair[2];
  Require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
  Fill(pair[0], stream);
  {
    static auto& flight = *new FlightImage{};
    TcpServer server(pair[1], &flight);
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
void Client(Input& input) {
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
    if (choice % 16 == 3) parts.frame.bulk_bytes = input.Byte();
    const uint32_t record_bytes = parts.frame.record_bytes;
    const uint32_t bulk_bytes = parts.frame.bulk_bytes;
    if (choice < 40) Break(input, &parts);
    stream.Append(&parts.frame, sizeof parts.frame);
    const size_t from = stream.bytes.size();
    stream.bytes.resize(from + record_bytes + bulk_bytes);
    std::memcpy(&stream.bytes[0] + from, &parts.record, std::min<size_t>(record_bytes, sizeof parts.record));
  }
  {
    TcpClient client(pair[1]);
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

}  // namespace
}  // namespace causeway

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  causeway::fuzz::Input input(data, size);
  const uint8_t choice = input.Byte();
  if (choice % 4 == 0) {
    causeway::Client(input);
  } else {
    causeway::Server(input, choice / 4);
  }
  return 0;
}
