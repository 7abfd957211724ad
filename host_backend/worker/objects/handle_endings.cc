// SPDX-License-Identifier: Apache-2.0
// How objects end: at once where nobody else uses them, else by their last user.
#include <algorithm>
#include <thread>

#include "host_backend/worker/objects/handles.h"

namespace causeway::host {
namespace {

// Of a guest that ends what its other threads use. What is beyond is refused.
constexpr size_t kMostDeferred = 1u << 16;

bool Holds(const std::vector<WireHandle>& sorted, WireHandle wire) {
  return sorted.size() == 1 ? sorted.front() == wire : std::binary_search(sorted.begin(), sorted.end(), wire);
}

thread_local bool makes_left_over_call = false;

}  // namespace

bool HandleTable::MakesLeftOverCall() {
  return makes_left_over_call;
}

// Nobody finds them any more.
HandleTable::EndingRef HandleTable::Suspend(HandleKind kind, WireHandle wire) {
  auto ending = std::make_shared<Ending>();
  ending->wires = Family(wire);
  ending->kind = kind;
  if (const Entry* top = At(WireIndex(wire))) {
    ending->value = top->value.load();
    ending->was_spent = top->spent == wire;
  }
  for (const WireHandle each : ending->wires) {
    if (const auto lost = lost_.find(each); lost != lost_.end())
      ending->lost.insert(ending->lost.end(), lost->second.begin(), lost->second.end());
    Entry* entry = At(WireIndex(each));
    if (entry == nullptr || (entry->wire.load() != each && entry->spent != each)) continue;
    ending->ended.push_back({entry->kind.load(), entry->value.load(), each, 0});
    entry->wire.store(0, std::memory_order_release);
    entry->spent = 0;
    entry->ending = each;
    ending->bound.push_back(each);
  }
  std::sort(ending->wires.begin(), ending->wires.end());
  ending->unusable = ending->wires;
  for (const Lost& lost : ending->lost) {
    ending->unusable.push_back(lost.wire);
    if (lost.holder != 0) ending->holders.push_back(lost.holder);
  }
  if (kind == HandleKind::kContext || kind == HandleKind::kGreenContext) Spend(*ending);
  std::sort(ending->unusable.begin(), ending->unusable.end());
  for (auto above = parents_.find(wire); above != parents_.end(); above = parents_.find(above->second))
    ending->above.push_back(above->second);
  return ending;
}

// What points to something of a context's, and lives on.
void HandleTable::Spend(Ending& ending) {
  std::unordered_set<WireHandle> holders;
  const auto add = [&](const Ending& of) {
    for (const WireHandle wire : of.wires) {
      const auto held = holders_.find(wire);
      if (held != holders_.end()) holders.insert(held->second.begin(), held->second.end());
    }
    for (const Lost& lost : of.lost) {
      const auto held = holders_.find(lost.wire);
      if (held != holders_.end()) holders.insert(held->second.begin(), held->second.end());
    }
  };
  add(ending);
  for (const auto* endings : {&endings_, &held_}) {  // what ends with it and has not yet
    for (const EndingRef& other : *endings) {
      if (IsWithin(*other, ending)) add(*other);
    }
  }
  for (const WireHandle holder : holders) {
    // One without a number is used by those that found it under the old one.
    if (const auto former = former_.find(holder); former != former_.end())
      ending.unusable.insert(ending.unusable.end(), former->second.begin(), former->second.end());
    for (const WireHandle wire : Family(holder)) {
      if (const auto lost = lost_.find(wire); lost != lost_.end()) {
        for (const Lost& each : lost->second) ending.unusable.push_back(each.wire);
      }
      Entry* entry = At(WireIndex(wire));
      if (entry == nullptr || entry->wire.load() != wire) continue;
      entry->wire.store(0, std::memory_order_release);
      entry->spent = wire;
      ending.spent.push_back(wire);
      ending.unusable.push_back(wire);
    }
  }
}

// What they remember goes on under a name, as their numbers may become others'.
void HandleTable::MoveHolders(Ending& ending) {
  if (const WireHandle name = RenameHolder(ending.wires)) ending.holders.push_back(name);
}

// `spared` (0: none) lives on. What another end in there has taken is that one's.
void HandleTable::Commit(const Ending& ending, WireHandle spared) {
  for (const WireHandle wire : ending.bound) {
    Entry* entry = At(WireIndex(wire));
    lost_.erase(wire);
    entry->ending = 0;
    if (wire == spared) {
      ReviveOne(*entry, wire);
      continue;
    }
    Unlink(wire);
    live_.fetch_sub(1, std::memory_order_relaxed);
  }
}

// The driver has ended them: their pointers may be others' from here.
void HandleTable::ForgetEnded(const Ending& ending, WireHandle spared) {
  ForgetHolders(ending);
  for (const auto* ended : {&ending.ended, &ending.lost}) {
    for (const Lost& each : *ended) {
      const auto& reverse = reverse_[static_cast<size_t>(each.kind)];
      const auto found = reverse.find(each.value);
      // The pointer may be another object's: one that was lost may have ended before, without a word.
      if (each.wire == spared || (found != reverse.end() && found->second != each.wire)) continue;
      if (found != reverse.end()) reverse_[static_cast<size_t>(each.kind)].erase(each.value);
      if (HasRelatives(each.kind)) relatives_.Forget(each.value);
    }
  }
}

bool HandleTable::IsJustEnding(HandleKind kind, const void* value) const {
  const auto is_it = [&](const Lost& each) { return each.kind == kind && each.value == value; };
  return std::any_of(endings_.begin(), endings_.end(), [&](const EndingRef& ending) {
    return ending->is_running && (std::any_of(ending->ended.begin(), ending->ended.end(), is_it) ||
                                  std::any_of(ending->lost.begin(), ending->lost.end(), is_it));
  });
}

void HandleTable::ReviveOne(Entry& entry, WireHandle wire) {
  reverse_[static_cast<size_t>(entry.kind.load())].try_emplace(entry.value.load(), wire);
  entry.wire.store(wire, std::memory_order_release);
}

// The driver has refused. What is above may end meanwhile, and this with it.
void HandleTable::Revive(const Ending& ending) {
  const auto owner = std::find_if(endings_.begin(), endings_.end(),
                                  [&](const EndingRef& other) { return IsWithin(ending, *other); });
  if (owner != endings_.end() && (*owner)->is_deferred) {
    (*owner)->lost.insert((*owner)->lost.end(), ending.ended.begin(), ending.ended.end());
    return Commit(ending, 0);
  }
  if (owner != endings_.end()) {
    (*owner)->bound.insert((*owner)->bound.end(), ending.bound.begin(), ending.bound.end());
    (*owner)->ended.insert((*owner)->ended.end(), ending.ended.begin(), ending.ended.end());
    return;
  }
  for (const WireHandle wire : ending.bound) {
    Entry* entry = At(WireIndex(wire));
    entry->ending = 0;
    if (ending.was_spent) {
      entry->spent = wire;
    } else {
      ReviveOne(*entry, wire);
    }
  }
  for (const WireHandle wire : ending.spent) {
    Entry* entry = At(WireIndex(wire));
    if (entry == nullptr || entry->spent != wire) continue;
    entry->spent = 0;
    ReviveOne(*entry, wire);
  }
}

uint32_t HandleTable::Uses(const Record& record, const std::vector<WireHandle>& sorted) {
  const uint32_t active = record.active.load(std::memory_order_acquire);  // partner: Rest
  if (active == kRests) return kRests;
  const uint32_t count = record.count.load(std::memory_order_acquire);  // partner: Publish
  for (uint32_t i = 0; i < std::min(count, kFirstUses); ++i) {
    if (Holds(sorted, record.wires[i].load(std::memory_order_relaxed))) return active;
  }
  const MoreUses* more = record.more.load(std::memory_order_acquire);
  for (uint32_t first = kFirstUses; first < count && more != nullptr; first += kMoreUses) {
    for (uint32_t i = 0; i < std::min(count - first, kMoreUses); ++i) {
      if (Holds(sorted, more->wires[i].load(std::memory_order_relaxed))) return active;
    }
    more = more->next.load(std::memory_order_acquire);
  }
  return kRests;
}

// Whether a request uses one of these; it will look when it ends.
HandleTable::Look HandleTable::LookAtUsers(const std::vector<WireHandle>& wires, const Record* but) {
  Look look = Look::kReady;
  bool marked = false;
  for (Record* record = records_.get(); record != nullptr; record = record->next.get()) {
    const uint32_t active = record != but ? Uses(*record, wires) : kRests;
    if (active == kRests) continue;
    if (look != Look::kUsed) look = active == kOwn ? Look::kSoon : Look::kUsed;
    marked |= record->is_awaited.exchange(1) == 0;
  }
  return marked ? Look::kAgain : look;
}

// Whether `other` ends with it.
bool HandleTable::IsWithin(const Ending& other, const Ending& ending) {
  return &other != &ending && std::any_of(other.above.begin(), other.above.end(),
                                          [&](WireHandle above) { return Holds(ending.wires, above); });
}

// Whether a request uses what is to end, something points to it, or an end of something in it is under way.
HandleTable::Look HandleTable::LookAt(Ending& ending, const Record* but) {
  if (const Look look = LookAtUsers(ending.unusable, but); look != Look::kReady) return look;
  for (const EndingRef& other : endings_) {
    if (!IsWithin(*other, ending)) continue;
    if (other->is_running || !other->is_deferred) return Look::kUsed;
    if (const Look look = LookAtUsers(other->unusable, but); look != Look::kReady) return look;
  }
  if (IsHeld(ending) || HoldsWithin(ending)) return Look::kHeld;
  return TakeExclusive(ending) ? Look::kReady : Look::kUsed;
}

// Whether an end of something in it, which would be made along with this one, was left over and must still wait.
bool HandleTable::HoldsWithin(const Ending& ending) const {
  if (ending.kind == HandleKind::kContext || ending.kind == HandleKind::kGreenContext) return false;
  const auto holds = [&](const EndingRef& other) { return IsWithin(*other, ending) && IsHeld(*other); };
  return std::any_of(endings_.begin(), endings_.end(), holds) ||
         std::any_of(held_.begin(), held_.end(), holds);
}

// What was left to a last user in there ends with the whole.
void HandleTable::CancelWithin(Ending& ending) {
  std::vector<EndingRef> cancelled;
  for (auto* endings : {&endings_, &held_}) {
    std::erase_if(*endings, [&](const EndingRef& other) {
      const bool cancels = other->is_deferred && !other->is_running && IsWithin(*other, ending);
      if (cancels) cancelled.push_back(other);
      return cancels;
    });
  }
  for (const EndingRef& each : cancelled) {
    if (each->is_exclusive) exclusive_waits_.fetch_sub(1);
    ending.lost.insert(ending.lost.end(), each->ended.begin(), each->ended.end());
    ending.lost.insert(ending.lost.end(), each->lost.begin(), each->lost.end());
    ending.holders.insert(ending.holders.end(), each->holders.begin(), each->holders.end());
  }
}

CUresult HandleTable::MakeCall(const Ending& ending, const Call& call) const {
  std::vector<Ended> told;
  if (make_call != nullptr) {
    const std::lock_guard lock(mutex_);
    for (const auto* ended : {&ending.ended, &ending.lost}) {
      for (const Lost& each : *ended) {
        const auto& reverse = reverse_[static_cast<size_t>(each.kind)];
        const auto found = reverse.find(each.value);
        const bool is_anothers = found != reverse.end() && found->second != each.wire;  // as in ForgetEnded
        if (!is_anothers && each.value != nullptr &&
            (each.kind == HandleKind::kStream || each.kind == HandleKind::kGraph ||
             each.kind == HandleKind::kContext))
          told.push_back({each.kind, each.value});
      }
    }
  }
  return told.empty() || make_call == nullptr ? call() : make_call(told, call);
}

// The driver has answered. `spared` as in Commit.
void HandleTable::Finish(const EndingRef& ending, bool has_ended, WireHandle spared) {
  if (has_ended) {
    MoveHolders(*ending);
    Commit(*ending, spared);
    ForgetEnded(*ending, spared);
  } else {
    Revive(*ending);
  }
  Leave(ending);
}

void HandleTable::Leave(const EndingRef& ending) {
  ReturnExclusive(*ending);
  if (ending->is_exclusive) exclusive_waits_.fetch_sub(1);
  std::erase(endings_, ending);
  ended_.notify_all();
}

// With mutex_ held.
bool HandleTable::TakeExclusive(Ending& ending) {
  if (!ending.is_exclusive || try_exclusive == nullptr) return true;
  // A request takes the name of a graph's relatives before it changes any of them, so an end that holds this name has all of them to
  // itself. A graph that is moved into another graph becomes its relative, so the root that was noted first leads to the right name.
  const WireHandle relatives = relatives_.NameOf(ending.root.value);
  const WireHandle name = relatives != 0 ? relatives : ending.root.wire;
  const WireHandle wanted[] = {name, is_capturing != nullptr && is_capturing() ? kCapturing : WireHandle{0}};
  for (size_t i = 0; i < ending.taken.size(); ++i) {
    if (wanted[i] == 0) continue;
    if (!try_exclusive(wanted[i])) {
      ReturnExclusive(ending);
      return false;
    }
    ending.taken[i] = wanted[i];
  }
  return true;
}

void HandleTable::ReturnExclusive(Ending& ending) {
  for (WireHandle& taken : ending.taken) {
    if (taken != 0) end_exclusive(taken);
    taken = 0;
  }
}

uint64_t HandleTable::deferred() const {
  const std::lock_guard lock(mutex_);
  return held_.size() +
         static_cast<uint64_t>(std::count_if(endings_.begin(), endings_.end(),
                                             [](const EndingRef& ending) { return ending->is_deferred; }));
}

// With the lock, which it gives up in between: the number may be another object's afterwards.
CUresult HandleTable::EndReference(Found object, const Call& call, std::unique_lock<std::mutex>& lock) {
  const auto references = references_.find(object.wire);
  if (--references->second == 0) references_.erase(references);
  lock.unlock();
  const CUresult result = call();
  lock.lock();
  if (result != CUDA_SUCCESS && IsAlive(object)) ++references_[object.wire];
  return result;
}

// With the lock, which it gives up in between. What the worker does by itself may wait for room in the driver's queue, and so for work of the
// context. Natively the end of a context waits for that work, too; other ends do not, and are left to whoever uses the object after a while.
HandleTable::Look HandleTable::LookUntilKnown(HandleKind kind, Ending& ending, const Record& mine,
                                              std::unique_lock<std::mutex>& lock) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kPatience(100);
  constexpr std::chrono::microseconds kPause(500);
  constexpr int kYields = 20;
  const bool waits_for_work = kind == HandleKind::kContext || kind == HandleKind::kGreenContext;
  Clock::time_point end;
  for (int looks = 0;;) {
    lock.unlock();
    FenceAll(mine);
    lock.lock();
    const Look look = LookAt(ending, &mine);
    if (look == Look::kAgain) continue;
    if (look != Look::kSoon) return look;
    if (looks++ == 0) end = Clock::now() + kPatience;
    if (!waits_for_work && Clock::now() >= end) return look;
    lock.unlock();
    if (looks < kYields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPause);
    }
    lock.lock();
  }
}

