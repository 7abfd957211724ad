// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/managed/areas.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "guest_lib/addresses/address_windows.h"
#include "guest_lib/addresses/mappings.h"
#include "guest_lib/process/log.h"
#include "guest_lib/session/submissions.h"
#include "ivshmem_ring/messages/registration.h"

namespace causeway::guest {
namespace {

constexpr uint64_t kSmallestChunk = 64u << 10;
constexpr uint64_t kMostChunks = 4096;       // of an area: each may become a mapping of its own
constexpr uint64_t kWindowBytes = 4u << 20;  // fetched at once when a program goes through in order
constexpr size_t kSureChunks = 4;            // after so many in order, the next are fetched ahead
constexpr uint64_t kSharedWindowBytes = 256u << 10;
constexpr uint64_t kRestoredBytes = 1u << 20;  // of a variable or a block
constexpr size_t kMostByteRuns = 256;          // of a chunk that are sent to the byte
constexpr size_t kWord = 8;
constexpr size_t kGroupGap = 32;
constexpr int kMostReadings = 4;  // of a chunk that changes all the time

uint64_t Floor(uint64_t address) {
  return address & ~(kSmallestChunk - 1);
}
uint64_t Ceiling(uint64_t address) {
  return Floor(address + kSmallestChunk - 1);
}
void* Pointer(uint64_t address) {
  return reinterpret_cast<void*>(address);
}

// The pages that are watched. Empty (begin is not below end): all of it is compared.
PageRange WatchedOf(const ManagedMemory& memory) {
  const uint64_t begin = memory.address, end = memory.address + memory.bytes;
  if (memory.form == ManagedMemory::Form::kManaged) return {Floor(begin), Ceiling(end)};
  if (memory.file < 0) return {end, end};
  return {PageCeiling(begin), PageFloor(end)};
}

// Announces how many chunks are accessible, then says whether work is under way.
bool PublishAccessible(uint64_t chunks) {
  accessible_chunks.store(chunks);
  return work::under_way.load();
}

}  // namespace

ManagedAreas::Area* ManagedAreas::Find(uint64_t address) {
  auto next = areas_.upper_bound(address);
  if (next == areas_.begin()) return nullptr;
  Area& area = std::prev(next)->second;
  return address < area.end ? &area : nullptr;
}

// Maps an area's pages twice: for the program, and for this class, which fills them while the program has no access. Pinned memory
// already has the program's mapping.
bool ManagedAreas::MapArea(Area* area, const ManagedMemory& memory) {
  const uint64_t bytes = area->end - area->begin;
  area->owns_file = memory.form == ManagedMemory::Form::kManaged;
  area->is_kept = memory.form == ManagedMemory::Form::kKept;
  area->file = memory.file;
  area->offset = memory.offset;
  if (area->owns_file) {
    // What is reserved there is this library's and nobody else's.
    if (!IsDeviceAddress(area->begin, bytes)) return false;
    area->file = memfd_create("causeway-managed", MFD_CLOEXEC);
    if (area->file < 0) return false;
  }
  void* alias = MAP_FAILED;
  if (!area->owns_file || ftruncate(area->file, static_cast<off_t>(bytes)) == 0)
    alias = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, area->file,
                 static_cast<off_t>(area->offset));
  area->alias = static_cast<std::byte*>(alias);
  if (alias != MAP_FAILED &&
      (!area->owns_file || mmap(Pointer(area->begin), bytes, PROT_NONE,
                                MAP_SHARED | MAP_NORESERVE | MAP_FIXED, area->file, 0) != MAP_FAILED)) {
    return true;
  }
  if (alias != MAP_FAILED) munmap(alias, bytes);
  if (area->owns_file) close(area->file);
  return false;
}

