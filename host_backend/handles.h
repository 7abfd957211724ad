// SPDX-License-Identifier: Apache-2.0
// The worker's table from wire handles to the driver's pointers. Look-ups are lock-free: dispatcher and
// channel threads use it at once. A number that was never bound, was unbound, or is of another kind finds
// nothing.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ivshmem_ring/handle.h"

namespace causeway::host {

class HandleTable {
 public:
  HandleTable();
  ~HandleTable();

  // Null if not alive.
  void* Find(HandleKind kind, WireHandle wire) const {
    if (WireKind(wire) != kind) return nullptr;
    const Entry* entry = At(WireIndex(wire));
    if (entry == nullptr || entry->wire.load(std::memory_order_acquire) != wire)
      return nullptr;  // partner: Bind
    return entry->value.load(std::memory_order_relaxed);
  }
  // False if the number is out of range or of another kind. `parent` (0: none) is the object that the driver
  // ends this one with.
  bool Bind(HandleKind kind, WireHandle wire, void* value, WireHandle parent = 0);
  // Forgets the number and all that end with its object, since the driver's pointers to those are dead as
  // well.
  void Unbind(WireHandle wire);
  // The latter alone: the object was emptied, not ended.
  void UnbindChildren(WireHandle wire);
  WireHandle Parent(WireHandle wire) const;
  // Gives the object another parent; nothing happens unless both are alive.
  void Adopt(WireHandle wire, WireHandle parent);
  // The number bound to a driver pointer; 0 if none.
  WireHandle Reverse(HandleKind kind, void* value) const;
  uint64_t live() const { return live_.load(std::memory_order_relaxed); }

 private:
  struct Entry {
    std::atomic<WireHandle> wire{0};
    std::atomic<void*> value{nullptr};
  };
  static constexpr uint32_t kChunk = 1024;
  static constexpr uint32_t kChunks = kMaxHandles / kChunk;
  Entry* At(uint32_t index) const {
    if (index >= kMaxHandles) return nullptr;
    Entry* chunk = chunks_[index / kChunk].load(std::memory_order_acquire);  // partner: Bind
    return chunk != nullptr ? chunk + index % kChunk : nullptr;
  }

  std::atomic<Entry*> chunks_[kChunks] = {};
  void UnbindLocked(WireHandle wire);
  void UnbindChildrenLocked(WireHandle wire);
  void Forget(Entry* entry, WireHandle wire);

  mutable std::mutex mutex_;  // serialises Bind, Unbind, the reverse map and the families
  std::unordered_map<WireHandle, WireHandle> parents_;
  std::unordered_map<WireHandle, std::unordered_set<WireHandle>> children_;
  std::unordered_map<void*, WireHandle> reverse_[static_cast<size_t>(HandleKind::kCount)];
  std::atomic<uint64_t> live_{0};
};

}  // namespace causeway::host
