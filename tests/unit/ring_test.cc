// SPDX-License-Identifier: Apache-2.0
// The ring alone: sizes, wrapping, flow control, and what a peer that breaks the format can do.
#include "ivshmem_ring/transport/ring.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "tests/unit/ring_stream.h"

namespace causeway {
namespace {

using Status = RingConsumer::Status;
using test::HeaderOf;

constexpr uint64_t kBytes = 4096;

class RingTest : public ::testing::Test {
 protected:
  // Writes a record of `bytes` with contents from `seed`; false if the ring is full.
  bool Post(size_t bytes, uint64_t seed) {
    std::byte* record = producer_.Reserve(bytes);
    if (record == nullptr) return false;
    RecordHeader header{};
    header.op = 7;
    PutHeader(record, header);
    test::FillBody({record + sizeof header, bytes - sizeof header}, seed);
    producer_.Publish(bytes);
    return true;
  }
  void ExpectRecord(size_t bytes, uint64_t seed) {
    std::span<const std::byte> record;
    ASSERT_EQ(consumer_.Next(&record), Status::kRecord) << (consumer_.reason() ? consumer_.reason() : "");
    EXPECT_EQ(record.size(), bytes);
    EXPECT_EQ(HeaderOf(record).op, 7);
    EXPECT_TRUE(test::BodyMatches(record.subspan(sizeof(RecordHeader)), seed));
    consumer_.Release();
  }
  void ExpectEmpty() {
    std::span<const std::byte> record;
    for (uint32_t i = 0; i < RingConsumer::kLooks; ++i) EXPECT_EQ(consumer_.Next(&record), Status::kEmpty);
  }
  // A record written by a peer that ignores every rule.
  void Forge(uint64_t at, uint32_t bytes, uint16_t op, uint64_t sequence) {
    RecordHeader header{};
    header.bytes = bytes;
    header.op = op;
    header.sequence = sequence;
    std::memcpy(block_->data + at % kBytes, &header, sizeof header);
  }
  void ExpectCorrupt(const char* reason) {
    std::span<const std::byte> record;
    Status status = Status::kEmpty;
    for (uint32_t i = 0; i < RingConsumer::kLooks && status == Status::kEmpty; ++i)
      status = consumer_.Next(&record);
    ASSERT_EQ(status, Status::kCorrupt);
    EXPECT_STREQ(consumer_.reason(), reason);
    EXPECT_EQ(consumer_.Next(&record), Status::kCorrupt) << "a broken ring must stay broken";
  }

