// SPDX-License-Identifier: Apache-2.0
// What one side of a connection has sent and the peer has not acknowledged, so that it can be sent again over another socket
// (tcp_connection.h). The bytes of all frames are numbered from 0 on, in their order.
//
// Bytes are copied, but for those that stay where they are until the peer has them: a staging buffer's, and compressed ones, whose memory
// is kept. The copies lie in one ring, which grows to what is needed, at most kMostCopied. Not thread-safe.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace causeway {

class SentBytes {
 public:
  // More than both queues and all channels can have under way (layout.h), and than all staging buffers together: a peer that
  // acknowledges as it should lets nobody wait.
  static constexpr size_t kMostCopied = 2u << 20;
  static constexpr uint64_t kMostKept = 16u << 20;

  // Whether so many more bytes fit below both limits; those that are kept count as those that are referred to. With nothing kept there is
  // always room.
  bool HasRoom(size_t copied, size_t referred) const;
  // The next bytes of the stream: copied, or used where they are until they are forgotten, which frees them where they were given.
  void Copy(std::span<const std::byte> bytes);
  void Refer(std::span<const std::byte> bytes);
  void Keep(std::unique_ptr<std::byte[]> bytes, size_t size);
  // The peer has received everything before `position`, which lies between begin() and end().
  void Forget(uint64_t position);

  // What is kept begins and ends there.
  uint64_t begin() const { return begin_; }
  uint64_t end() const { return end_; }
  // Gives the bytes from `position` on to `take`, piece by piece, until it answers false. `position` is as in Forget. False: it has.
  bool From(uint64_t position, const std::function<bool(std::span<const std::byte>)>& take) const;

 private:
  struct Piece {
    uint64_t bytes;
    const std::byte* where;  // null: in the ring, behind those of the pieces before
    std::unique_ptr<std::byte[]> kept;
  };
  void Grow(size_t bytes);

  std::vector<std::byte> ring_;  // its size is 0 or a power of two
  uint64_t copied_begin_ = 0;    // of the bytes in the ring, counted since the beginning
  uint64_t copied_end_ = 0;
  std::deque<Piece> pieces_;
  uint64_t begin_ = 0;
  uint64_t end_ = 0;
};

}  // namespace causeway
