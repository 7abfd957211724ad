// SPDX-License-Identifier: Apache-2.0
// Blobs: byte strings that are too large for a record. One that fits a staging buffer goes in the buffer of
// the call that takes it; a larger one is sent in pieces before that call, on the same channel.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "guest_lib/session/session.h"

namespace causeway::guest {

// A function that writes the bytes [at, at + to.size()) of the byte string to `to`.
using BlobCopy = std::function<void(uint64_t at, std::span<std::byte> to)>;

// The byte string of the next call on a channel. It belongs to the thread that has the channel.
class Blob {
 public:
  explicit Blob(ChannelLease& lease) : lease_(lease) {}
  ~Blob();
  Blob(const Blob&) = delete;
  Blob& operator=(const Blob&) = delete;

  // Takes `bytes` bytes from `copy` into a staging buffer, or sends them now if they do not fit one. More
  // than kMaxBlobBytes is CUDA_ERROR_INVALID_VALUE; other errors are the session's.
  CUresult Fill(uint64_t bytes, const BlobCopy& copy);
  // Sends the call that takes the byte string; the caller awaits its reply, and keeps the Blob until then.
  CUresult Send(Op op, const Writer& body, const Submission& submission = kNothingNamed);

 private:
  CUresult SendPieces(uint64_t bytes, const BlobCopy& copy);
  CUresult Begin(uint64_t bytes);

  ChannelLease& lease_;
  uint32_t bytes_ = 0;  // how many bytes the staging buffer holds for the call itself
  int bulk_ = -1;       // the staging buffer; -1: none
};

// Fetches into *to the blob that the host keeps from the last call on this channel; that call's reply stated
// `bytes`. CUDA_ERROR_UNKNOWN: the host sent another length, or stated more than kMaxBlobBytes.
CUresult FetchBlob(ChannelLease& lease, uint64_t bytes, std::vector<std::byte>* to);

// A helper for a BlobCopy of several parts: copies from the part `from`, which lies at [begin, begin + size)
// of the byte string, the bytes that are in [at, at + to.size()).
void CopyPart(uint64_t at, std::span<std::byte> to, const void* from, uint64_t begin, uint64_t size);

}  // namespace causeway::guest
