// SPDX-License-Identifier: Apache-2.0
// Pages of this process at the addresses of managed memory that the host's driver placed. A chunk of them is
//
//   absent   no managed memory lies there: no access
//   away     the driver's bytes count: no access, and whoever touches the chunk makes it be fetched
//   clean    a copy to read, of when it was fetched
//   owned    this process's bytes count: read and written at will, while no work is under way
//   ready    fetched ahead, while no work is under way, and not accessible yet: to touch it says that the
//            program goes on in order
//   shared   fetched and written while work is under way: a twin says what was fetched, and only bytes that
//            differ from it are this process's
//
// Before work starts everything is given back: what is owned or differs from its twin goes to the driver, and
// all chunks are away. While work is under way this is repeated in short intervals, so the program and a
// running kernel see each other's writes, and both survive where they write different bytes of a chunk (words
// of eight bytes, where this process has written hundreds of stretches in one interval).
//
// Order holds for programs that pass data by flags. This process's chunks go to the driver in the order in
// which they were first written, with access withdrawn from all of them before the first is looked at (within
// a chunk the order is a guess, ManagedAreas::FlagsLast). When a chunk that is fetched brings anything new,
// chunks that were fetched before it are given back before the program sees it, and it is read again until it
// stays the same.
//
// The pages lie in a file of memory, mapped once for the program and once for this class, which never touches
// the former. One thread uses this class (guest_lib/managed/pager.cc).
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "guest_lib/managed/link.h"
#include "guest_lib/managed/page_watch.h"
#include "guest_lib/process/fault_handler.h"

namespace causeway::guest {

struct ManagedMemory {
  uint64_t address;
  uint64_t bytes;
  WireHandle context;  // as ManagedSpan
  WireHandle stream;
  bool fresh;  // nobody has written it yet
};

// How many chunks the program may access, for whoever would ask for them to be given back: the one instance
// of ManagedAreas keeps it. Lock-free, for signal handlers.
inline std::atomic<uint64_t> accessible_chunks{0};

class ManagedAreas {
 public:
  ManagedAreas(ManagedLink& link, PageWatch& watch) : link_(link), watch_(watch) {}

  // False if there can be no pages at these addresses.
  bool Add(const ManagedMemory& memory);
  void Remove(uint64_t address);
  // False: the fault has nothing to do with managed memory.
  bool Serve(const PageFault& fault);
  // Everything is away when this returns.
  void GiveBack();
  // The same while work is under way; memory that is still fresh stays unless the program wrote elsewhere
  // too. False if neither side had anything new.
  bool Exchange();
  // After a fault of a program that goes through memory in order: fetches what it will want next, while it
  // works on what it has. False if there is nothing to do.
  bool ReadAhead();
  // No work is under way: variables become accessible again without a fault, which system calls would not
  // survive.
  void Restore();
  // Chunks that the program may access now.
  uint64_t accessible() const { return accessible_; }
  // Accesses that will be given back only in time, as opposed to fresh memory.
  uint64_t borrowed() const { return borrowed_; }

 private:
  enum class State : uint8_t { kAbsent, kAway, kReady, kClean, kOwned, kShared };
  struct Twin {
    std::unique_ptr<std::byte[]> bytes;
    uint64_t order;
  };
  struct Area {
    uint64_t begin, end, chunk_bytes;
    int file;
    std::byte* alias;
    std::vector<State> state;
    std::map<size_t, Twin> twins;
    bool fresh = false;       // all that is owned was so from the beginning
    uint64_t accessible = 0;  // chunks
    size_t next_fault = 0;    // where a program that goes on in order would fault next
    size_t window = 1;        // chunks that are fetched at once
    uint64_t ChunkBegin(size_t i) const { return begin + i * chunk_bytes; }
    uint64_t ChunkEnd(size_t i) const { return std::min(end, begin + (i + 1) * chunk_bytes); }
    std::byte* Alias(uint64_t address) const { return alias + (address - begin); }
  };
  struct Run {
    size_t first, count;
  };

  Area* Find(uint64_t address);
  bool Make(uint64_t begin, uint64_t end, State state);
  static Access AccessOf(const Area& area, State state);
  static WatchedPages PagesOf(const Area& area, Run run);
  // Chunks that are all in one state.
  void SetState(Area& area, Run run, State state);
  void Mark(Area& area, Run run, State state);
  Run Window(Area& area, size_t chunk, State wanted, size_t most);
  // Spans of managed memory within [begin, end).
  void AddSpans(const Area& area, uint64_t begin, uint64_t end, std::vector<ManagedSpan>* spans);
  void AddOwned(const Area& area, Run run, std::vector<ManagedSpan>* spans);
  static std::vector<Run> FlagsLast(const std::vector<Run>& runs);
  static std::vector<Run> WholeWords(const std::vector<Run>& runs);
  void AddShared(const Area& area, size_t chunk, const Twin& twin, std::vector<ManagedSpan>* spans);
  bool GiveBackAll(bool keep_fresh);
  void PlanAhead(const Area& area, State state);
  void Fetch(Area& area, Run run, bool shared);
  void Failed(CUresult result);

  ManagedLink& link_;
  PageWatch& watch_;
  std::map<uint64_t, Area> areas_;            // by begin; they do not overlap
  std::map<uint64_t, ManagedMemory> memory_;  // by address
  uint64_t accessible_ = 0, borrowed_ = 0, order_ = 0;
  size_t variables_ = 0;
  // What to fetch ahead: from there on, and what becomes of it.
  uint64_t ahead_ = 0;  // 0: nothing
  State ahead_state_ = State::kClean;
  bool news_ = false;  // a fetch brought something new since the last Exchange
  bool complained_ = false;
};

}  // namespace causeway::guest