bool ManagedAreas::Make(uint64_t begin, uint64_t end, const ManagedMemory& memory) {
  Area area{};
  area.begin = begin;
  area.end = end;
  const uint64_t bytes = end - begin;
  area.chunk_bytes = std::bit_ceil(std::max(kSmallestChunk, bytes / kMostChunks));
  if (!MapArea(&area, memory)) return false;
  // A forked child has no managed memory, as natively. Registered memory it gets from host_register.cc.
  madvise(area.alias, bytes, MADV_DONTFORK);
  if (!area.is_kept) madvise(Pointer(begin), bytes, MADV_DONTFORK);
  area.state.assign((bytes + area.chunk_bytes - 1) / area.chunk_bytes, State::kAbsent);
  area.fresh = memory.fresh;
  Area& made = areas_.emplace(begin, std::move(area)).first->second;
  SetState(made, {0, made.state.size()}, memory.fresh ? State::kOwned : State::kAway);
  return true;
}

bool ManagedAreas::Add(const ManagedMemory& memory) {
  const PageRange watched = WatchedOf(memory);
  memory_[memory.address] = memory;
  restored_ += memory.is_restored ? 1 : 0;
  const bool added = (watched.begin >= watched.end || AddPages(memory, watched.begin, watched.end)) &&
                     (memory.form != ManagedMemory::Form::kKept || AddCompared(memory, watched));
  if (!added) Remove(memory.address, false);
  return added;
}

// Begins to compare what lies beside the watched pages: all of the memory where none are watched.
bool ManagedAreas::AddCompared(const ManagedMemory& memory, PageRange watched) {
  const uint64_t begin = memory.address, end = memory.address + memory.bytes;
  if (watched.begin >= watched.end) return compared_.Add(begin, memory.bytes);
  return (begin == watched.begin || compared_.Add(begin, watched.begin - begin)) &&
         (end == watched.end || compared_.Add(watched.end, end - watched.end));
}

bool ManagedAreas::AddPages(const ManagedMemory& memory, uint64_t begin, uint64_t end) {
  bool joins = false;
  for (uint64_t at = begin; at < end;) {
    if (const Area* known = Find(at)) {
      joins = true;
      at = known->end;
      continue;
    }
    const auto next = areas_.lower_bound(at);
    const uint64_t stop = next == areas_.end() ? end : std::min(end, next->first);
    if (!Make(at, stop, memory)) return false;
    at = stop;
  }
  if (!joins) return true;
  // Its neighbours' chunks have no bytes of it yet.
  GiveBack();
  for (uint64_t at = begin; at < end;) {
    Area* found = Find(at);
    if (found == nullptr) return false;
    Area& area = *found;
    for (size_t i = (at - area.begin) / area.chunk_bytes; i < area.state.size() && area.ChunkBegin(i) < end;
         ++i) {
      if (area.state[i] == State::kAbsent) SetState(area, {i, 1}, State::kAway);
    }
    at = area.end;
  }
  return true;
}

void ManagedAreas::Remove(uint64_t address, bool discard) {
  const auto found = memory_.find(address);
  if (found == memory_.end()) return;
  const ManagedMemory memory = found->second;
  const PageRange watched = WatchedOf(memory);
  if (memory.form == ManagedMemory::Form::kKept && !discard) {
    ForgetGone(true);
    Exchange(true);  // what kernels wrote into compared bytes
    compared_.Remove(address, address + memory.bytes);
    if (Area* area = watched.begin < watched.end ? Find(watched.begin) : nullptr)
      BringHome(*area, {.begin = area->begin,
                        .end = area->end,
                        .protection = 0,
                        .shared = true,
                        .offset = area->offset,
                        .device = 0,
                        .inode = 0});
  }
  restored_ -= memory.is_restored ? 1 : 0;
  memory_.erase(found);
  if (watched.begin < watched.end) RemovePages(watched.begin, watched.end);
}

