// SPDX-License-Identifier: Apache-2.0
// The worker's table from wire handles to the driver's pointers, and of what requests use. A number that was
// never bound, was ended, or is of another kind finds nothing.
//
// No object ends while a request uses it. What a request has found (Use) or bound stays as long as the
// request is executed: a call that ends an object makes it and all that ends with it unfindable at once, and
// reaches the driver only when no other request uses any of them; the last that did makes the call
// (EndObject). Natively such a program is undefined, and the driver crashes. The same holds for what graphs
// remember: NVIDIA's driver (580.159) crashes when it instantiates a graph whose event or module has ended.
//
// A number says nothing about an object's identity: a guest may bind the number of an object that lives, or
// that waits for its end, to another one. So an owner is named by number and pointer (Found), and an object
// that loses its number is found nowhere any more, gets no other number, and ends with its owner.
//
// Threads: all of it may be called from any thread. Look-ups take no lock: each thread publishes what its
// request uses in a record of its own, and one that ends an object looks at the records of all. A look-up
// publishes first and then asks whether the number is alive; the other side makes it dead first and then
// looks. The full fence between the two steps is on the side of the end alone (membarrier), where the kernel
// has it, and is left out where no other thread executes a request. The same pair of steps wakes the last
// user: an end that has to wait marks the records that it waits for and looks again.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "host_backend/worker/objects/relatives.h"
#include "ivshmem_ring/protocol/handle.h"
#include "ivshmem_ring/transport/layout.h"

namespace causeway::host {

// An object as a request has found it: the number may be another's by now, both together are not while the
// request is executed. No number: none.
struct Found {
  WireHandle wire = 0;
  void* value = nullptr;
};

class HandleTable {
 public:
  // Tells the kernel that this process will fence its threads. To be called while it has one: with more, the
  // first table does it and waits for an RCU grace period, 10 ms on an idle host and more on a busy one.
  static void PrepareFences();

  HandleTable();
  ~HandleTable();
  HandleTable(const HandleTable&) = delete;
  HandleTable& operator=(const HandleTable&) = delete;

  // ---- requests of the calling thread

  // What is found from now on stays until EndRequest. The caller executes a locked instruction before its
  // first Use: that is the fence between saying that it is active and looking. Begun twice is begun once.
  void BeginRequest() {
    Record& mine = Mine();
    if (is_asymmetric_) [[likely]] {
      mine.active.store(kServes, std::memory_order_relaxed);
    } else {
      mine.active.exchange(kServes);
    }
  }
  // What the request has used may end from here on. The caller says so before anybody can learn that the request is executed: an
  // end that is asked for after that would otherwise be left to this thread, and answered before the driver has made it.
  void RestRequest() { Rest(Mine()); }
  // Rests, and makes calls that were left to the last user of an object. They may take long, so the request's caller gets its answer before.
  void EndRequest() {
    Record& mine = Mine();
    Rest(mine);
    if (mine.is_awaited.load(std::memory_order_relaxed) != 0) [[unlikely]]
      RunDue(mine);
  }
  // The request has returned what it had to itself (try_exclusive).
  void NoteReturned() {
    if (exclusive_waits_.load(std::memory_order_relaxed) != 0) Mine().is_awaited.store(1);
  }
  // Null if not alive.
  void* Use(HandleKind kind, WireHandle wire) {
    if (WireKind(wire) != NumberKind(kind)) return nullptr;
    Publish(Mine(), wire);
    return Find(kind, wire);
  }
  // What the worker does with objects by itself, such as putting a mark behind what it has submitted, between requests or within one that is
  // about other objects. What is found through it stays until it goes. It goes soon and waits for no request: an end waits for it and is
  // not left to it, since whoever ends the object is owed the driver's answer. A thread has one at a time, and calls EndRequest afterwards.
  class OwnUse {
   public:
    explicit OwnUse(HandleTable& table);
    ~OwnUse();
    OwnUse(const OwnUse&) = delete;
    OwnUse& operator=(const OwnUse&) = delete;
    void* Find(HandleKind kind, WireHandle wire);

