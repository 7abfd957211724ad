// SPDX-License-Identifier: Apache-2.0
// A ring of records in shared memory, with one producer and one consumer.
//
// - A record is published by one release store of its size, RecordHeader::bytes; its partner is the acquire
//   load in RingConsumer::Next. So one cache line brings a small record and the news of it.
// - Where the next record will begin, the size is 0 until that record is published: Publish clears it first.
//   One line of the ring therefore stays free. If the consumer may look before the producer exists, the
//   ring's memory must be zero at first.
// - There are two counters of bytes that only grow: the producer writes `tail`, the consumer writes `head`.
//   Room is returned by one release store of head; its partner is the acquire load in RingProducer::Reserve.
//   Tail is not needed to find records. It is for a consumer that sleeps, for the daemon's thread that wakes
//   sleeping consumers, and for a consumer that has waited for some time.
// - Records are 64-byte aligned and never wrap; a pad record fills what is left at the end.
// - Each side keeps its own counter privately and never reads it back from shared memory.
//
// The consumer assumes that the other side changes any shared byte at any time: Next() loads a size once,
// copies the record out, and checks the copy before anything else looks at it.
//
// Threads: each end belongs to one thread at a time. Nothing here waits or allocates memory.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "ivshmem_ring/transport/layout.h"
#include "ivshmem_ring/transport/record.h"

namespace causeway {

// Each end has its cache lines to itself, because the ends of neighbouring channels belong to other threads.
class alignas(kHotBytes) RingProducer {
 public:
  // `data` is `bytes` (a power of two) of shared memory. This end writes `tail`; the consumer writes `head`.
  RingProducer(std::byte* data, uint64_t bytes, HotWord* tail, const HotWord* head);

  // Room for one record of up to `bytes`, or null while the ring is too full. Nothing is visible to the
  // consumer yet, and reserving again without publishing is allowed. The caller leaves RecordHeader::bytes 0.
  std::byte* Reserve(size_t bytes);
  // Free bytes of the ring, including those that a pad record may take.
  uint64_t Room();
  // Where the next record begins, and as many bytes there as are known to be free: Reserve gives that place
  // for each record that fits, without a pad and without a look at `head`.
  std::span<std::byte> known_room() const {
    const uint64_t at = tail_ & (bytes_ - 1);
    return {data_ + at, std::min(bytes_ - at, KnownFree()) & ~(kRecordAlign - 1)};
  }
  // Publishes the reserved record with its final size, which must not exceed what was reserved. It fills in
  // `sequence` and `bytes` of the header.
  void Publish(size_t bytes);
  // Reserves and publishes a record that was put together elsewhere. All of it is written in one go, because
  // the consumer polls the record's first line and would otherwise take that line away between two stores.
  // False: there is no room, and nothing was written.
  bool Put(const std::byte* record, size_t bytes);
  // Fetches so many cache lines behind the first line of the next record, so that writing a record soon finds
  // them in this processor's cache. The first line is left to the consumer, which polls it.
  void Prepare(uint64_t lines) const {
    uint64_t at = tail_ + kRecordAlign;
    const uint64_t end = at + lines * kRecordAlign;
    if (end - cached_head_ > bytes_) return;  // the consumer may still need these lines
    // Compilers emit prefetchw only for processors known to have it; on others it does nothing.
    for (; at != end; at += kRecordAlign) asm volatile("prefetchw %0" : : "m"(data_[at & (bytes_ - 1)]));
  }

  uint64_t sequence() const { return sequence_; }  // the next record's

 private:
  void Pad(uint64_t to_end);
  // Room, as of the last look at `head`.
  uint64_t KnownFree() const {
    const uint64_t used = tail_ - cached_head_ + kRecordAlign;  // with the line behind the newest
    return used < bytes_ ? bytes_ - used : 0;
  }

  std::byte* data_;
  uint64_t bytes_;
  HotWord* tail_word_;
  const HotWord* head_;
  std::byte* pad_ = nullptr;  // a pad record that is published with the record behind it
  uint64_t tail_ = 0;
  uint64_t cached_head_ = 0;
  uint64_t sequence_ = 0;
};

class alignas(kHotBytes) RingConsumer {
 public:
  enum class Status { kEmpty, kRecord, kCorrupt };

  // `buffer` receives each record and bounds its size. This end writes `head`; the producer writes `tail`.
  RingConsumer(const std::byte* data, uint64_t bytes, const HotWord* tail, HotWord* head,
               std::span<std::byte> buffer);

  // Copies the next record into the buffer; the view is valid until the next call. kCorrupt: the producer
  // broke the format; reason() says how, and the consumer stays unusable. A tail that moved without a record
  // is found at the latest by the kLooks-th call.
  static constexpr uint32_t kLooks = 16;
  Status Next(std::span<const std::byte>* record);
  // To be called when Next() found a record at once: more records may be waiting in the producer's cache.
  // Their lines are fetched while this record is executed.
  void Prefetch() const;
  // The caller is done with the record that Next() gave. Its room, and that of a pad before it, returns to
  // the producer: at once, or, while more records are known to wait here, when `held_bytes` have come
  // together. Returning room rarely is cheaper, because a producer that waits for room polls `head`, and each
  // store takes that line from its cache.
  void Release(uint64_t held_bytes = 0);

  const char* reason() const { return reason_; }
  // Whether the producer has published more than Next() gave. One load of one line.
  bool Ready() const { return SizeAt(next_head_) != 0; }
  const HotWord* tail_word() const { return tail_word_; }
  // The low half of what `tail` is while no record is there. A consumer that goes to sleep gives it to the
  // futex to compare, so that a record published after the last Next() ends the sleep at once.
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
  uint64_t head_before_ = 0;  // the begin of the newest record that was released
  uint64_t told_head_ = 0;    // the value of `head` that the producer can see
  uint64_t next_head_ = 0;
  uint64_t sequence_ = 0;
  uint32_t looks_ = 0;  // calls of Next() since the last record
  const char* reason_ = nullptr;
};

// The two memory operations on shared words, named once. An acquire load pairs with the peer's release store
// of the same word.
inline uint64_t LoadAcquire(const uint64_t& word) {
  return std::atomic_ref<uint64_t>(const_cast<uint64_t&>(word)).load(std::memory_order_acquire);
}
inline uint64_t LoadAcquire(const HotWord& word) {
  return LoadAcquire(word.value);
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
