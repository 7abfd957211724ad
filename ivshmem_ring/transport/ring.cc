// SPDX-License-Identifier: Apache-2.0
// The ring's two ends, and the only atomic operations on shared words.
#include "ivshmem_ring/transport/ring.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace causeway {
namespace {

// Forbids the compiler to read the original again where the code reads the copy: it may otherwise merge two
// memcpy into one, and the peer could change the bytes between our check and our use.
void KeepCopy(const void* copy) {
  asm volatile("" : : "r"(copy) : "memory");
}

std::atomic_ref<uint32_t> SizeWord(std::byte* record) {
  return std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(record + offsetof(RecordPrefix, bytes)));
}

}  // namespace

RingProducer::RingProducer(std::byte* data, uint64_t bytes, HotWord* tail, const HotWord* head)
    : data_(data), bytes_(bytes), tail_word_(tail), head_(head) {
  SizeWord(data_).store(0, std::memory_order_relaxed);
}

uint64_t RingProducer::Room() {
  cached_head_ = LoadAcquire(*head_);  // partner: RingConsumer::Release
  // A head outside [tail - size, tail] is the peer's fault; the ring then counts as full.
  if (tail_ - cached_head_ > bytes_) cached_head_ = tail_ - bytes_;
  return KnownFree();
}

std::byte* RingProducer::Reserve(size_t bytes) {
  const uint64_t need = RoomOf(bytes);
  if (need > bytes_ / 2) abort();  // no caller may ask for a record that could never fit behind a pad
  const uint64_t to_end = bytes_ - (tail_ & (bytes_ - 1));
  const uint64_t total = need <= to_end ? need : to_end + need;
  if (total > KnownFree() && total > Room()) return nullptr;
  if (need > to_end) [[unlikely]]
    Pad(to_end);
  return data_ + (tail_ & (bytes_ - 1));
}

void RingProducer::Pad(uint64_t to_end) {
  pad_ = data_ + (tail_ & (bytes_ - 1));
  RecordHeader pad{};
  pad.op = kPadOp;
  PutHeader(pad_, pad);
  tail_ += to_end;
}

void RingProducer::Publish(size_t bytes) {
  std::byte* record = data_ + (tail_ & (bytes_ - 1));
  std::memcpy(record + offsetof(RecordPrefix, sequence), &sequence_, sizeof sequence_);
  tail_ += RoomOf(bytes);
  ++sequence_;
  SizeWord(data_ + (tail_ & (bytes_ - 1))).store(0, std::memory_order_relaxed);     // before the next line
  SizeWord(record).store(static_cast<uint32_t>(bytes), std::memory_order_release);  // partner: SizeAt
  if (pad_ != nullptr) {  // last, or the consumer would look for the record behind it in vain
    const auto to_end = static_cast<uint32_t>(data_ + bytes_ - pad_);
    SizeWord(std::exchange(pad_, nullptr)).store(to_end, std::memory_order_release);  // partner: SizeAt
  }
  StoreRelease(*tail_word_, tail_);  // partners: RingConsumer::LookAtTail, sleepers
}

bool RingProducer::Put(const std::byte* record, size_t bytes) {
  std::byte* space = Reserve(bytes);
  if (space == nullptr) return false;
  constexpr size_t kSize = sizeof(uint32_t);
  if (bytes <= kRecordAlign) {  // whoever puts it together has room for all of a line
    std::memcpy(space + kSize, record + kSize, kRecordAlign - kSize);
  } else {
    std::memcpy(space + kSize, record + kSize, bytes - kSize);
  }
  Publish(bytes);
  return true;
}

RingConsumer::RingConsumer(const std::byte* data, uint64_t bytes, const HotWord* tail, HotWord* head,
                           std::span<std::byte> buffer)
    : data_(data), bytes_(bytes), tail_word_(tail), head_word_(head), buffer_(buffer) {}

RingConsumer::Status RingConsumer::Corrupt(const char* reason) {
  reason_ = reason;
  return Status::kCorrupt;
}

// For who waits longer: a tail says that there is a record, so there must be one. A producer that is stopped
// between its last two stores has not told of the newest record yet, which we may have taken already.
RingConsumer::Status RingConsumer::LookAtTail() {
  const uint64_t tail = LoadAcquire(*tail_word_);  // partner: RingProducer::Publish
  if (tail == next_head_ || tail == head_before_) return Status::kEmpty;
  if (tail - head_ > bytes_ || tail % kRecordAlign != 0) return Corrupt("ring tail out of range");
  return SizeAt(next_head_) != 0 ? Status::kRecord : Corrupt("ring tail moved without a record");
}

[[gnu::hot]] RingConsumer::Status RingConsumer::Next(std::span<const std::byte>* record) {
  if (reason_ != nullptr) return Status::kCorrupt;
  for (next_head_ = head_;;) {
    const uint32_t bytes = SizeAt(next_head_);
    if (bytes == 0) {
      if (++looks_ % kLooks != 0) return Status::kEmpty;
      const Status status = LookAtTail();
      if (status != Status::kRecord) return status;
      continue;
    }
    const uint64_t to_end = bytes_ - (next_head_ & (bytes_ - 1));
    const std::byte* at = data_ + (next_head_ & (bytes_ - 1));
    const uint64_t padded = RoomOf(bytes);
    if (bytes < sizeof(RecordHeader) || bytes > bytes_) return Corrupt("record size out of range");
    if (padded > to_end || next_head_ + padded - head_ > bytes_)
      return Corrupt("record beyond the ring's end");
    // Once: what is checked here is what everybody else reads.
    std::memcpy(buffer_.data(), at, kRecordAlign);
    KeepCopy(buffer_.data());
    const auto header = ReadHeader<RecordPrefix>(buffer_);
    if (header.bytes != bytes) return Corrupt("record changed after it was published");
    if (header.op == kPadOp) {
      // Nor one that is all of the ring: such pads could keep us here.
      if (padded != to_end || padded == bytes_) return Corrupt("pad record not at the ring's end");
      next_head_ += padded;
      continue;
    }
    if (bytes > buffer_.size()) return Corrupt("record larger than its kind allows");
    if (header.sequence != sequence_) return Corrupt("record out of sequence");
    if (bytes > kRecordAlign) {
      std::memcpy(buffer_.data() + kRecordAlign, at + kRecordAlign, bytes - kRecordAlign);
      KeepCopy(buffer_.data());
    }
    *record = buffer_.first(bytes);
    next_head_ += padded;
    looks_ = 0;
    return Status::kRecord;
  }
}

[[gnu::hot]] void RingConsumer::Prefetch() const {
  constexpr uint64_t kPrefetchedBytes = 256;  // as much as a launch takes
  for (uint64_t i = 0; i < kPrefetchedBytes; i += kRecordAlign)
    __builtin_prefetch(data_ + ((next_head_ + i) & (bytes_ - 1)));
}

[[gnu::hot]] void RingConsumer::Release(uint64_t held_bytes) {
  head_before_ = std::exchange(head_, next_head_);
  ++sequence_;
  if (head_ - told_head_ < held_bytes && Ready()) return;
  told_head_ = head_;
  StoreRelease(*head_word_, head_);  // partner: RingProducer::Reserve
}

}  // namespace causeway
