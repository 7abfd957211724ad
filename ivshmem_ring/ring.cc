// SPDX-License-Identifier: Apache-2.0
// The ring's two ends, and the only atomic operations on shared words.
#include "ivshmem_ring/ring.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace causeway {
namespace {

constexpr uint64_t RoundUp(uint64_t bytes) {
  return (bytes + kRecordAlign - 1) & ~(kRecordAlign - 1);
}

// Forbids the compiler to read the original again where the code reads the copy: it may otherwise merge two
// memcpy into one, and the peer could change the bytes between our check and our use.
void KeepCopy(const void* copy) {
  asm volatile("" : : "r"(copy) : "memory");
}

// As much as a launch takes.
void Prefetch(const std::byte* at, const std::byte* end) {
  constexpr int kLines = 4;
  for (int i = 0; i < kLines && at < end; ++i, at += kRecordAlign) __builtin_prefetch(at);
}

}  // namespace

uint64_t LoadAcquire(const HotWord& word) {
  return std::atomic_ref<uint64_t>(const_cast<HotWord&>(word).value).load(std::memory_order_acquire);
}
void StoreRelease(HotWord& word, uint64_t value) {
  std::atomic_ref<uint64_t>(word.value).store(value, std::memory_order_release);
}
uint32_t LoadAcquire(const uint32_t& word) {
  return std::atomic_ref<uint32_t>(const_cast<uint32_t&>(word)).load(std::memory_order_acquire);
}
void StoreRelease(uint32_t& word, uint32_t value) {
  std::atomic_ref<uint32_t>(word).store(value, std::memory_order_release);
}

RingProducer::RingProducer(std::byte* data, uint64_t bytes, HotWord* tail, const HotWord* head)
    : data_(data), bytes_(bytes), tail_word_(tail), head_(head) {}

uint64_t RingProducer::Room() {
  cached_head_ = LoadAcquire(*head_);  // partner: RingConsumer::Release
  // A head outside [tail - size, tail] is the peer's fault; the ring then counts as full.
  if (tail_ - cached_head_ > bytes_) cached_head_ = tail_ - bytes_;
  return cached_head_ + bytes_ - tail_;
}

std::byte* RingProducer::Reserve(size_t bytes) {
  const uint64_t need = RoundUp(bytes);
  if (need > bytes_ / 2) abort();  // no caller may ask for a record that could never fit behind a pad
  const uint64_t to_end = bytes_ - (tail_ & (bytes_ - 1));
  const uint64_t total = need <= to_end ? need : to_end + need;
  if (tail_ + total - cached_head_ > bytes_ && total > Room()) return nullptr;
  if (need > to_end) {  // becomes visible together with the record behind it
    RecordHeader pad{};
    pad.bytes = static_cast<uint32_t>(to_end);
    pad.op = kPadOp;
    std::memcpy(data_ + (tail_ & (bytes_ - 1)), &pad, sizeof pad);
    tail_ += to_end;
  }
  return data_ + (tail_ & (bytes_ - 1));
}

void RingProducer::Publish(size_t bytes) {
  tail_ += RoundUp(bytes);
  ++sequence_;
  StoreRelease(*tail_word_, tail_);  // partner: RingConsumer::Next
}

RingConsumer::RingConsumer(const std::byte* data, uint64_t bytes, const HotWord* tail, HotWord* head,
                           std::span<std::byte> buffer)
    : data_(data), bytes_(bytes), tail_word_(tail), head_word_(head), buffer_(buffer) {}

RingConsumer::Status RingConsumer::Corrupt(const char* reason) {
  reason_ = reason;
  return Status::kCorrupt;
}

RingConsumer::Status RingConsumer::Next(std::span<const std::byte>* record) {
  if (reason_ != nullptr) return Status::kCorrupt;
  next_head_ = head_;
  for (;;) {
    if (cached_tail_ == next_head_) {
      cached_tail_ = LoadAcquire(*tail_word_);  // partner: RingProducer::Publish
      if (cached_tail_ == next_head_) return Status::kEmpty;
      // Against next_head_ too: behind a pad, a tail that went back would make `available` wrap, and pads
      // without end could keep us here.
      if (cached_tail_ - head_ > bytes_ || cached_tail_ - next_head_ > bytes_ ||
          cached_tail_ % kRecordAlign != 0)
        return Corrupt("ring tail out of range");
    }
    const uint64_t available = cached_tail_ - next_head_;
    const uint64_t to_end = bytes_ - (next_head_ & (bytes_ - 1));
    const std::byte* at = data_ + (next_head_ & (bytes_ - 1));
    RecordHeader header;
    std::memcpy(&header, at, sizeof header);
    KeepCopy(&header);
    if (header.bytes < sizeof header || header.bytes > bytes_) return Corrupt("record size out of range");
    const uint64_t padded = RoundUp(header.bytes);
    if (padded > available || padded > to_end) return Corrupt("record longer than what was published");
    if (header.op == kPadOp) {
      if (padded != to_end) return Corrupt("pad record not at the ring's end");
      next_head_ += padded;
      continue;
    }
    if (header.bytes > buffer_.size()) return Corrupt("record larger than its kind allows");
    if (header.sequence != sequence_) return Corrupt("record out of sequence");
    std::memcpy(buffer_.data(), &header, sizeof header);  // the checked copy, not a second read
    std::memcpy(buffer_.data() + sizeof header, at + sizeof header, header.bytes - sizeof header);
    KeepCopy(buffer_.data());
    *record = buffer_.first(header.bytes);
    next_head_ += padded;
    // The next record's lines are in the producer's cache: they come while this one is executed.
    if (cached_tail_ != next_head_) Prefetch(data_ + (next_head_ & (bytes_ - 1)), data_ + bytes_);
    return Status::kRecord;
  }
}

bool RingConsumer::Ready() const {
  // A hint: Next() does its own acquire load.
  return cached_tail_ != next_head_ || LoadAcquire(*tail_word_) != next_head_;
}

void RingConsumer::Release(uint64_t held_bytes) {
  head_ = next_head_;
  ++sequence_;
  if (cached_tail_ != head_ && head_ - told_head_ < held_bytes) return;
  told_head_ = head_;
  StoreRelease(*head_word_, head_);  // partner: RingProducer::Reserve
}

}  // namespace causeway
