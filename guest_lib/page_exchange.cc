// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/page_exchange.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>

#include "guest_lib/copy_threads.h"
#include "guest_lib/fault_handler.h"
#include "ivshmem_ring/registration.h"

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

namespace causeway::guest {
namespace {

constexpr uint64_t kHugePage = 2u << 20;
constexpr uint64_t kPiecePerThread = 4u << 20;  // how much is read-only at once
constexpr uint64_t kPartBytes = 512u << 10;     // what one thread does of it at a time

std::mutex& exchange_mutex = *new std::mutex;

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

// Work on a piece, split into parts.
struct Parts {
  const std::byte* from;
  std::byte* to;
  uint64_t bytes;
  bool zeroed;
  int advice;        // for `to`; MADV_NORMAL: none
  int page_map;      // -1: every page is copied
  std::byte* aside;  // null: what was there is freed
};

void ForEachPart(const Parts& parts, void (*work)(void*, uint32_t)) {
  RunInParallel(static_cast<uint32_t>((parts.bytes + kPartBytes - 1) / kPartBytes), work,
                const_cast<Parts*>(&parts));
}

// Page table entries before the window opens, at less than a fault for each. What it cannot do, faults do.
void AdvisePart(void* argument, uint32_t index) {
  const auto& parts = *static_cast<Parts*>(argument);
  const uint64_t at = index * kPartBytes;
  madvise(parts.to + at, std::min(kPartBytes, parts.bytes - at), parts.advice);
}

bool WasTouched(uint64_t page_map_entry) {
  return (page_map_entry >> 62) != 0;  // present, or swapped out
}

// Whole pages, with whatever the heap has there besides: a sanitizer's memcpy would object to the gaps.
void CopyBytes(std::byte* to, const std::byte* from, uint64_t bytes) {
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}

// Pages of private memory that nobody ever touched are zeros; reading them would only make the kernel map
// some.
void CopyPart(void* argument, uint32_t index) {
  const auto& parts = *static_cast<Parts*>(argument);
  const uint64_t at = index * kPartBytes, bytes = std::min(kPartBytes, parts.bytes - at);
  const std::byte* from = parts.from + at;
  uint64_t entries[kPartBytes / kPageBytes];
  const auto wanted = static_cast<ssize_t>(bytes / kPageBytes * sizeof entries[0]);
  const auto place = static_cast<off_t>(reinterpret_cast<uint64_t>(from) / kPageBytes * sizeof entries[0]);
  if (parts.page_map < 0 ||
      pread(parts.page_map, entries, bytes / kPageBytes * sizeof entries[0], place) != wanted) {
    CopyBytes(parts.to + at, from, bytes);
    return;
  }
  for (uint64_t page = 0; page < bytes / kPageBytes;) {
    const bool touched = WasTouched(entries[page]);
    const uint64_t first = page;
    while (page < bytes / kPageBytes && WasTouched(entries[page]) == touched) ++page;
    std::byte* to = parts.to + at + first * kPageBytes;
    if (touched) {
      CopyBytes(to, from + first * kPageBytes, (page - first) * kPageBytes);
    } else if (!parts.zeroed) {
      memset(to, 0, (page - first) * kPageBytes);
    }
  }
}

// Which pages of anonymous memory were touched; -1 where the kernel does not say so, or not truly.
int OpenPageMap(const Mapping& piece) {
  constexpr uint64_t kWorthwhile = 256u << 10;
  if (piece.inode != 0 || piece.shared || piece.end - piece.begin < kWorthwhile) return -1;
  const int file = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  volatile char touched = 1;  // this page of the stack
  uint64_t entry = 0;
  const auto place = static_cast<off_t>(reinterpret_cast<uint64_t>(&touched) / kPageBytes * sizeof entry);
  if (file >= 0 && (pread(file, &entry, sizeof entry, place) != sizeof entry || !WasTouched(entry))) {
    close(file);
    return -1;
  }
  return file;
}

// The mapping stays where it is, without pages. A file's shows the file's again to whoever looks; anonymous
// memory would read as zeros, so nobody may look until the replacement is there.
bool MoveAside(const Parts& parts, bool anonymous) {
  auto* from = const_cast<std::byte*>(parts.from);
  if (anonymous && mprotect(from, parts.bytes, PROT_NONE) != 0) return false;
  return mremap(from, parts.bytes, parts.bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP,
                parts.aside) == parts.aside;
}

// Anonymous pages stay for as long as the kernel needs them for nobody else; those of a file are let go.
void ReleaseAside(const Parts& parts, bool anonymous) {
  Parts old = parts;
  old.to = parts.aside;
  old.advice = anonymous ? MADV_FREE : MADV_DONTNEED;
  if (madvise(old.to, kPageBytes, old.advice) == 0) {
    ForEachPart(old, AdvisePart);
  } else {  // locked, for example
    mmap(old.to, old.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  }
}

bool ExchangePiece(uint64_t at, const Parts& parts, int protection, bool anonymous) {
  const bool writable = (protection & PROT_WRITE) != 0, guarded = writable || parts.aside != nullptr;
  const uint64_t bytes = parts.bytes;
  if (parts.advice != MADV_NORMAL) ForEachPart(parts, AdvisePart);
  if (guarded) {
    window_begin.store(at, std::memory_order_relaxed);
    window_end.store(at + bytes, std::memory_order_release);
  }
  bool ok = !writable || mprotect(Pointer(at), bytes, PROT_READ) == 0, moved = false;
  if (ok) {
    ForEachPart(parts, CopyPart);
    ok = protection == (PROT_READ | PROT_WRITE) || mprotect(parts.to, bytes, protection) == 0;
    moved = ok && parts.aside != nullptr && MoveAside(parts, anonymous);
    ok = ok && mremap(parts.to, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, Pointer(at)) == Pointer(at);
    if (!ok && moved)
      mremap(parts.aside, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, Pointer(at));
    if (!ok && guarded) mprotect(Pointer(at), bytes, protection);
  }
  if (guarded) {
    window_end.store(0, std::memory_order_release);
    window_count.fetch_add(1, std::memory_order_release);
  }
  if (ok && moved) ReleaseAside(parts, anonymous);
  return ok;
}

struct Job {
  void (*work)(void*);
  void* argument;
};

void* RunJob(void* job) {
  static_cast<Job*>(job)->work(static_cast<Job*>(job)->argument);
  return nullptr;
}

// The whole of /proc/self/maps; empty if it cannot be read.
std::string MapsText() {
  std::string text;
  const int file = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (file < 0) return text;
  char part[16384];
  for (ssize_t got; (got = read(file, part, sizeof part)) > 0;) text.append(part, static_cast<size_t>(got));
  close(file);
  return text;
}

}  // namespace

bool ReadMappings(uint64_t begin, uint64_t end, std::vector<Mapping>* mappings) {
  mappings->clear();
  const std::string text = MapsText();
  uint64_t covered = begin;
  bool whole = true;
  for (size_t line = 0; line < text.size() && covered < end;) {
    size_t next = text.find('\n', line);
    if (next == std::string::npos) next = text.size();
    unsigned long from = 0, to = 0, offset = 0, inode = 0;
    unsigned major = 0, minor = 0;
    char modes[5] = "";
    const std::string head = text.substr(line, std::min<size_t>(next - line, 128));
    const int fields =
        sscanf(head.c_str(), "%lx-%lx %4s %lx %x:%x %lu", &from, &to, modes, &offset, &major, &minor, &inode);
    line = next + 1;
    if (fields != 7 || to <= covered) continue;
    if (from >= end) break;
    if (from > covered) {
      whole = false;
      covered = from;
    }
    Mapping mapping{};
    mapping.begin = covered;
    mapping.end = std::min<uint64_t>(to, end);
    mapping.protection = (modes[0] == 'r' ? PROT_READ : 0) | (modes[1] == 'w' ? PROT_WRITE : 0) |
                         (modes[2] == 'x' ? PROT_EXEC : 0);
    mapping.shared = modes[3] == 's';
    mapping.offset = offset + (covered - from);
    mapping.device = makedev(major, minor);
    mapping.inode = inode;
    mappings->push_back(mapping);
    covered = mapping.end;
  }
  return whole && covered >= end;
}

std::byte* ReserveLike(uint64_t address, uint64_t bytes) {
  void* got = mmap(nullptr, bytes + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got == MAP_FAILED) return nullptr;
  const auto start = reinterpret_cast<uint64_t>(got);
  const uint64_t skip = (address - start) % kHugePage;
  if (skip != 0) munmap(got, skip);
  munmap(Pointer(start + skip + bytes), kHugePage - skip);
  return reinterpret_cast<std::byte*>(start + skip);
}

bool ExchangePages(const Mapping& piece, const Replacements& fresh, uint64_t* done) {
  const std::lock_guard lock(exchange_mutex);
  InstallFaultHandler(FaultOwner::kPageExchange, ClaimFault);
  const uint64_t bytes = piece.end - piece.begin, most = kPiecePerThread * CopyThreadCount();
  Parts parts{};
  parts.zeroed = fresh.zeroed;
  parts.advice = fresh.source == PageSource::kMapped ? MADV_POPULATE_READ
                 : fresh.source == PageSource::kMade ? MADV_POPULATE_WRITE
                                                     : MADV_NORMAL;
  parts.page_map = OpenPageMap(piece);
  const bool anonymous = !piece.shared && piece.inode == 0;
  bool ok = true;
  for (*done = 0; *done < bytes && ok;) {
    // The first and the last page are what the program shares with others: their windows are short. Between
    // them, pieces end where page tables do.
    const uint64_t at = piece.begin + *done, left = bytes - *done;
    const uint64_t step =
        *done == 0 || left <= kPageBytes ? kPageBytes : std::min(most - at % kHugePage, left - kPageBytes);
    parts.from = static_cast<const std::byte*>(Pointer(at));
    parts.to = fresh.pages + *done;
    parts.bytes = step;
    const bool leaves = fresh.aside != nullptr && at >= fresh.leave.begin && at + step <= fresh.leave.end;
    parts.aside = leaves ? fresh.aside + *done : nullptr;
    ok = ExchangePiece(at, parts, piece.protection, anonymous);
    if (ok) *done += step;
  }
  if (parts.page_map >= 0) close(parts.page_map);
  return ok;
}

void AwayFrom(uint64_t begin, uint64_t end, void (*work)(void*), void* argument) {
  const auto here = reinterpret_cast<uint64_t>(__builtin_frame_address(0));
  constexpr uint64_t kMargin = 256u << 10;  // what the work itself may use of the stack
  pthread_t helper;
  Job job{work, argument};
  const bool on_our_stack = here - kMargin < end && here + kMargin > begin;
  if (on_our_stack && pthread_create(&helper, nullptr, RunJob, &job) == 0) {
    pthread_join(helper, nullptr);
  } else {
    work(argument);
  }
}

void LockExchange() {
  exchange_mutex.lock();
}

void UnlockExchange() {
  exchange_mutex.unlock();
}

}  // namespace causeway::guest