CUresult HandleTable::EndObject(HandleKind kind, WireHandle wire, const void* value, bool exclusive,
                                Call call) {
  Record& mine = Mine();
  std::unique_lock lock(mutex_);
  const Entry* entry = At(WireIndex(wire));
  if (WireKind(wire) != kind || entry == nullptr || (entry->wire.load() != wire && entry->spent != wire) ||
      wire == 0 || entry->value.load() != value)
    return InvalidHandleError(kind);  // another thread was first
  if (references_.contains(wire)) return EndReference({wire, entry->value.load()}, call, lock);
  // The graph within a node is the node's and ends with it: NVIDIA's driver crashes when such a node is
  // cloned after its graph was destroyed. So is the texture reference that a module declares.
  if (const auto owner = parents_.find(wire); owner != parents_.end()) {
    const HandleKind above = WireKind(owner->second);
    if ((kind == HandleKind::kGraph && above == HandleKind::kGraphNode) ||
        (kind == HandleKind::kTextureReference && above == HandleKind::kModule))
      return CUDA_ERROR_INVALID_VALUE;
  }
  if (endings_.size() + held_.size() >= kMostDeferred) return CUDA_ERROR_OUT_OF_MEMORY;
  const EndingRef ending = Suspend(kind, wire);
  if (exclusive) {
    // By itself an object that nobody uses needs no name: it has relatives, or lies in a graph, or is the stream of a capture.
    ending->root = RootLocked(wire);
    if (ending->root.wire == wire) ending->root = {0, ending->value};
    ending->is_exclusive = true;
    exclusive_waits_.fetch_add(1);  // before it is asked for: one that returns it looks here then
  }
  endings_.push_back(ending);
  const Look look = LookUntilKnown(kind, *ending, mine, lock);
  mine.is_awaited.store(1);  // what waits for this one is looked at when the request ends
  if (look != Look::kReady) {
    ending->call = std::move(call);
    ending->is_deferred = true;
    MoveHolders(*ending);
    Commit(*ending, 0);
    return CUDA_SUCCESS;
  }
  ending->is_running = true;
  CancelWithin(*ending);
  lock.unlock();
  const CUresult result = MakeCall(*ending, call);
  lock.lock();
  Finish(ending, result == CUDA_SUCCESS, 0);
  return result;
}

