// SPDX-License-Identifier: Apache-2.0
// The order in which a thread of the guest takes locks: all mutexes that guest_lib declares, by their names, but that of beat_watch.h,
// which is only tried. A thread takes a lock only while every lock that it holds stands above it in the list, so that no two threads can
// wait for each other. The transports' own (ivshmem_ring) come after all of these. libnvidia-ml.so.1 has nvml.h's, held while it waits.
//
// With CAUSEWAY_CHECK_LOCKS (CMake's option of that name, which the Debug build type switches on) each lock checks
// this, and a thread that breaks the order ends the process with one sentence. Without it the types below are those
// of the standard library.
#pragma once
#include <array>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <shared_mutex>
#include <string_view>
#include <utility>

namespace causeway::guest {

enum class Lock : uint8_t {
  // A message may be sent with these.
  kOpen,              // session.cc: cuInit, which connects and sends
  kRunCallback,       // callbacks.cc: a function of the program runs, in which CUDA calls are not permitted
  kContexts,          // context_calls.cc: references and activation of contexts, with the messages for them
  kPinnedReach,       // pinned_reach.cc: one block of pinned memory gets pages on the host, with the messages
  kRegistrations,     // host_register.cc: one registration at a time, with its messages
  kServePages,        // pager.cc: the thread that serves pages is started
  kDefaultHostPools,  // host_pool.cc: a default pool is made, or what was freed to pools is looked at
  kEventRecords,      // quiet_event.cc: where an event is recorded, with that message
  kCallbacks,         // callbacks.cc: what is registered; the first opens the channel
  kMarks,             // completion.cc: the words of streams, until a mark is posted
  kFreedMemory,       // freed_memory.cc: until all of it is freed on the host
  kSharedChannel,     // session.cc: the channel of threads that have none of their own, for a ChannelLease
  kFreedBlocks,       // freed_blocks.cc: until all of it is freed on the host
  // Nothing is sent with these.
  kMain,                // session.cc, the main lock: from where a record has its place until it is published
  kExchange,            // page_exchange.cc: pages are exchanged under the program
  kCallbackWords,       // callback_words.cc
  kManagedPages,        // pager.cc: what is known of migrating memory
  kWork,                // submissions.cc
  kRegisteredRanges,    // host_register.cc
  kStagedCopiesKept,    // graph_copy.cc: buffers that wait for the next copy
  kRegionPages,         // region_pages.cc
  kLocalSlices,         // local_slices.cc
  kRegionMemory,        // region_memory.cc; given up where an arena comes or goes
  kPrivateHost,         // private_host.cc
  kFurtherWindows,      // address_windows.cc
  kAllocations,         // memory.cc
  kSharedDescriptors,   // shared_descriptor.cc
  kHostPools,           // host_pool.cc
  kLentBuffers,         // posted_copy.cc
  kFreedOnHost,         // giving_back.cc
  kCaptureOrigins,      // captures.cc
  kCapturesTold,        // capture.cc
  kStagedCopiesDone,    // graph_copy.cc
  kGraphRecords,        // graph_objects.cc
  kFunctionsPublished,  // function.cc
  kFunction,            // function.h
  kAdvice,              // managed_memory.cc
  kPagesAside,          // pages_aside.cc
  kCopyThreads,         // copy_threads.cc
  kFaultHandler,        // fault_handler.cc
  kCoredumpNames,       // coredump.cc
  kLogListeners,        // logs.cc
  kContextStorage,      // context_storage.cc
  kLinkedModules,       // runtime_modules.cc
  kLentCode,            // compile_cache.cc
  kHandles,             // handles.cc: the table of handles
  kComparedBytes,       // compared_bytes.h: also the thread that serves pages takes it
  kCount
};

#ifdef CAUSEWAY_CHECK_LOCKS

namespace lock_order {

inline thread_local uint64_t held = 0;  // a bit for each

constexpr uint64_t Bit(Lock lock) {
  return uint64_t{1} << static_cast<unsigned>(lock);
}
template <Lock lock>
constexpr std::string_view NameOf() {
  std::string_view name = __PRETTY_FUNCTION__;  // "... Lock::kMain; ..." or "... Lock::kMain]"
  name.remove_prefix(name.find("Lock::") + 6);
  return name.substr(0, name.find_first_of(";]"));
}
template <size_t... i>
constexpr auto Names(std::index_sequence<i...>) {
  return std::array{NameOf<static_cast<Lock>(i)>()...};
}
// Before the thread waits for it.
inline void Check(Lock lock) {
  constexpr auto kNames = Names(std::make_index_sequence<static_cast<size_t>(Lock::kCount)>());
  const uint64_t after = held & ~(Bit(lock) - 1);
  if (after == 0) return;
  const std::string_view taken = kNames[static_cast<size_t>(lock)], before = kNames[__builtin_ctzll(after)];
  std::fprintf(
      stderr,
      "causeway: a thread that holds lock %.*s takes %.*s, which guest_lib/process/lock_order.h has before "
      "it: this is an error in Causeway\n",
      static_cast<int>(before.size()), before.data(), static_cast<int>(taken.size()), taken.data());
  std::abort();
}

template <class Base, Lock lock_name>
class Checked : public Base {
 public:
  void lock() {
    Check(lock_name);
    Base::lock();
    held |= Bit(lock_name);
  }
  bool try_lock() {
    if (!Base::try_lock()) return false;
    held |= Bit(lock_name);
    return true;
  }
  void unlock() {
    held &= ~Bit(lock_name);
    Base::unlock();
  }
  void lock_shared() {
    Check(lock_name);
    Base::lock_shared();
    held |= Bit(lock_name);
  }
  void unlock_shared() {
    held &= ~Bit(lock_name);
    Base::unlock_shared();
  }
};

}  // namespace lock_order

template <Lock lock>
using Mutex = lock_order::Checked<std::mutex, lock>;
template <Lock lock>
using SharedMutex = lock_order::Checked<std::shared_mutex, lock>;
using ConditionVariable = std::condition_variable_any;

// Notes that the thread holds a lock whose mutex is a plain one, for it is handed to the transport.
template <Lock lock>
class NotedLock {
 public:
  NotedLock() = default;
  ~NotedLock() { Drop(); }
  NotedLock(const NotedLock&) = delete;
  NotedLock& operator=(const NotedLock&) = delete;
  // Before it is locked, and after it was unlocked.
  void Take() {
    lock_order::Check(lock);
    lock_order::held |= lock_order::Bit(lock);
    taken_ = true;
  }
  void Drop() {
    if (taken_) lock_order::held &= ~lock_order::Bit(lock);
    taken_ = false;
  }

 private:
  bool taken_ = false;
};

#else

template <Lock>
using Mutex = std::mutex;
template <Lock>
using SharedMutex = std::shared_mutex;
using ConditionVariable = std::condition_variable;
template <Lock>
struct NotedLock {
  void Take() {}
  void Drop() {}
};

#endif

}  // namespace causeway::guest