   private:
    HandleTable& table_;
  };
  // Whether the request uses more than one could name: one that is several should end.
  bool UsesMany() { return Mine().count.load(std::memory_order_relaxed) > kManyUses; }

  // ---- objects

  // The same without a use: what comes back may end at any moment.
  void* Find(HandleKind kind, WireHandle wire) const {
    if (WireKind(wire) != NumberKind(kind)) return nullptr;
    const Entry* entry = At(WireIndex(wire));
    if (entry == nullptr) return nullptr;
    const uint32_t bindings =
        entry->bindings.load(std::memory_order_acquire);  // partner of all these: BindLocked
    if (entry->wire.load(std::memory_order_acquire) != wire) return nullptr;
    void* const value = entry->value.load(std::memory_order_acquire);
    if (kind == HandleKind::kKernel && entry->kind.load(std::memory_order_acquire) != kind) return nullptr;
    return entry->bindings.load(std::memory_order_relaxed) == bindings ? value : nullptr;
  }
  // A kernel (kKernel) is found as a function as well. The calling thread's request uses the object from
  // here. False if the number is out of range, of another kind or of an object that is just ending, or if the
  // parent, with which the driver ends this object, is not alive as the request has found it. `relatives`: roots as of JoinRelatives
  // with which a new graph or executable graph holds together.
  bool Bind(HandleKind kind, WireHandle wire, void* value, Found parent = {},
            std::span<const Found> relatives = {});
  // As Use, for one that is to end: a spent one is found as well.
  void* UseToEnd(HandleKind kind, WireHandle wire);
  // The number that is bound to the driver's pointer, or `fresh`, which it becomes; 0 if that cannot be.
  // An object that is known and `counted` has one reference more: so many ends of it are none.
  WireHandle BindOrKnown(HandleKind kind, WireHandle fresh, void* value, Found parent = {},
                         bool counted = false);
  // Forgets an object that the driver has ended by itself, and all that ended with it. Nothing happens if the number is another
  // object's by now.
  void Unbind(Found object);
  // What the object ends with; none if it is not alive as it was found.
  Found ParentOf(Found object) const;
  // The topmost graph above a graph or node; of all else the object itself. Its value counts as long as the calling request uses
  // the object: numbers may become others' meanwhile.
  Found Root(WireHandle wire) const;
  // The name of what the driver holds together with a graph or an executable graph; 0: nothing (Relatives).
  WireHandle RelativesOf(const void* root) const;
  // The roots hold together in the driver from here on. The calling request uses them, and has them all to itself.
  void JoinRelatives(std::span<const Found> roots);
  // Whether a graph is another one, or lies in one of its nodes at any depth.
  bool IsWithin(WireHandle graph, WireHandle other) const;
  // Gives the object another parent, or none. False, and nothing happens, unless both are alive as they were found.
  bool Adopt(Found object, Found parent);
  // The number bound to a driver pointer; 0 if none.
  WireHandle Reverse(HandleKind kind, void* value) const;
  // Those of one kind that are alive.
  std::vector<WireHandle> All(HandleKind kind) const;
  uint64_t live() const { return live_.load(std::memory_order_relaxed); }

  // ---- what objects remember

  // From now on the holders (graphs, executable graphs, texture references: by name, or kCapturing) may point
  // to all functions, events and arrays that the calling thread's request uses, and to what any of them did
  // before: those end when the last holder has. Only a context does not wait for that: with it the holders
  // are spent, and can be ended and nothing else.
  // `more`: of these numbers as well.
  void HoldUsed(std::span<const WireHandle> holders, std::span<const WireHandle> more = {});
  // What the requests of other threads use at the moment, of all that may be remembered. Each request that is not among them has
  // left what it used, and whoever asks here sees what it wrote before.
  std::vector<WireHandle> UsedByOthers();
  // By which name what the graph points to is held: by that of the topmost graph above it. 0: by none.
  WireHandle HolderOf(const void* graph) const;
  // A capture has ended. What was held for captures is forgotten if it was the last, and ends that waited for it are looked at when the
  // calling thread's request ends.
  void NoteCaptureEnd();
  static constexpr WireHandle kCapturing = ~WireHandle{0};

