// SPDX-License-Identifier: Apache-2.0
// Pages are taken away by zapping them from the program's mapping: they stay in their file, and the next
// touch is a minor fault there, which goes to the descriptor. UFFDIO_CONTINUE maps them again, if need be for
// reading only. Needs Linux 5.14, and 6.4 to tell reads from writes.
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>

#include "guest_lib/page_watch/page_watch.h"
#include "guest_lib/page_watch/parts.h"
#include "guest_lib/process/log.h"
#include "ivshmem_ring/messages/registration.h"

// What the headers of older kernels lack.
#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC_NEW _IO(0xAA, 0x00)
#endif
#ifndef UFFD_FEATURE_WP_HUGETLBFS_SHMEM
#define UFFD_FEATURE_WP_HUGETLBFS_SHMEM (1 << 12)
#endif
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif
#ifndef UFFDIO_CONTINUE_MODE_WP
#define UFFDIO_CONTINUE_MODE_WP (static_cast<uint64_t>(1) << 1)
#endif

namespace causeway::guest {
namespace {

constexpr uint64_t kNeeded = UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_MINOR_SHMEM;
constexpr uint64_t kForWrites = UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_HUGETLBFS_SHMEM;

// One that is told of faults in system calls as well; -1 if this process may not have it.
int OpenDescriptor() {
  const int called = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK));
  if (called >= 0) return called;
  const int device = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
  if (device < 0) return -1;
  const int made = ioctl(device, USERFAULTFD_IOC_NEW, O_CLOEXEC | O_NONBLOCK);
  close(device);
  return made;
}

class UserfaultfdWatch final : public PageWatch {
 public:
  ~UserfaultfdWatch() override {
    if (fd_ >= 0) close(fd_);
    if (bell_ >= 0) close(bell_);
  }
  bool Open(bool notice_writes);

  bool serves_system_calls() const override { return true; }
  bool notices_writes() const override { return notices_writes_; }
  void Arm(FaultClaim) override {}
  void Set(const WatchedPages& pages, Access from, Access to) override;
  void TryAgain(uint64_t begin, uint64_t end) override {
    uffdio_range range{begin, end - begin};
    ioctl(fd_, UFFDIO_WAKE, &range);
  }
  void Ring() override {
    const uint64_t one = 1;
    // It fails when it has rung quite often and nobody came yet.
    [[maybe_unused]] const ssize_t written = write(bell_, &one, sizeof one);
  }
  void Wait(int64_t nanoseconds) override;
  size_t TakeFaults(PageFault* faults, size_t most) override;

 private:
  uint64_t Negotiate(uint64_t features);
  bool Try();
  bool Register(const WatchedPages& pages);
  void Unregister(const WatchedPages& pages);
  bool Map(const WatchedPages& pages, uint64_t mode);
  int MapPart(const WatchedPages& pages, uint64_t mode);
  bool AllowWriting(const WatchedPages& pages);
  void GiveUp(const WatchedPages& pages);

  int fd_ = -1, bell_ = -1;
  bool notices_writes_ = false;
};

bool Protect(const WatchedPages& pages, int protection) {
  return mprotect(reinterpret_cast<void*>(pages.begin), pages.end - pages.begin, protection) == 0;
}

// Also takes pages away from system calls: whoever has one pinned (O_DIRECT under way) keeps the file's page.
void Zap(const WatchedPages& pages) {
  InParts(pages.end - pages.begin, 8 * kPartBytes, [&](uint64_t at, uint64_t bytes) {
    void* const begin = reinterpret_cast<void*>(pages.begin + at);
    // The program may have locked its memory (mlockall).
    if (madvise(begin, bytes, MADV_DONTNEED) != 0) madvise(begin, bytes, MADV_DONTNEED_LOCKED);
  });
}

// A new descriptor with these features: what the kernel has; 0 if it has not all of them.
uint64_t UserfaultfdWatch::Negotiate(uint64_t features) {
  if (fd_ >= 0) close(fd_);
  fd_ = OpenDescriptor();
  uffdio_api api{UFFD_API, features, 0};
  return fd_ >= 0 && ioctl(fd_, UFFDIO_API, &api) == 0 ? api.features : 0;
}

bool UserfaultfdWatch::Open(bool notice_writes) {
  const uint64_t features = Negotiate(0);
  if ((features & kNeeded) != kNeeded) return false;
  bell_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  notices_writes_ = notice_writes && (features & kForWrites) == kForWrites;
  if (bell_ < 0 || Negotiate(notices_writes_ ? kNeeded | kForWrites : kNeeded) == 0) return false;
  if (Try()) return true;
  if (!notices_writes_) return false;
  notices_writes_ = false;
  return Negotiate(kNeeded) != 0 && Try();
}

