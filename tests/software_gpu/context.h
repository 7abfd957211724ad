// SPDX-License-Identifier: Apache-2.0
// Contexts: one primary per device (permanent object, active while retained) and any number of created ones.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/software_gpu/driver.h"

namespace causeway::software_gpu {

class Stream;
using StreamRef = std::shared_ptr<Stream>;

struct StorageEntry {
  using Destructor = void (*)(CUcontext context, void* key, void* value);
  void* key = nullptr;
  void* value = nullptr;
  Destructor destructor = nullptr;
};

struct Context {
  CUcontext handle = nullptr;
  CUdevice device = 0;
  bool primary = false;
  std::atomic<bool> alive{false};
  int place = -1;               // descriptor, see TakePlace
  std::atomic<uint64_t> id{0};  // changes with every activation of a primary context
  std::atomic<unsigned> flags{0};
  std::atomic<unsigned> further_uses{0};  // by cuCtxAttach; those of a primary context are not counted
  std::atomic<int> cache_config{0};
  std::array<std::atomic<size_t>, CU_LIMIT_MAX> limits{};

  // Serialises submission to the context's streams, so that "what was submitted before" is well defined for
  // the legacy stream's ordering and for events.
  std::mutex order_mutex;
  StreamRef legacy_stream;                         // guarded by order_mutex; made at first use
  std::vector<std::weak_ptr<Stream>> all_streams;  // guarded by order_mutex; without the legacy stream

  // What the CUDA runtime attaches to a context through a private table; guarded by storage_mutex.
  std::mutex storage_mutex;
  std::vector<StorageEntry> storage;
};

// The caller's current context: null when there is none. The context may be dead.
ContextRef CurrentContext();

ContextRef FindContext(CUcontext handle);

// The permanent primary context object of a device.
ContextRef PrimaryContext(CUdevice device);

// Calls the function for every live context of every device.
void ForEachLiveContext(const std::function<void(const ContextRef&)>& function);
// Handles of contexts that have ended name nothing from now on. Until then such a handle is known as one that was
// destroyed, for as long as the process lives.
void ForgetEndedContexts();

bool IsDevice(CUdevice device);

// Makes `context` the caller's current one while the object lives (context destruction runs destructors so).
class ScopedCurrentContext {
 public:
  explicit ScopedCurrentContext(const ContextRef& context);
  ~ScopedCurrentContext();
  ScopedCurrentContext(const ScopedCurrentContext&) = delete;
  ScopedCurrentContext& operator=(const ScopedCurrentContext&) = delete;
};

}  // namespace causeway::software_gpu
