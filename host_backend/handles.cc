// SPDX-License-Identifier: Apache-2.0
// Handle table of a worker: numbers, families, what requests use.
#include "host_backend/handles.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace causeway::host {
namespace {

std::atomic<uint64_t> tables{0};

// ThreadSanitizer does not know the fence.
bool CanFenceOthers() {
#ifdef __SANITIZE_THREAD__
  return false;
#else
  static const bool can = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0 &&
                          syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0;
  return can;
#endif
}

}  // namespace

HandleTable::HandleTable() : id_(tables.fetch_add(1) + 1), is_asymmetric_(CanFenceOthers()) {}

HandleTable::~HandleTable() {
  for (auto& chunk : chunks_) delete[] chunk.load();
  for (std::unique_ptr<Record> record = std::move(records_); record != nullptr;
       record = std::move(record->next)) {
    for (MoreUses* more = record->more.load(); more != nullptr;)
      delete std::exchange(more, more->next.load());
  }
}

// ---- what requests use

HandleTable::Record* HandleTable::Join() {
  auto record = std::make_unique<Record>();
  const std::lock_guard lock(mutex_);
  record->next = std::move(records_);
  records_ = std::move(record);
  return records_.get();
}

// A request that is kept open while others follow names the same objects again and again.
bool HandleTable::PublishMore(Record& mine, uint32_t count, WireHandle wire) {
  for (const auto& used : mine.wires) {
    if (used.load(std::memory_order_relaxed) == wire) return false;
  }
  uint32_t place = count - kFirstUses;
  std::atomic<MoreUses*>* at = &mine.more;
  for (;;) {
    if (at->load(std::memory_order_relaxed) == nullptr) at->store(new MoreUses, std::memory_order_release);
    MoreUses* const more = at->load(std::memory_order_relaxed);
    if (place < kMoreUses) {
      more->wires[place].store(wire, std::memory_order_relaxed);
      return true;
    }
    place -= kMoreUses;
    at = &more->next;
  }
}

bool HandleTable::FenceAll(const Record& mine) {
  deferred_.fetch_add(0);  // a locked instruction: the partner of the one behind BeginRequest
  bool others = false;
  {
    const std::lock_guard lock(mutex_);
    for (const Record* record = records_.get(); record != nullptr && !others; record = record->next.get())
      others = record != &mine && record->active.load(std::memory_order_acquire) != 0;
  }
  if (others && is_asymmetric_) syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
  return others;
}

// ---- what objects remember

namespace {

bool IsRemembered(HandleKind kind) {
  return kind == HandleKind::kFunction || kind == HandleKind::kEvent || kind == HandleKind::kArray ||
         kind == HandleKind::kMipmappedArray;
}

}  // namespace

void HandleTable::HoldUsed(std::span<const WireHandle> holders) {
  std::vector<WireHandle> held;
  const Record& mine = Mine();
  const uint32_t count = mine.count.load(std::memory_order_relaxed);
  const MoreUses* more = mine.more.load(std::memory_order_relaxed);
  for (uint32_t i = 0, place = 0; i < count; ++i) {
    if (i >= kFirstUses && place == kMoreUses) more = more->next.load(std::memory_order_relaxed), place = 0;
    const auto& use = i < kFirstUses ? mine.wires[i] : more->wires[place++];
    const WireHandle wire = use.load(std::memory_order_relaxed);
    if (IsRemembered(WireKind(wire))) held.push_back(wire);
  }
  if (held.empty() && holders.size() < 2) return;
  const std::lock_guard lock(mutex_);
  if (holders.size() > 1) {
    for (const WireHandle holder : holders) {
      const auto before = holds_.find(holder);
      if (before != holds_.end()) held.insert(held.end(), before->second.begin(), before->second.end());
    }
  }
  if (held.empty()) return;
  for (const WireHandle holder : holders) {
    auto& all = holds_[holder];
    for (const WireHandle wire : held) {
      if (all.insert(wire).second) holders_[wire].insert(holder);
    }
  }
}

void HandleTable::ForgetHolder(WireHandle holder) {
  const auto found = holds_.find(holder);
  if (found == holds_.end()) return;
  for (const WireHandle wire : found->second) {
    const auto held = holders_.find(wire);
    held->second.erase(holder);
    if (held->second.empty()) holders_.erase(held);
  }
  holds_.erase(found);
}

