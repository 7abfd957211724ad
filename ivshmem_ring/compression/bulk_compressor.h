// SPDX-License-Identifier: Apache-2.0
// Bulk bytes of one connection, compressed by LZ4 before they are sent and decompressed when they have come. Each piece is a block of
// LZ4's by itself: it refers to no bytes of another. The choice whether to compress is compression_choice.h's.
//
// On the connection the block follows its own length: uint32 | block. The length is less than that of the bytes that it stands for.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "ivshmem_ring/compression/compression_choice.h"

namespace causeway {

// What both sides of a session have agreed on when it was opened (messages/resume_messages.h).
struct Compression {
  bool agreed = false;
  // What each side takes for the link's rate until its peer says something else; less only in tests.
  uint64_t assumed_rate = kFastLink;
};

// A length and a block, in memory of its own.
struct CompressedBulk {
  std::unique_ptr<std::byte[]> bytes;  // null: there is none
  size_t size = 0;
};

class BulkCompressor {
 public:
  // Throws std::bad_alloc.
  explicit BulkCompressor(uint64_t assumed_rate);
  ~BulkCompressor();

  void NoteRate(uint64_t rate) { choice_.NoteRate(rate); }
  bool MayCompress(size_t bytes) const { return choice_.MayCompress(bytes); }
  // Nothing, where it does not pay or there is no memory. At most kBulkBytes, which other threads may change meanwhile: then what comes
  // out has both of old and new ones. Any thread, and several at once: none waits for another's, which may have to wait for a page
  // of the program that a third one brings.
  CompressedBulk Compress(std::span<const std::byte> bulk);

  // The rest is the reading thread's. Where a block of so many bytes, at most kBulkBytes, is to be received.
  std::span<std::byte> Room(size_t bytes) { return {received_.get(), bytes}; }
  // False: the block, which may be any bytes, is not that of exactly so many bytes. Then `out` may have been written to.
  static bool Decompress(std::span<const std::byte> block, std::span<std::byte> out);
  // As ArrivalMeter::Note.
  uint64_t NoteArrival(uint64_t bytes, uint64_t us) { return meter_.Note(bytes, us); }

 private:
  struct Workspace;
  static constexpr size_t kMostIdle = 2;

  std::unique_ptr<Workspace> TakeWorkspace();
  void GiveBack(std::unique_ptr<Workspace> workspace);
  bool TrySample(std::span<const std::byte> bulk, Workspace& workspace);

  CompressionChoice choice_;
  std::mutex mutex_;  // of the next one
  std::vector<std::unique_ptr<Workspace>> idle_;
  const std::unique_ptr<std::byte[]>
      received_;  // kBulkBytes, of which pages that nobody has needed take no memory
  ArrivalMeter meter_;
};

}  // namespace causeway
