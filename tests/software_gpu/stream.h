// SPDX-License-Identifier: Apache-2.0
// Streams execute asynchronously: each has a queue and, from its first queued operation on, one thread.
//
//   cu*Async --Submit--> [capturing?] --yes--> graph node
//                             no --> order against the legacy stream --> stream's queue --> its thread
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/software_gpu/context.h"
#include "tests/software_gpu/driver.h"

namespace causeway::software_gpu {

inline constexpr int kLeastStreamPriority = 0;
inline constexpr int kGreatestStreamPriority = -5;
inline constexpr size_t kMaxQueuedOperations = 1022;

// The end of one operation, which others wait for.
class Completion {
 public:
  bool IsDone() const { return done_.load(std::memory_order_acquire); }
  // The release pairs with the acquires in IsDone and Wait: the operation's effects are visible to the
  // waiter.
  void Finish();
  void Wait() const;
  // Valid once done.
  std::chrono::steady_clock::time_point finished_at() const { return finished_at_; }

 private:
  std::atomic<bool> done_{false};
  std::chrono::steady_clock::time_point finished_at_;
};
using CompletionRef = std::shared_ptr<Completion>;

struct CaptureSequence;  // graph.h
struct Operation;        // operation.h

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  enum class Kind { kLegacy, kPerThread, kCreated };

  Stream(const ContextRef& context, Kind kind, unsigned flags, int priority);

  struct Work {
    std::function<void()> run;
    std::vector<CompletionRef> after;  // other streams' operations that must end first
    CompletionRef done;
  };

  // Appends work. Caller holds the context's order_mutex.
  void Append(Work work);

  // The last appended operation's end; null if there was none. Caller holds the context's order_mutex.
  CompletionRef Last() const { return last_; }

  // Blocks while the queue is full. Caller holds no lock.
  void WaitForRoom();

  // No more work will come: the thread ends after the last operation.
  void Close();
  bool IsClosed();

  // Whether it takes part in the legacy stream's ordering.
  bool IsBlocking() const { return (flags & CU_STREAM_NON_BLOCKING) == 0; }

  const std::weak_ptr<Context> context;
  const Kind kind;
  const unsigned flags;
  const int priority;
  const uint64_t id;
  CUstream handle = nullptr;
  std::atomic<int> sync_policy{-1};

  // The capture in which this stream takes part; guarded by the capture lock of graph_capture.cc.
  std::shared_ptr<CaptureSequence> capture;

 private:
  void RunQueue();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> queue_;  // guarded by mutex_
  bool thread_started_ = false;
  bool closed_ = false;
  CompletionRef last_;
};

// Resolves a handle for a call in `context`: 0 and 1 are the legacy stream (0 is the per-thread stream within
// a per-thread entry point), 2 the caller's per-thread stream. Null when the handle is not alive.
StreamRef FindStream(const ContextRef& context, CUstream handle);

// While one lives, stream handle 0 means the caller's per-thread stream.
class ScopedPerThreadDefault {
 public:
  ScopedPerThreadDefault();
  ~ScopedPerThreadDefault();
  ScopedPerThreadDefault(const ScopedPerThreadDefault&) = delete;
  ScopedPerThreadDefault& operator=(const ScopedPerThreadDefault&) = delete;
};

// Queues `run` in stream order, after `extra` and after what legacy ordering demands. `run` is skipped once
// the device has faulted, unless `always` is set; the completion ends in either case.
CompletionRef Enqueue(const StreamRef& stream, std::function<void()> run,
                      std::vector<CompletionRef> extra = {}, bool always = false);

// Everything submitted so far that a wait on the stream covers (legacy: also all blocking streams).
std::vector<CompletionRef> PendingOn(const StreamRef& stream);

void WaitAll(const std::vector<CompletionRef>& completions);

// Waits for every stream of the context / of every context.
void SynchronizeContext(Context& context);
void SynchronizeDevice();

// cuCtxSynchronize's body: capture check, wait, output, device fault.
CUresult SynchronizeContextFromApi(Context& context);

// Waits for the stream and reports a device fault as the waiting call would.
CUresult SynchronizeStream(const StreamRef& stream);

void CloseStreamsOf(Context& context);

}  // namespace causeway::software_gpu