void HandleTable::ForgetCapturing() {
  const std::lock_guard lock(mutex_);
  ForgetHolder(kCapturing);
}

// By another than what ends with it.
bool HandleTable::IsHeld(const Ending& ending) const {
  if (holders_.empty() || ending.kind == HandleKind::kContext || ending.kind == HandleKind::kGreenContext)
    return false;
  for (const WireHandle wire : ending.wires) {
    const auto held = holders_.find(wire);
    if (held == holders_.end()) continue;
    for (const WireHandle holder : held->second) {
      if (!std::binary_search(ending.wires.begin(), ending.wires.end(), holder)) return true;
    }
  }
  return false;
}

// ---- numbers

void* HandleTable::UseToEnd(HandleKind kind, WireHandle wire) {
  if (void* value = Use(kind, wire)) return value;
  const std::lock_guard lock(mutex_);
  const Entry* entry = At(WireIndex(wire));
  return WireKind(wire) == kind && entry != nullptr && entry->spent == wire ? entry->value.load() : nullptr;
}

bool HandleTable::Bind(HandleKind kind, WireHandle wire, void* value, WireHandle parent) {
  std::unique_lock lock(mutex_);
  // A pointer that the driver gives again is of an object whose end it has executed: what is left of that is
  // short.
  ended_.wait(lock, [&] {
    for (const EndingRef& ending : endings_) {
      if (ending->is_running && ending->kind == kind && ending->value == value) return false;
    }
    return true;
  });
  return BindLocked(kind, wire, value, parent);
}

WireHandle HandleTable::BindOrKnown(HandleKind kind, WireHandle fresh, void* value, WireHandle parent,
                                    bool counted) {
  const std::lock_guard lock(mutex_);
  if (kind >= HandleKind::kCount) return 0;
  const auto& reverse = reverse_[static_cast<size_t>(kind)];
  if (const auto found = reverse.find(value); found != reverse.end()) {
    if (counted) ++references_[found->second];
    return found->second;
  }
  return BindLocked(kind, fresh, value, parent) ? fresh : 0;
}

namespace {

// No handle has it: what stands for a pointer of the driver's that has lost its number.
WireHandle NumberOf(const void* value) {
  return MakeWireHandle(HandleKind::kCount, 0, 0) | reinterpret_cast<uintptr_t>(value);
}

}  // namespace

bool HandleTable::BindLocked(HandleKind kind, WireHandle wire, void* value, WireHandle parent) {
  if (kind >= HandleKind::kCount || WireKind(wire) != NumberKind(kind) || WireIndex(wire) >= kMaxHandles)
    return false;
  const Entry* owner = At(WireIndex(parent));
  if (parent != 0 && (owner == nullptr || owner->wire.load() != parent)) return false;
  // Nothing is its own owner, also not by a number that is bound again.
  for (auto above = parents_.find(parent); parent != 0; above = parents_.find(above->second)) {
    if (above == parents_.end()) break;
    if (above->second == wire) return false;
  }
  auto& chunk = chunks_[WireIndex(wire) / kChunk];
  if (chunk.load() == nullptr) chunk.store(new Entry[kChunk], std::memory_order_release);
  Entry* entry = At(WireIndex(wire));
  const WireHandle old = entry->wire.load();
  if (entry->ending != 0) return false;
  if (old == wire && entry->value.load() == value) return true;
  if (old != 0) {
    // The object loses its number, and what is in it with it: the driver still has them, and may name them
    // again. They are known by their pointers until then, so that who uses them now is seen when they end.
    for (const WireHandle lost : Family(old)) {
      Entry* at = At(WireIndex(lost));
      if (at == nullptr || at->wire.load() != lost) continue;
      ForgetReverse(*at, lost);
      at->wire.store(0, std::memory_order_release);
      if (lost != old) live_.fetch_sub(1, std::memory_order_relaxed);
      children_[NumberOf(at->value.load())].insert(lost);
    }
  }
  if (const auto lost = children_.find(NumberOf(value)); lost != children_.end()) {
    const std::unordered_set<WireHandle> numbers = lost->second;
    children_[wire].insert(numbers.begin(), numbers.end());
  }
  entry->value.store(value, std::memory_order_relaxed);
  entry->kind.store(kind, std::memory_order_relaxed);
  entry->spent = 0;
  entry->wire.store(wire, std::memory_order_release);  // partner: Find
  if (old == 0) live_.fetch_add(1, std::memory_order_relaxed);
  reverse_[static_cast<size_t>(kind)][value] = wire;
  if (parent != 0 && parent != wire) {
    // An object that has lost its number to this one stays with its own owner.
    parents_[wire] = parent;
    children_[parent].insert(wire);
  }
  return true;
}

