// SPDX-License-Identifier: Apache-2.0
// What a guest, honest or not, sends to a host over a stream: frames from a fuzzer's input, and a server that is served by few threads.
#pragma once
#include <sys/socket.h>

#include <vector>

#include "ivshmem_ring/tcp/tcp_transport.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/yield_until.h"

namespace causeway::fuzz {

// The replies fit into the socket, so that nobody need read them.
inline constexpr size_t kMaxStreamBytes = 6u << 10;

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
inline void Break(Input& input, FrameParts* parts) {
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

// In the place of a frame's bulk bytes: a length and a block, which stand for them or for something else.
inline void Compress(Input& input, FrameParts* parts, Stream* stream, std::vector<std::byte>* bulk) {
  parts->frame.kind = FrameKind::kCompressed;
  const uint8_t choice = input.Byte();
  std::vector<std::byte> block;
  const auto push = [&](auto... each) { (block.push_back(std::byte(each)), ...); };
  const uint32_t bytes = parts->frame.bulk_bytes;
  constexpr uint32_t kLeast =
      32;  // for a literal, a match of it that goes on, and the five literals of the end; 256 is the most
  if (choice % 2 == 0 && bytes >= kLeast) {
    // Behind a literal a match of at least 4 + 15 bytes, whose offset is 1.
    push(0x1f, 'a', 1, 0, bytes - 1 - 5 - 4 - 15, 0x50, 1, 1, 1, 1, 1);
  } else {
    const auto raw = input.Bytes(choice);
    block.assign(reinterpret_cast<const std::byte*>(raw.data()),
                 reinterpret_cast<const std::byte*>(raw.data()) + raw.size());
    stream->valid = false;
  }
  uint32_t length = uint32_t(block.size());
  if (choice % 16 == 1) length = static_cast<uint32_t>(input.Word());
  bulk->resize(sizeof length);
  std::memcpy(bulk->data(), &length, sizeof length);
  bulk->insert(bulk->end(), block.begin(), block.end());
}

// `resumable`: it acknowledges, too. `compresses`: it sends blocks and rates, too.
inline Stream GuestStream(Input& input, bool resumable = false, bool compresses = false) {
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
    if (resumable && choice % 16 == 9) {
      const FrameHeader frame{kMainLink, sizeof(uint64_t), 0, FrameKind::kAcknowledge};
      const uint64_t received = input.Byte() % 2 == 0 ? input.Byte() : input.Word();
      stream.Append(&frame, sizeof frame);
      stream.Append(&received, sizeof received);
      if (received != 0) stream.valid = false;
      continue;
    }
    if (compresses && choice % 16 == 11) {
      const FrameHeader frame{kMainLink, sizeof(uint64_t), 0, FrameKind::kArrivalRate};
      const uint64_t rate = input.Word();
      stream.Append(&frame, sizeof frame);
      stream.Append(&rate, sizeof rate);
      continue;
    }
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
    std::vector<std::byte> bulk(parts.frame.bulk_bytes);
    if (compresses && !bulk.empty() && choice % 8 == 5) Compress(input, &parts, &stream, &bulk);
    if (choice < 40) {
      Break(input, &parts);
      stream.valid = false;
    }
    stream.Append(&parts.frame, sizeof parts.frame);
    stream.Append(&parts.record, sizeof parts.record);
    stream.bytes.resize(stream.bytes.size() + record_bytes - sizeof parts.record);
    stream.Append(bulk.data(), bulk.size());
  }
  return stream;
}

// The stream's bytes wait in `far`'s peer, with the end behind them.
inline void Fill(int far, const Stream& stream) {
  size_t sent = 0;
  while (sent < stream.bytes.size()) {
    const ssize_t step = send(far, &stream.bytes[sent], stream.bytes.size() - sent, MSG_NOSIGNAL);
    if (step <= 0) break;  // the peer has seen enough already
    sent += static_cast<size_t>(step);
  }
  shutdown(far, SHUT_WR);
}

inline constexpr uint32_t kMain = kChannelCount;  // as a link

// Serves the link's next message. What it was when there is none.
inline ReceiveStatus ServeOne(TcpServer& server, uint32_t link) {
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
inline void ServeOthers(TcpServer& server, uint32_t left_out) {
  test::YieldUntil([&] {
    for (uint32_t link = 0; link <= kMain; ++link) {
      if (link == left_out || !(link == kMain ? server.MainReady() : server.RequestReady(link))) continue;
      if (ServeOne(server, link) != ReceiveStatus::kRecord) return true;
    }
    return false;
  });
}

}  // namespace causeway::fuzz
