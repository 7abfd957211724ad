// SPDX-License-Identifier: Apache-2.0
// Pages of this process at the addresses of managed memory that the host's driver placed, and of pinned and registered
// memory that has pages of the host's own (docs/managed_memory.md). They are kept in chunks, and a chunk is in one of
// these states:
//
//   absent   No managed memory lies there. The program has no access.
//   away     The driver has the valid bytes. The program has no access; touching the chunk fetches it.
//   clean    A copy that the program may read, as the chunk was when it was fetched.
//   owned    This process has the valid bytes. The program may read and write; no work is in flight.
//   ready    Fetched ahead while no work is in flight, and not accessible yet: touching it says that the
//            program goes on in order.
//   shared   Fetched and written while work is in flight. A shadow page (Twin) has the bytes as they were
//            fetched, and only bytes that differ from it are this process's.
//
// Before work starts everything is given back: owned chunks, and bytes that differ from their shadow pages,
// go to the driver, and all chunks are away. While work is in flight this is repeated in short intervals. So
// the program and a running kernel see each other's writes, and both survive where they write different bytes
// of a chunk (different words of eight bytes, where this process has written hundreds of stretches at once).
//
// Order holds for programs that pass data by flags. This process's chunks go to the driver in the order in
// which they were first written, and access to all of them is withdrawn before the first one is read (within
// a chunk the order is a guess, ManagedAreas::FlagsLast). When a fetched chunk brings anything new, the
// chunks fetched before it are given back before the program sees it, and it is read until it stays the same.
//
// The pages lie in a memory file, mapped once for the program and once for this class, which never touches
// the first mapping. Of registered memory only pages without others' bytes are watched; what is beside them is
// compared (guest_lib/managed/compared_bytes.h). One thread uses this class (guest_lib/managed/pager.cc).
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "guest_lib/addresses/mappings.h"
#include "guest_lib/managed/compared_bytes.h"
#include "guest_lib/managed/link.h"
#include "guest_lib/page_watch/page_watch.h"
#include "guest_lib/process/fault_handler.h"
#include "ivshmem_ring/messages/registration.h"

namespace causeway::guest {

struct ManagedMemory {
  enum class Form : uint8_t {
    kManaged,  // this class makes the pages
    kPinned,  // the program's pages are those of `file`, from `offset` on; address and bytes are multiples of 64 KiB
    kKept,  // so are its whole pages that others have no bytes on, and the program keeps them in the end: registered memory, and that of pools
  };
  uint64_t address;
  uint64_t bytes;
  WireHandle context;  // context and stream: as in ManagedSpan
  WireHandle stream;
  bool fresh;  // it was not written yet
  Form form = Form::kManaged;
  int file = -1;  // -1: of kKept, all of it is compared
  uint64_t offset = 0;
  bool is_restored =
      false;  // Restore looks at it: a variable, or pinned memory other than a staging buffer, or registered memory
};

// How many chunks the program may access, so that a thread which would ask for them to be given back can see
// whether there are any. The one instance of ManagedAreas keeps it. It is lock-free, for signal handlers.
inline std::atomic<uint64_t> accessible_chunks{0};

class ManagedAreas {
 public:
  ManagedAreas(ManagedLink& link, PageWatch& watch) : link_(link), watch_(watch) {}

