// SPDX-License-Identifier: Apache-2.0
// Frames on one stream socket, which TcpClient and TcpServer (tcp_transport.h) read and write.
//
//   frame = FrameHeader | record (RecordHeader and body) | bytes of a staging buffer ("bulk")
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

#include "ivshmem_ring/tcp/stream_layer.h"
#include "ivshmem_ring/transport/record.h"

namespace causeway {

inline constexpr uint32_t kMainLink = 0xffffffff;

enum class FrameKind : uint32_t {
  kRecord = 1,      // both ways: a record follows, then its bulk bytes
  kAsyncError = 2,  // host -> guest: 8 bytes follow, the word of ClientTransport::AsyncError
  kBeat = 3,        // host -> guest: nothing follows; the frame shows that the host lives
  kMainDone = 4,    // host -> guest: 8 bytes follow, how many bytes of posted records were executed so far
};

// A queue holds as much as the ring would hold that shared memory has in its place, and a record counts as it
// would there (RoomOf), so that small records are bounded in number too. The host sends kMainDone each time that it has executed this much more.
inline constexpr uint64_t kMainCreditBytes = 64u << 10;

struct FrameHeader {
  uint32_t link;  // kMainLink for the submission queue, or a channel's number
  uint32_t record_bytes;
  uint32_t bulk_bytes;
  FrameKind kind;
};
static_assert(sizeof(FrameHeader) == 16);

// Memory of one staging buffer, all zero. Pages that are never touched take no memory.
struct FreeBulk {
  void operator()(std::byte* bytes) const { std::free(bytes); }
};
using BulkMemory = std::unique_ptr<std::byte[], FreeBulk>;
inline BulkMemory MakeBulk() {
  BulkMemory bulk(static_cast<std::byte*>(std::calloc(1, kBulkBytes)));
  if (bulk == nullptr) throw std::bad_alloc();
  return bulk;
}

// When the kernel asks whether an idle peer's machine is still there, and how often in vain before the connection ends.
struct KeepAlive {
  int idle_s;
  int interval_s;
  int probes;
};
// Nothing that is sent waits for more, and a peer whose machine vanished is noticed. Sockets that are not TCP's (a proxy's, a
// test's) refuse it and need none of it.
void SetTcpOptions(int socket, const KeepAlive& keep_alive);

// One stream socket. Any thread may send; one thread reads. Failures are sentences, never exceptions.
class TcpConnection {
 public:
  // Takes `fd` over and closes it in the end; it may be non-blocking. `layer` encrypts; null: nothing does.
  explicit TcpConnection(int fd, std::unique_ptr<StreamLayer> layer = nullptr);
  ~TcpConnection();
  TcpConnection(const TcpConnection&) = delete;
  TcpConnection& operator=(const TcpConnection&) = delete;

  // Sends one whole frame, and waits for room in the socket. The result is empty, or a sentence that says why
  // the connection cannot be used any more.
  std::string Send(const FrameHeader& header, std::span<const std::byte> record,
                   std::span<const std::byte> bulk);
  // Sends a beat, unless the socket still has bytes to send, which show the peer as much. Never waits.
  void SendBeat();

  // Waits until `out` is filled. `quiet` is called after each second without a byte, and ends the wait by
  // returning false. The result is empty, or a sentence that says why no more bytes come.
  std::string Read(std::span<std::byte> out, const std::function<bool()>& quiet);

  // Ends every Send and Read, now and later. Any thread may call it.
  void Shutdown();

 private:
  std::string SendAll(std::span<const std::span<const std::byte>> parts);
  std::string SealAndSend(std::span<const std::span<const std::byte>> parts);
  std::string SendRaw(std::span<const std::span<const std::byte>> parts);
  // As recv: 0 at the end of the stream, -1 and errno where nothing came.
  ssize_t Receive(std::span<std::byte> out);

  int fd_;
  const std::unique_ptr<StreamLayer> layer_;
  std::vector<std::byte> sealing_, sealed_;  // guarded by send_mutex_
  std::vector<std::byte> wire_;              // received and not yet opened by the layer
  std::mutex send_mutex_;
  std::vector<std::byte> buffer_;  // [begin_, end_) was received and not yet read
  size_t begin_ = 0;
  size_t end_ = 0;
};

}  // namespace causeway
