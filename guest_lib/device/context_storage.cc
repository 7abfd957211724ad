// SPDX-License-Identifier: Apache-2.0
// Context-local storage: a map under a lock, and in front of it a small cache of each thread's own.
#include "guest_lib/device/context_storage.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "guest_lib/process/lock_order.h"
#include "guest_lib/session/guest_state.h"

namespace causeway::guest {
namespace {

struct Value {
  void* key;
  void* value;
  ContextStorageDestructor destructor;
};

struct ContextValues {
  std::vector<Value> values;  // oldest first; a handful, so a linear search is the fastest
  bool closing = false;       // being destroyed: takes no new values, or emptying it might never end
};

struct Storage {
  SharedMutex<Lock::kContextStorage> lock;
  std::unordered_map<CUcontext, ContextValues> contexts;

  // Counts removals. Cached values are right until the next. Written under the exclusive lock.
  std::atomic<uint64_t> removals{1};
};

// Never destroyed: libraries still call in here from exit handlers that run after this library's.
Storage& storage = *new Storage;

struct CachedValue {
  CUcontext context;
  void* key;
  void* value;
  uint64_t removals;  // 0, which the storage never has, marks an empty line
};

// Direct-mapped. A process holds about five keys (one per copy of the CUDA runtime) for each context.
constexpr size_t kCacheLines = 32;
thread_local std::array<CachedValue, kCacheLines> thread_cache{};

CachedValue& CacheLine(CUcontext context, void* key) {
  const uint64_t mixed =
      (reinterpret_cast<uintptr_t>(context) ^ reinterpret_cast<uintptr_t>(key) * 31) *
      0x9e3779b97f4a7c15u;  // 2^64 / golden ratio: spreads aligned addresses over the lines
  return thread_cache[mixed >> 59];
}
static_assert(kCacheLines == 1u << (64 - 59));

auto FindKey(std::vector<Value>& values, void* key) {
  return std::find_if(values.begin(), values.end(), [key](const Value& value) { return value.key == key; });
}

// Replaces null by the current context. Also the check for cuInit, so that a forked child never takes the
// lock, which some thread of the parent may have held.
CUresult Resolve(CUcontext* context) {
  if (const CUresult result = InitialisedOrError(); result != CUDA_SUCCESS) return result;
  if (*context == nullptr) *context = CurrentContext();
  return *context == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

}  // namespace

CUresult ContextStorageGet(void** value, CUcontext context, void* key) {
  if (const CUresult result = Resolve(&context); result != CUDA_SUCCESS) return result;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CachedValue& line = CacheLine(context, key);
  // Acquire pairs with the release in ContextStorageDelete and PopNewest: who is told that a removal happened
  // does not find the value here.
  if (line.removals == storage.removals.load(std::memory_order_acquire) && line.context == context &&
      line.key == key) {
    *value = line.value;
    return CUDA_SUCCESS;
  }

  const std::shared_lock guard(storage.lock);
  const auto found = storage.contexts.find(context);
  if (found == storage.contexts.end()) return CUDA_ERROR_INVALID_HANDLE;
  const auto entry = FindKey(found->second.values, key);
  if (entry == found->second.values.end()) return CUDA_ERROR_INVALID_HANDLE;
  line = {context, key, entry->value, storage.removals.load(std::memory_order_relaxed)};
  *value = entry->value;
  return CUDA_SUCCESS;
}

CUresult ContextStoragePut(CUcontext context, void* key, void* value, ContextStorageDestructor destructor) {
  if (const CUresult result = Resolve(&context); result != CUDA_SUCCESS) return result;
  if (!IsContext(context)) return CUDA_ERROR_INVALID_CONTEXT;
  const std::unique_lock guard(storage.lock);
  ContextValues& own = storage.contexts[context];
  if (own.closing) return CUDA_ERROR_INVALID_CONTEXT;
  if (FindKey(own.values, key) != own.values.end()) return CUDA_ERROR_INVALID_HANDLE;
  own.values.push_back({key, value, destructor});
  return CUDA_SUCCESS;
}

CUresult ContextStorageDelete(CUcontext context, void* key) {
  if (const CUresult result = Resolve(&context); result != CUDA_SUCCESS) return result;
  const std::unique_lock guard(storage.lock);
  const auto found = storage.contexts.find(context);
  if (found == storage.contexts.end()) return CUDA_ERROR_INVALID_HANDLE;
  const auto entry = FindKey(found->second.values, key);
  if (entry == found->second.values.end()) return CUDA_ERROR_INVALID_HANDLE;
  found->second.values.erase(entry);
  storage.removals.fetch_add(1, std::memory_order_release);  // pairs with the acquire in ContextStorageGet
  return CUDA_SUCCESS;
}

namespace {

// Takes the newest value out; at the end takes the context itself out and returns false.
bool PopNewest(CUcontext context, Value* newest) {
  const std::unique_lock guard(storage.lock);
  const auto found = storage.contexts.find(context);
  if (found == storage.contexts.end()) return false;
  ContextValues& own = found->second;
  own.closing = true;
  if (own.values.empty()) {
    storage.contexts.erase(found);
    return false;
  }
  *newest = own.values.back();
  own.values.pop_back();
  storage.removals.fetch_add(1, std::memory_order_release);  // pairs with the acquire in ContextStorageGet
  return true;
}

}  // namespace

void ContextStorageDestroy(CUcontext context) {
  Value newest{};
  if (!PopNewest(context, &newest)) return;
  const CUcontext previous = SwapCurrentContext(context);
  do {
    if (newest.destructor != nullptr) newest.destructor(context, newest.key, newest.value);
  } while (PopNewest(context, &newest));
  SwapCurrentContext(previous);
}

}  // namespace causeway::guest
