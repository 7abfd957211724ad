// SPDX-License-Identifier: Apache-2.0
// Byte strings that are too large for a record: in a bulk buffer that goes with the call that takes them, or,
// larger than one, in pieces sent before it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "guest_lib/session/session.h"

namespace causeway::guest {

// `copy` writes the bytes [at, at + to.size()) of what is sent.
using BlobCopy = std::function<void(uint64_t at, std::span<std::byte> to)>;

// The byte string of the next call on a channel.
class Blob {
 public:
  explicit Blob(ChannelLease& lease) : lease_(lease) {}
  ~Blob();
  Blob(const Blob&) = delete;
  Blob& operator=(const Blob&) = delete;

  CUresult Fill(uint64_t bytes, const BlobCopy& copy);
  // Sends the call that takes it.
  CUresult Send(Op op, const Writer& body);

 private:
  CUresult SendPieces(uint64_t bytes, const BlobCopy& copy);
  CUresult Begin(uint64_t bytes);

  ChannelLease& lease_;
  uint32_t bytes_ = 0;  // in the bulk buffer, for the call itself
  int bulk_ = -1;
};

// What the last call on this channel left to be fetched.
CUresult FetchBlob(ChannelLease& lease, uint64_t bytes, std::vector<std::byte>* to);

// For a copy made of parts: those bytes of [begin, begin + size) that lie in [at, at + to.size()).
void CopyPart(uint64_t at, std::span<std::byte> to, const void* from, uint64_t begin, uint64_t size);

}  // namespace causeway::guest
