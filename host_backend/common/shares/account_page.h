// SPDX-License-Identifier: Apache-2.0
// What the processes of one VM (or one local user, or one TCP peer) hold, on pages that the daemon and its
// workers share and no guest sees. Each worker has a cell, a page of its own, that it alone can write: it
// maps all others, and the daemon's page before them, through a descriptor that was opened for reading. So a
// worker that was taken can say anything of itself and nothing of others. What the VM holds is the sum of the
// cells, none of which counts for more than kMostOfCell, so that no sum overflows; a worker that dies leaves
// nothing but its cell, which the daemon clears.
//
// Whether there is room is found out without a lock: a worker says in its cell what it asks for, then looks
// at all others. Where there is room for all that is asked, it takes; where not, lower cells go first. A
// worker that asks for ever keeps others of its VM from the last bytes below the limit, as if it took them.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "host_backend/common/shares/link_words.h"
#include "host_backend/common/shares/turn_words.h"

namespace causeway {

enum class MemoryKind : uint32_t {
  kDevice,   // cuMemAlloc and its like, arrays, pools, cuMemCreate, graphs
  kManaged,  // managed memory, wherever it lies
  kPinned,   // pinned and registered memory of the region
  kStaging,  // the session's bulk buffers
  kImages,   // of modules and libraries, as loaded
};
inline constexpr uint32_t kMemoryKinds = 5;
inline constexpr const char* kMemoryKindNames[kMemoryKinds] = {"device", "managed", "pinned", "staging",
                                                               "images"};
inline constexpr uint32_t kAccountDevices = 16;  // different GPUs on one page
inline constexpr uint32_t kAccountCells = 4096;  // sessions of one VM at once
inline constexpr int kNoDevice = -1;             // memory of the host: not limited here

inline constexpr uint64_t kMostOfCell = uint64_t{1} << 44;
inline constexpr size_t kAccountPageBytes = 4096;

// By which pages and turns know a GPU: of its UUID, and never 0.
uint64_t DeviceHash(const unsigned char uuid[16]);

// Written by one worker, read by all of its VM as what an attacker may have written.
struct alignas(kAccountPageBytes) AccountCell {
  std::atomic<uint64_t> device[kAccountDevices];  // which device has this place: of its UUID's hash; 0: none
  std::atomic<uint64_t> on_device[kAccountDevices];  // of all kinds
  std::atomic<uint64_t> asked[kAccountDevices];      // and not taken yet
  std::atomic<uint64_t> by_kind[kMemoryKinds];
  std::atomic<uint64_t> refused;  // calls over the limit
};
static_assert(sizeof(AccountCell) == kAccountPageBytes);

// The other page of a worker: its turns on each device, at the place that the device has in its cell. The GPU writes
// here, so that kernels of its guest could if they knew the address; therefore no memory is counted here.
struct alignas(kAccountPageBytes) TurnCell {
  TurnWords turns[kAccountDevices];
  // How often a record has waited for its turn for less than 2 to the power of the place in microseconds, and
  // not less than half of that.
  std::atomic<uint32_t> waits[kWaitPlaces];
  LinkWords links[kAccountDevices];  // at the same places as its turns
};
static_assert(sizeof(TurnCell) == kAccountPageBytes);

class AccountPage {
 public:
  // The cell's place for the device with that UUID, made on first use; kNoDevice when all are taken.
  int PlaceOf(uint32_t cell, const char uuid[16]);

  // False: the VM would hold more than its limit on that device. Partner: Return, of the same amounts.
  bool Take(uint32_t cell, MemoryKind kind, int place, uint64_t bytes);
  // Memory that is taken already, whatever the limit.
  void Add(uint32_t cell, MemoryKind kind, int place, uint64_t bytes);
  void Return(uint32_t cell, MemoryKind kind, int place, uint64_t bytes);

  // A call of the session was refused for the limit.
  void CountRefusal(uint32_t cell) { cells_[cell].refused.fetch_add(1, std::memory_order_relaxed); }

  // The sum of all cells: on the device that has that place in `cell`, or that UUID; of that kind.
  uint64_t OnDevice(uint32_t cell, int place) const;
  uint64_t OnDevice(const char uuid[16]) const;
  uint64_t OfKind(MemoryKind kind) const;
  uint64_t OnAllDevices() const;
  uint64_t Refused() const;
  // What one cell has.
  uint64_t OfCell(uint32_t cell, const char uuid[16]) const;
  uint64_t OfCell(uint32_t cell, MemoryKind kind) const;
  uint64_t OfCell(uint32_t cell, int place) const;

  // The daemon's part.
  void Begin(uint64_t limit_bytes) { limit_bytes_.store(limit_bytes); }
  void Open(uint32_t cell);
  // To be called when its worker is gone.
  void Close(uint32_t cell);
  uint32_t opened() const { return cell_count(); }  // cells from here on were never opened

  const AccountCell& cell(uint32_t index) const { return cells_[index]; }
  const TurnCell& turn_cell(uint32_t index) const { return turns_[index]; }
  TurnCell& turn_cell(uint32_t index) { return turns_[index]; }  // for the worker whose cell it is
  // What the daemon grants on the device with that hash (AccountCell::device). Null: nothing yet.
  const GrantWords* GrantOn(uint64_t device) const;
  // The daemon's: the same, made on first use; null when all places are taken.
  GrantWords* MakeGrantOn(uint64_t device);
  // What belongs to that grant: how copies over the link of the same device are divided.
  const LinkGrantWords& LinkOf(const GrantWords& grant) const { return link_grants_[&grant - grants_]; }
  LinkGrantWords& LinkOf(const GrantWords& grant) { return link_grants_[&grant - grants_]; }
  uint64_t limit_bytes() const { return limit_bytes_.load(std::memory_order_relaxed); }  // 0: none

 private:
  struct Claims {
    uint64_t held = 0;          // of all cells
    uint64_t asked = 0;         // of other cells
    uint64_t asked_before = 0;  // of lower ones
  };
  Claims ClaimsOn(uint64_t device, uint32_t cell) const;
  uint32_t cell_count() const { return std::min(cell_count_.load(), kAccountCells); }

  alignas(kAccountPageBytes) std::atomic<uint64_t> limit_bytes_;  // for each device
  std::atomic<uint32_t> cell_count_;                              // cells from here on were never opened
  std::atomic<uint64_t> granted_[kAccountDevices];  // of which device the grant of this place is
  GrantWords grants_[kAccountDevices];
  LinkGrantWords link_grants_[kAccountDevices];
  AccountCell cells_[kAccountCells];
  TurnCell turns_[kAccountCells];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(sizeof(AccountPage) == (1 + 2 * kAccountCells) * kAccountPageBytes);
// As the first release made them, without turn cells. Daemons and workers of different releases share pages, so what is new comes
// behind what was there: in the rest of the daemon's page, and behind all cells.
inline constexpr size_t kFirstAccountBytes = (1 + kAccountCells) * kAccountPageBytes;

// Maps all of it for the daemon, which can write everything; pages of an earlier release are made longer. Null: *error says why. It
// stays mapped.
AccountPage* MapAccountPage(int descriptor, std::string* error);
// Does so for a worker: all cells through `reading`, opened for reading only, its own through `descriptor`. What pages of an earlier
// release lack is the process's own memory.
AccountPage* MapAccountPage(int descriptor, int reading, uint32_t cell, std::string* error);

}  // namespace causeway
