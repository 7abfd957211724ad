// SPDX-License-Identifier: Apache-2.0
// How objects end: at once where nobody else uses them, else by their last user.
#include <algorithm>
#include <thread>

#include "host_backend/handles.h"

namespace causeway::host {
namespace {

// Of a guest that ends what its other threads use. What is beyond is refused.
constexpr size_t kMostDeferred = 1u << 16;

bool Holds(const std::vector<WireHandle>& sorted, WireHandle wire) {
  return sorted.size() == 1 ? sorted.front() == wire : std::binary_search(sorted.begin(), sorted.end(), wire);
}

}  // namespace

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
    Entry* entry = At(WireIndex(each));
    if (entry == nullptr || (entry->wire.load() != each && entry->spent != each)) continue;
    ForgetReverse(*entry, each);
    entry->wire.store(0, std::memory_order_release);
    entry->spent = 0;
    entry->ending = each;
    ending->bound.push_back(each);
  }
  std::sort(ending->wires.begin(), ending->wires.end());
  ending->unusable = ending->wires;
  if (kind == HandleKind::kContext || kind == HandleKind::kGreenContext) Spend(*ending);
  for (auto above = parents_.find(wire); above != parents_.end(); above = parents_.find(above->second))
    ending->holds.push_back(above->second);
  return ending;
}

// What points to something of a context's, and lives on.
void HandleTable::Spend(Ending& ending) {
  std::vector<WireHandle> holders;
  for (const WireHandle wire : ending.wires) {
    const auto held = holders_.find(wire);
    if (held != holders_.end()) holders.insert(holders.end(), held->second.begin(), held->second.end());
  }
  for (const EndingRef& other : endings_) {  // what ends with it and has not yet
    if (std::none_of(other->holds.begin(), other->holds.end(),
                     [&](WireHandle above) { return Holds(ending.wires, above); }))
      continue;
    for (const WireHandle wire : other->wires) {
      const auto held = holders_.find(wire);
      if (held != holders_.end()) holders.insert(holders.end(), held->second.begin(), held->second.end());
    }
  }
  for (const WireHandle holder : holders) {
    for (const WireHandle wire : Family(holder)) {
      Entry* entry = At(WireIndex(wire));
      if (entry == nullptr || entry->wire.load() != wire) continue;
      ForgetReverse(*entry, wire);
      entry->wire.store(0, std::memory_order_release);
      entry->spent = wire;
      ending.spent.push_back(wire);
    }
  }
  ending.unusable.insert(ending.unusable.end(), ending.spent.begin(), ending.spent.end());
  std::sort(ending.unusable.begin(), ending.unusable.end());
}

// `spared` (0: none) lives on.
void HandleTable::Commit(const Ending& ending, WireHandle spared) {
  for (const WireHandle wire : ending.wires) {
    if (wire != spared) Unlink(wire);
  }
  for (const WireHandle wire : ending.bound) {
    Entry* entry = At(WireIndex(wire));
    if (entry == nullptr || entry->ending != wire) continue;
    entry->ending = 0;
    if (wire == spared) {
      Revive(*entry, wire);
    } else {
      live_.fetch_sub(1, std::memory_order_relaxed);
    }
  }
}

void HandleTable::Revive(Entry& entry, WireHandle wire) {
  reverse_[static_cast<size_t>(entry.kind.load())].try_emplace(entry.value.load(), wire);
  entry.wire.store(wire, std::memory_order_release);
}

void HandleTable::Revive(const Ending& ending) {
  for (const WireHandle wire : ending.bound) {
    Entry* entry = At(WireIndex(wire));
    if (entry == nullptr || entry->ending != wire) continue;  // it has ended with an owner meanwhile
    entry->ending = 0;
    if (ending.was_spent) {
      entry->spent = wire;
    } else {
      Revive(*entry, wire);
    }
  }
  for (const WireHandle wire : ending.spent) {
    Entry* entry = At(WireIndex(wire));
    if (entry == nullptr || entry->spent != wire) continue;
    entry->spent = 0;
    Revive(*entry, wire);
  }
}

bool HandleTable::Uses(const Record& record, const std::vector<WireHandle>& sorted) {
  if (record.active.load(std::memory_order_acquire) == 0) return false;  // partner: EndRequest
  const uint32_t count = record.count.load(std::memory_order_acquire);   // partner: Publish
  for (uint32_t i = 0; i < std::min(count, kFirstUses); ++i) {
    if (Holds(sorted, record.wires[i].load(std::memory_order_relaxed))) return true;
  }
  const MoreUses* more = record.more.load(std::memory_order_acquire);
  for (uint32_t first = kFirstUses; first < count && more != nullptr; first += kMoreUses) {
    for (uint32_t i = 0; i < std::min(count - first, kMoreUses); ++i) {
      if (Holds(sorted, more->wires[i].load(std::memory_order_relaxed))) return true;
    }
    more = more->next.load(std::memory_order_acquire);
  }
  return false;
}

// Whether a request uses what is to end, something points to it, or an end of something in it is under way.
bool HandleTable::IsUsed(const Ending& ending, const Record* but) const {
  const auto is_used = [&](const std::vector<WireHandle>& wires) {
    for (const Record* record = records_.get(); record != nullptr; record = record->next.get()) {
      if (record != but && Uses(*record, wires)) return true;
    }
    return false;
  };
  if (is_used(ending.unusable) || IsHeld(ending)) return true;
  return std::any_of(endings_.begin(), endings_.end(), [&](const EndingRef& other) {
    return other.get() != &ending &&
           std::any_of(other->holds.begin(), other->holds.end(),
                       [&](WireHandle held) { return Holds(ending.wires, held); }) &&
           (other->is_running || !other->is_deferred || is_used(other->unusable));
  });
}