  std::unique_ptr<test::RingBlock<kBytes>> block_ = std::make_unique<test::RingBlock<kBytes>>();
  std::vector<std::byte> buffer_ = std::vector<std::byte>(2048);
  RingProducer producer_ = block_->Producer();
  RingConsumer consumer_ = block_->Consumer(buffer_);
};

TEST_F(RingTest, CarriesEverySize) {
  ExpectEmpty();
  for (size_t bytes = sizeof(RecordHeader); bytes <= 2048; ++bytes) {
    ASSERT_TRUE(Post(bytes, bytes));
    ExpectRecord(bytes, bytes);
    ExpectEmpty();
  }
}

TEST_F(RingTest, FillsToTheLastLineButOneAndRefusesMore) {
  constexpr uint64_t kMost = kBytes / kRecordAlign - 1;
  for (uint64_t i = 0; i < kMost; ++i) ASSERT_TRUE(Post(64, i)) << i;
  EXPECT_FALSE(Post(64, 0));
  ExpectRecord(64, 0);
  EXPECT_TRUE(Post(64, kMost));
  EXPECT_FALSE(Post(64, 0));
  for (uint64_t i = 1; i <= kMost; ++i) ExpectRecord(64, i);
  ExpectEmpty();
}

TEST_F(RingTest, TellsItsRoom) {
  constexpr uint64_t kMost = kBytes - kRecordAlign;
  EXPECT_EQ(producer_.Room(), kMost);
  ASSERT_TRUE(Post(1000, 1));
  ASSERT_TRUE(Post(64, 2));
  EXPECT_EQ(producer_.Room(), kMost - 1024 - 64);
  ExpectRecord(1000, 1);
  EXPECT_EQ(producer_.Room(), kMost - 64);
}

TEST_F(RingTest, PadsTheEndInsteadOfWrapping) {
  ASSERT_TRUE(Post(2048, 1));
  ASSERT_TRUE(Post(1024, 2));
  ExpectRecord(2048, 1);
  // 1024 bytes are left at the end: this record starts at the beginning.
  ASSERT_TRUE(Post(1500, 3));
  EXPECT_EQ(LoadAcquire(block_->tail), kBytes + 1536);
  ExpectRecord(1024, 2);
  ExpectRecord(1500, 3);
  ExpectEmpty();
  EXPECT_EQ(LoadAcquire(block_->head), kBytes + 1536);
}

TEST_F(RingTest, ReservingAgainChangesNothingVisible) {
  ASSERT_TRUE(Post(2048, 1));
  ASSERT_TRUE(Post(1984, 2));
  ExpectRecord(2048, 1);
  ExpectRecord(1984, 2);
  const uint64_t tail = LoadAcquire(block_->tail);
  ASSERT_NE(producer_.Reserve(2000), nullptr);  // pads
  ASSERT_NE(producer_.Reserve(100), nullptr);
  EXPECT_EQ(LoadAcquire(block_->tail), tail);
  ExpectEmpty();
  ASSERT_TRUE(Post(300, 3));
  ExpectRecord(300, 3);
}

TEST_F(RingTest, PublishesLessThanReserved) {
  std::byte* record = producer_.Reserve(2000);
  ASSERT_NE(record, nullptr);
  RecordHeader header{};
  header.op = 7;
  PutHeader(record, header);
  test::FillBody({record + sizeof header, 60 - sizeof header}, 9);
  producer_.Publish(60);
  EXPECT_EQ(LoadAcquire(block_->tail), 64u);
  ExpectRecord(60, 9);
}

TEST_F(RingTest, PutsWhatWasPutTogetherElsewhere) {
  std::vector<std::byte> made(2048);
  for (size_t bytes = sizeof(RecordHeader); bytes <= 2048; bytes += 7) {
    RecordHeader header{};
    header.op = 7;
    PutHeader(made.data(), header);
    test::FillBody(std::span(made).subspan(sizeof header, bytes - sizeof header), bytes);
    producer_.Prepare(bytes / 64 + 1);
    ASSERT_TRUE(producer_.Put(made.data(), bytes));
    ExpectRecord(bytes, bytes);
    ExpectEmpty();
  }
  while (producer_.Put(made.data(), 64)) {
  }
  EXPECT_EQ(producer_.Room(), 0u);
}

// The producer's processor is taken away between its last two stores.
TEST_F(RingTest, ARecordIsThereBeforeItsTail) {
  uint64_t before = 0;
  for (uint64_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(Post(64 + i % 3 * 700, i));  // pads among them
    const uint64_t tail = LoadAcquire(block_->tail);
    StoreRelease(block_->tail, before);
    ExpectRecord(64 + i % 3 * 700, i);
    ExpectEmpty();
    StoreRelease(block_->tail, tail);
    ExpectEmpty();
    before = tail;
  }
}

TEST_F(RingTest, RecordsStayUntilReleased) {
  ASSERT_TRUE(Post(100, 1));
  std::span<const std::byte> record;
  ASSERT_EQ(consumer_.Next(&record), Status::kRecord);
  EXPECT_EQ(LoadAcquire(block_->head), 0u);
  ASSERT_EQ(consumer_.Next(&record), Status::kRecord) << "not released: the same record again";
  EXPECT_TRUE(test::BodyMatches(record.subspan(sizeof(RecordHeader)), 1));
  consumer_.Release();
  EXPECT_EQ(LoadAcquire(block_->head), 128u);
}

TEST_F(RingTest, TheCopyIsTheConsumersOwn) {
  ASSERT_TRUE(Post(100, 1));
  std::span<const std::byte> record;
  ASSERT_EQ(consumer_.Next(&record), Status::kRecord);
  std::memset(block_->data, 0xff, kBytes);
  EXPECT_EQ(HeaderOf(record).bytes, 100u);
  EXPECT_TRUE(test::BodyMatches(record.subspan(sizeof(RecordHeader)), 1));
}

TEST_F(RingTest, RefusesTailsOutOfRange) {
  StoreRelease(block_->tail, kBytes + 64);
  ExpectCorrupt("ring tail out of range");
}
TEST_F(RingTest, RefusesUnalignedTails) {
  StoreRelease(block_->tail, 65);
  ExpectCorrupt("ring tail out of range");
}
TEST_F(RingTest, RefusesTailsThatGoBack) {
  ASSERT_TRUE(Post(100, 1));
  ExpectRecord(100, 1);
  StoreRelease(block_->tail, 64);
  ExpectCorrupt("ring tail out of range");
}
TEST_F(RingTest, RefusesATailThatGoesBackBehindAPad) {
  for (int i = 0; i < 63; ++i) {
    ASSERT_TRUE(Post(64, 0));
    ExpectRecord(64, 0);
  }
  // A pad up to the end and nothing behind it: the consumer stands behind the pad, its head before it.
  Forge(0, 0, 7, 0);
  Forge(63 * 64, 64, kPadOp, 0);
  StoreRelease(block_->tail, kBytes);
  ExpectEmpty();
  StoreRelease(block_->tail, 63 * 64);
  ExpectCorrupt("ring tail moved without a record");
}
TEST_F(RingTest, RefusesATailWithoutARecord) {
  ASSERT_TRUE(Post(100, 1));
  ExpectRecord(100, 1);
  StoreRelease(block_->tail, 192);
  ExpectCorrupt("ring tail moved without a record");
}
TEST_F(RingTest, RefusesAPadThatIsTheWholeRing) {
  Forge(0, kBytes, kPadOp, 0);
  ExpectCorrupt("pad record not at the ring's end");
}
// What lies where the next record will begin is nobody's: an old record, or bytes of one that look like it.
TEST_F(RingTest, OldBytesAreNoRecord) {
  RecordHeader trap{};
  trap.bytes = 64;
  trap.op = 7;
  for (int lap = 0; lap < 3; ++lap) {
    std::byte* record = producer_.Reserve(1024);
    ASSERT_NE(record, nullptr);
    const RecordHeader header{};
    PutHeader(record, header);
    for (uint64_t line = 1; line < 16; ++line) {
      trap.sequence = producer_.sequence() + line;
      std::memcpy(record + 64 * line, &trap, sizeof trap);
    }
    producer_.Publish(1024);
    std::span<const std::byte> taken;
    ASSERT_EQ(consumer_.Next(&taken), Status::kRecord);
    consumer_.Release();
    ExpectEmpty();
  }
  for (uint64_t i = 0; i < 200; ++i) {
    ASSERT_TRUE(Post(64, i));
    ExpectRecord(64, i);
    ExpectEmpty();
  }
}
TEST_F(RingTest, RefusesSizesOutOfRange) {
  Forge(0, sizeof(RecordHeader) - 1, 7, 0);
  StoreRelease(block_->tail, 64);
  ExpectCorrupt("record size out of range");
}
TEST_F(RingTest, RefusesSizesThatOverflowWhenRounded) {
  Forge(0, 0xffffffff, 7, 0);
  StoreRelease(block_->tail, 64);
  ExpectCorrupt("record size out of range");
}
TEST_F(RingTest, RefusesRecordsThatWrap) {
  for (int i = 0; i < 63; ++i) {
    ASSERT_TRUE(Post(64, 0));
    ExpectRecord(64, 0);
  }
  Forge(63 * 64, 128, 7, 63);
  ExpectCorrupt("record beyond the ring's end");
}
TEST_F(RingTest, RefusesRecordsLargerThanTheirKind) {
  Forge(0, 2049, 7, 0);
  StoreRelease(block_->tail, 2112);
  ExpectCorrupt("record larger than its kind allows");
}
TEST_F(RingTest, RefusesPadsInTheMiddle) {
  Forge(0, 64, kPadOp, 0);
  StoreRelease(block_->tail, 64);
  ExpectCorrupt("pad record not at the ring's end");
}
TEST_F(RingTest, RefusesRecordsOutOfSequence) {
  Forge(0, 64, 7, 1);
  StoreRelease(block_->tail, 64);
  ExpectCorrupt("record out of sequence");
}

TEST_F(RingTest, AnImpossibleHeadMeansFull) {
  for (const uint64_t head : {uint64_t{64}, uint64_t{1} << 63, 0 - kBytes - 64}) {
    auto block = std::make_unique<test::RingBlock<kBytes>>();
    RingProducer producer = block->Producer();
    ASSERT_NE(producer.Reserve(2048), nullptr);
    producer.Publish(2048);
    ASSERT_NE(producer.Reserve(1984), nullptr);
    producer.Publish(1984);
    ASSERT_EQ(producer.Reserve(64), nullptr);
    StoreRelease(block->head, kBytes + head);
    EXPECT_EQ(producer.Reserve(64), nullptr) << head;
    StoreRelease(block->head, 64);
    EXPECT_NE(producer.Reserve(64), nullptr) << "and a right one is believed again";
  }
}

TEST_F(RingTest, AsksForTooMuchOnlyByOurOwnBug) {
  EXPECT_DEATH(producer_.Reserve(kBytes / 2 + 1), "");
}

TEST(RingThreads, MillionsOfRecordsArriveExactly) {
  for (const bool futex : {true, false}) {
    auto ring = std::make_unique<test::StreamRing>();
    const uint64_t records = 2'000'000 / test::kLongRunDivisor;
    std::thread producer([&] { test::ProduceStream(*ring, records, 11, futex); });
    EXPECT_EQ(test::ConsumeStream(*ring, records, 11, futex), "");
    producer.join();
    EXPECT_EQ(LoadAcquire(ring->head), LoadAcquire(ring->tail));
  }
}

}  // namespace
}  // namespace causeway
