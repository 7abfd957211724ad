// SPDX-License-Identifier: Apache-2.0
// A single-producer single-consumer ring of records in shared memory.
//
// - A record is published by one release store of its size, RecordHeader::bytes; its partner is the acquire
//   load in RingConsumer::Next. So one cache line brings a small record, and the news of it.
// - Where the next record will begin the size is 0 until then: Publish clears it first. One line of the ring
//   therefore stays free. The memory of a ring whose consumer may be there before its producer is zero at
//   first.
// - Two free-running byte counters: the producer writes `tail`, the consumer writes `head`. Tail is for
//   sleepers, for who watches them, and for a consumer that has waited for some time.
//   Room is returned by one release store of head; its partner is the acquire load in RingProducer::Reserve.
// - Records are 64-byte aligned and never wrap; a pad record fills what is left at the end.
// - Each side keeps its own counter privately and never reads it back from shared memory.
// The consumer must be written as if the other side changed any shared byte at any time: Next() loads a size
// once, copies the record out, and checks the copy before anyone looks at it.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "ivshmem_ring/transport/layout.h"
#include "ivshmem_ring/transport/record.h"

namespace causeway {

// Each end has its cache lines to itself: the ends of neighbouring channels belong to other threads.
class alignas(kHotBytes) RingProducer {
 public:
  // `data`: `bytes` (power of two) of shared memory; `tail` is ours, `head` the consumer's.
  RingProducer(std::byte* data, uint64_t bytes, HotWord* tail, const HotWord* head);

  // Room for one record of up to `bytes`, or null while the ring is too full. Nothing is visible yet, and
  // reserving again without publishing is allowed. The caller leaves RecordHeader::bytes 0.
  std::byte* Reserve(size_t bytes);
  // Bytes that the consumer has not got, those that a pad may take included.
  uint64_t Room();
  // Publishes the reserved record with its final size, which must not exceed what was reserved: fills in
  // `sequence` and `bytes`.
  void Publish(size_t bytes);
  // The same for a record that was put together elsewhere. All of it is written in one go: a reader that
  // looks at its first line all the time would else take that line away between two stores. False: no room.
  bool Put(const std::byte* record, size_t bytes);
  // Records of so many lines will come soon: fetches the lines behind the next one's first, which the reader
  // looks at, so that writing to them finds them here.
  void Prepare(uint64_t lines) const {
    uint64_t at = tail_ + kRecordAlign;
    const uint64_t end = at + lines * kRecordAlign;
    if (end - cached_head_ > bytes_) return;  // the reader may need them
    // Compilers write it only for processors that are known to have it; others take it for nothing.
    for (; at != end; at += kRecordAlign) asm volatile("prefetchw %0" : : "m"(data_[at & (bytes_ - 1)]));
  }

  uint64_t sequence() const { return sequence_; }  // of the next record
  const HotWord* head_word() const { return head_; }

 private:
  void Pad(uint64_t to_end);

  std::byte* data_;
  uint64_t bytes_;
  HotWord* tail_word_;
  const HotWord* head_;
  std::byte* pad_ = nullptr;  // to be published with the record behind it
  uint64_t tail_ = 0;
  uint64_t cached_head_ = 0;
  uint64_t sequence_ = 0;
};

class alignas(kHotBytes) RingConsumer {
 public:
  enum class Status { kEmpty, kRecord, kCorrupt };

  // `max_record_bytes` bounds a record, `buffer` receives it and is at least that large.
  RingConsumer(const std::byte* data, uint64_t bytes, const HotWord* tail, HotWord* head,
               std::span<std::byte> buffer);

  // Copies the next record into the buffer. kCorrupt: the producer broke the format; `reason()` says how, and
  // the consumer stays unusable. A tail that moved without a record shows at the latest at the kLooks-th
  // look.
  static constexpr uint32_t kLooks = 16;
  Status Next(std::span<const std::byte>* record);
  // After Next() found a record at its first look: more may be there, in the producer's cache, and comes
  // while this one is executed.
  void Prefetch() const;
  // Done with the record that Next() gave. Its room, and everything padded before it, returns to the
  // producer: at once, or, while more records are known to wait here, when `held_bytes` have come together. A
  // producer that waits for room looks at our counter all the time, and each change of it takes the line from
  // there.
  void Release(uint64_t held_bytes = 0);

  const char* reason() const { return reason_; }
  // Whether the producer has published more than Next() gave. One load of one line.
  bool Ready() const { return SizeAt(next_head_) != 0; }
  const HotWord* tail_word() const { return tail_word_; }
  // Low half of the tail while nothing is there: what a sleeper compares, so that a record published after
  // the last Next() ends the sleep at once.
  uint32_t seen_tail() const { return static_cast<uint32_t>(head_); }

 private:
  Status Corrupt(const char* reason);
  // partner: RingProducer::Publish
  uint32_t SizeAt(uint64_t position) const {
    auto* size = reinterpret_cast<uint32_t*>(const_cast<std::byte*>(data_) + (position & (bytes_ - 1)));
    return std::atomic_ref<uint32_t>(*size).load(std::memory_order_acquire);
  }
  Status LookAtTail();

  const std::byte* data_;
  uint64_t bytes_;
  const HotWord* tail_word_;
  HotWord* head_word_;
  std::span<std::byte> buffer_;
  uint64_t head_ = 0;
  uint64_t head_before_ = 0;  // the newest record that was released
  uint64_t told_head_ = 0;    // what the producer knows of it
  uint64_t next_head_ = 0;
  uint64_t sequence_ = 0;
  uint32_t looks_ = 0;  // in vain, since the last record
  const char* reason_ = nullptr;
};

// The two memory operations on hot words, named once. Acquire pairs with the peer's release on the same word.
inline uint64_t LoadAcquire(const HotWord& word) {
  return std::atomic_ref<uint64_t>(const_cast<HotWord&>(word).value).load(std::memory_order_acquire);
}
inline void StoreRelease(HotWord& word, uint64_t value) {
  std::atomic_ref<uint64_t>(word.value).store(value, std::memory_order_release);
}
inline uint32_t LoadAcquire(const uint32_t& word) {
  return std::atomic_ref<uint32_t>(const_cast<uint32_t&>(word)).load(std::memory_order_acquire);
}
inline void StoreRelease(uint32_t& word, uint32_t value) {
  std::atomic_ref<uint32_t>(word).store(value, std::memory_order_release);
}

}  // namespace causeway
