// SPDX-License-Identifier: Apache-2.0
// What the processes of one VM (or one local user, or one TCP peer) hold, on a page that the daemon and its
// workers share and no guest sees. Each worker has a cell that it alone writes; what the VM holds is the sum
// of the cells, so a worker that dies in the middle of anything leaves nothing behind but its cell, which the
// daemon clears. Only reserving must be alone, or two workers could share the last bytes: `reserving` names
// the cell whose worker is at it, and the daemon opens it for one that died.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>

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

struct AccountCell {
  std::atomic<uint64_t> on_device[kAccountDevices];  // of all kinds; by place in AccountPage::device
  std::atomic<uint64_t> by_kind[kMemoryKinds];
  std::atomic<uint64_t> refused;  // calls over the limit
  uint64_t reserved[2];
};
static_assert(sizeof(AccountCell) == 192);

class AccountPage {
 public:
  // A place for the device with that UUID, made on first use; kNoDevice when all are taken.
  int PlaceOf(const char uuid[16]);

  // False: the VM would hold more than its limit on that device. Partner: Return, of the same amounts.
  bool Take(uint32_t cell, MemoryKind kind, int place, uint64_t bytes);
  // Memory that is taken already, whatever the limit.
  void Add(uint32_t cell, MemoryKind kind, int place, uint64_t bytes);
  void Return(uint32_t cell, MemoryKind kind, int place, uint64_t bytes);

  // A call of the session was refused for the limit.
  void CountRefusal(uint32_t cell) { cells_[cell].refused.fetch_add(1, std::memory_order_relaxed); }

  // Of all cells.
  uint64_t OnDevice(int place) const;
  uint64_t OfKind(MemoryKind kind) const;

  // The daemon's part.
  void Begin(uint64_t limit_bytes) { limit_bytes_.store(limit_bytes); }
  void Open(uint32_t cell);
  // Its worker is gone.
  void Close(uint32_t cell);

  const AccountCell& cell(uint32_t index) const { return cells_[index]; }
  uint64_t limit_bytes() const { return limit_bytes_.load(std::memory_order_relaxed); }  // 0: none

 private:
  bool BeginReserving(uint32_t cell);

  std::atomic<uint64_t> limit_bytes_;              // for each device
  std::atomic<uint64_t> places_[kAccountDevices];  // 64 bits of the UUID's hash; 0: free
  std::atomic<uint32_t> reserving_;                // cell + 1; 0: nobody
  std::atomic<uint32_t> cell_count_;               // cells from here on were never opened
  [[maybe_unused]] uint64_t padding_[6];
  AccountCell cells_[kAccountCells];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// Maps the page behind a descriptor; null and *error where that fails. It stays mapped.
AccountPage* MapAccountPage(int descriptor, std::string* error);

}  // namespace causeway
