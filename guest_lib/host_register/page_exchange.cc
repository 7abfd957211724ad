// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/host_register/page_exchange.h"

#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <xmmintrin.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <vector>

#include "guest_lib/process/copy_past_caches.h"
#include "guest_lib/process/copy_threads.h"
#include "guest_lib/process/fault_handler.h"
#include "guest_lib/process/lock_order.h"
#include "ivshmem_ring/messages/registration.h"

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

namespace causeway::guest {
namespace {

constexpr uint64_t kStepPerThread = 2u << 20;  // how much is made read-only, copied and moved at a time
constexpr uint64_t kPartBytes = 512u << 10;    // what one thread copies of it at a time
constexpr uint64_t kManyBytes = 32u << 20;     // from here on the caches would keep little of it
constexpr uint64_t kPreparedBytes = 4u << 20;  // what one thread prepares at a time
constexpr uint64_t kAloneBytes = 1u << 20;     // up to here helpers would come too late

auto& exchange_mutex = *new Mutex<Lock::kExchange>;

// The window: [begin, end) while open. Written under the mutex, read by the handler.
std::atomic<uint64_t> window_begin{0}, window_end{0};
std::atomic<uint64_t> window_count{0};  // windows ever closed

// Of the calling thread. Reached from a signal handler: no lazy allocation.
struct Fault {
  uint64_t address, window;
};
__attribute__((tls_model("initial-exec"))) thread_local Fault last_fault;

// A fault may be on its way here while its window closes, so whoever meets one in a page that may be written
// by now tries once more before he believes it.
bool ClaimFault(const PageFault& fault) {
  bool waited = false;
  while (fault.address >= window_begin.load(std::memory_order_acquire) &&
         fault.address < window_end.load(std::memory_order_acquire)) {
    waited = true;
    const timespec pause{0, 20'000};
    nanosleep(&pause, nullptr);
  }
  const uint64_t window = window_count.load(std::memory_order_acquire);
  const bool again = last_fault.address == fault.address && last_fault.window == window;
  last_fault.address = fault.address;
  last_fault.window = window;
  return waited || !again;
}

void* Pointer(uint64_t address) {
  return reinterpret_cast<void*>(address);
}

uint64_t StepBytes() {
  return kStepPerThread * CopyThreadCount();
}

off_t PageMapOffset(uint64_t address) {
  return static_cast<off_t>(address / kPageBytes * sizeof(uint64_t));
}

bool WasTouched(uint64_t page_map_entry) {
  return (page_map_entry >> 62) != 0;  // present, or swapped out
}

// Whole pages, with whatever the heap has there besides: a sanitizer's memcpy would object to the gaps.
void CopyBytes(std::byte* to, const std::byte* from, uint64_t bytes) {
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}

bool ReadPageMap(int page_map, uint64_t address, uint64_t pages, uint64_t* entries) {
  const auto wanted = static_cast<ssize_t>(pages * sizeof *entries);
  return pread(page_map, entries, pages * sizeof *entries, PageMapOffset(address)) == wanted;
}

bool IsAnonymous(const Mapping& mapping) {
  return !mapping.shared && mapping.inode == 0;
}

// Which pages of anonymous memory were touched; -1 where the kernel does not say so, or not truly.
int OpenPageMap(const Mapping& piece) {
  constexpr uint64_t kWorthwhile = 256u << 10;
  if (!IsAnonymous(piece) || piece.end - piece.begin < kWorthwhile) return -1;
  const int file = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  volatile char touched = 1;  // this page of the stack
  uint64_t entry = 0;
  if (file >= 0 &&
      (!ReadPageMap(file, reinterpret_cast<uint64_t>(&touched), 1, &entry) || !WasTouched(entry))) {
    close(file);
    return -1;
  }
  return file;
}

// The way through one mapping, or a part of it. While helpers copy a step, its owner makes the next one
// read-only and moves the one before: that changes the page table entry of every page, in one thread, and
// takes as long as copying. Nothing in the heap is written while a window is open, neither by the owner nor
// for a single page by anybody: it may be what is copied, and whoever waits may hold the allocator's lock.
class Exchange final : public CopyJob {
 public:
  Exchange(const Mapping& piece, const Replacements& fresh, PageRange range, int page_map)
      : range_(range),
        protection_(piece.protection),
        anonymous_(IsAnonymous(piece)),
        fresh_(fresh),
        to_(fresh.pages + (range.begin - piece.begin)),
        aside_(fresh.aside != nullptr ? fresh.aside + (range.begin - piece.begin) : nullptr),
        page_map_(page_map),
        base_(range.begin - range.begin % kHugePageBytes),
        past_caches_(range.bytes() > kManyBytes),
        step_bytes_(StepBytes()),
        touched_((range.end - base_ + kHugePageBytes - 1) / kHugePageBytes) {}
  ~Exchange() override { Leave(); }
  // False: only the first *done bytes are replaced.
  bool Run(uint64_t* done);

 private:
  static constexpr uint64_t kStepsAtOnce = 2;

  // What lies in [base + i * bytes, base + (i + 1) * bytes): steps end where page tables do. May be empty at
  // the beginning.
  PageRange Part(uint64_t index, uint64_t bytes) const {
    const uint64_t at = base_ + index * bytes, begin = std::max(at, range_.begin);
    return {begin, std::max(begin, std::min(at + bytes, range_.end))};
  }
  uint64_t CountOf(uint64_t bytes) const { return (range_.end - base_ + bytes - 1) / bytes; }
  std::byte* To(uint64_t at) const { return to_ + (at - range_.begin); }
  bool WasTouchedBefore(uint64_t at) const { return touched_[(at - base_) / kHugePageBytes] != 0; }
  bool IsWritable() const { return (protection_ & PROT_WRITE) != 0; }
  bool IsGuarded() const { return IsWritable() || aside_ != nullptr; }
  void Copy(std::byte* to, const std::byte* from, uint64_t bytes) const {
    (past_caches_ ? CopyPastCaches : CopyBytes)(to, from, bytes);
  }

  void Prepare();
  void PreparePart(uint32_t index);
  bool Begin(uint64_t index);
  void Do(uint64_t index) override;
  void CopyTouched(PageRange part) const;
  void Await(uint64_t step);
  bool MoveAside(PageRange step, std::byte* aside) const;
  bool Move(PageRange step) const;

  const PageRange range_;
  const int protection_;
  const bool anonymous_;
  const Replacements& fresh_;
  std::byte* const to_;
  std::byte* const aside_;  // null: what was there is freed
  const int page_map_;      // -1: every page is copied
  const uint64_t base_;
  const bool past_caches_;
  const uint64_t step_bytes_;
  std::atomic<uint64_t> left_[kStepsAtOnce] = {};  // parts that are not copied yet, of a step
  std::vector<uint8_t> touched_;                   // of each 2 MiB: all pages were, before any window
};

// Pages and page table entries before the window opens, at less than a fault for each; what it cannot do,
// faults do, which hold up the owner: it changes the address space that they are in.
// And which pages the program has used: to ask for that later would wait for the owner's changes.
void Exchange::Prepare() {
  if (fresh_.source == PageSource::kThere && page_map_ < 0) return;
  const auto work = [](void* self, uint32_t index) { static_cast<Exchange*>(self)->PreparePart(index); };
  RunInParallel(static_cast<uint32_t>(CountOf(kPreparedBytes)), work, this);
}

void Exchange::PreparePart(uint32_t index) {
  const PageRange part = Part(index, kPreparedBytes);
  if (fresh_.source != PageSource::kThere) {
    const bool made = fresh_.source == PageSource::kMade;
    madvise(To(part.begin), part.bytes(), made ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
  }
  if (page_map_ < 0) return;
  for (uint64_t at = part.begin; at < part.end;) {
    const uint64_t next = std::min(at - at % kHugePageBytes + kHugePageBytes, part.end);
    uint64_t entries[kHugePageBytes / kPageBytes];
    const uint64_t pages = (next - at) / kPageBytes;
    touched_[(at - base_) / kHugePageBytes] =
        !ReadPageMap(page_map_, at, pages, entries) || std::all_of(entries, entries + pages, WasTouched);
    at = next;
  }
}

// The window opens for a step, and its parts are there to be copied.
bool Exchange::Begin(uint64_t index) {
  const PageRange step = Part(index, step_bytes_);
  if (IsGuarded()) window_end.store(step.end, std::memory_order_release);
  if (IsWritable() && mprotect(Pointer(step.begin), step.bytes(), PROT_READ) != 0) return false;
  if (fresh_.asleep && mprotect(To(step.begin), step.bytes(), PROT_READ | PROT_WRITE) != 0) return false;
  const uint64_t first = index * (step_bytes_ / kPartBytes);
  const uint64_t end = std::min(first + step_bytes_ / kPartBytes, CountOf(kPartBytes));
  left_[index % kStepsAtOnce].store(end - first, std::memory_order_relaxed);
  Offer(end);
  return true;
}

void Exchange::Do(uint64_t index) {
  const PageRange part = Part(index, kPartBytes);
  if (page_map_ < 0 || part.bytes() == 0 || WasTouchedBefore(part.begin)) {
    Copy(To(part.begin), static_cast<const std::byte*>(Pointer(part.begin)), part.bytes());
  } else {
    CopyTouched(part);
  }
  const uint64_t step = index / (step_bytes_ / kPartBytes);
  left_[step % kStepsAtOnce].fetch_sub(1, std::memory_order_release);  // partner: Await
}

// Pages of private memory that nobody ever touched are zeros; reading them would make the kernel map some.
void Exchange::CopyTouched(PageRange part) const {
  const auto* from = static_cast<const std::byte*>(Pointer(part.begin));
  std::byte* to = To(part.begin);
  uint64_t entries[kHugePageBytes / kPageBytes];
  const uint64_t pages = part.bytes() / kPageBytes;
  if (!ReadPageMap(page_map_, part.begin, pages, entries)) {
    Copy(to, from, part.bytes());
    return;
  }
  for (uint64_t page = 0; page < pages;) {
    const bool touched = WasTouched(entries[page]);
    const uint64_t first = page;
    while (page < pages && WasTouched(entries[page]) == touched) ++page;
    if (touched) {
      Copy(to + first * kPageBytes, from + first * kPageBytes, (page - first) * kPageBytes);
    } else if (!fresh_.zeroed) {
      memset(to + first * kPageBytes, 0, (page - first) * kPageBytes);
    }
  }
}

void Exchange::Await(uint64_t step) {
  constexpr uint32_t kSpins = 1000;
  const std::atomic<uint64_t>& left = left_[step % kStepsAtOnce];
  for (uint32_t idle = 0; left.load(std::memory_order_acquire) != 0;) {  // partner: Do
    if (DoOne()) {
      idle = 0;
    } else if (++idle < kSpins) {
      _mm_pause();
    } else {
      sched_yield();
    }
  }
}

// The mapping stays where it is, without pages. A file's shows the file's again to whoever looks; anonymous
// memory would read as zeros, so nobody may look until the replacement is there.
bool Exchange::MoveAside(PageRange step, std::byte* aside) const {
  void* from = Pointer(step.begin);
  if (anonymous_ && mprotect(from, step.bytes(), PROT_NONE) != 0) return false;
  return mremap(from, step.bytes(), step.bytes(), MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, aside) ==
         aside;
}

// False: the step is as it was, but for its protection.
bool Exchange::Move(PageRange step) const {
  const uint64_t bytes = step.bytes();
  void* at = Pointer(step.begin);
  std::byte* to = To(step.begin);
  std::byte* aside = aside_ != nullptr ? aside_ + (step.begin - range_.begin) : nullptr;
  if (protection_ != (PROT_READ | PROT_WRITE) && mprotect(to, bytes, protection_) != 0) return false;
  if (aside != nullptr && !MoveAside(step, aside)) return false;
  if (mremap(to, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) == at) return true;
  if (aside != nullptr) mremap(aside, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, at);
  return false;
}

bool Exchange::Run(uint64_t* done) {
  Prepare();
  if (range_.bytes() > kAloneBytes) Join(CopyThreadCount() - 1);
  window_begin.store(range_.begin, std::memory_order_relaxed);
  const uint64_t steps = CountOf(step_bytes_);
  uint64_t begun = 0, moved = 0;
  bool ok = true;
  while (ok && moved < steps) {
    if (begun < steps && begun - moved < kStepsAtOnce) {
      ok = Begin(begun++);
      continue;
    }
    Await(moved);
    const PageRange step = Part(moved, step_bytes_);
    ok = Move(step);
    if (!ok) break;
    ++moved;
    window_begin.store(step.end, std::memory_order_release);
    window_count.fetch_add(1, std::memory_order_release);
  }
  *done = std::min(Part(moved, step_bytes_).begin, range_.end) - range_.begin;
  if (!ok) {
    Leave();
    for (uint64_t i = moved; i < begun && IsGuarded(); ++i) {
      const PageRange step = Part(i, step_bytes_);
      mprotect(Pointer(step.begin), step.bytes(), protection_);
    }
  }
  window_end.store(0, std::memory_order_release);
  window_count.fetch_add(1, std::memory_order_release);
  return ok;
}

// The page before the program's own ones, those, and the one after them.
std::array<PageRange, 3> Ranges(const Mapping& piece, PageRange own) {
  const uint64_t first = std::clamp(own.begin, piece.begin, piece.end);
  const uint64_t last = std::clamp(own.end, first, piece.end);
  return {{{piece.begin, first}, {first, last}, {last, piece.end}}};
}

// The same pages as one mapping. Nobody sees this: the kernel changes it under the lock that faults wait for.
void MakeOne(const Mapping& piece, std::byte* whole, bool exchanged) {
  const uint64_t bytes = piece.end - piece.begin;
  void* at = Pointer(piece.begin);
  if (!exchanged ||
      (piece.protection != (PROT_READ | PROT_WRITE) && mprotect(whole, bytes, piece.protection) != 0) ||
      mremap(whole, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) != at)
    munmap(whole, bytes);
}

}  // namespace

std::byte* ReserveLike(uint64_t address, uint64_t bytes) {
  const uint64_t spare = bytes < kHugePageBytes ? 0 : kHugePageBytes;
  void* got = mmap(nullptr, bytes + spare, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got == MAP_FAILED) return nullptr;
  if (spare == 0) return static_cast<std::byte*>(got);
  const auto start = reinterpret_cast<uint64_t>(got);
  const uint64_t skip = (address - start) % kHugePageBytes;
  if (skip != 0) munmap(got, skip);
  munmap(Pointer(start + skip + bytes), kHugePageBytes - skip);
  return reinterpret_cast<std::byte*>(start + skip);
}

bool RegionPagesMove(Connection& connection, uint64_t offset) {
  static const bool move = [&] {
    std::byte* from = ReserveLike(0, 2 * kPageBytes);
    if (from == nullptr) return false;
    std::byte* to = from + kPageBytes;
    const bool moved = connection.MapPages(from, offset, kPageBytes) &&
                       mremap(from, kPageBytes, kPageBytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to;
    munmap(from, 2 * kPageBytes);
    return moved;
  }();
  return move;
}

std::byte* FreshLike(uint64_t address, uint64_t bytes) {
  std::byte* at = ReserveLike(address, bytes);
  if (at == nullptr) return nullptr;
  void* fresh = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  if (fresh == at) return at;
  munmap(at, bytes);
  return nullptr;
}

bool ExchangesAtOnce(const Mapping& piece, PageRange own) {
  uint64_t steps = 0;
  for (const PageRange range : Ranges(piece, own)) {
    const uint64_t base = range.begin - range.begin % kHugePageBytes;
    if (range.bytes() != 0) steps += (range.end - base + StepBytes() - 1) / StepBytes();
  }
  return steps <= 1;
}

bool ExchangePages(const Mapping& piece, const Replacements& fresh, uint64_t* done) {
  const std::lock_guard lock(exchange_mutex);
  InstallFaultHandler(FaultOwner::kPageExchange, ClaimFault);
  const int page_map = OpenPageMap(piece);
  const auto ranges = Ranges(piece, fresh.own);
  bool ok = true;
  *done = 0;
  for (size_t i = 0; i < ranges.size() && ok; ++i) {
    if (ranges[i].bytes() == 0) continue;
    // Others' bytes are for others to read at any moment.
    Replacements pages = fresh;
    if (i != 1 && IsAnonymous(piece)) pages.aside = nullptr;
    uint64_t moved = 0;
    ok = Exchange(piece, pages, ranges[i], page_map).Run(&moved);
    *done += moved;
  }
  if (page_map >= 0) close(page_map);
  if (fresh.whole != nullptr) MakeOne(piece, fresh.whole, ok);
  return ok;
}

void UnmapInParallel(std::byte* pages, uint64_t bytes) {
  struct Range {
    std::byte* pages;
    uint64_t bytes;
  } range{pages, bytes};
  const auto empty = [](void* argument, uint32_t index) {
    const auto& [first, all] = *static_cast<Range*>(argument);
    const uint64_t at = index * kPreparedBytes;
    madvise(first + at, std::min(kPreparedBytes, all - at), MADV_DONTNEED);
  };
  RunInParallel(static_cast<uint32_t>((bytes + kPreparedBytes - 1) / kPreparedBytes), empty, &range);
  munmap(pages, bytes);
}

void LockExchange() {
  exchange_mutex.lock();
}

void UnlockExchange() {
  exchange_mutex.unlock();
}

}  // namespace causeway::guest