// Ends all areas in the range of which no memory is left.
void ManagedAreas::RemovePages(uint64_t begin, uint64_t end) {
  auto is_used = [this](uint64_t from, uint64_t to) {
    std::vector<ManagedSpan> spans;
    if (const Area* area = Find(from)) AddSpans(*area, from, to, &spans);
    return !spans.empty();
  };
  for (uint64_t at = begin; at < end;) {
    Area* area = Find(at);
    if (area == nullptr) return;
    const uint64_t next = area->end;
    if (!is_used(area->begin, area->end)) {
      Mark(*area, {0, area->state.size()}, State::kAbsent);
      const uint64_t bytes = area->end - area->begin;
      // The window stays reserved. Registered memory is the program's.
      if (!area->is_kept)
        mmap(Pointer(area->begin), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
             -1, 0);
      watch_.TryAgain(area->begin, area->end);
      munmap(area->alias, bytes);
      if (area->owns_file) close(area->file);
      areas_.erase(area->begin);
    } else {
      for (size_t i = 0; i < area->state.size(); ++i) {
        if (!is_used(area->ChunkBegin(i), area->ChunkEnd(i))) SetState(*area, {i, 1}, State::kAbsent);
      }
    }
    at = next;
  }
}

Access ManagedAreas::AccessOf(const Area& area, State state) {
  switch (state) {
    case State::kAbsent:
      return Access::kAbsent;
    case State::kAway:
    case State::kReady:
      return Access::kNone;
    case State::kClean:
      return Access::kRead;
    case State::kOwned:
      return area.fresh ? Access::kFree : Access::kWrite;
    case State::kShared:
      break;
  }
  return Access::kWrite;
}

WatchedPages ManagedAreas::PagesOf(const Area& area, Run run) {
  const uint64_t begin = area.ChunkBegin(run.first);
  return {begin, area.ChunkEnd(run.first + run.count - 1), area.Alias(begin)};
}

void ManagedAreas::SetState(Area& area, Run run, State state) {
  const Access before = AccessOf(area, area.state[run.first]);
  Mark(area, run, state);
  watch_.Set(PagesOf(area, run), before, AccessOf(area, state));
}

void ManagedAreas::Mark(Area& area, Run run, State state) {
  auto weigh = [&](State of, uint64_t sign) {
    if (of == State::kAbsent || of == State::kAway) return;
    accessible_ += sign;
    area.accessible += sign;
    if (of != State::kOwned || !area.fresh) borrowed_ += sign;
  };
  for (size_t i = run.first; i < run.first + run.count; ++i) {
    weigh(area.state[i], ~uint64_t{0});
    if (area.state[i] == State::kShared) area.twins.erase(i);
    area.state[i] = state;
    weigh(state, 1);
    if (state != State::kShared) continue;
    const uint64_t bytes = area.ChunkEnd(i) - area.ChunkBegin(i);
    Twin twin{std::make_unique<std::byte[]>(bytes), ++order_};
    std::memcpy(twin.bytes.get(), area.Alias(area.ChunkBegin(i)), bytes);
    area.twins[i] = std::move(twin);
  }
}

void ManagedAreas::AddSpans(const Area& area, uint64_t begin, uint64_t end, std::vector<ManagedSpan>* spans) {
  auto at = memory_.upper_bound(begin);
  if (at != memory_.begin()) --at;
  for (; at != memory_.end() && at->first < end; ++at) {
    const ManagedMemory& memory = at->second;
    const uint64_t from = std::max(begin, memory.address);
    const uint64_t to = std::min(end, memory.address + memory.bytes);
    if (from < to) spans->push_back({from, area.Alias(from), to - from, memory.context, memory.stream});
  }
}

// Pages of fresh memory that the program never touched are holes in the file: the driver's are zero as well,
// or nobody's. What was fetched has none; to look for one there would take the kernel through the whole file.
void ManagedAreas::AddOwned(const Area& area, Run run, std::vector<ManagedSpan>* spans) {
  if (!area.fresh)
    return AddSpans(area, area.ChunkBegin(run.first), area.ChunkEnd(run.first + run.count - 1), spans);
  const uint64_t base = area.begin - area.offset;  // an offset in the file plus this is an address
  const auto end = static_cast<off_t>(area.ChunkEnd(run.first + run.count - 1) - base);
  for (auto at = static_cast<off_t>(area.ChunkBegin(run.first) - base); at < end;) {
    const off_t data = lseek(area.file, at, SEEK_DATA);
    if (data < 0 || data >= end) return;
    const off_t hole = std::min(end, lseek(area.file, data, SEEK_HOLE));
    if (hole <= data) return;
    AddSpans(area, base + static_cast<uint64_t>(data), base + static_cast<uint64_t>(hole), spans);
    at = hole;
  }
}

