// SPDX-License-Identifier: Apache-2.0
// Bytes that are exchanged by comparing: what goes to the host, what comes from it, in which order, and what neither may lose.
#include "guest_lib/managed/compared_bytes.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "tests/yield_until.h"

namespace causeway::guest {
namespace {

// A range of the program's, and the host's bytes of it, which spans are copied to and from as ManagedLink does.
class ComparedBytesTest : public ::testing::Test {
 protected:
  static constexpr size_t kBytes = 200;

  void SetUp() override {
    std::memset(program_, 0, sizeof program_);
    std::memset(host_, 3, sizeof host_);  // of a registration that was there before
    ASSERT_TRUE(compared_.Add(Address(), kBytes));
    EXPECT_TRUE(compared_.Changed());
    EXPECT_FALSE(Receive());
    EXPECT_EQ(Send(), kBytes);
    ASSERT_EQ(std::memcmp(program_, host_, kBytes), 0);
  }
  void TearDown() override { compared_.Remove(Address(), Address() + kBytes); }
  uint64_t Address() const { return reinterpret_cast<uint64_t>(program_); }
  // How many bytes went.
  uint64_t Send() {
    compared_.AddChanges(&data_, &flags_);
    uint64_t bytes = 0;
    for (const auto* spans : {&data_, &flags_}) {
      for (const ManagedSpan& span : *spans) {
        std::memcpy(host_ + (span.address - Address()), span.bytes, span.count);
        bytes += span.count;
      }
    }
    EXPECT_EQ(compared_.Changed(), bytes != 0);  // until they have arrived
    compared_.Sent();
    EXPECT_FALSE(compared_.Changed());
    sent_ = {data_, flags_};
    data_.clear();
    flags_.clear();
    return bytes;
  }
  bool Receive() {
    std::vector<ManagedSpan> spans;
    compared_.AddAll(&spans);
    for (const ManagedSpan& span : spans)
      std::memcpy(span.bytes, host_ + (span.address - Address()), span.count);
    return compared_.Take();
  }

  ComparedBytes compared_;
  std::vector<ManagedSpan> data_, flags_;
  std::pair<std::vector<ManagedSpan>, std::vector<ManagedSpan>> sent_;
  alignas(64) std::byte program_[kBytes];
  alignas(64) std::byte host_[kBytes];
};

TEST_F(ComparedBytesTest, WhatTheProgramWritesGoesOnce) {
  program_[0] = program_[1] = program_[kBytes - 1] = std::byte{7};
  EXPECT_TRUE(compared_.Changed());
  EXPECT_EQ(Send(), 3u);
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

// The program never stops writing one half of a word, of which the host changes the other.
TEST_F(ComparedBytesTest, AWriteBesideTheHostsIsNotUndone) {
  std::atomic<bool> ends{false};
  std::atomic<uint32_t> undone{0};
  std::thread writer([&] {
    auto* own = reinterpret_cast<volatile uint32_t*>(program_ + 12);
    for (uint32_t i = 1; !ends; ++i) {
      *own = i;
      for (int look = 0; look < 20; ++look) undone += *own != i ? 1 : 0;
    }
  });
  for (uint32_t i = 1; i < 20'000; ++i) {
    std::memcpy(host_ + 8, &i, sizeof i);
    Receive();
    ASSERT_EQ(std::memcmp(program_ + 8, &i, sizeof i), 0);
  }
  ends = true;
  writer.join();
  EXPECT_EQ(undone, 0u);
}

// A small number in the first or the last word stands for a flag, and everything else for data.
TEST_F(ComparedBytesTest, FlagsGoLast) {
  for (const size_t flag : {size_t{0}, kBytes - 8}) {
    std::memset(program_, 0x55 + static_cast<int>(flag), kBytes);
    std::memset(program_ + flag, 0, 8);
    Send();
    std::memset(program_, 0x66 + static_cast<int>(flag), kBytes);
    std::memset(program_ + flag, 0, 8);
    program_[flag] = std::byte{1};
    Send();
    ASSERT_FALSE(sent_.second.empty());
    EXPECT_EQ(sent_.second.back().address, Address() + flag);
    EXPECT_EQ(sent_.second.back().count, 1u);
    EXPECT_FALSE(sent_.first.empty());
  }
}

// The same where a thread polls for what the host writes.
TEST_F(ComparedBytesTest, APolledFlagComesLast) {
  for (uint32_t round = 1; round < 2000; ++round) {
    std::atomic<bool> right{true};
    std::thread poller([&] {
      const auto* flag = reinterpret_cast<volatile uint32_t*>(program_);
      test::YieldUntil([&] { return *flag == round; });
      std::atomic_thread_fence(std::memory_order_acquire);
      for (size_t at = 8; at < kBytes; ++at) right = right && program_[at] == std::byte(round % 251);
    });
    std::memset(host_ + 8, static_cast<int>(round % 251), kBytes - 8);
    std::memcpy(host_, &round, sizeof round);
    Receive();
    poller.join();
    ASSERT_TRUE(right) << round;
  }
}

// Linux finds out that there is none: a look at it does not end the process.
TEST_F(ComparedBytesTest, MemoryThatIsGoneOrReadOnly) {
  constexpr size_t kPage = 4096;
  void* page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  const auto address = reinterpret_cast<uint64_t>(page);
  ASSERT_TRUE(compared_.Add(address, 100));
  compared_.AddChanges(&data_, &flags_);
  compared_.Sent();
  const auto take = [&](int value) {
    std::vector<ManagedSpan> spans;
    compared_.AddAll(&spans);
    for (const ManagedSpan& span : spans) std::memset(span.bytes, value, span.count);
    return compared_.Take();
  };
  ASSERT_EQ(mprotect(page, kPage, PROT_READ), 0);
  EXPECT_TRUE(take(3));  // of the range that is there
  EXPECT_EQ(program_[5], std::byte{3});
  EXPECT_EQ(*static_cast<char*>(page), 0);
  ASSERT_EQ(mprotect(page, kPage, PROT_READ | PROT_WRITE), 0);
  EXPECT_TRUE(take(3));
  EXPECT_EQ(*static_cast<char*>(page), 3);
  std::memset(page, 1, 100);
  EXPECT_TRUE(compared_.Changed());
  ASSERT_EQ(munmap(page, kPage), 0);
  EXPECT_FALSE(compared_.Changed());
  data_.clear();
  flags_.clear();
  compared_.AddChanges(&data_, &flags_);
  EXPECT_TRUE(data_.empty() && flags_.empty());
  take(4);
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
