// SPDX-License-Identifier: Apache-2.0
// Handle table of a worker.
#include "host_backend/handles.h"

namespace causeway::host {

HandleTable::HandleTable() = default;

HandleTable::~HandleTable() {
  for (auto& chunk : chunks_) delete[] chunk.load();
}

HandleTable::Entry* HandleTable::At(uint32_t index) const {
  if (index >= kMaxHandles) return nullptr;
  Entry* chunk = chunks_[index / kChunk].load(std::memory_order_acquire);  // partner: Bind
  return chunk != nullptr ? chunk + index % kChunk : nullptr;
}

void* HandleTable::Find(HandleKind kind, WireHandle wire) const {
  if (WireKind(wire) != kind) return nullptr;
  const Entry* entry = At(WireIndex(wire));
  if (entry == nullptr || entry->wire.load(std::memory_order_acquire) != wire)
    return nullptr;  // partner: Bind
  return entry->value.load(std::memory_order_relaxed);
}

bool HandleTable::Bind(HandleKind kind, WireHandle wire, void* value) {
  if (WireKind(wire) != kind || kind >= HandleKind::kCount || WireIndex(wire) >= kMaxHandles) return false;
  const std::lock_guard lock(mutex_);
  auto& chunk = chunks_[WireIndex(wire) / kChunk];
  if (chunk.load() == nullptr) chunk.store(new Entry[kChunk], std::memory_order_release);
  Entry* entry = At(WireIndex(wire));
  const WireHandle old = entry->wire.load();
  if (old == 0) {
    live_.fetch_add(1, std::memory_order_relaxed);
  } else {
    reverse_[static_cast<size_t>(WireKind(old))].erase(entry->value.load());
  }
  entry->wire.store(0, std::memory_order_release);
  entry->value.store(value, std::memory_order_relaxed);
  entry->wire.store(wire, std::memory_order_release);  // partner: Find
  reverse_[static_cast<size_t>(kind)][value] = wire;
  return true;
}

void HandleTable::Unbind(WireHandle wire) {
  const std::lock_guard lock(mutex_);
  Entry* entry = At(WireIndex(wire));
  if (entry == nullptr || entry->wire.load() != wire) return;
  auto& reverse = reverse_[static_cast<size_t>(WireKind(wire))];
  const auto found = reverse.find(entry->value.load());
  if (found != reverse.end() && found->second == wire) reverse.erase(found);
  entry->wire.store(0, std::memory_order_release);
  live_.fetch_sub(1, std::memory_order_relaxed);
}

WireHandle HandleTable::Reverse(HandleKind kind, void* value) const {
  const std::lock_guard lock(mutex_);
  const auto& reverse = reverse_[static_cast<size_t>(kind)];
  const auto found = reverse.find(value);
  return found == reverse.end() ? 0 : found->second;
}

}  // namespace causeway::host
