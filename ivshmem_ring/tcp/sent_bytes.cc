// SPDX-License-Identifier: Apache-2.0
#include "ivshmem_ring/tcp/sent_bytes.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace causeway {
namespace {

constexpr size_t kFirstRingBytes = 64u << 10;

}  // namespace

bool SentBytes::HasRoom(size_t copied, size_t referred) const {
  return begin_ == end_ || (copied_end_ - copied_begin_ + copied <= kMostCopied &&
                            end_ - begin_ + copied + referred <= kMostKept);
}

void SentBytes::Grow(size_t bytes) {
  const uint64_t used = copied_end_ - copied_begin_;
  if (used + bytes <= ring_.size()) return;
  size_t size = std::max(ring_.size(), kFirstRingBytes);
  while (size < used + bytes) size *= 2;
  std::vector<std::byte> ring(size);
  for (uint64_t at = copied_begin_; at != copied_end_;) {
    const size_t from = at & (ring_.size() - 1), to = at & (size - 1);
    const size_t step = std::min<uint64_t>({copied_end_ - at, ring_.size() - from, size - to});
    std::memcpy(&ring[to], &ring_[from], step);
    at += step;
  }
  ring_.swap(ring);
}

void SentBytes::Copy(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  Grow(bytes.size());
  if (!pieces_.empty() && pieces_.back().where == nullptr)
    pieces_.back().bytes += bytes.size();
  else
    pieces_.push_back({bytes.size(), nullptr, nullptr});
  end_ += bytes.size();
  const size_t at = copied_end_ & (ring_.size() - 1), first = std::min(bytes.size(), ring_.size() - at);
  std::memcpy(&ring_[at], bytes.data(), first);
  if (first < bytes.size()) std::memcpy(ring_.data(), bytes.data() + first, bytes.size() - first);
  copied_end_ += bytes.size();
}

void SentBytes::Refer(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  pieces_.push_back({bytes.size(), bytes.data(), nullptr});
  end_ += bytes.size();
}

void SentBytes::Keep(std::unique_ptr<std::byte[]> bytes, size_t size) {
  if (size == 0) return;
  const std::byte* const where = bytes.get();
  pieces_.push_back({size, where, std::move(bytes)});
  end_ += size;
}

void SentBytes::Forget(uint64_t position) {
  if (position < begin_ || position > end_) abort();  // the caller has checked it
  while (begin_ < position) {
    Piece& piece = pieces_.front();
    const uint64_t step = std::min(position - begin_, piece.bytes);
    begin_ += step;
    if (piece.where == nullptr)
      copied_begin_ += step;
    else
      piece.where += step;
    piece.bytes -= step;
    if (piece.bytes == 0) pieces_.pop_front();
  }
}

bool SentBytes::From(uint64_t position, const std::function<bool(std::span<const std::byte>)>& take) const {
  if (position < begin_ || position > end_) abort();  // the caller has checked it
  uint64_t at = begin_, copied = copied_begin_;
  for (const Piece& piece : pieces_) {
    const uint64_t skip = std::min(position - std::min(position, at), piece.bytes);
    for (uint64_t done = skip; done < piece.bytes;) {
      uint64_t step = piece.bytes - done;
      if (piece.where != nullptr) {
        if (!take({piece.where + done, step})) return false;
      } else {
        const size_t place = (copied + done) & (ring_.size() - 1);
        step = std::min<uint64_t>(step, ring_.size() - place);
        if (!take({&ring_[place], step})) return false;
      }
      done += step;
    }
    at += piece.bytes;
    if (piece.where == nullptr) copied += piece.bytes;
  }
  return true;
}

}  // namespace causeway