  // ---- ends

  // Makes the driver's call. It may run on another thread and after the caller was answered.
  using Call = std::function<CUresult()>;
  // Ends the object. If no other request uses it, `call` is made at once and its result comes back; after an
  // error the object lives on. Otherwise its last user makes the call, and CUDA_SUCCESS comes back.
  // `exclusive`: the call must have the topmost object above to itself (ExclusiveUses), or its relatives. If the object does
  // not exist any more, or is another one than `value` by now, the result is InvalidHandleError.
  CUresult EndObject(HandleKind kind, WireHandle wire, const void* value, bool exclusive, Call call);
  // Whether the thread makes a call that was left over: what the request named that wanted it may be gone.
  static bool MakesLeftOverCall();
  // Ends all that is in the object, which lives on as a number. If other requests use it, it waits for them for at_most, while no
  // request can find it; after that the result is CUDA_ERROR_ILLEGAL_STATE, and nothing has happened. InvalidHandleError if the object
  // is not alive as it was found.
  CUresult EndContents(HandleKind kind, Found object, std::chrono::milliseconds at_most, const Call& call);
  // Makes a call that may end an object which it does not name: `has_ended` tells it by the result. No request
  // finds the object meanwhile, and none binds its pointer, which the driver may give again at once. The
  // calling request has the object to itself; one that is not alive is none.
  CUresult CallThatMayEnd(Found object, const Call& call, bool (*has_ended)(CUresult));
  // Calls that were left to a last user and have not been made.
  uint64_t deferred() const;

  // Asked before a call that was left over is made; false: not yet. Told after it. Set before threads start.
  std::function<bool(WireHandle)> try_exclusive;
  std::function<void(WireHandle)> end_exclusive;
  // Whether anything is captured: exclusive ends then take all captures as well (kCapturing).
  std::function<bool()> is_capturing;
  // Whether a stream captures into the graph. Neither the graph nor anything that it lies in ends before that capture has.
  // Asked with the table's lock held.
  std::function<bool(const void*)> is_captured_into;
  // Streams, graphs and contexts, which other books than this table know by their pointers.
  struct Ended {
    HandleKind kind;
    void* value;
  };
  // Makes the driver's call of an end that takes such objects along, which it is told. Not under a lock of the
  // table's; no request binds their pointers until it returns.
  std::function<CUresult(std::span<const Ended>, const Call&)> make_call;

 private:
  // Numbers of different kinds share the places of the table, and a guest may bind the number of one object, or
  // another of its place, while another of its threads looks it up. So a look-up that has met a binding in between
  // finds nothing: it could have read the number of one object and the pointer of another, of another type.
  struct Entry {
    std::atomic<WireHandle> wire{0};
    std::atomic<void*> value{nullptr};
    std::atomic<uint32_t> bindings{0};  // one more before each change of the pointer and the kind
    std::atomic<HandleKind> kind{HandleKind::kNone};  // as it was bound: a kernel is no function
    // Guarded by mutex_: which object is just being ended here, which is spent.
    WireHandle ending = 0, spent = 0;
  };
  static constexpr uint32_t kChunk = 1024;
  static constexpr uint32_t kChunks = kMaxHandles / kChunk;
  Entry* At(uint32_t index) const {
    if (index >= kMaxHandles) return nullptr;
    Entry* chunk = chunks_[index / kChunk].load(std::memory_order_acquire);  // partner: Bind
    return chunk != nullptr ? chunk + index % kChunk : nullptr;
  }

