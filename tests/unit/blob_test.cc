// SPDX-License-Identifier: Apache-2.0
// Byte strings that a guest sends in pieces: what all channels of a session hold of them together is bounded, and comes back
// with the request that takes it, or with the next string that its channel begins.
#include "host_backend/worker/session/blob.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "ivshmem_ring/messages/session_messages.h"

namespace causeway::host {
namespace {

constexpr uint64_t kMost = 1000;

class BlobTest : public ::testing::Test {
 protected:
  bool Append(uint32_t channel, size_t bytes) {
    return blobs_.Append(channel, std::vector<std::byte>(bytes, std::byte{7}));
  }
  // What a request on that channel takes.
  uint64_t Take(uint32_t channel) {
    const RecordPrefix header{};
    Reader in;
    Writer out{std::span<std::byte>()};
    Request request{header, in, out, channel, {}};
    uint64_t bytes = 0;
    const auto taken = blobs_.Take(request, &bytes);
    EXPECT_EQ(taken->size(), bytes + Blobs::kEnd);
    const auto end = taken->begin() + static_cast<ptrdiff_t>(bytes);
    EXPECT_TRUE(std::all_of(taken->begin(), end, [](std::byte each) { return each == std::byte{7}; }));
    EXPECT_TRUE(std::all_of(end, taken->end(), [](std::byte each) { return each == std::byte{0}; }));
    return bytes;
  }
  Blobs blobs_{kMost};
};

TEST_F(BlobTest, WhatAllChannelsHoldIsBounded) {
  EXPECT_FALSE(Append(0, kMost + 1)) << "in one piece";
  EXPECT_TRUE(Append(0, 600));
  EXPECT_TRUE(Append(kChannelCount - 1, 400));
  for (uint32_t channel = 0; channel < kChannelCount; ++channel) EXPECT_FALSE(Append(channel, 1)) << channel;
  EXPECT_EQ(Take(0), 600u) << "what was refused is not in it";
  EXPECT_TRUE(Append(1, 600)) << "what was taken counts no more";
  EXPECT_FALSE(Append(1, 1));
  blobs_.Begin(1, kMaxBlobBytes);  // what is announced takes no room
  EXPECT_TRUE(Append(0, 600)) << "what is begun anew counts no more";
  EXPECT_FALSE(Append(0, 1));
  EXPECT_EQ(Take(1), 0u);
  EXPECT_EQ(Take(kChannelCount - 1), 400u);
}

TEST_F(BlobTest, TheBoundFollowsTheRegion) {
  constexpr uint64_t kGib = uint64_t{1} << 30;
  EXPECT_EQ(Blobs::MostFor(0), kGib);
  EXPECT_EQ(Blobs::MostFor(2 * kGib), 2 * kGib);
  EXPECT_EQ(Blobs::MostFor(~uint64_t{0}), kMaxBlobBytes);
}

}  // namespace
}  // namespace causeway::host
