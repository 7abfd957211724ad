// SPDX-License-Identifier: Apache-2.0
// A single-producer single-consumer ring of records in shared memory.
//
// - Two free-running byte counters: the producer writes `tail`, the consumer writes `head`.
// - A record is published by one release store of tail; its partner is the acquire load in
// RingConsumer::Next.
//   Room is returned by one release store of head; its partner is the acquire load in RingProducer::Reserve.
// - Records are 64-byte aligned and never wrap; a pad record fills what is left at the end.
// - Each side keeps its own counter privately and never reads it back from shared memory.
// The consumer must be written as if the other side changed any shared byte at any time: Next() loads tail
// once, copies the header, checks the copy, and copies the record out before anyone looks at it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "ivshmem_ring/layout.h"
#include "ivshmem_ring/record.h"

namespace causeway {

// Each end has its cache lines to itself: the ends of neighbouring channels belong to other threads.
class alignas(kHotBytes) RingProducer {
 public:
  // `data`: `bytes` (power of two) of shared memory; `tail` is ours, `head` the consumer's.
  RingProducer(std::byte* data, uint64_t bytes, HotWord* tail, const HotWord* head);

  // Room for one record of up to `bytes`, or null while the ring is too full. Nothing is visible yet, and
  // reserving again without publishing is allowed.
  std::byte* Reserve(size_t bytes);
  // Bytes that the consumer has not got, those that a pad may take included.
  uint64_t Room();
  // Publishes the reserved record with its final size, which must not exceed what was reserved.
  void Publish(size_t bytes);

  uint64_t sequence() const { return sequence_; }  // of the next record
  const HotWord* head_word() const { return head_; }

 private:
  std::byte* data_;
  uint64_t bytes_;
  HotWord* tail_word_;
  const HotWord* head_;
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
  // the consumer stays unusable.
  Status Next(std::span<const std::byte>* record);
  // Done with the record that Next() gave. Its room, and everything padded before it, returns to the
  // producer: at once, or, while more records are known to wait here, when `held_bytes` have come together. A
  // producer that waits for room looks at our counter all the time, and each change of it takes the line from
  // there.
  void Release(uint64_t held_bytes = 0);

  const char* reason() const { return reason_; }
  // Whether the producer has published more than Next() gave. Looks at the shared word only if the last look
  // does not tell.
  bool Ready() const;
  const HotWord* tail_word() const { return tail_word_; }
  // Low half of the tail that the last Next() saw: what a sleeper compares, so that a record published after
  // that Next() ends the sleep at once.
  uint32_t seen_tail() const { return static_cast<uint32_t>(cached_tail_); }

 private:
  Status Corrupt(const char* reason);

  const std::byte* data_;
  uint64_t bytes_;
  const HotWord* tail_word_;
  HotWord* head_word_;
  std::span<std::byte> buffer_;
  uint64_t head_ = 0;
  uint64_t told_head_ = 0;  // what the producer knows of it
  uint64_t next_head_ = 0;
  uint64_t cached_tail_ = 0;
  uint64_t sequence_ = 0;
  const char* reason_ = nullptr;
};

// The two memory operations on hot words, named once. Acquire pairs with the peer's release on the same word.
uint64_t LoadAcquire(const HotWord& word);
void StoreRelease(HotWord& word, uint64_t value);
uint32_t LoadAcquire(const uint32_t& word);
void StoreRelease(uint32_t& word, uint32_t value);

}  // namespace causeway
