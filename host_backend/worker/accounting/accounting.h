// SPDX-License-Identifier: Apache-2.0
// What the worker's session holds of each kind of memory, counted on the page of its VM
// (host_backend/common/shares/account_page.h), and the VM's limit on device memory. Calls that take and give
// memory are counted by guards (AccountMemory); code that takes memory in another way says so here. Any thread.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "host_backend/common/shares/account_page.h"
#include "host_backend/worker/driver/driver.h"

namespace causeway::host {

// Memory that is counted as long as there is a reference to it.
class Charge {
 public:
  Charge(AccountPage* page, uint32_t cell, MemoryKind kind, int place, uint64_t bytes)
      : page_(page), cell_(cell), kind_(kind), place_(place), bytes_(bytes) {}
  ~Charge() { page_->Return(cell_, kind_, place_, bytes_); }
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;
  MemoryKind kind() const { return kind_; }
  uint64_t bytes() const { return bytes_; }

 private:
  AccountPage* const page_;
  const uint32_t cell_;
  const MemoryKind kind_;
  const int place_;
  const uint64_t bytes_;
};
using ChargeRef = std::shared_ptr<const Charge>;

// What a charge is held for; values of different spaces may be equal.
enum class ChargeSpace : uint32_t {
  kAddress,
  kArray,
  kAllocation,
  kMapping,
  kImage,
  kArena,
  kModule,   // what a module or library takes beyond its image
  kContext,  // what a context that the program made takes
  kLimit,    // stacks and heaps of a context: its address and the limit's number
};

// One thing that holds memory. It ends with `context`, or with the primary context of `device`, unless that
// is kNoDevice.
struct Holding {
  ChargeRef charge;
  CUcontext context = nullptr;
  int device = kNoDevice;
  uint32_t references = 1;
  // What else is held for the same key (Accounting::Hold). These have no others.
  std::vector<Holding> others{};

  bool Has(const ChargeRef& wanted) const;
  // Holds that too; the references stay as they are.
  void Join(Holding more);

  // The most that `of` says of one of its charges; 0: it has none.
  template <class Of>
  uint64_t Most(Of of) const {
    uint64_t most = charge != nullptr ? of(*charge) : 0;
    for (const Holding& other : others) most = std::max<uint64_t>(most, other.Most(of));
    return most;
  }
};

class Accounting {
 public:
  Accounting();
  // With a page of the caller's instead of one of its own, which stays the caller's; cell 0 is used.
  explicit Accounting(AccountPage* page);

  // Counts on that page from now on, for the devices that the driver shows. Before other threads count.
  void Attach(AccountPage* page, uint32_t cell);
  uint64_t limit_bytes() const { return page_->limit_bytes(); }
  // Of each device, by the driver's number: its place in the cell, or kNoDevice.
  std::array<int, kAccountDevices> places() const;

  // Before memory is taken. Null: over the limit, which the log has been told. `device` is the driver's
  // number, or kNoDevice for memory of the host.
  ChargeRef Reserve(MemoryKind kind, int device, uint64_t bytes);
  // What the charge is held for, once it exists. Ends with the caller's context if it is `in_context`. What is
  // held for the key already stays beside it until the key is taken or its context ends: between the driver's
  // call that made one of the two and this one, others may have given back what was made and got the key again,
  // so nobody can tell which of them lives.
  void Hold(ChargeSpace space, uint64_t key, ChargeRef charge, bool in_context);
  void Hold(ChargeSpace space, uint64_t key, Holding holding);
  // One more reference to what is held; it is dropped as often. False: nothing is held for the key.
  bool HoldAgain(ChargeSpace space, uint64_t key);
  // What is held for the key, if anything, as one reference.
  Holding Find(ChargeSpace space, uint64_t key) const;
  // Of what was charged by its first byte and lies around that address.
  Holding FindAround(ChargeSpace space, uint64_t address) const;
  // Before memory is given back: afterwards its key may be another thread's.
  Holding Take(ChargeSpace space, uint64_t key);
  // The driver refused to take it back. If that key has another owner by now, both are held, as after Hold.
  void PutBack(ChargeSpace space, uint64_t key, Holding holding);
  // Of what is held for the key that charge alone, if it is there: what others hold for the key stays.
  void Drop(ChargeSpace space, uint64_t key, const ChargeRef& charge);
  // As Take, all whose key is in [first, first + count).
  std::vector<std::pair<uint64_t, Holding>> TakeRange(ChargeSpace space, uint64_t first, uint64_t count);

  // Memory that is taken already, and what is given back of it.
  void Add(MemoryKind kind, int device, uint64_t bytes) { page_->Add(cell_, kind, Place(device), bytes); }
  void Return(MemoryKind kind, int device, uint64_t bytes) {
    page_->Return(cell_, kind, Place(device), bytes);
  }

  // Counts pinned memory that the worker allocates itself. False: the VM would have more than `most` bytes of it, and nothing is
  // counted.
  bool TakePinned(uint64_t bytes, uint64_t most);

  // Contexts that the program made; all else on a device belongs to its primary one.
  void ContextBegins(CUcontext context);
  void ContextEnds(CUcontext context);
  void PrimaryEnds(CUdevice device);

