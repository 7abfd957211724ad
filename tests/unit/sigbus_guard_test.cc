// SPDX-License-Identifier: Apache-2.0
// What a region's file lacks is replaced where the region is, and nowhere else: also when the table of guarded
// ranges changes while the signal handler reads it.
#include "host_backend/daemon/region/sigbus_guard.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <thread>

#include "host_backend/common/unique_fd.h"

namespace causeway::daemon {
namespace {

constexpr uintptr_t kBegin = 0x10'0000, kOther = 0x40'0000;
constexpr size_t kBytes = 0x1000, kMany = 0x100'0000;

void Nothing() {}

TEST(GuardedRangeTest, HoldsItsAddresses) {
  GuardedRange range;
  EXPECT_TRUE(range.is_free());
  EXPECT_FALSE(range.Find(0, Nothing));
  range.Set(kBegin, kBytes);
  EXPECT_FALSE(range.is_free());
  EXPECT_FALSE(range.Find(kBegin - 1, Nothing));
  EXPECT_FALSE(range.Find(kBegin + kBytes, Nothing));
  const auto found = range.Find(kBegin + kBytes - 1, Nothing);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->begin, kBegin);
  EXPECT_EQ(found->bytes, kBytes);
  range.Clear();
  EXPECT_TRUE(range.is_free());
  EXPECT_FALSE(range.Find(kBegin, Nothing));
}

// The address lies in neither range, but between the begin of the one and the size of the other.
TEST(GuardedRangeTest, TheBeginOfOneAndTheSizeOfAnotherAreNoRange) {
  GuardedRange range;
  range.Set(kBegin, kBytes);
  const auto change = [&] {
    range.Clear();
    range.Set(kOther, kMany);
  };
  EXPECT_FALSE(range.Find(kBegin + 2 * kBytes, change));
}

// The next range has the same begin, so that the begin alone does not tell them apart; so with the same size.
TEST(GuardedRangeTest, ARangeOfTheSameBeginIsAnotherOne) {
  GuardedRange range;
  range.Set(kBegin, kBytes);
  const auto grow = [&] {
    range.Clear();
    range.Set(kBegin, kMany);
  };
  EXPECT_FALSE(range.Find(kBegin, grow));
  EXPECT_TRUE(range.Find(kBegin + 2 * kBytes, Nothing));
  EXPECT_FALSE(range.Find(kBegin, grow)) << "and the same size";
  EXPECT_FALSE(range.Find(kBegin, [&] { range.Clear(); }));
  EXPECT_FALSE(range.Find(kBegin, grow)) << "it was free at first";
}

struct Mapped {
  explicit Mapped(size_t pages)
      : bytes(pages * static_cast<size_t>(sysconf(_SC_PAGESIZE))), file(memfd_create("region", MFD_CLOEXEC)) {
    EXPECT_EQ(ftruncate(file.get(), static_cast<off_t>(bytes)), 0);
    at = static_cast<volatile char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0));
  }
  ~Mapped() { munmap(const_cast<char*>(at), bytes); }
  size_t bytes;
  UniqueFd file;
  volatile char* at;
};

TEST(SigbusGuardTest, ATruncatedRegionReadsAsZeroInAnyThread) {
  Mapped region(4), other(4);
  const SigbusGuard other_guard(const_cast<char*>(other.at), other.bytes);
  const SigbusGuard guard(const_cast<char*>(region.at), region.bytes);
  region.at[0] = 'x';
  other.at[0] = 'x';
  ASSERT_EQ(ftruncate(region.file.get(), 0), 0);
  std::thread([&] { EXPECT_EQ(region.at[0], 0); }).join();
  EXPECT_TRUE(guard.tripped());
  EXPECT_FALSE(other_guard.tripped());
  EXPECT_EQ(other.at[0], 'x');
}

}  // namespace
}  // namespace causeway::daemon
