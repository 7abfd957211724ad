// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/objects/handles.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <new>
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

void HandleTable::PrepareFences() {
  CanFenceOthers();
}

HandleTable::HandleTable() : id_(tables.fetch_add(1) + 1), is_asymmetric_(CanFenceOthers()) {}

HandleTable::~HandleTable() {
  for (uint32_t i = 0; i < chunk_end_; ++i) std::free(chunks_[i].load());
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
  fence_.fetch_add(1);  // a locked instruction: the partner of the one behind BeginRequest
  bool others = false;
  {
    const std::lock_guard lock(mutex_);
    for (const Record* record = records_.get(); record != nullptr && !others; record = record->next.get())
      others = record != &mine && record->active.load(std::memory_order_acquire) != 0;
  }
  if (others && is_asymmetric_) syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
  return others;
}

// ---- what the worker does by itself

HandleTable::OwnUse::OwnUse(HandleTable& table) : table_(table) {
  table.MineOfOwn().active.store(kOwn, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // as the locked instruction behind BeginRequest
}

// Within a request this thread's calls that are left over wait for the request's end.
HandleTable::OwnUse::~OwnUse() {
  Record& mine = table_.MineOfOwn();
  table_.Rest(mine);
  if (mine.is_awaited.load(std::memory_order_relaxed) != 0) {
    mine.is_awaited.store(0);
    table_.Mine().is_awaited.store(1);
  }
}

void* HandleTable::OwnUse::Find(HandleKind kind, WireHandle wire) {
  if (WireKind(wire) != NumberKind(kind)) return nullptr;
  table_.Publish(table_.MineOfOwn(), wire);
  return table_.Find(kind, wire);
}

// ---- what objects remember

namespace {

bool IsRemembered(HandleKind kind) {
  return kind == HandleKind::kFunction || kind == HandleKind::kEvent || kind == HandleKind::kArray ||
         kind == HandleKind::kMipmappedArray;
}
bool Remembers(HandleKind kind) {
  return kind == HandleKind::kGraph || kind == HandleKind::kGraphExec ||
         kind == HandleKind::kTextureReference || kind == HandleKind::kSurfaceReference;
}

}  // namespace

// What the record's request uses, as far as it may be remembered.
void HandleTable::CollectRemembered(const Record& record, std::vector<WireHandle>* to) {
  const uint32_t count = record.count.load(std::memory_order_acquire);  // partner: Publish
  const MoreUses* more = record.more.load(std::memory_order_acquire);
  for (uint32_t i = 0, place = 0; i < count; ++i) {
    if (i >= kFirstUses && place == kMoreUses) more = more->next.load(std::memory_order_acquire), place = 0;
    const auto& use = i < kFirstUses ? record.wires[i] : more->wires[place++];
    const WireHandle wire = use.load(std::memory_order_relaxed);
    if (IsRemembered(WireKind(wire))) to->push_back(wire);
  }
}

std::vector<WireHandle> HandleTable::UsedByOthers() {
  std::vector<WireHandle> used;
  const Record& mine = Mine();
  FenceAll(mine);
  const std::lock_guard lock(mutex_);
  for (const Record* record = records_.get(); record != nullptr; record = record->next.get()) {
    if (record != &mine && record->active.load(std::memory_order_acquire) == kServes)  // partner: Rest
      CollectRemembered(*record, &used);
  }
  return used;
}

WireHandle HandleTable::HolderOf(const void* graph) const {
  const std::lock_guard lock(mutex_);
  const auto is_it = [graph](const Lost& each) {
    return each.kind == HandleKind::kGraph && each.value == graph;
  };
  for (const auto& [owner, lost] : lost_) {
    if (std::any_of(lost.begin(), lost.end(), is_it)) return RootLocked(owner).wire;
  }
  const auto& graphs = reverse_[static_cast<size_t>(HandleKind::kGraph)];
  const auto found = graphs.find(const_cast<void*>(graph));
  return found != graphs.end() ? RootLocked(found->second).wire : 0;
}

void HandleTable::HoldUsed(std::span<const WireHandle> holders, std::span<const WireHandle> more) {
  std::vector<WireHandle> held(more.begin(), more.end());
  CollectRemembered(Mine(), &held);
  if (held.empty() && holders.size() < 2) return;
  const std::lock_guard lock(mutex_);
  std::vector<WireHandle> all(holders.begin(), holders.end());
  // The request may have found one that has lost its number meanwhile, and that other requests still use.
  for (const auto& [holder, numbers] : former_) {
    if (std::find_first_of(numbers.begin(), numbers.end(), holders.begin(), holders.end()) != numbers.end())
      all.push_back(holder);
  }
  if (holders.size() > 1) {
    for (const WireHandle holder : all) {
      const auto before = holds_.find(holder);
      if (before != holds_.end()) held.insert(held.end(), before->second.begin(), before->second.end());
    }
  }
  // The last capture may have ended since the request looked. What it held is forgotten then, and nothing would forget what comes later.
  if (is_capturing != nullptr && !is_capturing()) std::erase(all, kCapturing);
  if (held.empty()) return;
  for (const WireHandle holder : all) {
    auto& known = holds_[holder];
    for (const WireHandle wire : held) {
      if (known.insert(wire).second) holders_[wire].insert(holder);
    }
  }
}

// What these numbers remember is from now on under a name that nobody else gets. 0: none of them can.
WireHandle HandleTable::RenameHolder(std::vector<WireHandle> numbers) {
  if (std::none_of(numbers.begin(), numbers.end(), [](WireHandle wire) { return Remembers(WireKind(wire)); }))
    return 0;
  const WireHandle name = MakeWireHandle(HandleKind::kCount, 0, 0) | next_holder_++;
  for (const WireHandle number : numbers) {
    const auto found = holds_.find(number);
    if (found == holds_.end()) continue;
    const std::unordered_set<WireHandle> held = std::move(found->second);
    holds_.erase(found);
    for (const WireHandle wire : held) {
      holders_[wire].erase(number);
      holders_[wire].insert(name);
    }
    holds_[name].insert(held.begin(), held.end());
  }
  former_[name] = std::move(numbers);
  return name;
}

void HandleTable::ForgetHolder(WireHandle holder) {
  former_.erase(holder);
  const auto found = holds_.find(holder);
  if (found == holds_.end()) return;
  for (const WireHandle wire : found->second) {
    const auto held = holders_.find(wire);
    held->second.erase(holder);
    if (held->second.empty()) holders_.erase(held);
  }
  holds_.erase(found);
  RetryHeld();
}

// What is not held any more is looked at when this thread's request ends, and so is what another thread is just about to leave over.
void HandleTable::RetryHeld() {
  Mine().is_awaited.store(1);
  const auto free = std::stable_partition(held_.begin(), held_.end(),
                                          [this](const EndingRef& ending) { return IsHeld(*ending); });
  if (free == held_.end()) return;
  endings_.insert(endings_.end(), free, held_.end());
  held_.erase(free, held_.end());
}

// Of what has ended.
void HandleTable::ForgetHolders(const Ending& ending) {
  for (const WireHandle holder : ending.holders) ForgetHolder(holder);
}

void HandleTable::NoteCaptureEnd() {
  Mine();
  const std::lock_guard lock(mutex_);
  // Asked with the lock, under which each request notes what it uses while something is captured.
  if (is_capturing == nullptr || !is_capturing()) ForgetHolder(kCapturing);
  RetryHeld();
}

// A request that begins such a capture uses the graph until the books know of the capture. So when no request uses the
// graph any more, they do.
bool HandleTable::IsCapturedInto(const Ending& ending) const {
  if (is_captured_into == nullptr || is_capturing == nullptr || !is_capturing()) return false;
  const auto is_it = [this](const Lost& each) {
    return each.kind == HandleKind::kGraph && each.value != nullptr && is_captured_into(each.value);
  };
  return std::any_of(ending.ended.begin(), ending.ended.end(), is_it) ||
         std::any_of(ending.lost.begin(), ending.lost.end(), is_it);
}

// By another than what ends with it, or by a capture.
bool HandleTable::IsHeld(const Ending& ending) const {
  if (ending.kind == HandleKind::kContext || ending.kind == HandleKind::kGreenContext) return false;
  if (IsCapturedInto(ending)) return true;
  if (holders_.empty()) return false;
  const auto is_within = [&](WireHandle holder) {
    return std::binary_search(ending.wires.begin(), ending.wires.end(), holder) ||
           std::find(ending.holders.begin(), ending.holders.end(), holder) != ending.holders.end();
  };
  const auto is_held = [&](WireHandle wire) {
    const auto held = holders_.find(wire);
    return held != holders_.end() && !std::all_of(held->second.begin(), held->second.end(), is_within);
  };
  return std::any_of(ending.wires.begin(), ending.wires.end(), is_held) ||
         std::any_of(ending.lost.begin(), ending.lost.end(),
                     [&](const Lost& lost) { return is_held(lost.wire); });
}

// ---- numbers

void* HandleTable::UseToEnd(HandleKind kind, WireHandle wire) {
  if (void* value = Use(kind, wire)) return value;
  const std::lock_guard lock(mutex_);
  const Entry* entry = At(WireIndex(wire));
  return WireKind(wire) == kind && entry != nullptr && entry->spent == wire ? entry->value.load() : nullptr;
}

bool HandleTable::Bind(HandleKind kind, WireHandle wire, void* value, Found parent,
                       std::span<const Found> relatives) {
  Mine();
  std::unique_lock lock(mutex_);
  // A pointer that the driver gives again is of an object whose end it has executed: little of that is left.
  ended_.wait(lock, [&] { return !IsKnown(kind, value) || !IsJustEnding(kind, value); });
  if (!BindLocked(kind, wire, value, parent)) return false;
  JoinLocked(relatives, value);
  return true;
}

WireHandle HandleTable::BindOrKnown(HandleKind kind, WireHandle fresh, void* value, Found parent,
                                    bool counted) {
  Mine();
  std::unique_lock lock(mutex_);
  if (kind >= HandleKind::kCount) return 0;
  ended_.wait(lock, [&] { return !IsKnown(kind, value) || !IsJustEnding(kind, value); });  // as in Bind
  const auto& reverse = reverse_[static_cast<size_t>(kind)];
  const auto found = reverse.find(value);
  if (found == reverse.end()) return BindLocked(kind, fresh, value, parent) ? fresh : 0;
  if (!IsAlive({found->second, value})) return 0;  // it waits for its end, or has lost its number
  if (counted) ++references_[found->second];
  Publish(Mine(), found->second);
  return found->second;
}

bool HandleTable::IsKnown(HandleKind kind, void* value) const {
  return kind < HandleKind::kCount && reverse_[static_cast<size_t>(kind)].contains(value);
}

bool HandleTable::IsAlive(Found object) const {
  const Entry* entry = At(WireIndex(object.wire));
  return object.wire != 0 && entry != nullptr && entry->wire.load() == object.wire &&
         entry->value.load() == object.value;
}

bool HandleTable::BindLocked(HandleKind kind, WireHandle wire, void* value, Found parent) {
  if (kind >= HandleKind::kCount || WireKind(wire) != NumberKind(kind) || WireIndex(wire) >= kMaxHandles)
    return false;
  if (parent.wire != 0 && !IsAlive(parent)) return false;
  auto& chunk = chunks_[WireIndex(wire) / kChunk];
  if (chunk.load() == nullptr) {
    void* zeros = std::calloc(kChunk, sizeof(Entry));  // as good as entries that are bound to nothing
    if (zeros == nullptr) throw std::bad_alloc();
    chunk.store(static_cast<Entry*>(zeros), std::memory_order_release);
    chunk_end_ = std::max(chunk_end_, WireIndex(wire) / kChunk + 1);
  }
  Entry* entry = At(WireIndex(wire));
  if (entry->ending != 0) return false;
  const WireHandle old = entry->wire.load() != 0 ? entry->wire.load() : entry->spent;
  Publish(Mine(), wire);
  if (entry->wire.load() == wire && entry->value.load() == value) return true;
  // Nothing is its own owner, also not by a number that is bound again.
  if (IsAtOrBelow(parent.wire, wire) || (old != 0 && IsAtOrBelow(parent.wire, old))) return false;
  if (old != 0 && !Lose(old)) return false;
  // One of the same pointer may have ended without a word, with a capture that failed.
  if (HasRelatives(kind)) relatives_.Forget(value);
  if (IsKnown(kind, value)) ForgetPointer(kind, value);
  references_.erase(wire);
  // The partner of all four is Find: who reads the new pointer or kind sees the new count as well, and who has read
  // the new count sees that the place has lost its number.
  entry->bindings.store(entry->bindings.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  entry->value.store(value, std::memory_order_release);
  entry->kind.store(kind, std::memory_order_release);
  entry->wire.store(wire, std::memory_order_release);
  live_.fetch_add(1, std::memory_order_relaxed);
  reverse_[static_cast<size_t>(kind)][value] = wire;
  if (parent.wire != 0) {
    parents_[wire] = parent.wire;
    children_[parent.wire].insert(wire);
  }
  return true;
}

// The object and what is in it lose their numbers: the driver still has them, until their owner ends, and
// requests may use them. False: something in it is just ending.
bool HandleTable::Lose(WireHandle wire) {
  const std::vector<WireHandle> family = Family(wire);
  for (const WireHandle each : family) {
    const Entry* entry = At(WireIndex(each));
    if (entry != nullptr && entry->ending == each) return false;
  }
  const auto parent = parents_.find(wire);
  const WireHandle owner = parent != parents_.end() ? parent->second : 0;
  const WireHandle holder = RenameHolder(family);
  std::vector<Lost> lost;
  for (const WireHandle each : family) {
    Entry* entry = At(WireIndex(each));
    if (entry != nullptr && (entry->wire.load() == each || entry->spent == each)) {
      const HandleKind kind = entry->kind.load();
      void* const value = entry->value.load();
      lost.push_back({kind, value, each, holder});
      reverse_[static_cast<size_t>(kind)].try_emplace(value, each);
      entry->wire.store(0, std::memory_order_release);
      entry->spent = 0;
      live_.fetch_sub(1, std::memory_order_relaxed);
    }
    if (const auto before = lost_.find(each); before != lost_.end()) {
      lost.insert(lost.end(), before->second.begin(), before->second.end());
      lost_.erase(before);
    }
    Unlink(each);
  }
  if (owner != 0) lost_[owner].insert(lost_[owner].end(), lost.begin(), lost.end());
  return true;
}

// The driver has given the pointer to a new object, so that any other of this pointer has ended: a captured graph, with a capture that
// failed. It may have lost its number before, or wait for its owner's end. By number and pointer it could be taken for the new one.
void HandleTable::ForgetPointer(HandleKind kind, const void* value) {
  const auto forget = [&](std::vector<Lost>& list) {
    for (Lost& each : list) {
      if (each.kind == kind && each.value == value) each.value = nullptr;
    }
  };
  for (auto& [owner, lost] : lost_) forget(lost);
  for (auto* endings : {&endings_, &held_}) {
    for (const EndingRef& ending : *endings) {
      if (ending->is_running || !ending->is_deferred) continue;
      forget(ending->ended);
      forget(ending->lost);
    }
  }
}

Found HandleTable::ParentOf(Found object) const {
  const std::lock_guard lock(mutex_);
  if (!IsAlive(object)) return {};
  const auto found = parents_.find(object.wire);
  if (found == parents_.end()) return {};
  const Entry* parent = At(WireIndex(found->second));
  return parent != nullptr ? Found{found->second, parent->value.load()} : Found{};
}

Found HandleTable::Root(WireHandle wire) const {
  const std::lock_guard lock(mutex_);
  return RootLocked(wire);
}

Found HandleTable::RootLocked(WireHandle wire) const {
  for (auto above = parents_.find(wire); above != parents_.end(); above = parents_.find(wire)) {
    const HandleKind kind = WireKind(above->second);
    if (kind != HandleKind::kGraph && kind != HandleKind::kGraphNode) break;
    wire = above->second;
  }
  const Entry* entry = At(WireIndex(wire));
  const bool is_it =
      entry != nullptr && (entry->wire.load() == wire || entry->spent == wire || entry->ending == wire);
  return {wire, is_it ? entry->value.load() : nullptr};
}

WireHandle HandleTable::RelativesOf(const void* root) const {
  const std::lock_guard lock(mutex_);
  return relatives_.NameOf(root);
}

void HandleTable::JoinRelatives(std::span<const Found> roots) {
  const std::lock_guard lock(mutex_);
  JoinLocked(roots, nullptr);
}

// `made`: what was made of the roots; null: nothing.
void HandleTable::JoinLocked(std::span<const Found> roots, const void* made) {
  const void* first = nullptr;
  WireHandle name = 0;
  for (const Found& root : roots) {
    if (root.value == nullptr || !HasRelatives(WireKind(root.wire))) continue;
    if (first != nullptr) {
      name = relatives_.Join(first, name, root.value);
      continue;
    }
    first = root.value;
    const WireHandle known = relatives_.NameOf(first);
    name = known != 0 ? known : root.wire;
  }
  if (first != nullptr && made != nullptr) relatives_.Join(first, name, made);
}

bool HandleTable::IsWithin(WireHandle graph, WireHandle other) const {
  const std::lock_guard lock(mutex_);
  return IsAtOrBelow(graph, other);
}

bool HandleTable::IsAtOrBelow(WireHandle wire, WireHandle other) const {
  while (wire != other && wire != 0) {
    const auto above = parents_.find(wire);
    wire = above == parents_.end() ? 0 : above->second;
  }
  return wire != 0;
}

bool HandleTable::Adopt(Found object, Found parent) {
  const std::lock_guard lock(mutex_);
  if (!IsAlive(object) || (parent.wire != 0 && !IsAlive(parent))) return false;
  if (IsAtOrBelow(parent.wire, object.wire)) return false;  // not below itself: families end from the top
  LeaveParent(object.wire);
  if (parent.wire == 0) return true;
  parents_[object.wire] = parent.wire;
  children_[parent.wire].insert(object.wire);
  return true;
}

WireHandle HandleTable::Reverse(HandleKind kind, void* value) const {
  const std::lock_guard lock(mutex_);
  const auto& reverse = reverse_[static_cast<size_t>(kind)];
  const auto found = reverse.find(value);
  return found != reverse.end() && IsAlive({found->second, value}) ? found->second : 0;
}

std::vector<WireHandle> HandleTable::All(HandleKind kind) const {
  std::vector<WireHandle> all;
  const std::lock_guard lock(mutex_);
  for (const auto& [value, wire] : reverse_[static_cast<size_t>(kind)]) {
    if (IsAlive({wire, value})) all.push_back(wire);
  }
  return all;
}

// ---- families

// The object and all that end with it, from the top. No recursion: the guest chooses how deep it goes.
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

void HandleTable::LeaveParent(WireHandle wire) {
  const auto parent = parents_.find(wire);
  if (parent == parents_.end()) return;
  const auto siblings = children_.find(parent->second);
  if (siblings != children_.end()) {
    siblings->second.erase(wire);
    if (siblings->second.empty()) children_.erase(siblings);
  }
  parents_.erase(parent);
}

void HandleTable::Unlink(WireHandle wire) {
  children_.erase(wire);
  references_.erase(wire);
  LeaveParent(wire);
}

void HandleTable::Unbind(Found object) {
  Mine();
  const std::lock_guard lock(mutex_);
  if (!IsAlive(object)) return;
  const EndingRef ending = Suspend(At(WireIndex(object.wire))->kind.load(), object.wire);
  MoveHolders(*ending);
  Commit(*ending, 0);
  ForgetEnded(*ending, 0);
}

}  // namespace causeway::host
