// SPDX-License-Identifier: Apache-2.0
// Slices of a local region: what was freed is used first and goes back to the machine soon.
#include "guest_lib/connection/local_slices.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "ivshmem_ring/transport/layout.h"

namespace causeway::guest {
namespace {

constexpr uint64_t kRegionBytes = 64u << 20;

class LocalSlicesTest : public ::testing::Test {
 protected:
  LocalSlicesTest()
      : file_(memfd_create("local_slices", 0)), owners_(GranuleCount(kRegionBytes), kOwnerFree) {
    EXPECT_EQ(ftruncate(file_, kRegionBytes), 0);
    base_ =
        static_cast<std::byte*>(mmap(nullptr, kRegionBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0));
  }
  ~LocalSlicesTest() override {
    munmap(base_, kRegionBytes);
    close(file_);
  }
  uint64_t ResidentBytes() const {
    struct stat info {};
    fstat(file_, &info);
    return static_cast<uint64_t>(info.st_blocks) * 512;
  }
  uint64_t Owned() const {
    uint64_t owned = 0;
    for (const uint16_t owner : owners_) owned += owner == 1 ? 1 : 0;
    return owned;
  }

  const int file_;
  std::byte* base_ = nullptr;
  std::vector<uint16_t> owners_;
};

TEST_F(LocalSlicesTest, EveryGranuleIsLentOnce) {
  LocalSlices slices(file_, owners_.data(), kRegionBytes);
  const uint64_t all = GranuleCount(kRegionBytes) - 1 - SlotCount(kRegionBytes);
  std::vector<bool> seen(GranuleCount(kRegionBytes));
  uint64_t first = 0;
  bool zeroed = false;
  for (uint64_t i = 0; i < all; ++i) {
    ASSERT_TRUE(slices.Allocate(1, &first, &zeroed));
    EXPECT_TRUE(zeroed);
    ASSERT_GT(first, uint64_t{SlotCount(kRegionBytes)});
    ASSERT_FALSE(seen[first]);
    seen[first] = true;
  }
  EXPECT_EQ(Owned(), all);
  EXPECT_FALSE(slices.Allocate(1, &first, &zeroed));
  slices.Free(first, 1);
  EXPECT_EQ(Owned(), all - 1);
  EXPECT_FALSE(slices.Allocate(2, &first, &zeroed));
  EXPECT_TRUE(slices.Allocate(1, &first, &zeroed));
  EXPECT_FALSE(zeroed);
}

// At once with the old bytes, a moment later without pages.
TEST_F(LocalSlicesTest, FreedSlicesAreUsedFirstThenReturned) {
  LocalSlices slices(file_, owners_.data(), kRegionBytes);
  uint64_t first = 0, again = 0;
  bool zeroed = false;
  ASSERT_TRUE(slices.Allocate(4, &first, &zeroed));
  std::memset(base_ + first * kGranuleBytes, 7, 4 * kGranuleBytes);
  slices.Free(first, 4);
  ASSERT_TRUE(slices.Allocate(4, &again, &zeroed));
  EXPECT_EQ(again, first);
  EXPECT_FALSE(zeroed);
  slices.Free(first, 4);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (ResidentBytes() != 0 && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(ResidentBytes(), 0u);
  ASSERT_TRUE(slices.Allocate(4, &again, &zeroed));
  EXPECT_EQ(again, first);
  EXPECT_TRUE(zeroed);
  for (uint64_t i = 0; i < 4 * kGranuleBytes; i += 4096)
    ASSERT_EQ(base_[first * kGranuleBytes + i], std::byte{0});
}

// Whoever needs all of the region gets it, whatever is on its way back.
TEST_F(LocalSlicesTest, ReturningNeverMakesItFull) {
  LocalSlices slices(file_, owners_.data(), kRegionBytes);
  const uint64_t all = GranuleCount(kRegionBytes) - 1 - SlotCount(kRegionBytes);
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(1500);
  uint64_t first = 0, rounds = 0;
  bool zeroed = false;
  while (std::chrono::steady_clock::now() < end) {
    ASSERT_TRUE(slices.Allocate(all, &first, &zeroed)) << rounds;
    base_[first * kGranuleBytes] = std::byte{1};
    slices.Free(first, all);
    std::this_thread::sleep_for(std::chrono::milliseconds(++rounds % 7 == 0 ? 260 : 1));
  }
}

}  // namespace
}  // namespace causeway::guest
