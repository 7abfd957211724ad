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

namespace causeway::software_gpu {

// The next unused handle value: above every small constant handle (0, 1, 2), multiple of 16, no mapped
// address.
uint64_t NextHandleValue();

template <typename Handle, typename Object>
class Registry {
 public:
  Handle Add(const std::shared_ptr<Object>& object) {
    Handle handle = reinterpret_cast<Handle>(NextHandleValue());
    std::unique_lock lock(mutex_);
    objects_.emplace(handle, object);
    return handle;
  }

  // Null when the handle is not alive.
  std::shared_ptr<Object> Find(Handle handle) const {
    std::shared_lock lock(mutex_);
    auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
  }

  // Ends the handle's life and returns its object; null when it was not alive.
  std::shared_ptr<Object> Remove(Handle handle) {
    std::unique_lock lock(mutex_);
    auto found = objects_.find(handle);
    if (found == objects_.end()) return nullptr;
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
  mutable std::shared_mutex mutex_;
  std::unordered_map<Handle, std::shared_ptr<Object>> objects_;
};

}  // namespace causeway::software_gpu