CUresult HandleTable::EndContents(HandleKind kind, Found object, std::chrono::milliseconds at_most,
                                  const Call& call) {
  Record& mine = Mine();
  std::unique_lock lock(mutex_);
  if (WireKind(object.wire) != kind || !IsAlive(object)) return InvalidHandleError(kind);
  const EndingRef ending = Suspend(kind, object.wire);
  endings_.push_back(ending);
  const auto end = std::chrono::steady_clock::now() + at_most;
  CUresult result = CUDA_SUCCESS;
  for (;;) {
    lock.unlock();
    FenceAll(mine);
    lock.lock();
    const Look look = LookAt(*ending, &mine);
    if (look == Look::kReady) break;
    if (look != Look::kSoon && std::chrono::steady_clock::now() >= end) {
      result = CUDA_ERROR_ILLEGAL_STATE;
      break;
    }
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    lock.lock();
  }
  mine.is_awaited.store(1);
  if (result == CUDA_SUCCESS) {
    ending->is_running = true;
    CancelWithin(*ending);
    lock.unlock();
    result = MakeCall(*ending, call);
    lock.lock();
  }
  Finish(ending, result == CUDA_SUCCESS, object.wire);
  return result;
}

CUresult HandleTable::CallThatMayEnd(Found object, const Call& call, bool (*has_ended)(CUresult)) {
  Record& mine = Mine();
  std::unique_lock lock(mutex_);
  if (!IsAlive(object)) {
    lock.unlock();
    return call();
  }
  const EndingRef ending = Suspend(At(WireIndex(object.wire))->kind.load(), object.wire);
  ending->is_running = true;
  endings_.push_back(ending);
  mine.is_awaited.store(1);  // as in EndObject
  lock.unlock();
  const CUresult result = call();
  lock.lock();
  const bool ended = has_ended(result);
  if (ended) CancelWithin(*ending);  // what was left to a last user in there has ended with it
  Finish(ending, ended, 0);
  return result;
}

