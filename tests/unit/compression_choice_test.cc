// SPDX-License-Identifier: Apache-2.0
// When bulk bytes are compressed, with figures in the place of clocks: links, processors and data of any kind.
#include "ivshmem_ring/compression/compression_choice.h"

#include <gtest/gtest.h>

#include "ivshmem_ring/compression/arrival_meter.h"

namespace causeway {
namespace {

using Plan = CompressionChoice::Plan;

constexpr size_t kPiece = 1u << 20;
constexpr uint64_t kGigabit = 125'000'000;

// What a piece, or a sample, takes at so many bytes a second.
uint64_t UsAt(size_t bytes, uint64_t rate) {
  return bytes * 1'000'000 / rate;
}

// A side that sends pieces: what it does with the next one, where LZ4 makes `share` of a byte (1 or more: it does not shrink) at that speed.
struct Sender {
  CompressionChoice choice;
  uint32_t samples = 0, compressed = 0, plain = 0;

  void Send(double share, uint64_t speed, size_t bytes = kPiece) {
    if (!choice.MayCompress(bytes)) {
      ++plain;
      return;
    }
    Plan plan = choice.Next(bytes);
    if (plan == Plan::kSample) {
      ++samples;
      const size_t some = CompressionChoice::kSampleBytes;
      const bool pays = choice.NoteSample(some, size_t(double(some) * share), UsAt(some, speed));
      plan = pays ? Plan::kCompress : Plan::kPlain;
    }
    if (plan == Plan::kPlain) {
      ++plain;
      return;
    }
    const auto made = size_t(double(bytes) * share);
    choice.NotePiece(bytes, made <= CompressionChoice::MostCompressed(bytes) ? made : 0, UsAt(bytes, speed));
    ++compressed;
  }
  void SendMany(uint32_t count, double share, uint64_t speed) {
    samples = compressed = plain = 0;
    for (uint32_t i = 0; i < count; ++i) Send(share, speed);
  }
};

TEST(CompressionChoice, AFastLinkIsLeftAlone) {
  Sender sender;
  sender.SendMany(100, 0.01, 2'000'000'000);
  EXPECT_EQ(sender.plain, 100u);
  EXPECT_EQ(sender.samples, 0u);
  sender.choice.NoteRate(kFastLink);
  sender.SendMany(100, 0.01, 2'000'000'000);
  EXPECT_EQ(sender.plain, 100u);
}

TEST(CompressionChoice, OnASlowLinkWhatShrinksIsCompressed) {
  Sender sender;
  sender.choice.NoteRate(kGigabit);
  sender.SendMany(100, 0.4, 500'000'000);
  EXPECT_EQ(sender.compressed, 100u);
  EXPECT_EQ(sender.samples, 1u);
}

TEST(CompressionChoice, CompressingMayOverlapWithTheLink) {
  Sender sender;
  sender.choice.NoteRate(kGigabit);
  sender.SendMany(100, 0.5, 250'000'000);
  EXPECT_EQ(sender.compressed, 100u) << "a single piece takes an eighth longer, many half as long";
  sender.choice.NoteRate(kGigabit * 2);
  sender.SendMany(160, 0.5, 250'000'000);
  EXPECT_EQ(sender.compressed, 0u);
}

TEST(CompressionChoice, ASmallPieceIsSentAsItIs) {
  Sender sender;
  sender.choice.NoteRate(1);
  EXPECT_FALSE(sender.choice.MayCompress(CompressionChoice::kLeastBytes - 1));
  EXPECT_TRUE(sender.choice.MayCompress(CompressionChoice::kLeastBytes));
  EXPECT_EQ(sender.choice.Next(CompressionChoice::kLeastBytes), Plan::kCompress)
      << "a sample would be no less";
}

TEST(CompressionChoice, WhatDoesNotShrinkIsTriedEachSixteenthTime) {
  Sender sender;
  sender.choice.NoteRate(kGigabit);
  sender.SendMany(160, 1.0, 1'000'000'000);
  EXPECT_EQ(sender.plain, 160u);
  EXPECT_EQ(sender.samples, 10u);
  // So little is too little, and the processor does better things.
  sender.SendMany(160, 0.9, 1'000'000'000);
  EXPECT_EQ(sender.compressed, 0u);
}

TEST(CompressionChoice, FollowsTheDataBothWays) {
  Sender sender;
  sender.choice.NoteRate(kGigabit);
  sender.SendMany(20, 1.0, 1'000'000'000);
  sender.SendMany(40, 0.3, 500'000'000);
  EXPECT_LE(sender.plain, CompressionChoice::kTryEach);
  EXPECT_GE(sender.compressed, 40 - CompressionChoice::kTryEach);
  sender.SendMany(160, 1.0, 1'000'000'000);
  EXPECT_LE(sender.compressed, 1u) << "the piece that told";
  EXPECT_LE(sender.samples, 10u);
}

TEST(CompressionChoice, FollowsTheLinkBothWays) {
  Sender sender;
  sender.choice.NoteRate(kGigabit);
  sender.SendMany(10, 0.5, 500'000'000);
  EXPECT_EQ(sender.compressed, 10u);
  sender.choice.NoteRate(kFastLink);
  sender.SendMany(10, 0.5, 500'000'000);
  EXPECT_EQ(sender.plain, 10u);
  sender.choice.NoteRate(kGigabit / 10);
  sender.SendMany(10, 0.5, 500'000'000);
  EXPECT_EQ(sender.compressed, 10u);
  // Where it compresses no faster than the link brings, it stops.
  sender.choice.NoteRate(kGigabit * 2);
  sender.SendMany(16, 0.5, 150'000'000);
  EXPECT_LE(sender.compressed, 1u) << "the piece that told";
}

TEST(CompressionChoice, ASlowProcessorSendsAsItIs) {
  Sender sender;
  sender.choice.NoteRate(kGigabit);
  sender.SendMany(64, 0.5, 100'000'000);
  EXPECT_EQ(sender.plain, 64u);
  EXPECT_EQ(sender.samples, 4u);
  sender.choice.NoteRate(kGigabit / 10);
  sender.SendMany(64, 0.5, 100'000'000);
  EXPECT_GE(sender.compressed, 64 - CompressionChoice::kTryEach);
}

TEST(CompressionChoice, PiecesTooSmallToMeasureTheLinkLetOneThroughNowAndThen) {
  Sender sender;
  sender.choice.NoteRate(kGigabit);
  constexpr uint32_t kRound = CompressionChoice::kMostUnmeasured + 1;
  sender.SendMany(10 * kRound, 0.01, 2'000'000'000);
  EXPECT_EQ(sender.plain, 10u);
  sender.SendMany(10 * kRound, 0.5, 500'000'000);
  EXPECT_EQ(sender.plain, 0u) << "these tell it themselves";
}

TEST(CompressionChoice, TakesAnyNumberForARate) {
  for (const uint64_t rate : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}}) {
    Sender sender;
    sender.choice.NoteRate(rate);
    sender.SendMany(20, 0.5, 1);
    EXPECT_EQ(sender.compressed + sender.plain, 20u);
    EXPECT_EQ(sender.choice.MayCompress(kPiece), rate < kFastLink);
  }
  Sender sender;
  sender.choice.NoteRate(1);
  sender.choice.NoteSample(1, 0, 0);
  sender.choice.NotePiece(1, 0, 0);
}

TEST(ArrivalMeter, SaysNothingOfAFastLink) {
  ArrivalMeter meter;
  for (int i = 0; i < 100; ++i) EXPECT_EQ(meter.Note(kPiece, UsAt(kPiece, 2'000'000'000)), 0u);
  EXPECT_EQ(meter.Note(kPiece, 0), 0u);
}

TEST(ArrivalMeter, SaysOnceHowFastASlowOneIs) {
  ArrivalMeter meter;
  EXPECT_EQ(meter.Note(kPiece, UsAt(kPiece, kGigabit)), 0u);
  EXPECT_EQ(meter.Note(kPiece, UsAt(kPiece, kGigabit)), 0u);
  EXPECT_NEAR(double(meter.Note(kPiece, UsAt(kPiece, kGigabit))), double(kGigabit), kGigabit / 100.0);
  for (int i = 0; i < 100; ++i)
    EXPECT_EQ(meter.Note(kPiece, UsAt(kPiece, kGigabit + uint64_t(i % 3) * 10'000'000)), 0u);
}

TEST(ArrivalMeter, SaysWhenItHasChanged) {
  ArrivalMeter meter;
  for (int i = 0; i < 10; ++i) meter.Note(kPiece, UsAt(kPiece, kGigabit));
  uint64_t told = 0;
  for (int i = 0; i < 5; ++i)
    if (const uint64_t rate = meter.Note(kPiece, UsAt(kPiece, kGigabit / 4))) told = rate;
  EXPECT_NEAR(double(told), kGigabit / 4.0, kGigabit / 100.0);
  for (int i = 0; i < 5; ++i)
    if (const uint64_t rate = meter.Note(kPiece, UsAt(kPiece, 10 * kFastLink))) told = rate;
  EXPECT_EQ(told, kFastLink);
  EXPECT_EQ(meter.Note(kPiece, UsAt(kPiece, kFastLink)), 0u);
}

TEST(ArrivalMeter, OneThreadThatIsNotLetRunChangesNothing) {
  ArrivalMeter fast, slow;
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(fast.Note(kPiece, i % 5 == 0 ? 50'000 : UsAt(kPiece, 1'000'000'000)), 0u);
    const uint64_t told = slow.Note(kPiece, i % 5 == 4 ? 100 : UsAt(kPiece, kGigabit));
    EXPECT_TRUE(told == 0 || i == 2) << i;
  }
}

}  // namespace
}  // namespace causeway
