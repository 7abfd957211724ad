// SPDX-License-Identifier: Apache-2.0
// The daemon's view of one region: granule 0 and the slots, mapped. What the guest wrote is copied out once.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "host_backend/common/result.h"
#include "host_backend/common/unique_fd.h"
#include "host_backend/daemon/region/sigbus_guard.h"
#include "host_backend/granted/sleep_word.h"
#include "ivshmem_ring/transport/layout.h"

namespace causeway::daemon {

// What the superblock says beyond the counts that follow from the size.
struct RegionIdentity {
  uint64_t host_epoch = 0;
  std::array<uint8_t, 16> uuid{};
};

// Of the zlib polynomial, reflected, as zlib's crc32(0, ...).
uint32_t Crc32(const void* data, size_t bytes);

// Random bits from the kernel.
uint64_t RandomWord();
RegionIdentity NewIdentity();

// The owner of each granule, as copied out of shared memory at one moment.
using OwnerTable = std::vector<uint16_t>;

struct GranuleRange {
  uint32_t first = 0;
  uint32_t count = 0;
};

class Region {
 public:
  // Maps the control part of a region of `region_bytes` (already checked). `name` appears in error sentences.
  static Result<std::unique_ptr<Region>> Map(UniqueFd fd, uint64_t region_bytes, const std::string& name);
  // Makes the file system in whose files Create's regions have pages of 2 MiB: making, mapping and pinning
  // those takes a fraction of the time. Mounting takes CAP_SYS_ADMIN, so the daemon calls this before it
  // gives up its rights. False: this process may not, and Create's regions have ordinary pages.
  static bool UseHugePages();
  // Makes a region in a new file of that size in memory, zeroed.
  static Result<std::unique_ptr<Region>> Create(uint64_t region_bytes);
  ~Region();

  int fd() const { return fd_.get(); }
  // The same file, through which nothing can ever be written; -1 where it cannot be had. Granted memory has no such
  // descriptor: there it is the same as fd() (docs/xen.md says what follows from it).
  int reading_fd() const { return reading_fd_.get(); }
  uint64_t bytes() const { return bytes_; }
  // Whether it is memory that a domain of Xen was granted: workers cannot sleep on its words.
  bool granted() const { return granted_; }
  // Where that slot's worker sleeps from now on, for WakeSleepers; granted memory only.
  void SetSleepWord(uint32_t slot, std::shared_ptr<const SleepWord> word);
  uint32_t slot_count() const { return SlotCount(bytes_); }
  uint32_t granule_count() const { return GranuleCount(bytes_); }
  // Whether the file has shrunk under the mapping, so that what is read from it means nothing any more.
  bool broken() const { return guard_.tripped(); }

  bool IsBlank() const;   // superblock and host page hold nothing but zeros
  bool HasMagic() const;  // there is a superblock, whichever build wrote it
  bool IsOurs() const;    // it has this build's layout, this region's size and a correct checksum

  // Writes superblock and host page. With `keep_words` a running guest's module can go on: host words keep
  // their sessions, closed ones stay closed and all others become FATAL. The guest's page and owner table are
  // left alone.
  void Format(const RegionIdentity& identity, bool keep_words);
  // Instead of Format where sessions go on: those slots' host words are `words`, and others as with `keep_words`. The
  // epoch stays, by which their processes know that the daemon is no other one to them.
  void Resume(const std::map<uint32_t, uint32_t>& words);
  // Zeroes granule 0's guest part (page and owner table).
  void ClearGuestPart();

  void SetState(HostState state);
  // Says whether the guest is to ring (HostPage::doorbell).
  void SetDoorbell(bool rings);
  void Beat();
  uint64_t LoadGuestEpoch() const;
  uint64_t LoadGuestFeatures() const;
  void StoreResetAcknowledged(uint64_t epoch);
  uint32_t LoadGuestWord(uint32_t slot) const;
  uint32_t LoadGuestPid(uint32_t slot) const;
  uint32_t LoadGuestUid(uint32_t slot) const;
  uint32_t host_word(uint32_t slot) const { return host_words_[slot]; }
  void StoreHostWord(uint32_t slot, uint32_t word);

  OpenBlock CopyOpenBlock(uint32_t slot) const;
  // The guest's side of the flight record, as bytes.
  std::string CopyFlight(uint32_t slot) const;
  void ClearHostControl(uint32_t slot);
  // Wakes the worker's threads that sleep while their ring holds something. From any thread.
  struct Wakes {
    uint32_t woken = 0;
    uint32_t vain = 0;  // words that claimed a sleeper, but none was there: a guest can write them
  };
  Wakes WakeSleepers(uint32_t slot) const;
  // Cut to the field's size.
  void WriteRefusal(uint32_t slot, std::string_view sentence);
  // Keeps what a worker wrote there before it died: it knew the cause better.
  void WriteRefusalIfEmpty(uint32_t slot, std::string_view sentence);

  // What the slot's submission queue holds; of words that the guest writes, so at most the queue's size.
  uint64_t QueuedBytes(uint32_t slot) const;
  OwnerTable CopyOwnerTable() const;
  // Whether every granule of those bytes belongs to the slot's session now. Not the slots' own memory.
  bool IsLent(uint32_t slot, uint64_t offset, uint64_t bytes) const;
  // Gives the memory of `count` granules back to the system, or zeroes it where it is granted to a domain; they read
  // as zero afterwards.
  bool ZeroGranules(uint32_t first, uint32_t count);
  // When this object ends, a thread of its own gives back all memory of the region but granule 0's, also if
  // other processes have it mapped. For a region whose only session is over: the event loop has no part in it.
  void DiscardAtEnd() { discard_at_end_ = true; }
  // The slot's granule and every slice that `owners` gives to it.
  std::vector<GranuleRange> SlotMemory(uint32_t slot, const OwnerTable& owners) const;
  // All slots and slices.
  std::vector<GranuleRange> AllMemory() const { return {{1, granule_count() - 1}}; }

 private:
  Region(UniqueFd fd, uint64_t bytes, std::byte* base, size_t mapped_bytes);
  bool WriteZeroes(uint64_t offset);
  HostPage& host_page() const;
  GuestPage& guest_page() const;
  HostControl& host_control(uint32_t slot) const;
  GuestControl& guest_control(uint32_t slot) const;
  Superblock BlockOf(const RegionIdentity& identity) const;

  UniqueFd fd_;
  UniqueFd reading_fd_;
  const uint64_t bytes_;
  std::byte* const base_;
  const size_t mapped_bytes_;
  SigbusGuard guard_;
  const bool granted_;  // a device's memory, which lasts as long as its descriptor
  mutable std::mutex sleep_mutex_;
  std::map<uint32_t, std::shared_ptr<const SleepWord>> sleep_words_;  // by slot
  bool discard_at_end_ = false;
  uint64_t beat_ = 0;
  std::array<uint32_t, kMaxSlots> host_words_{};  // what this side wrote: never read back
};

}  // namespace causeway::daemon