// With a page of its own: what a kernel says that it can do is one thing.
bool UserfaultfdWatch::Try() {
  const int file = memfd_create("causeway-managed", MFD_CLOEXEC);
  if (file < 0) return false;
  void *page = MAP_FAILED, *alias = MAP_FAILED;
  if (ftruncate(file, kPageBytes) == 0) {
    page = mmap(nullptr, kPageBytes, PROT_NONE, MAP_SHARED, file, 0);
    alias = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  close(file);
  bool works = page != MAP_FAILED && alias != MAP_FAILED;
  if (works) {
    const auto begin = reinterpret_cast<uint64_t>(page);
    const WatchedPages pages{begin, begin + kPageBytes, static_cast<std::byte*>(alias)};
    works = Register(pages) && Protect(pages, PROT_READ | PROT_WRITE) &&
            Map(pages, notices_writes_ ? UFFDIO_CONTINUE_MODE_WP : 0) &&
            (!notices_writes_ || AllowWriting(pages));
  }
  if (page != MAP_FAILED) munmap(page, kPageBytes);
  if (alias != MAP_FAILED) munmap(alias, kPageBytes);
  return works;
}

bool UserfaultfdWatch::Register(const WatchedPages& pages) {
  uffdio_register what{};
  what.range = {pages.begin, pages.end - pages.begin};
  what.mode = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_MINOR;
  if (notices_writes_) what.mode |= UFFDIO_REGISTER_MODE_WP;
  return ioctl(fd_, UFFDIO_REGISTER, &what) == 0;
}

// Pages of the file become the program's, and threads that wait for them go on. A system error, or 0.
int UserfaultfdWatch::MapPart(const WatchedPages& pages, uint64_t mode) {
  bool some_were_there = false, populated = false;
  for (uint64_t at = pages.begin; at < pages.end;) {
    uffdio_continue what{{at, pages.end - at}, mode, 0};
    if (ioctl(fd_, UFFDIO_CONTINUE, &what) == 0) break;
    if (what.mapped > 0) {
      at += static_cast<uint64_t>(what.mapped);
    } else if (errno == EEXIST) {
      some_were_there = true;
      at += kPageBytes;
    } else if (errno == EFAULT && !populated) {  // a hole in the file
      populated = true;
      if (madvise(pages.alias + (at - pages.begin), pages.end - at, MADV_POPULATE_WRITE) != 0) return errno;
    } else if (errno != EAGAIN) {
      return errno;
    }
  }
  if (some_were_there) TryAgain(pages.begin, pages.end);
  return 0;
}

bool UserfaultfdWatch::Map(const WatchedPages& pages, uint64_t mode) {
  std::atomic<int> error{0};
  InParts(pages.end - pages.begin, kPartBytes, [&](uint64_t at, uint64_t bytes) {
    const uint64_t begin = pages.begin + at;
    if (const int failed = MapPart({begin, begin + bytes, pages.alias + at}, mode)) error.store(failed);
  });
  errno = error;
  return errno == 0;
}

bool UserfaultfdWatch::AllowWriting(const WatchedPages& pages) {
  uffdio_writeprotect what{{pages.begin, pages.end - pages.begin}, 0};
  while (ioctl(fd_, UFFDIO_WRITEPROTECT, &what) != 0) {
    if (errno != EAGAIN) return false;
  }
  return true;
}

// Whoever waits for such pages gets from the kernel what is right where memory is short. stderr may be held
// up by a thread that waits for us.
void UserfaultfdWatch::GiveUp(const WatchedPages& pages) {
  ComplainElsewhere("pages of managed memory cannot be made accessible: " + std::string(strerror(errno)));
  Unregister(pages);
}

// Threads that wait for the pages go on.
void UserfaultfdWatch::Unregister(const WatchedPages& pages) {
  uffdio_range range{pages.begin, pages.end - pages.begin};
  ioctl(fd_, UFFDIO_UNREGISTER, &range);
}

void UserfaultfdWatch::Set(const WatchedPages& pages, Access from, Access to) {
  switch (to) {
    case Access::kAbsent:
      Protect(pages, PROT_NONE);
      Zap(pages);
      TryAgain(pages.begin, pages.end);
      return;
    case Access::kNone: {
      const bool unwatched = from == Access::kAbsent || from == Access::kFree;
      if (unwatched && !Register(pages)) {
        ComplainElsewhere("managed memory cannot be watched: " + std::string(strerror(errno)));
        Protect(pages, PROT_NONE);
        return;
      }
      Zap(pages);
      if (from == Access::kAbsent) Protect(pages, PROT_READ | PROT_WRITE);
      return;
    }
    case Access::kRead:
      if (!Map(pages, UFFDIO_CONTINUE_MODE_WP)) GiveUp(pages);
      return;
    case Access::kWrite:
      if (!(from == Access::kRead ? AllowWriting(pages) : Map(pages, 0))) GiveUp(pages);
      return;
    case Access::kFree:
      Protect(pages, PROT_READ | PROT_WRITE);
      if (from != Access::kAbsent) Unregister(pages);
  }
}

void UserfaultfdWatch::Wait(int64_t nanoseconds) {
  pollfd what[] = {{bell_, POLLIN, 0}, {fd_, POLLIN, 0}};
  const timespec most{nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
  ppoll(what, 2, nanoseconds >= 0 ? &most : nullptr, nullptr);
  uint64_t rung = 0;
  if (what[0].revents != 0) [[maybe_unused]]
    const ssize_t bytes = read(bell_, &rung, sizeof rung);
}

size_t UserfaultfdWatch::TakeFaults(PageFault* faults, size_t most) {
  uffd_msg message[16];
  const ssize_t bytes = read(fd_, message, std::min(most, std::size(message)) * sizeof *message);
  size_t count = 0;
  for (size_t i = 0; bytes > 0 && i < static_cast<size_t>(bytes) / sizeof *message; ++i) {
    if (message[i].event != UFFD_EVENT_PAGEFAULT) continue;
    constexpr uint64_t kWrites = UFFD_PAGEFAULT_FLAG_WRITE | UFFD_PAGEFAULT_FLAG_WP;
    faults[count++] = {message[i].arg.pagefault.address, (message[i].arg.pagefault.flags & kWrites) != 0};
  }
  return count;
}

}  // namespace

PageWatch* MakeUserfaultfdWatch(bool notice_writes) {
  auto* made = new UserfaultfdWatch;
  if (made->Open(notice_writes)) return made;
  delete made;
  return nullptr;
}

}  // namespace causeway::guest
