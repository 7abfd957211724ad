// SPDX-License-Identifier: Apache-2.0
// Frames on one stream socket: what TcpClient and TcpServer (ivshmem_ring/tcp/tcp_transport.h) read and
// write.
//
//   frame = FrameHeader | record (RecordHeader and body) | bulk bytes
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "ivshmem_ring/transport/record.h"

namespace causeway {

inline constexpr uint32_t kMainLink = 0xffffffff;

enum class FrameKind : uint32_t {
  kRecord = 1,      // both ways: a record, then its bulk bytes
  kAsyncError = 2,  // host -> guest: record_bytes is 8, the async error word
  kBeat = 3,        // host -> guest: nothing follows; the host lives
  kMainDone = 4,    // host -> guest: record_bytes is 8, the bytes of main records executed so far
};

// A queue holds what the ring in its place would hold; a record counts as in a ring, so that small ones are
// bounded in number too.
constexpr uint64_t QueuedRecordBytes(uint64_t record_bytes) {
  return (record_bytes + kRecordAlign - 1) & ~(kRecordAlign - 1);
}
// The host tells what it has executed each time that this much has come together.
inline constexpr uint64_t kMainCreditBytes = 64u << 10;

struct FrameHeader {
  uint32_t link;  // kMainLink or a channel's number
  uint32_t record_bytes;
  uint32_t bulk_bytes;
  FrameKind kind;
};
static_assert(sizeof(FrameHeader) == 16);

// One of kBulkBuffers, all zero; of those pages that are never touched there is no memory.
struct FreeBulk {
  void operator()(std::byte* bytes) const { std::free(bytes); }
};
using BulkMemory = std::unique_ptr<std::byte[], FreeBulk>;
inline BulkMemory MakeBulk() {
  BulkMemory bulk(static_cast<std::byte*>(std::calloc(1, kBulkBytes)));
  if (bulk == nullptr) throw std::bad_alloc();
  return bulk;
}

// One stream socket. Any thread may send; one thread reads.
class TcpConnection {
 public:
  // Owns `fd`, which may have been non-blocking.
  explicit TcpConnection(int fd);
  ~TcpConnection();
  TcpConnection(const TcpConnection&) = delete;
  TcpConnection& operator=(const TcpConnection&) = delete;

  // Sends one frame whole. Empty on success, else why the connection is unusable now.
  std::string Send(const FrameHeader& header, std::span<const std::byte> record,
                   std::span<const std::byte> bulk);
  // Sends a beat unless something is still on its way (which tells the peer as much). Never blocks.
  void SendBeat();

  // Fills `out`. `quiet` is called after each second without a byte; false gives up. Empty on success, else
  // why no more comes.
  std::string Read(std::span<std::byte> out, const std::function<bool()>& quiet);

  // Ends every Send and Read, now and later. Callable from any thread.
  void Shutdown();

 private:
  std::string SendAll(std::span<const std::span<const std::byte>> parts);

  int fd_;
  std::mutex send_mutex_;
  std::vector<std::byte> buffer_;  // bytes received and not yet asked for: [begin_, end_)
  size_t begin_ = 0;
  size_t end_ = 0;
};

}  // namespace causeway