  // Pools and graphs take and give back by themselves, so the driver is asked
  // (host_backend/worker/accounting/accounting_pools.cc).
  void KnowPool(CUmemoryPool pool, MemoryKind kind, int device);
  // The same of one that the driver names in *pool when `give` asks it. It may be one that another thread is about to
  // end, so no pool ends in between.
  CUresult KnowGivenPool(const CUmemoryPool* pool, MemoryKind kind, int device,
                         const std::function<CUresult()>& give);
  // Calls `destroy`, which ends the pool. Meanwhile no thread asks about the pool, or takes another one for
  // it that has its pointer.
  CUresult EndPool(CUmemoryPool pool, const std::function<CUresult()>& destroy);
  // `allocate` takes from the pool and sets *address, `undo` gives it back. Null: the device's current pool.
  CUresult AllocateFromPool(CUmemoryPool pool, const CUdeviceptr* address, uint64_t bytes,
                            const std::function<CUresult()>& allocate, const std::function<void()>& undo);
  // Around the driver's call that frees what may lie in a pool.
  CUresult FreeFromPool(CUdeviceptr address, const std::function<CUresult()>& free);
  // An executable graph whose launches take memory, and its launch.
  void KnowGraph(CUgraphExec exec, CUgraph graph);
  // `destroy` ends it: afterwards its pointer may be another's.
  CUresult EndGraph(CUgraphExec exec, const std::function<CUresult()>& destroy);
  CUresult LaunchGraph(CUgraphExec exec, const std::function<CUresult()>& launch);
  void GraphsTrimmed();  // after the driver has given back what graphs kept (cuDeviceGraphMemTrim)
  // Takes over what pools and graphs hold now.
  void Refresh();

  // What this session holds on the device, of all that is counted.
  uint64_t OwnOnDevice(int device) const;

  // What the VM may know of a device's memory, in bytes. TotalBytes: of a device that has so many.
  void LimitInfo(CUdevice device, size_t* free, size_t* total);
  uint64_t TotalBytes(uint64_t bytes) const;

 private:
  using Key = std::pair<ChargeSpace, uint64_t>;
  // What the driver took on its own, as far as it is counted.
  struct Reservoir {
    MemoryKind kind = MemoryKind::kDevice;
    int device = kNoDevice;
    uint64_t counted = 0;
  };
  struct GraphMemory {
    std::vector<std::pair<int, uint64_t>> by_device;
    bool backed = false;  // launched since the driver's last trim
  };

  int Place(int device) const;
  bool TakeBytes(MemoryKind kind, int device, uint64_t bytes);
  void Refuse(int device, uint64_t bytes);
  void EndWhere(const std::function<bool(const Holding&)>& ends);
  static bool EndPart(Holding& holding, const std::function<bool(const Holding&)>& ends);
  // These want reservoirs_mutex_.
  void Trim(int device);
  bool TakeOrTrim(MemoryKind kind, int device, uint64_t bytes);
  void Settle(Reservoir& reservoir, uint64_t held, uint64_t* advance);
  void RefreshPool(CUmemoryPool pool, Reservoir& reservoir, uint64_t* advance);
  void RefreshGraphs(int device, uint64_t* advance);
  void RefreshLocked();
  Reservoir* FindPool(CUmemoryPool* pool, int device);
  CUresult LaunchLimited(GraphMemory& memory, const std::function<CUresult()>& launch);

  struct Unmap {
    void operator()(AccountPage* page) const;
  };
  std::unique_ptr<AccountPage, Unmap> own_page_;  // before there is a session
  AccountPage* page_;
  uint32_t cell_ = 0;
  int places_[kAccountDevices];
  std::atomic<int64_t> said_at_s_{-1'000'000};

  mutable std::mutex mutex_;
  std::map<Key, Holding> holdings_;
  std::set<CUcontext> contexts_;

  std::mutex reservoirs_mutex_;
  std::map<CUmemoryPool, Reservoir> pools_;
  std::map<int, Reservoir> graphs_;  // by device
  std::map<CUgraphExec, GraphMemory> execs_;
  std::atomic<uint32_t> pool_devices_{0};  // bits of devices whose default pools are known
  std::atomic<bool> any_graphs_{false};
  // Under a limit, what lives in pools that the program made: it outlives them.
  struct Pooled {
    CUmemoryPool pool;
    uint64_t bytes;
    ChargeRef outlives;  // what EndPool holds for the address instead of this entry
  };
  // Frees that are being made share them.
  std::map<CUdeviceptr, std::shared_ptr<Pooled>> pooled_;
  std::atomic<bool> any_pooled_{false};
};

// Of this process, which serves one session.
Accounting& TheAccounting();

// Puts the guards that count what calls take and give.
void AccountMemory(Driver& driver);
// host_backend/worker/accounting/accounting_driver.cc: memory that no argument tells of, under a limit. Loads
// a module, and counts in *charge what it takes beyond its image, if that is more than a little;
// CUDA_ERROR_OUT_OF_MEMORY, with nothing loaded, where that is over the limit. `undo` undoes `load`.
CUresult LoadMeasured(uint64_t image_bytes, const std::function<CUresult()>& load,
                      const std::function<void()>& undo, ChargeRef* charge);
// The same of a context on `device`, which is current afterwards.
CUresult CreateMeasured(CUdevice device, const std::function<CUresult()>& create,
                        const std::function<void()>& undo, ChargeRef* charge);
// cuCtxSetLimit counts what the driver may take for it.
void AccountLimits(Driver& driver);

// The exceptions: what is called past the guards that count, and why.
struct Uncounted {
  // What the device has, where the guard tells what the VM may have of it. For measuring.
  static CUresult GetInfo(size_t* free, size_t* total);
  // One byte of the device's, which is never the program's: for its wait (Serve_kDrainDevice). The VM's limit is no
  // reason to fail it.
  static CUresult AllocateAndFree();
  // Undoes a load that nothing is charged for yet, so the guard would find another module's charge there.
  static CUresult Unload(CUmodule module);
  // Give back all that is kept for later. The guards take the lock that the caller, who counts, has.
  static CUresult TrimPool(CUmemoryPool pool);
  static CUresult TrimGraphs(CUdevice device);
};

}  // namespace causeway::host