void HandleTable::ForgetReverse(const Entry& entry, WireHandle wire) {
  auto& reverse = reverse_[static_cast<size_t>(entry.kind.load())];
  const auto found = reverse.find(entry.value.load());
  if (found != reverse.end() && found->second == wire) reverse.erase(found);
}

WireHandle HandleTable::Parent(WireHandle wire) const {
  const std::lock_guard lock(mutex_);
  const auto found = parents_.find(wire);
  return found == parents_.end() ? 0 : found->second;
}

WireHandle HandleTable::Root(WireHandle wire) const {
  const std::lock_guard lock(mutex_);
  return RootLocked(wire);
}

WireHandle HandleTable::RootLocked(WireHandle wire) const {
  for (auto above = parents_.find(wire); above != parents_.end(); above = parents_.find(wire))
    wire = above->second;
  return wire;
}

void HandleTable::Adopt(WireHandle wire, WireHandle parent) {
  const std::lock_guard lock(mutex_);
  const Entry* child = At(WireIndex(wire));
  const Entry* owner = At(WireIndex(parent));
  if (child == nullptr || owner == nullptr || child->wire.load() != wire || owner->wire.load() != parent)
    return;
  // Not below itself: families end from the top.
  for (WireHandle above = parent; above != 0;) {
    if (above == wire) return;
    const auto next = parents_.find(above);
    above = next == parents_.end() ? 0 : next->second;
  }
  if (const auto old = parents_.find(wire); old != parents_.end()) children_[old->second].erase(wire);
  parents_[wire] = parent;
  children_[parent].insert(wire);
}

WireHandle HandleTable::Reverse(HandleKind kind, void* value) const {
  const std::lock_guard lock(mutex_);
  const auto& reverse = reverse_[static_cast<size_t>(kind)];
  const auto found = reverse.find(value);
  return found == reverse.end() ? 0 : found->second;
}

std::vector<WireHandle> HandleTable::All(HandleKind kind) const {
  std::vector<WireHandle> all;
  const std::lock_guard lock(mutex_);
  for (const auto& [value, wire] : reverse_[static_cast<size_t>(kind)]) all.push_back(wire);
  return all;
}

// ---- families

// The object and all that end with it, from the top. No recursion: how deep a family goes is the guest's
// choice.
std::vector<WireHandle> HandleTable::Family(WireHandle wire) const {
  std::vector<WireHandle> family{wire};
  std::unordered_set<WireHandle> seen;
  for (size_t i = 0; i < family.size(); ++i) {
    const auto found = children_.find(family[i]);
    if (found == children_.end()) continue;
    if (seen.empty()) seen.insert(wire);
    for (const WireHandle child : found->second) {
      if (seen.insert(child).second) family.push_back(child);
    }
  }
  return family;
}

void HandleTable::Unlink(WireHandle wire) {
  children_.erase(wire);
  references_.erase(wire);
  const auto parent = parents_.find(wire);
  if (parent == parents_.end()) return;
  const auto siblings = children_.find(parent->second);
  if (siblings != children_.end()) {
    siblings->second.erase(wire);
    if (siblings->second.empty()) children_.erase(siblings);
  }
  parents_.erase(parent);
}

void HandleTable::Unbind(WireHandle wire) {
  const std::lock_guard lock(mutex_);
  const Entry* entry = At(WireIndex(wire));
  if (wire == 0 || entry == nullptr || entry->wire.load() != wire) return;
  const EndingRef ending = Suspend(WireKind(wire), wire);
  Commit(*ending, 0);
  for (const WireHandle ended : ending->wires) ForgetHolder(ended);
}

}  // namespace causeway::host