// The first that nobody uses any more. Null: there is none; `again`: or it is not known yet.
HandleTable::EndingRef HandleTable::TakeDue(bool* again) {
  const std::lock_guard lock(mutex_);
  *again = false;
  for (size_t i = 0; i < endings_.size(); ++i) {
    const EndingRef ending = endings_[i];
    if (!ending->is_deferred || ending->is_running) continue;
    const Look look = LookAt(*ending, nullptr);
    *again |= look == Look::kAgain;
    if (look == Look::kHeld) {
      held_.push_back(ending);
      endings_.erase(endings_.begin() + static_cast<ptrdiff_t>(i--));
    } else if (look == Look::kReady) {
      ending->is_running = true;
      CancelWithin(*ending);
      return ending;
    }
  }
  return nullptr;
}

// One after the other: what waited for one may be due when that is done.
void HandleTable::RunDue(Record& mine) {
  mine.is_awaited.store(0);
  for (;;) {
    bool again = false;
    const EndingRef due = TakeDue(&again);
    if (due == nullptr && !again) return;
    if (due == nullptr) {
      FenceAll(mine);
      continue;
    }
    BeginRequest();  // what the call needs beside the object stays as well
    fence_.fetch_add(1);
    makes_left_over_call = true;
    MakeCall(*due, due->call);  // nobody is left who could be told of an error
    makes_left_over_call = false;
    due->call = nullptr;  // what it kept goes before others learn of the end
    Rest(mine);
    const std::lock_guard lock(mutex_);
    ForgetEnded(*due, 0);
    Leave(due);
  }
}

}  // namespace causeway::host