  // What a thread's request uses. Written by that thread alone.
  static constexpr uint32_t kFirstUses = 12;
  static constexpr uint32_t kMoreUses = 500;
  static constexpr uint32_t kManyUses = 1000;
  struct MoreUses {
    std::atomic<WireHandle> wires[kMoreUses] = {};
    std::atomic<MoreUses*> next{nullptr};
  };
  // What a thread uses objects for: nothing, a request, what the worker does by itself.
  static constexpr uint32_t kRests = 0, kServes = 1, kOwn = 2;
  struct alignas(kHotBytes) Record {
    std::atomic<uint32_t> active{kRests};
    std::atomic<uint32_t> count{0};
    std::atomic<uint32_t> is_awaited{0};  // an end waits for the request; set by others, too
    std::atomic<WireHandle> wires[kFirstUses] = {};
    std::atomic<MoreUses*> more{nullptr};
    std::unique_ptr<Record> next;  // guarded by mutex_
  };
  // Of the calling thread: for its requests, and for OwnUse. The first call of each takes mutex_.
  Record& MineOfOwn() {
    thread_local uint64_t table = 0;
    thread_local Record* record = nullptr;
    if (table != id_) {
      record = Join();
      table = id_;
    }
    return *record;
  }
  Record& Mine() {
    thread_local uint64_t table = 0;
    thread_local Record* record = nullptr;
    if (table != id_) [[unlikely]] {
      record = Join();
      table = id_;
    }
    return *record;
  }
  void Publish(Record& mine, WireHandle wire) {
    const uint32_t count = mine.count.load(std::memory_order_relaxed);
    if (count < kFirstUses) {
      mine.wires[count].store(wire, std::memory_order_relaxed);
    } else if (!PublishMore(mine, count, wire)) {
      return;
    }
    if (is_asymmetric_) [[likely]] {
      mine.count.store(count + 1, std::memory_order_release);  // partner: Uses
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      mine.count.exchange(count + 1);
    }
  }
  void Rest(Record& mine) {
    if (mine.count.load(std::memory_order_relaxed) != 0) mine.count.store(0, std::memory_order_release);
    if (is_asymmetric_) [[likely]] {
      mine.active.store(kRests, std::memory_order_release);  // partner: Uses
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      mine.active.exchange(kRests);
    }
  }
  // False: published already.
  static bool PublishMore(Record& mine, uint32_t count, WireHandle wire);
  Record* Join();
  // kRests: it uses none of these.
  static uint32_t Uses(const Record& record, const std::vector<WireHandle>& sorted);
  static void CollectRemembered(const Record& record, std::vector<WireHandle>* to);