// The same stretches in whole words: numbers that were written have bytes that happened to be right before.
std::vector<ManagedAreas::Run> ManagedAreas::WholeWords(const std::vector<Run>& runs) {
  std::vector<Run> whole;
  for (const Run& run : runs) {
    const size_t first = run.first & ~(kWord - 1);
    const size_t end = (run.first + run.count + kWord - 1) & ~(kWord - 1);
    if (whole.empty() || whole.back().first + whole.back().count < first) {
      whole.push_back({first, end - first});
    } else {
      whole.back().count = end - whole.back().first;
    }
  }
  return whole;
}

// In which order a chunk's bytes were written nobody knows. Stretches close to each other are one group, and
// groups go by their bytes, most first: a flag is smaller than what it announces.
std::vector<ManagedAreas::Run> ManagedAreas::FlagsLast(const std::vector<Run>& runs) {
  struct Group {
    size_t first, end, bytes;  // of `runs`
  };
  std::vector<Group> groups;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (groups.empty() || runs[i].first - runs[i - 1].first - runs[i - 1].count >= kGroupGap)
      groups.push_back({i, i, 0});
    groups.back().end = i + 1;
    groups.back().bytes += runs[i].count;
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [](const Group& a, const Group& b) { return a.bytes > b.bytes; });
  std::vector<Run> ordered;
  for (const Group& group : groups)
    ordered.insert(ordered.end(), runs.begin() + static_cast<ptrdiff_t>(group.first),
                   runs.begin() + static_cast<ptrdiff_t>(group.end));
  return ordered;
}

// What differs from the twin.
void ManagedAreas::AddShared(const Area& area, size_t chunk, const Twin& twin,
                             std::vector<ManagedSpan>* spans) {
  const uint64_t begin = area.ChunkBegin(chunk), bytes = area.ChunkEnd(chunk) - begin;
  const std::byte* now = area.Alias(begin);
  const std::byte* then = twin.bytes.get();
  std::vector<Run> runs;
  for (size_t i = 0; i < bytes;) {
    if (i % 512 == 0 && std::memcmp(now + i, then + i, 512) == 0) {
      i += 512;
    } else if (now[i] == then[i]) {
      ++i;
    } else {
      const size_t first = i;
      while (i < bytes && now[i] != then[i]) ++i;
      runs.push_back({first, i - first});
    }
  }
  if (runs.size() > kMostByteRuns) runs = WholeWords(runs);
  for (const Run& run : FlagsLast(runs))
    AddSpans(area, begin + run.first, begin + run.first + run.count, spans);
}

// Takes access away, and sends what was written. False if there was nothing to send.
bool ManagedAreas::GiveBackAll(bool keep_fresh) {
  struct Taken {
    Area* area;
    Run run;
    State state;
  };
  std::vector<Taken> taken;
  ahead_ = 0;
  ForgetGone(false);
  for (auto& [begin, area] : areas_) {
    if (area.accessible == 0 || (keep_fresh && area.fresh)) continue;
    for (size_t i = 0; i < area.state.size();) {
      const State state = area.state[i];
      Run run{i, 0};
      while (i < area.state.size() && area.state[i] == state) ++i;
      run.count = i - run.first;
      if (state == State::kAbsent || state == State::kAway) continue;
      watch_.Set(PagesOf(area, run), AccessOf(area, state), Access::kNone);
      taken.push_back({&area, run, state});
    }
  }
  std::vector<ManagedSpan> spans, flags;
  compared_.AddChanges(&spans, &flags);
  std::vector<std::pair<const Twin*, std::pair<Area*, size_t>>> shared;
  for (const Taken& one : taken) {
    if (one.state == State::kOwned) AddOwned(*one.area, one.run, &spans);
    if (one.state != State::kShared) continue;
    for (size_t i = one.run.first; i < one.run.first + one.run.count; ++i)
      shared.push_back({&one.area->twins[i], {one.area, i}});
  }
  std::sort(shared.begin(), shared.end(),
            [](const auto& a, const auto& b) { return a.first->order < b.first->order; });
  for (const auto& [twin, where] : shared) AddShared(*where.first, where.second, *twin, &spans);
  spans.insert(spans.end(), flags.begin(), flags.end());
  if (!spans.empty()) Failed(link_.Write(spans));
  compared_.Sent();
  for (const Taken& one : taken) Mark(*one.area, one.run, State::kAway);
  for (const Taken& one : taken) one.area->fresh = false;
  return !spans.empty();
}