  // Begins to serve managed memory. False: there can be no pages at its addresses.
  bool Add(const ManagedMemory& memory);
  // Ends it. Of registered memory, no work that uses it is in flight: the program then has the valid bytes, and no page is watched.
  // `discard`: the program frees the memory, and no byte of it matters any more.
  void Remove(uint64_t address, bool discard);
  // Fetches what a fault needs, and lets the faulting thread go on. False: it was not in managed memory.
  bool Serve(const PageFault& fault);
  // Gives everything back: all chunks are away when it returns.
  void GiveBack();
  // The same while work is in flight, except for memory that is still fresh, which stays unless the program
  // wrote elsewhere too. With `read_compared` the program also gets what the host has changed of compared bytes, which costs a round
  // trip. False: neither side had anything new.
  bool Exchange(bool read_compared);
  // Lets go of registered memory that the program has unmapped, moved or replaced by something else, in part or as a whole.
  void ForgetGone(bool include_away);
  // To be called after each of the calls above.
  void BuryGone();
  // To be called after a fault. If the program goes through memory in order, it fetches what the program will
  // touch next, while the program works on what it has. False: there is nothing to do.
  bool ReadAhead();
  // To be called when no work is in flight: makes variables, pinned and registered memory accessible again without a
  // fault, so that system calls which are given some succeed; 1 MiB of pinned and registered memory at most.
  void Restore();
  // Chunks that the program may access now.
  uint64_t accessible() const { return accessible_; }
  // The same without fresh memory: the chunks that the next interval gives back.
  uint64_t borrowed() const { return borrowed_; }

 private:
  enum class State : uint8_t { kAbsent, kAway, kReady, kClean, kOwned, kShared };
  struct Twin {  // a shadow page
    std::unique_ptr<std::byte[]> bytes;
    uint64_t order;
  };
  struct Area {
    uint64_t begin, end, chunk_bytes;
    int file;
    uint64_t offset;  // in the file, of the first byte
    bool owns_file;
    bool is_kept;
    std::byte* alias;
    std::vector<State> state;
    std::map<size_t, Twin> twins;
    bool fresh = false;       // all owned chunks are so from the beginning
    uint64_t accessible = 0;  // chunks that the program may access
    size_t next_fault = 0;    // the chunk at which a program that goes on in order would fault next
    size_t window = 1;        // how many chunks are fetched at once
    uint64_t ChunkBegin(size_t i) const { return begin + i * chunk_bytes; }
    uint64_t ChunkEnd(size_t i) const { return std::min(end, begin + (i + 1) * chunk_bytes); }
    std::byte* Alias(uint64_t address) const { return alias + (address - begin); }
  };
  struct Run {
    size_t first, count;
  };

  Area* Find(uint64_t address);
  bool Make(uint64_t begin, uint64_t end, const ManagedMemory& memory);
  static bool MapArea(Area* area, const ManagedMemory& memory);
  bool AddPages(const ManagedMemory& memory, uint64_t begin, uint64_t end);
  bool AddCompared(const ManagedMemory& memory, PageRange watched);
  void RemovePages(uint64_t begin, uint64_t end);
  void BringHome(const Area& area, const Mapping& part);
  static std::vector<Mapping> PartsOf(const Area& area, const std::vector<Mapping>& mappings);
  static bool IsStillThere(const Area& area, PageRange pages, const std::vector<Mapping>& mappings);
  static bool HasMappings(const Area& area, const std::vector<PageRange>& pages);
  static std::vector<PageRange> PagesToChange(const Area& area, bool include_away);
  bool ReadCompared();
  static Access AccessOf(const Area& area, State state);
  static WatchedPages PagesOf(const Area& area, Run run);
  // Change the state of a run of chunks, all of which are in one state.
  void SetState(Area& area, Run run, State state);
  void Mark(Area& area, Run run, State state);
  Run Window(Area& area, size_t chunk, State wanted, size_t most);
  // Adds the spans of managed memory within [begin, end).
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
  ComparedBytes& compared_ = TheComparedBytes();
  std::map<uint64_t, Area> areas_;            // by begin; they do not overlap
  std::map<uint64_t, ManagedMemory> memory_;  // by address
  std::vector<std::map<uint64_t, Area>::node_type>
      gone_;  // areas that were forgotten while a call is at work
  uint64_t accessible_ = 0, borrowed_ = 0, order_ = 0;
  size_t restored_ = 0;  // how many of them Restore looks at
  // The address from which to fetch ahead (0: nothing), and the state that the chunks get.
  uint64_t ahead_ = 0;
  State ahead_state_ = State::kClean;
  bool news_ = false;  // a fetch brought something new since the last Exchange
  bool complained_ = false;
};

}  // namespace causeway::guest
