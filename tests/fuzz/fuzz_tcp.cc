// SPDX-License-Identifier: Apache-2.0
// The TCP transport's server against any bytes on its connection, and its client against any host.
//
// Input: byte 0 chooses the side, the link that has a thread of its own, and whether both sides may compress, then a script of frames.
#include <sys/socket.h>
#include <unistd.h>

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

}  // namespace
}  // namespace causeway

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  causeway::fuzz::Input input(data, size);
  const uint8_t choice = input.Byte();
  const bool compresses = choice >= 128;
  if (choice % 4 == 0) {
    causeway::Client(input, compresses);
  } else {
    causeway::Server(input, choice / 4, compresses);
  }
  return 0;
}