void ManagedAreas::GiveBack() {
  if (accessible_ != 0 || !compared_.empty()) GiveBackAll(false);
}

// Gives the program what the host has changed of compared bytes, once two readings agree: then all is there that was written before
// anything that the first of them found. True: it has changed some.
bool ManagedAreas::ReadCompared() {
  if (compared_.empty()) return false;
  std::vector<ManagedSpan> spans;
  compared_.AddAll(&spans);
  for (int reading = 0; reading < kMostReadings; ++reading) {
    bool changed = false;
    const CUresult result = link_.Read(spans, &changed);
    Failed(result);
    if (result != CUDA_SUCCESS) return false;
    if (!changed) break;
  }
  return compared_.Take();
}

bool ManagedAreas::Exchange(bool read_compared) {
  const bool wrote = GiveBackAll(true);
  // What it wrote may say that fresh memory is ready.
  if (wrote) GiveBack();
  const bool news = (read_compared && ReadCompared()) || wrote || news_;
  news_ = false;
  return news;
}

void ManagedAreas::Restore() {
  if (restored_ == 0) return;
  ForgetGone(true);
  std::vector<ManagedSpan> spans;
  std::vector<std::pair<Area*, size_t>> chunks;
  uint64_t pinned_bytes = 0;
  for (const auto& [address, memory] : memory_) {
    if (!memory.is_restored || memory.bytes > kRestoredBytes) continue;
    if (memory.form != ManagedMemory::Form::kManaged && (pinned_bytes += memory.bytes) > kRestoredBytes)
      continue;
    const PageRange watched = WatchedOf(memory);
    for (uint64_t at = watched.begin; at < watched.end;) {
      Area* found = Find(at);
      if (found == nullptr) break;  // registered memory that the program has unmapped
      Area& area = *found;
      const size_t chunk = (at - area.begin) / area.chunk_bytes;
      at = area.ChunkEnd(chunk);
      const bool away = area.state[chunk] == State::kAway || area.state[chunk] == State::kReady;
      if (!away || (!chunks.empty() && chunks.back() == std::pair{&area, chunk})) continue;
      chunks.emplace_back(&area, chunk);
      AddSpans(area, area.ChunkBegin(chunk), area.ChunkEnd(chunk), &spans);
    }
  }
  if (spans.empty()) return;
  Failed(link_.Read(spans, nullptr));
  for (const auto& [area, chunk] : chunks) SetState(*area, {chunk, 1}, State::kShared);
}

void ManagedAreas::Failed(CUresult result) {
  if (result == CUDA_SUCCESS || complained_) return;
  complained_ = true;
  ComplainElsewhere("managed memory cannot be exchanged with the host (error " + std::to_string(result) +
                    "): this process goes on with the bytes that it has");
}

// How much to fetch: more with each fault of a program that goes through the memory in order.
ManagedAreas::Run ManagedAreas::Window(Area& area, size_t chunk, State wanted, size_t most) {
  area.window = chunk == area.next_fault ? area.window * 2 : 1;
  area.window = std::clamp<size_t>(area.window, 1, std::max<size_t>(1, most / area.chunk_bytes));
  Run run{chunk, 1};
  while (run.count < area.window && run.first + run.count < area.state.size() &&
         area.state[run.first + run.count] == wanted) {
    ++run.count;
  }
  area.next_fault = run.first + run.count;
  return run;
}

