// SPDX-License-Identifier: Apache-2.0
// Bytes that are exchanged by comparing: what goes to the host, what comes from it, and what neither may lose.
#include "guest_lib/managed/compared_bytes.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <numeric>

namespace causeway::guest {
namespace {

// A range of the program's, and the host's bytes of it, which spans are copied to and from as ManagedLink does.
class ComparedBytesTest : public ::testing::Test {
 protected:
  static constexpr size_t kBytes = 200;

  void SetUp() override {
    std::memset(program_, 0, sizeof program_);
    ASSERT_TRUE(compared_.Add(Address(), kBytes));
  }
  void TearDown() override { compared_.Remove(Address(), Address() + kBytes); }
  uint64_t Address() const { return reinterpret_cast<uint64_t>(program_); }
  // How many bytes went.
  uint64_t Send() {
    std::vector<ManagedSpan> spans;
    compared_.AddChanges(&spans);
    for (const ManagedSpan& span : spans)
      std::memcpy(host_ + (span.address - Address()), span.bytes, span.count);
    return std::accumulate(spans.begin(), spans.end(), uint64_t{0},
                           [](uint64_t sum, const ManagedSpan& span) { return sum + span.count; });
  }
  bool Receive() {
    std::vector<ManagedSpan> spans;
    compared_.AddAll(&spans);
    for (const ManagedSpan& span : spans)
      std::memcpy(span.bytes, host_ + (span.address - Address()), span.count);
    return compared_.Take();
  }

  ComparedBytes compared_;
  alignas(64) std::byte program_[kBytes];
  std::byte host_[kBytes] = {};
};

TEST_F(ComparedBytesTest, WhatTheProgramWritesGoesOnce) {
  EXPECT_FALSE(compared_.Changed());
  program_[0] = program_[1] = program_[kBytes - 1] = std::byte{7};
  EXPECT_TRUE(compared_.Changed());
  EXPECT_EQ(Send(), 3u);
  EXPECT_FALSE(compared_.Changed());
  EXPECT_EQ(Send(), 0u);
  EXPECT_EQ(std::memcmp(program_, host_, kBytes), 0);
}

TEST_F(ComparedBytesTest, WhatTheHostWritesComesOnce) {
  EXPECT_FALSE(Receive());
  host_[3] = host_[100] = std::byte{9};
  EXPECT_TRUE(Receive());
  EXPECT_EQ(std::memcmp(program_, host_, kBytes), 0);
  EXPECT_FALSE(Receive());
  EXPECT_FALSE(compared_.Changed());
}

TEST_F(ComparedBytesTest, WritesOfBothToOneWordSurvive) {
  for (size_t at = 0; at < kBytes; at += 3) host_[at] = std::byte{5};
  for (size_t at = 1; at < kBytes; at += 3) program_[at] = std::byte{6};
  EXPECT_TRUE(Receive());  // the host has not seen the program's yet
  EXPECT_TRUE(compared_.Changed());
  Send();
  for (size_t at = 0; at < kBytes; ++at) {
    const std::byte wanted{static_cast<unsigned char>(at % 3 == 0 ? 5 : at % 3 == 1 ? 6 : 0)};
    ASSERT_EQ(program_[at], wanted) << at;
    ASSERT_EQ(host_[at], wanted) << at;
  }
}

// The kernel finds out that there is none: a look at it does not end the process.
TEST_F(ComparedBytesTest, MemoryThatIsGone) {
  constexpr size_t kPage = 4096;
  void* page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  const auto address = reinterpret_cast<uint64_t>(page);
  ASSERT_TRUE(compared_.Add(address, 100));
  std::memset(page, 1, 100);
  EXPECT_TRUE(compared_.Changed());
  ASSERT_EQ(munmap(page, kPage), 0);
  EXPECT_FALSE(compared_.Changed());
  std::vector<ManagedSpan> spans;
  compared_.AddChanges(&spans);
  EXPECT_TRUE(spans.empty());
  compared_.AddAll(&spans);
  for (const ManagedSpan& span : spans) std::memset(span.bytes, 3, span.count);
  EXPECT_TRUE(compared_.Take());  // of the range that is there
  EXPECT_EQ(program_[5], std::byte{3});
  compared_.Remove(address, address + 100);
}

TEST_F(ComparedBytesTest, WhatItRefuses) {
  EXPECT_FALSE(compared_.Add(Address() + kBytes, ComparedBytes::kMost + 1));
  compared_.Remove(Address(), Address() + kBytes);
  EXPECT_TRUE(compared_.empty());
  program_[0] = std::byte{1};
  EXPECT_FALSE(compared_.Changed());
}

}  // namespace
}  // namespace causeway::guest
