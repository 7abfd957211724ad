// SPDX-License-Identifier: Apache-2.0
// Which streams capture, and into which graphs: the driver ends that of a failed capture. For any thread. A process has one (TheCaptures).
#pragma once
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <shared_mutex>

#include "host_backend/worker/driver/driver.h"

namespace causeway::host {

class Captures {
 public:
  ~Captures() { count_.store(0, std::memory_order_relaxed); }
  // Asked for each request.
  static bool Any() { return count_.load(std::memory_order_relaxed) != 0; }
  struct Capture {
    CUgraph graph;
    bool into_existing;  // by cuStreamBeginCaptureToGraph: the graph is the program's, and outlasts a failure
  };
  void Begin(CUstream stream, Capture capture);
  // While one lives, something counts as captured (Any): around the driver's call that begins a capture, for another thread's
  // call may be captured, and over, before that one has come back.
  class Beginning {
   public:
    explicit Beginning(Captures& captures) : captures_(captures) { captures_.CountBeginnings(1); }
    ~Beginning() { captures_.CountBeginnings(-1); }
    Beginning(const Beginning&) = delete;
    Beginning& operator=(const Beginning&) = delete;

   private:
    Captures& captures_;
  };
  // While it is held no capture begins, and no stream joins one. What the worker enqueues by itself, in a stream that does not capture,
  // would otherwise become a part of a capture that has just begun there. Several may hold it at once, each for one call of the driver's.
  // Where the driver keeps that call waiting, because its queue is full, captures begin after kPatience all the same.
  [[nodiscard]] std::shared_lock<std::shared_timed_mutex> HoldOff() { return std::shared_lock(begin_mutex_); }
  // For a capture that begins or is joined. It may be without the lock.
  [[nodiscard]] std::unique_lock<std::shared_timed_mutex> AwaitHolders() {
    constexpr std::chrono::milliseconds kPatience(20);
    return std::unique_lock(begin_mutex_, kPatience);
  }
  // The graph that the driver made for the stream's capture; null: the stream has none.
  CUgraph GraphOf(CUstream stream) const;
  // The stream for whose capture the driver made the graph; null: it was not made for a present one.
  CUstream StreamOf(CUgraph graph) const;
  bool Has(CUgraph graph) const;
  // Whether a stream captures into the graph, which was there before.
  bool IsInto(CUgraph graph) const;
  // What is known of the stream's capture; nothing: it does not capture.
  std::optional<Capture> Of(CUstream stream) const;
  // To be called when the capture has ended. Returns what was known; nothing: the stream did not capture.
  std::optional<Capture> Take(CUstream stream);
  // To be called before a call that may end the graph: the driver may give another one the same pointer, so
  // none is found here. If the graph lives on, Begin takes what this returned.
  std::optional<Capture> HideGraph(CUstream stream);

 private:
  void CountBeginnings(int more);
  // With mutex_.
  void Count() {
    count_.store(captures_.size() + static_cast<size_t>(beginnings_), std::memory_order_relaxed);
  }

  std::shared_timed_mutex begin_mutex_;  // taken before mutex_
  mutable std::mutex mutex_;
  std::map<CUstream, Capture> captures_;
  int beginnings_ = 0;
  static constinit inline std::atomic<size_t> count_{0};
};

// A worker has one session.
Captures& TheCaptures();

// While one lives, the calling thread has the relaxed mode: calls that the worker makes for itself neither are refused for the sake
// of the program's captures nor break them. The guest's counterpart is RelaxedCaptures.
class RelaxedMode {
 public:
  RelaxedMode() { Exchange(); }
  ~RelaxedMode() { Exchange(); }
  RelaxedMode(const RelaxedMode&) = delete;
  RelaxedMode& operator=(const RelaxedMode&) = delete;

 private:
  void Exchange() {
    const Driver& driver = TheDriver();
    if (Has(driver.cuThreadExchangeStreamCaptureMode)) driver.cuThreadExchangeStreamCaptureMode(&mode_);
  }
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

// Puts the guards that see captures begin.
void WatchCaptures(Driver& driver);

}  // namespace causeway::host
