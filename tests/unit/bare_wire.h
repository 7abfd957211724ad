// SPDX-License-Identifier: Apache-2.0
// The far end of a transport's connection as bare bytes, so that it can send what none of the transports would.
#pragma once
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <vector>

#include "tests/unit/transport_harness.h"

namespace causeway::test {

// The far end as bare bytes.
class Wire {
 public:
  explicit Wire(int fd) : fd_(fd) {}
  ~Wire() { Close(); }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  void Send(const void* bytes, size_t size) {
    ASSERT_EQ(send(fd_, bytes, size, MSG_NOSIGNAL), ssize_t(size));
  }
  void SendFrame(FrameHeader frame, RecordHeader record, size_t bulk_sent = 0) {
    Send(&frame, sizeof frame);
    std::vector<std::byte> bytes(std::max<size_t>(frame.record_bytes, sizeof record));
    std::memcpy(bytes.data(), &record, sizeof record);
    if (frame.record_bytes > 0) Send(bytes.data(), frame.record_bytes);
    const std::vector<std::byte> bulk(bulk_sent);
    if (bulk_sent > 0) Send(bulk.data(), bulk_sent);
  }
  // Reads exactly one frame header; false after `timeout_ms` without one.
  bool ReadFrame(FrameHeader* frame, int timeout_ms) {
    pollfd one{fd_, POLLIN, 0};
    return poll(&one, 1, timeout_ms) == 1 && recv(fd_, frame, sizeof *frame, MSG_WAITALL) == sizeof *frame;
  }
  // The next frame that is no sign of life.
  bool ReadReply(FrameHeader* frame) {
    do {
      if (!ReadFrame(frame, 5000)) return false;
    } while (frame->kind == FrameKind::kBeat);
    return true;
  }
  // The bytes that follow it.
  std::vector<std::byte> ReadRest(const FrameHeader& frame) {
    std::vector<std::byte> bytes(frame.record_bytes + frame.bulk_bytes);
    EXPECT_EQ(recv(fd_, bytes.data(), bytes.size(), MSG_WAITALL), ssize_t(bytes.size()));
    return bytes;
  }

 private:
  int fd_;
};

inline constexpr FrameKind kRecordFrame = FrameKind::kRecord;

inline RecordHeader Header(uint32_t bytes, uint64_t sequence = 0) {
  RecordHeader header{};
  header.bytes = bytes;
  header.op = kEcho;
  header.sequence = sequence;
  return header;
}
inline RecordHeader BulkHeader(uint16_t flags, uint64_t offset, uint32_t bulk_bytes, uint64_t sequence = 0) {
  RecordHeader header = Header(48, sequence);
  header.flags = flags;
  header.bulk_offset = offset;
  header.bulk_bytes = bulk_bytes;
  return header;
}

}  // namespace causeway::test
