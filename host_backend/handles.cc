// SPDX-License-Identifier: Apache-2.0
// Handle table of a worker.
#include "host_backend/handles.h"

#include <cstdlib>
#include <new>

namespace causeway::host {

HandleTable::HandleTable() = default;

HandleTable::~HandleTable() {
  for (auto& chunk : chunks_) {
    if (Entry* entries = chunk.load()) std::free(entries);  // most are not there
  }
}

bool HandleTable::Bind(HandleKind kind, WireHandle wire, void* value, WireHandle parent) {
  if (WireKind(wire) != kind || kind >= HandleKind::kCount || WireIndex(wire) >= kMaxHandles) return false;
  const std::lock_guard lock(mutex_);
  auto& chunk = chunks_[WireIndex(wire) / kChunk];
  if (chunk.load() == nullptr) {
    void* zeros = std::calloc(kChunk, sizeof(Entry));  // as good as entries that are bound to nothing
    if (zeros == nullptr) throw std::bad_alloc();
    chunk.store(static_cast<Entry*>(zeros), std::memory_order_release);
  }
  Entry* entry = At(WireIndex(wire));
  if (const WireHandle old = entry->wire.load()) UnbindLocked(old);
  entry->value.store(value, std::memory_order_relaxed);
  entry->wire.store(wire, std::memory_order_release);  // partner: Find
  live_.fetch_add(1, std::memory_order_relaxed);
  reverse_[static_cast<size_t>(kind)][value] = wire;
  const Entry* owner = At(WireIndex(parent));
  if (parent != 0 && parent != wire && owner != nullptr && owner->wire.load() == parent) {
    parents_[wire] = parent;
    children_[parent].insert(wire);
  }
  return true;
}

void HandleTable::Unbind(WireHandle wire) {
  const std::lock_guard lock(mutex_);
  UnbindLocked(wire);
}

void HandleTable::UnbindChildren(WireHandle wire) {
  const std::lock_guard lock(mutex_);
  UnbindChildrenLocked(wire);
}

WireHandle HandleTable::Parent(WireHandle wire) const {
  const std::lock_guard lock(mutex_);
  const auto found = parents_.find(wire);
  return found == parents_.end() ? 0 : found->second;
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

void HandleTable::UnbindLocked(WireHandle wire) {
  Entry* entry = At(WireIndex(wire));
  if (wire == 0 || entry == nullptr || entry->wire.load() != wire) return;
  Forget(entry, wire);
  UnbindChildrenLocked(wire);
}

void HandleTable::Forget(Entry* entry, WireHandle wire) {
  auto& reverse = reverse_[static_cast<size_t>(WireKind(wire))];
  const auto found = reverse.find(entry->value.load());
  if (found != reverse.end() && found->second == wire) reverse.erase(found);
  entry->wire.store(0, std::memory_order_release);
  live_.fetch_sub(1, std::memory_order_relaxed);
  if (const auto parent = parents_.find(wire); parent != parents_.end()) {
    const auto siblings = children_.find(parent->second);
    if (siblings != children_.end()) siblings->second.erase(wire);
    parents_.erase(parent);
  }
}

// No recursion: how deep a family goes is the guest's choice.
void HandleTable::UnbindChildrenLocked(WireHandle wire) {
  std::vector<WireHandle> ended{wire};
  while (!ended.empty()) {
    const auto found = children_.find(ended.back());
    ended.pop_back();
    if (found == children_.end()) continue;
    const std::unordered_set<WireHandle> children = std::move(found->second);
    children_.erase(found);
    for (const WireHandle child : children) {
      Forget(At(WireIndex(child)), child);
      ended.push_back(child);
    }
  }
}

WireHandle HandleTable::Reverse(HandleKind kind, void* value) const {
  const std::lock_guard lock(mutex_);
  const auto& reverse = reverse_[static_cast<size_t>(kind)];
  const auto found = reverse.find(value);
  return found == reverse.end() ? 0 : found->second;
}

}  // namespace causeway::host
