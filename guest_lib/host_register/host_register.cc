// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/host_register/host_register.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>

#include "guest_lib/addresses/address_windows.h"
#include "guest_lib/addresses/private_host.h"
#include "guest_lib/addresses/region_memory.h"
#include "guest_lib/addresses/region_pages.h"
#include "guest_lib/host_register/away_from.h"
#include "guest_lib/host_register/page_exchange.h"
#include "guest_lib/host_register/page_reserve.h"
#include "guest_lib/host_register/pages_aside.h"
#include "guest_lib/host_register/register_messages.h"
#include "guest_lib/host_register/replaced_pages.h"
#include "guest_lib/managed/compared_bytes.h"
#include "guest_lib/managed/pager.h"
#include "guest_lib/process/copy_threads.h"
#include "guest_lib/process/lock_order.h"
#include "guest_lib/process/log.h"
#include "guest_lib/session/captures.h"
#include "guest_lib/stream/completion.h"
#include "guest_lib/stream/remote.h"

namespace causeway::guest {
namespace {

struct Registry {
  Mutex<Lock::kRegistrations> change;  // one registration at a time
  SharedMutex<Lock::kRegisteredRanges> mutex;
  std::map<uint64_t, HostAllocation> ranges;  // by first byte
  std::map<uint64_t, ReplacedRun> runs;       // by first page
  RegionPages pages;
};
Registry& registry = *new Registry;  // never destroyed

// What has the pages of this process's registrations.
PageFile& Pages() {
  Session& session = Session::Made();
  if (session.transport().shares_memory()) return session.connection();
  return PrivatePages();
}

ReplacedRun PartOf(const ReplacedRun& run, uint64_t skip, uint64_t bytes) {
  return {bytes,
          run.offset + skip,
          run.protection,
          run.alias != nullptr ? run.alias + skip : nullptr,
          run.aside != nullptr ? run.aside + skip : nullptr,
          run.locked};
}

// Takes the runs that make up `pages` out of the registry; runs that reach further are cut.
std::vector<std::pair<uint64_t, ReplacedRun>> TakeRuns(PageRange pages) {
  std::vector<std::pair<uint64_t, ReplacedRun>> taken;
  auto& runs = registry.runs;
  auto at = runs.upper_bound(pages.begin);
  if (at != runs.begin()) --at;
  while (at != runs.end() && at->first < pages.end) {
    const uint64_t begin = at->first, end = begin + at->second.bytes;
    const ReplacedRun run = at->second;
    ++at;
    if (end <= pages.begin) continue;
    const auto part = [&](uint64_t from, uint64_t to) { return PartOf(run, from - begin, to - from); };
    const uint64_t from = std::max(begin, pages.begin), to = std::min(end, pages.end);
    taken.emplace_back(from, part(from, to));
    runs.erase(begin);
    if (begin < from) runs[begin] = part(begin, from);
    if (to < end) runs[to] = part(to, end);
  }
  return taken;
}

// ---- fork ----
// A child must have memory of its own where the parent's is shared with the device. What the registered pages
// hold at the fork is copied before it, since the parent's other threads run on.

struct Snapshot {
  uint64_t begin;
  ReplacedRun run;
  std::byte* copy;
};

// In pages of their own: the heap may lie in registered pages, which the child puts back to what they were
// before this list was written.
std::span<Snapshot> snapshots;

void* FreshPages(uint64_t bytes) {
  void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return pages != MAP_FAILED ? pages : nullptr;
}

// The runs, without the parts that the program has unmapped or replaced by something else.
std::vector<std::pair<uint64_t, ReplacedRun>> RunsThatAreThere() {
  std::vector<std::pair<uint64_t, ReplacedRun>> parts;
  uint64_t device = 0, inode = 0;
  std::vector<Mapping> mappings;
  if (!Pages().FileIdentity(&device, &inode)) return parts;
  for (const auto& [begin, run] : registry.runs) {
    ReadMappings(begin, begin + run.bytes, &mappings);
    for (const Mapping& mapping : mappings) {
      const uint64_t skip = mapping.begin - begin;
      if (mapping.device == device && mapping.inode == inode && mapping.offset == run.offset + skip)
        parts.emplace_back(mapping.begin, PartOf(run, skip, mapping.end - mapping.begin));
    }
  }
  return parts;
}

void BeforeFork() {
  registry.change.lock();
  LockExchange();
  if (registry.runs.empty()) return;
  const std::vector<std::pair<uint64_t, ReplacedRun>> runs = RunsThatAreThere();
  if (runs.empty()) return;
  auto* list = static_cast<Snapshot*>(FreshPages(runs.size() * sizeof(Snapshot)));
  if (list == nullptr) return;
  size_t count = 0;
  for (const auto& [begin, run] : runs) {
    void* copy = FreshPages(run.bytes);
    if (copy == nullptr) continue;
    CopyInParallel(copy, reinterpret_cast<void*>(begin), run.bytes);
    list[count++] = {begin, run, static_cast<std::byte*>(copy)};
  }
  snapshots = {list, count};
}

void EndFork() {
  if (snapshots.data() != nullptr) munmap(snapshots.data(), snapshots.size_bytes());
  snapshots = {};
  UnlockExchange();
  registry.change.unlock();
}

void AfterForkInParent() {
  for (const Snapshot& snapshot : snapshots) munmap(snapshot.copy, snapshot.run.bytes);
  EndFork();
}

void AfterForkInChild() {
  for (const Snapshot& snapshot : snapshots) {
    const ReplacedRun& run = snapshot.run;
    std::byte* pages = snapshot.copy;
    if (run.alias != nullptr) {  // a shared file mapping stays one
      if ((run.protection & PROT_WRITE) != 0) memcpy(run.alias, snapshot.copy, run.bytes);
      munmap(snapshot.copy, run.bytes);
      pages = run.alias;
    } else if (run.protection != (PROT_READ | PROT_WRITE)) {
      mprotect(pages, run.bytes, run.protection);
    }
    mremap(pages, run.bytes, run.bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
           reinterpret_cast<void*>(snapshot.begin));
  }
  registry.runs.clear();
  registry.ranges.clear();
  registrations.store(0);
  EndFork();
}

// ---- registering ----

void Remember(const HostAllocation& range) {
  const std::unique_lock lock(registry.mutex);
  registry.ranges[range.address] = range;
  registrations.store(static_cast<uint32_t>(registry.ranges.size()), std::memory_order_release);
}

void ForgetRange(uint64_t address) {
  const std::unique_lock lock(registry.mutex);
  registry.ranges.erase(address);
  registrations.store(static_cast<uint32_t>(registry.ranges.size()), std::memory_order_release);
}

// What kind of memory lies there, as far as it decides whether it can be registered.
CUresult Examine(const HostAllocation& range, std::vector<Mapping>* mappings) {
  const uint64_t end = PageCeiling(range.address + range.bytes);
  if (!ReadMappings(PageFloor(range.address), end, mappings)) return CUDA_ERROR_INVALID_VALUE;
  for (const Mapping& mapping : *mappings) {
    if ((mapping.protection & PROT_READ) == 0) return CUDA_ERROR_INVALID_VALUE;
    if ((mapping.protection & PROT_WRITE) == 0 && (range.flags & CU_MEMHOSTREGISTER_READ_ONLY) == 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_SUCCESS;
}

// Ordinary pages in the place of the runs.
void PutBackRuns(PutBackJob& job, PageRange pages) {
  if (!AwayFrom(pages.begin, pages.end, PutAllBack, &job)) job.back.assign(job.runs.size(), false);
}

// Frees pages that replace none, or no longer do: the region's, or the memory file's where no memory is shared.
void FreePages(uint64_t offset, uint64_t bytes) {
  Session& session = Session::Made();
  if (session.transport().shares_memory()) {
    registry.pages.Free(session.connection(), offset, bytes);
  } else {
    FreePrivatePages(offset, bytes);
  }
}

// The host has none of the runs' pages any more.
void FreeRuns(const PutBackJob& job) {
  for (size_t i = 0; i < job.runs.size(); ++i) {
    const auto& [begin, run] = job.runs[i];
    if (job.back[i]) {
      FreePages(run.offset, run.bytes);
    } else {
      Complain("no memory for " + std::to_string(run.bytes) +
               " bytes that are registered no longer: they stay in pages that had replaced them");
    }
  }
}

// Puts the program's own pages back after a replacement that is not to stay, and frees those that had replaced them.
void Undo(ReplaceJob& job) {
  if (!job.made.empty()) {
    PutBackJob back{job.file, job.own, std::move(job.made)};
    PutBackRuns(back, job.pages);
    FreeRuns(back);
  } else if (job.pages.bytes() != 0 && !job.stuck) {
    FreePages(job.offset, job.pages.bytes());
  }
}

// What will go back to the range can be written again.
void WakeRuns(const HostAllocation& range) {
  const PageRange pages = OwnPages(registry.ranges, range.address, range.bytes);
  auto at = registry.runs.upper_bound(pages.begin);
  if (at != registry.runs.begin()) --at;
  for (; at != registry.runs.end() && at->first < pages.end; ++at) {
    const auto& [begin, run] = *at;
    const uint64_t from = std::max(begin, pages.begin), to = std::min(begin + run.bytes, pages.end);
    if (run.aside != nullptr && from < to) WakeAside(run.aside + (from - begin), to - from);
  }
}

// The pages of a range on their way back.
PutBackJob PutBackOf(PageFile& file, const HostAllocation& range, PageRange pages) {
  PutBackJob job{file, WholePages(range), {}};
  if (pages.begin < pages.end) job.runs = TakeRuns(pages);
  return job;
}

CUresult RegisterInPlace(HostAllocation* range, const std::vector<Mapping>& mappings) {
  Connection& connection = Session::Made().connection();
  const PageRange pages = OwnPages(registry.ranges, range->address, range->bytes);
  uint64_t offset = 0;
  bool zeroed = false;
  if (pages.bytes() > connection.region_bytes ||
      (pages.bytes() != 0 &&
       !registry.pages.Allocate(connection, pages.begin, pages.bytes(), &offset, &zeroed))) {
    return RegionFull(connection, range->bytes, "registered memory");
  }
  if (pages.bytes() != 0 && !RegionPagesMove(connection, offset)) {
    registry.pages.Free(connection, offset, pages.bytes());
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const RegisterBody body{range->address, range->bytes, offset, range->flags,
                          AllWritable(mappings) ? 1u : 0u};
  PendingRegistration registration(body);
  ReplaceJob job{connection, pages,  WholePages(*range),
                 offset,     zeroed, CutMappings(mappings, pages.begin, pages.end)};
  job.ok = pages.bytes() == 0;
  // If it cannot be done, job.ok stays false.
  if (registration.sent() && !job.ok) (void)AwayFrom(pages.begin, pages.end, Replace, &job);
  const CUresult result = registration.Finish(&range->device_address);
  if (result == CUDA_SUCCESS && job.ok) {
    for (const auto& [begin, run] : job.made) registry.runs[begin] = run;
    return CUDA_SUCCESS;
  }
  if (result == CUDA_SUCCESS) {
    Complain("the pages at " + std::to_string(range->address) +
             " cannot be replaced: they stay unregistered");
    SendUnregister(range->address, [] {});
  }
  Undo(job);
  return result != CUDA_SUCCESS ? result : CUDA_ERROR_OPERATING_SYSTEM;
}

// ---- without shared memory ----

// Whether pages of a memory file can replace those: the program may write them, and each is an ordinary page of its own.
bool CanBeReached(const std::vector<Mapping>& mappings) {
  return AllWritable(mappings) && std::all_of(mappings.begin(), mappings.end(), [](const Mapping& mapping) {
           return mapping.page_bytes == kPageBytes;
         });
}

// Replaces the range's whole pages by pages of the memory file, and begins to exchange bytes with the host, which has registered the range
// already. On failure the program's own pages are there again.
CUresult ExchangeWithHost(const HostAllocation& range, const std::vector<Mapping>& mappings) {
  const PageRange pages = WholePages(range);
  if (range.bytes <= ComparedBytes::kMost) return AddPinned(range, range.bytes, -1, 0);
  int file = -1;
  uint64_t offset = 0;
  if (!AllocatePrivatePages(pages.bytes(), &file, &offset)) return CUDA_ERROR_OUT_OF_MEMORY;
  ReplaceJob job{PrivatePages(), pages, pages, offset, true, CutMappings(mappings, pages.begin, pages.end)};
  (void)AwayFrom(pages.begin, pages.end, Replace, &job);
  CUresult result = job.ok ? AddPinned(range, range.bytes, file, offset) : CUDA_ERROR_OPERATING_SYSTEM;
  if (result == CUDA_SUCCESS) {
    for (const auto& [begin, run] : job.made) registry.runs[begin] = run;
    return CUDA_SUCCESS;
  }
  Undo(job);
  return result;
}

CUresult Reach(const HostAllocation& range) {
  if (!AwaitPrivateHostLoans(range.address)) return CUDA_ERROR_NOT_READY;
  std::vector<Mapping> mappings;
  if (Examine(range, &mappings) != CUDA_SUCCESS || !CanBeReached(mappings)) return CUDA_ERROR_NOT_SUPPORTED;
  const RegisterBody body{
      .address = range.address, .bytes = range.bytes, .offset = 0, .flags = range.flags, .writable = 1};
  return RegisterOnHost(range.context, body, [&] { return ExchangeWithHost(range, mappings); });
}

// Ends the exchange and the host's registration, if the device reaches the range, and gives the program ordinary pages. The caller has
// waited for the device. Whatever the host answers, it shares none of these pages, so the program's side is done in any case.
CUresult Leave(const HostAllocation& range) {
  const bool reached = IsPrivateHostReached(range.address);
  RemovePrivateRegistered(range.address);
  if (!reached) return CUDA_SUCCESS;
  const InContext context(range.context);
  ForgetMigrating(range.address);
  const CUresult result = SendUnregister(range.address, [] {});
  const PageRange pages = WholePages(range);
  PutBackJob back = PutBackOf(PrivatePages(), range, pages);
  if (!back.runs.empty()) {
    PutBackRuns(back, pages);
    FreeRuns(back);
  }
  return result;
}

// Memory that CUDA itself has given to the program.
bool IsAllocated(uint64_t address) {
  HostAllocation known;
  return Session::Made().memory().Find(address, &known) || FindPrivateHost(address, &known) ||
         work::managed_pages.holds(address);
}

CUresult Register(uint64_t address, uint64_t bytes, unsigned flags) {
  Session& session = Session::Made();
  HostAllocation range{.address = address, .bytes = bytes, .kind = HostKind::kRegistered, .flags = flags};
  range.context = CurrentContextObject();
  range.id = NextId();
  // Natively the whole device is waited for, where memory is shared by the worker's driver. Before the mutex is taken: the device may wait for
  // a thread that needs it to name another registration.
  if (!session.transport().shares_memory()) {
    if (const CUresult result = DrainDevice()) return result;
  }
  const std::lock_guard lock(registry.change);
  if (OverlapsAny(registry.ranges, address, bytes)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  if (IsAllocated(address) || IsAllocated(address + bytes - 1)) return CUDA_ERROR_INVALID_VALUE;
  std::vector<Mapping> mappings;
  if (const CUresult result = Examine(range, &mappings)) return result;
  if (session.transport().shares_memory()) {
    bool changed = false;
    if (const CUresult result = LeaveReservedPages(mappings, &changed)) return result;
    if (const CUresult result = changed ? Examine(range, &mappings) : CUDA_SUCCESS) return result;
  }
  if (session.transport().shares_memory()) {
    if (const CUresult result = RegisterInPlace(&range, mappings)) return result;
  } else {
    range.device_address = CanBeReached(mappings) ? address : 0;
    AddPrivateRegistered(range);
  }
  Remember(range);
  return CUDA_SUCCESS;
}

// Whether nothing of the device's can touch the range any more, so that its pages need not wait until the
// driver has ended the registration, which takes about as long as they do. Work of another context might. What
// is wrong the driver says when the registration ends.
bool AwaitDevice(const HostAllocation& range) {
  return range.bytes >= kAlignedRunBytes && !HadSeveralContexts() && !AnyCapture() &&
         DrainDevice() == CUDA_SUCCESS;
}

CUresult UnregisterInPlace(const HostAllocation& range) {
  const PageRange pages = OwnPages(registry.ranges, range.address, range.bytes);
  const bool done = AwaitDevice(range);
  std::optional<PutBackJob> back;
  const auto put_back = [&] {
    PutBackRuns(back.emplace(PutBackOf(Session::Made().connection(), range, pages)), pages);
  };
  const CUresult result = SendUnregister(range.address, [&] { done ? put_back() : WakeRuns(range); });
  // The host has the region's pages still: if they went out of use meanwhile, nobody else gets them.
  if (result != CUDA_SUCCESS) return result;
  if (!back) put_back();
  FreeRuns(*back);
  return CUDA_SUCCESS;
}

CUresult Unregister(uint64_t address) {
  const bool shares = Session::Made().transport().shares_memory();
  // Before the mutex is taken: the device may wait for a thread that needs it to name another registration.
  HostAllocation known;
  if (!shares && FindRegistered(address, &known)) {
    if (const CUresult result = DrainDevice()) return result;
  }
  const std::lock_guard lock(registry.change);
  const auto found = registry.ranges.find(address);
  if (found == registry.ranges.end()) {
    HostAllocation other;
    const bool is_inside = FindRegistered(address, &other) || IsAllocated(address);
    return is_inside ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  }
  const HostAllocation range = found->second;
  const CUresult result = shares ? UnregisterInPlace(range) : Leave(range);
  if (result == CUDA_SUCCESS || !shares) ForgetRange(address);
  return result;
}

}  // namespace

bool FindRegistered(uint64_t address, HostAllocation* allocation) {
  const std::shared_lock lock(registry.mutex);
  const auto next = registry.ranges.upper_bound(address);
  if (next == registry.ranges.begin()) return false;
  const HostAllocation& range = std::prev(next)->second;
  if (address - range.address >= range.bytes) return false;
  *allocation = range;
  return true;
}

bool SetRegisteredSyncMemops(uint64_t address, bool value) {
  HostAllocation range;
  if (!FindRegistered(address, &range)) return false;
  range.sync_memops = value;
  Remember(range);
  return true;
}

CUresult ReachRegistered(uint64_t address) {
  const std::lock_guard lock(registry.change);
  PrivateHost block;
  const auto found = registry.ranges.find(address);
  if (found == registry.ranges.end() || !FindPrivateHost(address, &block)) return CUDA_SUCCESS;
  if (block.reached) return block.host.device_address != 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
  HostAllocation range = found->second;
  const CUresult result = Reach(range);
  if (MayComeRight(result)) return result;
  NotePrivateHostReached(address, result == CUDA_SUCCESS ? address : 0, range.context);
  if (result != CUDA_SUCCESS) {
    range.device_address = 0;
    Remember(range);
  }
  return result;
}

void UnregisterAllOf(Object* context) {
  if (!AnyRegistered()) return;
  std::vector<uint64_t> addresses;
  {
    const std::shared_lock lock(registry.mutex);
    for (const auto& [address, range] : registry.ranges) {
      if (range.context == context) addresses.push_back(address);
    }
  }
  std::vector<Object*>& stack = ThisThread().contexts;
  stack.push_back(context);
  for (const uint64_t address : addresses) Unregister(address);
  stack.pop_back();
}

}  // namespace causeway::guest

using namespace causeway;
using namespace causeway::guest;

extern "C" {

CUresult cuMemHostRegister_v2(void* start, size_t bytes, unsigned int flags) {
  if (const CUresult result = NeedContext()) return result;
  constexpr unsigned kKnown = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                              CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;
  const auto address = reinterpret_cast<uint64_t>(start);
  if (const CUresult sticky = Session::Made().sticky()) return sticky;
  if (const CUresult unsafe = CheckUnsafeCall()) return unsafe;
  if (start == nullptr || bytes == 0 || (flags & ~kKnown) != 0 || address + bytes < address)
    return CUDA_ERROR_INVALID_VALUE;
  if ((flags & CU_MEMHOSTREGISTER_IOMEMORY) != 0) {
    Complain("memory of other devices (CU_MEMHOSTREGISTER_IOMEMORY) cannot be registered from a guest");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (IsDeviceAddress(address)) return CUDA_ERROR_INVALID_VALUE;
  static const int at_fork = pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild);
  (void)at_fork;
  const CUresult result = Register(address, bytes, flags);
  // As in cuMemHostAlloc: a kernel may find its address in memory.
  if (result == CUDA_SUCCESS && (flags & CU_MEMHOSTREGISTER_DEVICEMAP) != 0 &&
      !Session::Made().transport().shares_memory())
    ReachRegistered(address);
  return result;
}

CUresult cuMemHostUnregister(void* start) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (const CUresult unsafe = CheckUnsafeCall()) return unsafe;
  if (start == nullptr) return CUDA_ERROR_INVALID_VALUE;
  HostAllocation range;
  const WithContextOf scope(FindRegistered(reinterpret_cast<uint64_t>(start), &range) ? range.context
                                                                                      : nullptr);
  return Unregister(reinterpret_cast<uint64_t>(start));
}

}  // extern "C"
