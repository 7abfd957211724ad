// SPDX-License-Identifier: Apache-2.0
// Live handles. A handle is a number that is never reused, so that a stale, foreign or random one is
// recognised and answered with an error instead of being dereferenced.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "tests/software_gpu/strict_handles.h"

namespace causeway::software_gpu {

// The next unused handle value: above every small constant handle (0, 1, 2), multiple of 16, no mapped
// address.
uint64_t NextHandleValue();

// What the driver lets one thread use at a time with the object, beside itself; 0: nothing.
template <typename Object>
uint64_t ExclusiveOwner(const Object&) {
  return 0;
}

template <typename Handle, typename Object>
class Registry {
 public:
  explicit Registry(bool exclusive = false) : exclusive_(exclusive) {}

  Handle Add(const std::shared_ptr<Object>& object) {
    Handle handle = reinterpret_cast<Handle>(NextHandleValue());
    NoteMade(reinterpret_cast<uint64_t>(handle));
    std::unique_lock lock(mutex_);
    objects_.emplace(handle, object);
    return handle;
  }

  // Null when the handle is not alive.
  std::shared_ptr<Object> Find(Handle handle) const {
    std::shared_ptr<Object> object;
    {
      std::shared_lock lock(mutex_);
      auto found = objects_.find(handle);
      if (found != objects_.end()) object = found->second;
    }
    if (!HasStrictHandles()) return object;
    if (object != nullptr) {
      NoteUse(reinterpret_cast<uint64_t>(handle), exclusive_);
      NoteUse(ExclusiveOwner(*object), true);
    } else {
      NoteMissed(reinterpret_cast<uint64_t>(handle));
    }
    return object;
  }

  // Ends the handle's life and returns its object; null when it was not alive. `by_name`: as a caller named
  // it.
  std::shared_ptr<Object> Remove(Handle handle, bool by_name = true) {
    if (by_name) NoteMissed(reinterpret_cast<uint64_t>(handle));
    std::unique_lock lock(mutex_);
    auto found = objects_.find(handle);
    if (found == objects_.end()) return nullptr;
    NoteEnd(reinterpret_cast<uint64_t>(handle));
    std::shared_ptr<Object> object = std::move(found->second);
    objects_.erase(found);
    return object;
  }

  // Ends the life of every handle whose object satisfies the predicate; returns the objects.
  template <typename Predicate>
  std::vector<std::shared_ptr<Object>> RemoveIf(const Predicate& predicate) {
    std::vector<std::shared_ptr<Object>> removed;
    std::unique_lock lock(mutex_);
    for (auto entry = objects_.begin(); entry != objects_.end();) {
      if (predicate(*entry->second)) {
        NoteEnd(reinterpret_cast<uint64_t>(entry->first));
        removed.push_back(std::move(entry->second));
        entry = objects_.erase(entry);
      } else {
        ++entry;
      }
    }
    return removed;
  }

  // Calls the function with the registry locked: it must not touch the registry.
  template <typename Function>
  void ForEach(const Function& function) const {
    std::shared_lock lock(mutex_);
    for (const auto& entry : objects_) function(entry.second);
  }
  template <typename Function>
  void ForEachHandle(const Function& function) const {
    std::shared_lock lock(mutex_);
    for (const auto& entry : objects_) function(entry.first, entry.second);
  }

 private:
  const bool exclusive_;
  mutable std::shared_mutex mutex_;
  std::unordered_map<Handle, std::shared_ptr<Object>> objects_;
};

}  // namespace causeway::software_gpu
