// SPDX-License-Identifier: Apache-2.0
// One stream of records of random sizes through a ring: the same two functions run in two threads
// (ring_test.cc) and in two processes (ring_processes_test.cc).
#pragma once
#include <cstdio>
#include <string>

#include "ivshmem_ring/transport/waiter.h"
#include "tests/unit/ring_memory.h"

namespace causeway::test {

inline constexpr uint64_t kStreamRingBytes = 16u << 10;
inline constexpr size_t kStreamMaxRecordBytes = 4096;
using StreamRing = RingBlock<kStreamRingBytes>;

inline size_t StreamRecordBytes(Random& random) {
  // Mostly small, as calls are; one in eight of any size.
  const uint64_t body = random.Below(8) == 0 ? random.Below(kStreamMaxRecordBytes - sizeof(RecordHeader) + 1)
                                             : random.Below(100);
  return sizeof(RecordHeader) + body;
}

inline void ProduceStream(StreamRing& ring, uint64_t records, uint64_t seed, bool futex) {
  RingProducer producer = ring.Producer();
  Random random{seed};
  for (uint64_t i = 0; i < records; ++i) {
    const size_t bytes = StreamRecordBytes(random);
    std::byte* record = producer.Reserve(bytes);
    if (record == nullptr) {
      Waiter waiter(ReplyPolicy(futex), &ring.head, &ring.producer_waiting, futex);
      for (;;) {
        const auto seen = static_cast<uint32_t>(LoadAcquire(ring.head));
        record = producer.Reserve(bytes);
        if (record != nullptr) break;
        waiter.Step(seen);
      }
    }
    RecordHeader header{};
    header.op = 1;
    PutHeader(record, header);
    FillBody({record + sizeof header, bytes - sizeof header}, seed + i);
    producer.Publish(bytes);
    Wake(ring.tail, ring.consumer_waiting, futex);
  }
}

// Empty, or what was wrong with which record.
inline std::string ConsumeStream(StreamRing& ring, uint64_t records, uint64_t seed, bool futex) {
  std::vector<std::byte> buffer(kStreamMaxRecordBytes);
  RingConsumer consumer = ring.Consumer(buffer);
  Random random{seed};
  for (uint64_t i = 0; i < records; ++i) {
    std::span<const std::byte> record;
    Waiter waiter(IdlePolicy(), consumer.tail_word(), &ring.consumer_waiting, futex);
    for (;;) {
      const auto status = consumer.Next(&record);
      if (status == RingConsumer::Status::kRecord) break;
      if (status == RingConsumer::Status::kCorrupt) return consumer.reason();
      waiter.Step(consumer.seen_tail());
    }
    const size_t bytes = StreamRecordBytes(random);
    if (record.size() != bytes) return "record " + std::to_string(i) + " has a wrong size";
    if (!BodyMatches(record.subspan(sizeof(RecordHeader)), seed + i))
      return "record " + std::to_string(i) + " has wrong bytes";
    consumer.Release();
    Wake(ring.head, ring.producer_waiting, futex);
  }
  return {};
}

}  // namespace causeway::test