void ManagedAreas::Fetch(Area& area, Run run, bool shared) {
  std::vector<ManagedSpan> spans;
  AddSpans(area, area.ChunkBegin(run.first), area.ChunkEnd(run.first + run.count - 1), &spans);
  for (int reading = 0; reading < kMostReadings; ++reading) {
    bool changed = false;
    const CUresult result = link_.Read(spans, &changed);
    Failed(result);
    if (result != CUDA_SUCCESS || !shared || !changed) return;
    news_ = true;
    if (reading == 0 && borrowed_ != 0) GiveBackAll(true);
    ReadCompared();
  }
}

bool ManagedAreas::Serve(const PageFault& fault) {
  Area* area = Find(fault.address);
  if (area == nullptr) return false;
  const size_t chunk = (fault.address - area->begin) / area->chunk_bytes;
  const State state = area->state[chunk];
  if (state == State::kAbsent) return false;
  // Where the kernel tells of touches it tells of those of this memory alone.
  if (area->is_kept && !watch_.serves_system_calls()) {
    const uint64_t begin = area->ChunkBegin(chunk);
    if (!HasMappings(*area, {{begin, std::min(area->end, begin + kWindowBytes + area->chunk_bytes)}})) {
      ForgetGone(true);
      if (Find(fault.address) != area) return false;
    }
  }
  const bool writes = fault.write || !watch_.notices_writes();
  // Another thread's fault may have been served meanwhile, or the kernel has unmapped the page by itself.
  if (state == State::kOwned || state == State::kShared || (state == State::kClean && !writes)) {
    const uint64_t page = PageFloor(fault.address);
    watch_.Set({page, page + kPageBytes, area->Alias(page)}, Access::kNone, AccessOf(*area, state));
    return true;
  }
  // Said before work is asked after: a thread that starts some says so before it looks here (MessageInFlight).
  ++accessible_;
  const bool shared = PublishAccessible(accessible_);
  const State wanted = !writes ? State::kClean : shared ? State::kShared : State::kOwned;
  if (state == State::kReady) {
    SetState(*area, {chunk, 1}, wanted);
    if (!shared) PlanAhead(*area, wanted);
  } else {
    const bool in_order = chunk == area->next_fault;
    const Run run = Window(*area, chunk, state, shared ? kSharedWindowBytes : kWindowBytes);
    if (state == State::kAway) Fetch(*area, run, shared);
    --accessible_;
    if (Find(fault.address) != area) return true;  // the program has unmapped some of it meanwhile
    ++accessible_;
    SetState(*area, run, wanted);
    if (state == State::kAway && in_order && run.count >= kSureChunks && !shared) PlanAhead(*area, wanted);
  }
  --accessible_;
  return true;
}

void ManagedAreas::PlanAhead(const Area& area, State state) {
  const size_t next = area.next_fault;
  if (next >= area.state.size() || area.state[next] != State::kAway) return;
  ahead_ = area.ChunkBegin(next);
  ahead_state_ = state;
}

bool ManagedAreas::ReadAhead() {
  Area* area = ahead_ != 0 ? Find(ahead_) : nullptr;
  if (area == nullptr) return false;
  const size_t chunk = (ahead_ - area->begin) / area->chunk_bytes;
  ahead_ = 0;
  if (area->state[chunk] != State::kAway) return false;
  ++accessible_;  // as Serve
  if (!PublishAccessible(accessible_)) {
    const Run run = Window(*area, chunk, State::kAway, kWindowBytes);
    const WatchedPages pages = PagesOf(*area, run);
    if (area->is_kept && !HasMappings(*area, {{pages.begin, pages.end}})) {
      --accessible_;
      ForgetGone(true);
      return false;
    }
    Fetch(*area, run, false);  // it gives nothing back: no work is in flight
    if (run.count > 1) SetState(*area, {chunk + 1, run.count - 1}, ahead_state_);
    Mark(*area, {chunk, 1}, State::kReady);
  }
  --accessible_;
  return true;
}

}  // namespace causeway::guest