// What was left to a last user in there ends with the whole.
void HandleTable::CancelWithin(const Ending& ending) {
  std::erase_if(endings_, [&](const EndingRef& other) {
    const bool within = other.get() != &ending && other->is_deferred && !other->is_running &&
                        std::any_of(other->holds.begin(), other->holds.end(),
                                    [&](WireHandle held) { return Holds(ending.wires, held); });
    if (!within) return false;
    for (const WireHandle ended : other->wires) ForgetHolder(ended);
    deferred_.fetch_sub(1);
    return true;
  });
}

void HandleTable::Leave(const EndingRef& ending) {
  if (ending->taken != 0) end_exclusive(ending->taken);
  std::erase(endings_, ending);
  ended_.notify_all();
}

// With mutex_ held.
bool HandleTable::TakeExclusive(Ending& ending) {
  if (ending.below == 0 || try_exclusive == nullptr) return true;
  const WireHandle root = RootLocked(ending.below);
  if (!try_exclusive(root)) return false;
  ending.taken = root;
  return true;
}

CUresult HandleTable::EndObject(HandleKind kind, WireHandle wire, const void* value, bool exclusive,
                                Call call) {
  Record& mine = Mine();
  EndingRef ending;
  {
    std::unique_lock lock(mutex_);
    const Entry* entry = At(WireIndex(wire));
    if (WireKind(wire) != kind || entry == nullptr || (entry->wire.load() != wire && entry->spent != wire) ||
        wire == 0 || entry->value.load() != value)
      return InvalidHandleError(kind);  // another thread was first
    if (const auto references = references_.find(wire); references != references_.end()) {
      if (--references->second == 0) references_.erase(references);
      lock.unlock();
      const CUresult result = call();
      lock.lock();
      if (result != CUDA_SUCCESS) ++references_[wire];
      return result;
    }
    if (endings_.size() >= kMostDeferred) return CUDA_ERROR_OUT_OF_MEMORY;
    ending = Suspend(kind, wire);
    if (const auto parent = parents_.find(wire); exclusive && parent != parents_.end())
      ending->below = parent->second;
    endings_.push_back(ending);
    deferred_.fetch_add(1);  // before others are looked at: one that then ends its request looks here
  }
  FenceAll(mine);
  {
    const std::lock_guard lock(mutex_);
    if (IsUsed(*ending, &mine) || !TakeExclusive(*ending)) {
      ending->call = std::move(call);
      ending->is_deferred = true;
      Commit(*ending, 0);
      return CUDA_SUCCESS;
    }
    ending->is_running = true;
    CancelWithin(*ending);
    deferred_.fetch_sub(1);
  }
  const CUresult result = call();
  const std::lock_guard lock(mutex_);
  if (result == CUDA_SUCCESS) {
    Commit(*ending, 0);
    for (const WireHandle ended : ending->wires) ForgetHolder(ended);
  } else {
    Revive(*ending);
  }
  Leave(ending);
  return result;
}

bool HandleTable::IsUsedByOthers(const Ending& ending) {
  Record& mine = Mine();
  FenceAll(mine);
  const std::lock_guard lock(mutex_);
  return IsUsed(ending, &mine);
}

CUresult HandleTable::EndContents(HandleKind kind, WireHandle wire, std::chrono::milliseconds at_most,
                                  const Call& call) {
  EndingRef ending;
  {
    const std::lock_guard lock(mutex_);
    const Entry* entry = At(WireIndex(wire));
    if (WireKind(wire) != kind || entry == nullptr || entry->wire.load() != wire)
      return InvalidHandleError(kind);
    ending = Suspend(kind, wire);
  }
  const auto end = std::chrono::steady_clock::now() + at_most;
  CUresult result = CUDA_SUCCESS;
  while (result == CUDA_SUCCESS && IsUsedByOthers(*ending)) {
    if (std::chrono::steady_clock::now() >= end) result = CUDA_ERROR_ILLEGAL_STATE;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  if (result == CUDA_SUCCESS) {
    std::unique_lock lock(mutex_);
    CancelWithin(*ending);
    lock.unlock();
    result = call();
  }
  const std::lock_guard lock(mutex_);
  if (result == CUDA_SUCCESS) {
    Commit(*ending, wire);
    for (const WireHandle ended : ending->wires) ForgetHolder(ended);
  } else {
    Revive(*ending);
  }
  return result;
}

// One after the other: what waited for one may be due when that is done.
void HandleTable::RunDue() {
  for (;;) {
    EndingRef due;
    {
      const std::lock_guard lock(mutex_);
      const auto found = std::find_if(endings_.begin(), endings_.end(), [&](const EndingRef& ending) {
        return ending->is_deferred && !ending->is_running && !IsUsed(*ending, nullptr) &&
               TakeExclusive(*ending);
      });
      if (found == endings_.end()) return;
      due = *found;
      due->is_running = true;
      CancelWithin(*due);
    }
    BeginRequest();  // what the call needs beside the object stays as well
    deferred_.fetch_add(0);
    if (due->call() != CUDA_SUCCESS) failed_ends_.fetch_add(1, std::memory_order_relaxed);
    const std::lock_guard lock(mutex_);
    for (const WireHandle ended : due->wires) ForgetHolder(ended);
    Rest();
    deferred_.fetch_sub(1);
    Leave(due);
  }
}

}  // namespace causeway::host