  // An object whose number is another's.
  struct Lost {
    HandleKind kind;
    void* value;  // null: it has ended without a word, and another object has its pointer
    WireHandle wire;
    WireHandle holder;  // what it remembers, if anything
  };
  struct Ending {
    std::vector<WireHandle> wires;  // the object and all that ends with it, sorted
    std::vector<WireHandle>
        unusable;  // that nobody may use meanwhile, sorted: these, what they spend or lost
    std::vector<WireHandle> bound, spent;
    std::vector<WireHandle> above;    // the owners
    std::vector<WireHandle> holders;  // names of what they remember, once their numbers are free
    std::vector<Lost> ended, lost;    // those of `bound`; those without a number, which end with it
    bool was_spent = false;
    HandleKind kind = HandleKind::kNone;
    void* value = nullptr;
    bool is_exclusive = false;  // the call must have the topmost object and its relatives to itself
    Found root{};               // that object, which uses or ends keep
    std::array<WireHandle, 2> taken = {};  // what it has
    Call call;
    bool is_deferred = false, is_running = false;
  };
  using EndingRef = std::shared_ptr<Ending>;
  enum class Look {
    kReady,
    kAgain,  // users were marked: they may have gone before they saw it
    kSoon,   // nobody but the worker itself uses it (OwnUse)
    kUsed,   // one that is marked looks when it goes, or the end of something in it does
    kHeld    // by what remembers it or captures into it, and no more
  };
  // These want mutex_.
  bool BindLocked(HandleKind kind, WireHandle wire, void* value, Found parent);
  bool IsAlive(Found object) const;
  bool Lose(WireHandle wire);
  void ForgetPointer(HandleKind kind, const void* value);
  std::vector<WireHandle> Family(WireHandle wire) const;
  bool IsHeld(const Ending& ending) const;
  bool IsCapturedInto(const Ending& ending) const;
  bool HoldsWithin(const Ending& ending) const;
  void RetryHeld();
  WireHandle RenameHolder(std::vector<WireHandle> numbers);
  void MoveHolders(Ending& ending);
  void ForgetHolder(WireHandle holder);
  void ForgetHolders(const Ending& ending);
  bool IsAtOrBelow(WireHandle wire, WireHandle other) const;  // with mutex_
  Found RootLocked(WireHandle wire) const;
  void JoinLocked(std::span<const Found> roots, const void* made);
  bool TakeExclusive(Ending& ending);
  void ReturnExclusive(Ending& ending);
  EndingRef Suspend(HandleKind kind, WireHandle wire);
  void Spend(Ending& ending);
  void CancelWithin(Ending& ending);
  void ForgetEnded(const Ending& ending, WireHandle spared);
  bool IsJustEnding(HandleKind kind, const void* value) const;
  bool IsKnown(HandleKind kind, void* value) const;
  void Commit(const Ending& ending, WireHandle spared);
  void Revive(const Ending& ending);
  void ReviveOne(Entry& entry, WireHandle wire);
  void Unlink(WireHandle wire);
  void LeaveParent(WireHandle wire);
  Look LookAt(Ending& ending, const Record* but);
  Look LookAtUsers(const std::vector<WireHandle>& wires, const Record* but);
  Look LookUntilKnown(HandleKind kind, Ending& ending, const Record& mine,
                      std::unique_lock<std::mutex>& lock);
  static bool IsWithin(const Ending& other, const Ending& ending);
  CUresult EndReference(Found object, const Call& call, std::unique_lock<std::mutex>& lock);
  CUresult MakeCall(const Ending& ending, const Call& call) const;  // without mutex_
  void Finish(const EndingRef& ending, bool has_ended, WireHandle spared);
  void Leave(const EndingRef& ending);

  // Orders what this thread wrote before against what all others read; false: no other executes a request.
  bool FenceAll(const Record& mine);
  void RunDue(Record& mine);
  EndingRef TakeDue(bool* again);

  const uint64_t id_;
  const bool is_asymmetric_;
  std::atomic<uint32_t> exclusive_waits_{
      0};  // endings that may have to wait for what a request has to itself
  std::atomic<uint32_t> fence_{0};
  std::atomic<Entry*> chunks_[kChunks] = {};

  mutable std::mutex mutex_;  // serialises all changes, the reverse map, the families, the list of records
  uint32_t chunk_end_ = 0;    // none of chunks_ from here on is there; guarded by mutex_
  std::condition_variable ended_;
  std::unique_ptr<Record> records_;
  std::vector<EndingRef> endings_;  // running, or left to users
  // Left to the ends of what remembers them, or of captures; no request looks at these.
  std::vector<EndingRef> held_;
  std::unordered_map<WireHandle, WireHandle> parents_;
  std::unordered_map<WireHandle, std::unordered_set<WireHandle>> children_;
  Relatives relatives_;
  std::unordered_map<WireHandle, std::vector<Lost>> lost_;                  // by the owner that lives
  std::unordered_map<WireHandle, uint32_t> references_;                     // beyond the first
  std::unordered_map<WireHandle, std::unordered_set<WireHandle>> holds_;    // by holder
  std::unordered_map<WireHandle, std::unordered_set<WireHandle>> holders_;  // by what is held
  // Of holders that have lost their numbers: those and those of what was in them.
  std::unordered_map<WireHandle, std::vector<WireHandle>> former_;
  WireHandle next_holder_ = 1;
  // With what waits for its end and what has lost its number: so it gets no other.
  std::unordered_map<void*, WireHandle> reverse_[static_cast<size_t>(HandleKind::kCount)];
  std::atomic<uint64_t> live_{0};
};

}  // namespace causeway::host
