// SPDX-License-Identifier: Apache-2.0
// Memory of regions is given back in the order that was asked for, and a region whose file's owner holds the kernel's lock of that file
// delays that region alone: neither the event loop nor another region.
#include "host_backend/daemon/region/zeroing.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "tests/yield_until.h"

namespace causeway::daemon {
namespace {

constexpr uint64_t kRegionBytes = 64 << 20;
constexpr size_t kPage = 4096;
constexpr int kBound_ms = 60'000;  // of a wait that is short unless something hangs

std::shared_ptr<Region> NewRegion() {
  auto made = Region::Create(kRegionBytes);
  EXPECT_TRUE(made.ok()) << made.error();
  return std::shared_ptr<Region>(std::move(made.value()));
}

// The byte at the beginning of that granule.
off_t At(uint32_t granule) {
  return off_t{granule} * kGranuleBytes;
}
void Mark(const Region& region, uint32_t granule) {
  ASSERT_EQ(pwrite(region.fd(), "x", 1, At(granule)), 1);
}
bool IsMarked(const Region& region, uint32_t granule) {
  char byte = '?';
  EXPECT_EQ(pread(region.fd(), &byte, 1, At(granule)), 1);
  return byte != 0;
}

// Runs the loop until that holds. False: it did not within the bound.
bool RunUntil(EventLoop& loop, const std::function<bool()>& holds) {
  bool late = false;
  auto timer = loop.After(std::chrono::milliseconds(kBound_ms), "the test's bound", [&] { late = true; });
  loop.Run([&] { return late || holds(); });
  loop.Cancel(timer);
  return !late;
}

// A write to the region's file whose bytes are a page that nobody fills in: it waits with the file's lock held.
class HeldFile {
 public:
  explicit HeldFile(const Region& region) : region_(region) {
    faults_.reset(int(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK)));
    if (!faults_) return;
    uffdio_api api{UFFD_API, 0, 0};
    page_ = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uffdio_register registered{{uint64_t(page_), kPage}, UFFDIO_REGISTER_MODE_MISSING, 0};
    if (ioctl(faults_.get(), UFFDIO_API, &api) != 0 ||
        ioctl(faults_.get(), UFFDIO_REGISTER, &registered) != 0)
      return;
    writer_ = std::thread([this] { pwrite(region_.fd(), page_, kPage, At(3)); });
    pollfd fault{faults_.get(), POLLIN, 0};
    holds_ = poll(&fault, 1, kBound_ms) == 1;
  }
  ~HeldFile() {
    Release();
    if (page_ != nullptr) munmap(page_, kPage);
  }
  bool holds() const { return holds_; }
  void Release() {
    if (!writer_.joinable()) return;
    uffdio_zeropage filled{{uint64_t(page_), kPage}, 0, 0};
    EXPECT_EQ(ioctl(faults_.get(), UFFDIO_ZEROPAGE, &filled), 0);
    writer_.join();
  }

 private:
  const Region& region_;
  UniqueFd faults_;
  void* page_ = nullptr;
  std::thread writer_;
  bool holds_ = false;
};

TEST(ZeroingTest, JobsOfARegionAreDoneInTheirOrder) {
  EventLoop loop;
  Zeroing zeroing(loop);
  const auto region = NewRegion();
  std::vector<int> done;
  for (const uint32_t granule : {2, 5, 6, 9}) Mark(*region, granule);
  for (int job = 0; job < 3; ++job) {
    zeroing.Begin(region, {{uint32_t(2 + 3 * job), 2}}, [&, job](int error) {
      EXPECT_EQ(error, 0);
      done.push_back(job);
    });
  }
  EXPECT_TRUE(done.empty());
  EXPECT_TRUE(RunUntil(loop, [&] { return done.size() == 3; }));
  EXPECT_EQ(done, (std::vector{0, 1, 2}));
  for (const uint32_t granule : {2, 5, 6, 9}) EXPECT_FALSE(IsMarked(*region, granule)) << granule;
}

TEST(ZeroingTest, WhatIsCancelledIsNotCalled) {
  EventLoop loop;
  Zeroing zeroing(loop);
  const auto region = NewRegion();
  Mark(*region, 9);
  bool last = false;
  auto first = zeroing.Begin(region, {{2, 4}}, [](int) { FAIL(); });
  auto second = zeroing.Begin(region, {{9, 1}}, [](int) { FAIL(); });
  zeroing.Begin(region, {{2, 1}}, [&](int) { last = true; });
  zeroing.Cancel(first);
  zeroing.Cancel(second);
  zeroing.Cancel(second);
  EXPECT_TRUE(RunUntil(loop, [&] { return last; }));
  EXPECT_TRUE(IsMarked(*region, 9));
}

TEST(ZeroingTest, AFailureIsTold) {
  EventLoop loop;
  Zeroing zeroing(loop);
  UniqueFd file(memfd_create("region", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(file.get(), off_t(kRegionBytes)), 0);
  const int number = file.get();
  auto mapped = Region::Map(std::move(file), kRegionBytes, "a region");
  ASSERT_TRUE(mapped.ok()) << mapped.error();
  ASSERT_EQ(fcntl(number, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
  int told = 0;
  zeroing.Begin(std::shared_ptr<Region>(std::move(mapped.value())), {{2, 1}},
                [&](int error) { told = error; });
  EXPECT_TRUE(RunUntil(loop, [&] { return told != 0; }));
  EXPECT_EQ(told, EPERM);
}

TEST(ZeroingTest, AwaitCallsWhatIsDue) {
  EventLoop loop;
  Zeroing zeroing(loop);
  int done = 0;
  for (int each = 0; each < 3; ++each) zeroing.Begin(NewRegion(), {{1, 8}}, [&](int) { ++done; });
  zeroing.Await(std::chrono::milliseconds(kBound_ms));
  EXPECT_EQ(done, 3);
}

TEST(ZeroingTest, AFileThatIsHeldDelaysItsOwnRegionAlone) {
  EventLoop loop;
  const auto held = NewRegion(), other = NewRegion();
  HeldFile holding(*held);
  if (!holding.holds()) GTEST_SKIP() << "this kernel has no userfaultfd, or not for this user";
  Zeroing zeroing(loop);
  bool late = false, in_time = false;
  zeroing.Begin(held, {{2, 1}}, [&](int) { late = true; });
  zeroing.Begin(other, {{2, 1}}, [&](int) { in_time = true; });
  EXPECT_TRUE(RunUntil(loop, [&] { return in_time; }));
  zeroing.Await(std::chrono::milliseconds(10));
  EXPECT_FALSE(late);
  holding.Release();
  EXPECT_TRUE(RunUntil(loop, [&] { return late; }));
}

TEST(ZeroingTest, AThreadOutlivesIt) {
  EventLoop loop;
  const auto held = NewRegion();
  HeldFile holding(*held);
  if (!holding.holds()) GTEST_SKIP() << "this kernel has no userfaultfd, or not for this user";
  {
    Zeroing zeroing(loop);
    zeroing.Begin(held, {{2, 1}}, [](int) { FAIL(); });
  }
  holding.Release();
  test::SleepUntil([&] { return held.use_count() == 1; });
}

}  // namespace
}  // namespace causeway::daemon
