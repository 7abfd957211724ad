// SPDX-License-Identifier: Apache-2.0
// Pages that change under a program, and the old ones that wait for the way back.
#include "guest_lib/host_register/pages_aside.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

namespace causeway::guest {
namespace {

constexpr uint64_t kBytes = 8u << 20;

class PagesAsideTest : public ::testing::Test {
 protected:
  PagesAsideTest() : file_(memfd_create("pages_aside", 0)) {
    EXPECT_EQ(ftruncate(file_, kBytes), 0);
    memory_ = static_cast<std::byte*>(
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    std::memset(memory_, 'a', kBytes);
  }
  ~PagesAsideTest() override {
    munmap(memory_, kBytes);
    close(file_);
  }
  uint64_t address() const { return reinterpret_cast<uint64_t>(memory_); }
  Mapping TheMapping() const {
    std::vector<Mapping> mappings;
    EXPECT_TRUE(ReadMappings(address(), address() + kBytes, &mappings));
    return mappings.at(0);
  }
  // Pages of the file in the place of the memory's own.
  std::byte* MoveOut() {
    const Mapping whole{address(), address() + kBytes, PROT_READ | PROT_WRITE, false, 0, 0, 0};
    std::byte* fresh = ReserveLike(address(), kBytes);
    EXPECT_EQ(mmap(fresh, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_, 0), fresh);
    std::byte* aside = ReserveAside(whole);
    EXPECT_NE(aside, nullptr);
    const Replacements pages{.pages = fresh, .zeroed = true, .source = PageSource::kMapped, .aside = aside};
    uint64_t done = 0;
    EXPECT_TRUE(ExchangePages(whole, pages, &done));
    KeepAside(aside, kBytes);
    EXPECT_TRUE(TheMapping().shared);
    return aside;
  }
  void MoveBack(std::byte* aside) {
    ASSERT_TRUE(WakeAside(aside, kBytes));
    const Replacements pages{.pages = aside, .zeroed = false, .source = PageSource::kThere};
    uint64_t done = 0;
    EXPECT_TRUE(ExchangePages(TheMapping(), pages, &done));
    EXPECT_EQ(done, kBytes);
    ForgetAside(kBytes);
    EXPECT_FALSE(TheMapping().shared);
    EXPECT_EQ(TheMapping().inode, 0u);
  }
  bool IsFilled(char value) const {
    return std::count(memory_, memory_ + kBytes, std::byte(value)) == static_cast<std::ptrdiff_t>(kBytes);
  }

  const int file_;
  std::byte* memory_ = nullptr;
};

uint64_t ResidentPages(std::byte* pages) {
  std::vector<unsigned char> there(kBytes / 4096);
  EXPECT_EQ(mincore(pages, kBytes, there.data()), 0);
  return static_cast<uint64_t>(
      std::count_if(there.begin(), there.end(), [](unsigned char c) { return c & 1; }));
}

TEST_F(PagesAsideTest, WhatIsMappedIsKnown) {
  constexpr uint64_t kPart = kBytes / 4;
  ASSERT_EQ(mmap(memory_ + kPart, kPart, PROT_READ, MAP_SHARED | MAP_FIXED, file_, 8192), memory_ + kPart);
  ASSERT_EQ(mprotect(memory_ + 2 * kPart, kPart, PROT_NONE), 0);
  std::vector<Mapping> mappings;
  const uint64_t begin = address() + 4096, end = address() + 3 * kPart - 4096;
  EXPECT_TRUE(ReadMappings(begin, end, &mappings));
  ASSERT_EQ(mappings.size(), 3u);
  EXPECT_EQ(mappings[0].begin, begin);
  EXPECT_EQ(mappings[0].end, address() + kPart);
  EXPECT_EQ(mappings[0].protection, PROT_READ | PROT_WRITE);
  EXPECT_EQ(mappings[0].inode, 0u);
  struct stat info;
  ASSERT_EQ(fstat(file_, &info), 0);
  EXPECT_EQ(mappings[1].protection, PROT_READ);
  EXPECT_TRUE(mappings[1].shared && !mappings[0].shared && !mappings[2].shared);
  EXPECT_EQ(mappings[1].offset, 8192u);
  EXPECT_EQ(mappings[1].device, info.st_dev);
  EXPECT_EQ(mappings[1].inode, info.st_ino);
  EXPECT_EQ(mappings[2].protection, PROT_NONE);
  EXPECT_EQ(mappings[2].end, end);
  EXPECT_TRUE(ReadMappings(begin + kPart, begin + kPart + 4096, &mappings));
  ASSERT_EQ(mappings.size(), 1u);
  EXPECT_EQ(mappings[0].offset, 8192u + 4096);
  ASSERT_EQ(munmap(memory_ + kPart, kPart), 0);
  EXPECT_FALSE(ReadMappings(begin, end, &mappings));
}

TEST_F(PagesAsideTest, ComeBackWithTheNewBytes) {
  std::byte* aside = MoveOut();
  EXPECT_TRUE(IsFilled('a'));
  std::memset(memory_, 'b', kBytes);
  MoveBack(aside);
  EXPECT_TRUE(IsFilled('b'));
}

// As when somebody needs memory, but not at once: who registers for a moment wants them back.
TEST_F(PagesAsideTest, TheKernelMayTakeThem) {
  std::byte* aside = MoveOut();
  EXPECT_EQ(ResidentPages(aside), kBytes / 4096);
  EXPECT_TRUE(AreThere(aside, kBytes));
  for (int i = 0; i < 1000 && ResidentPages(aside) >= kBytes / 4096 / 2; ++i) {
    if (madvise(aside, kBytes, MADV_PAGEOUT) != 0) GTEST_SKIP() << "no MADV_PAGEOUT here";
    usleep(10'000);
  }
  EXPECT_LT(ResidentPages(aside), kBytes / 4096 / 2);
  EXPECT_FALSE(AreThere(aside, kBytes));
  std::memset(memory_, 'b', kBytes);
  MoveBack(aside);
  EXPECT_TRUE(IsFilled('b'));
}

// Where the kernel does not merge what was moved piece by piece: a device's pages, here those of a
// userfaultfd, whose mappings are each marked until they have been moved. mremap takes one mapping only.
TEST_F(PagesAsideTest, PiecesBecomeOneMapping) {
  const auto faults =
      static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY));
  if (faults < 0) GTEST_SKIP() << "no userfaultfd for this user";
  uffdio_api api{.api = UFFD_API, .features = 0, .ioctls = 0};
  ASSERT_EQ(ioctl(faults, UFFDIO_API, &api), 0);
  ASSERT_EQ(posix_fallocate(file_, 0, kBytes), 0);
  const PageRange own{address() + 4096,
                      address() + kBytes - 4096};  // three pieces at least, on any number of processors
  const auto map_file = [this] {
    std::byte* at = ReserveLike(address(), kBytes);
    EXPECT_EQ(mmap(at, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_, 0), at);
    return at;
  };
  for (const bool joined : {false, true}) {
    ASSERT_NE(mmap(memory_, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
              MAP_FAILED);
    std::memset(memory_, joined ? 'b' : 'a', kBytes);
    EXPECT_FALSE(ExchangesAtOnce(TheMapping(), own));
    std::byte* fresh = map_file();
    uffdio_register marked{.range = {reinterpret_cast<uint64_t>(fresh), kBytes},
                           .mode = UFFDIO_REGISTER_MODE_MISSING,
                           .ioctls = 0};
    ASSERT_EQ(ioctl(faults, UFFDIO_REGISTER, &marked), 0);
    const Replacements pages{.pages = fresh,
                             .zeroed = false,
                             .source = PageSource::kMapped,
                             .own = own,
                             .whole = joined ? map_file() : nullptr};
    uint64_t done = 0;
    ASSERT_TRUE(ExchangePages(TheMapping(), pages, &done));
    std::vector<Mapping> mappings;
    EXPECT_TRUE(ReadMappings(address(), address() + kBytes, &mappings));
    EXPECT_EQ(mappings.size() == 1, joined) << mappings.size();
    EXPECT_TRUE(IsFilled(joined ? 'b' : 'a'));
    void* place = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void* moved = mremap(memory_, kBytes, kBytes, MREMAP_MAYMOVE | MREMAP_FIXED, place);
    if (joined) {
      ASSERT_EQ(moved, place);
      memory_ = static_cast<std::byte*>(moved);
      EXPECT_TRUE(IsFilled('b'));
    } else {
      munmap(place, kBytes);  // newer kernels move several at once
    }
  }
  close(faults);
}

// One page that may not change any more (mseal): what comes before it is moved, the rest is as it was.
TEST_F(PagesAsideTest, WhatCannotBeMovedStays) {
#ifndef SYS_mseal
  constexpr long SYS_mseal = 462;
#endif
  std::byte* sealed = memory_ + kBytes - 4096;
  if (syscall(SYS_mseal, sealed, 4096, 0) != 0) GTEST_SKIP() << "no mseal here";
  std::byte* fresh = ReserveLike(address(), kBytes);
  ASSERT_EQ(mmap(fresh, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_, 0), fresh);
  std::byte* aside = ReserveLike(address(), kBytes);
  const Mapping whole{address(), address() + kBytes, PROT_READ | PROT_WRITE, false, 0, 0, 0};
  const Replacements pages{.pages = fresh, .zeroed = true, .source = PageSource::kMapped, .aside = aside};
  uint64_t done = kBytes;
  EXPECT_FALSE(ExchangePages(whole, pages, &done));
  EXPECT_LT(done, kBytes);
  EXPECT_EQ(done % 4096, 0u);
  EXPECT_EQ(TheMapping().shared, done != 0);
  std::vector<Mapping> rest;
  EXPECT_TRUE(ReadMappings(address() + done, address() + kBytes, &rest));
  for (const Mapping& mapping : rest) {
    EXPECT_FALSE(mapping.shared);
    EXPECT_EQ(mapping.protection, PROT_READ | PROT_WRITE);
  }
  EXPECT_TRUE(IsFilled('a'));
  std::memset(memory_, 'b', kBytes);
  EXPECT_TRUE(IsFilled('b'));
  munmap(fresh, kBytes);
  munmap(aside, kBytes);
}

// Freed at once by who asks for no place, by a file's pages, and by what is too little to be worth it.
TEST_F(PagesAsideTest, OnlyWhatPays) {
  Mapping mapping{address(), address() + kBytes, PROT_READ | PROT_WRITE, false, 0, 0, 0};
  mapping.inode = 7;
  EXPECT_EQ(ReserveAside(mapping), nullptr);
  mapping.inode = 0;
  mapping.shared = true;
  EXPECT_EQ(ReserveAside(mapping), nullptr);
  mapping.shared = false;
  mapping.end = mapping.begin + 4096;
  EXPECT_EQ(ReserveAside(mapping), nullptr);
}

TEST_F(PagesAsideTest, AtMostAnEighthOfTheMemoryWaits) {
  const uint64_t most = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * 4096 / 8;
  Mapping mapping{address(), address() + most / 2, PROT_READ | PROT_WRITE, false, 0, 0, 0};
  mapping.end &= ~uint64_t{4095};
  const uint64_t bytes = mapping.end - mapping.begin;
  std::byte *first = ReserveAside(mapping), *second = ReserveAside(mapping);
  ASSERT_NE(first, nullptr);
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(ReserveAside(mapping), nullptr);
  DropAside(first, bytes);
  first = ReserveAside(mapping);
  EXPECT_NE(first, nullptr);
  DropAside(first, bytes);
  DropAside(second, bytes);
}

}  // namespace
}  // namespace causeway::guest
