// SPDX-License-Identifier: Apache-2.0
// Which streams capture, and into which graphs.
#pragma once
#include <atomic>
#include <map>
#include <mutex>
#include <optional>

#include "host_backend/worker/driver/driver.h"

namespace causeway::host {

class Captures {
 public:
  bool any() const { return count_.load(std::memory_order_relaxed) != 0; }
  struct Capture {
    CUgraph graph;
    bool into_existing;
  };
  void Begin(CUstream stream, Capture capture);
  // The graph that ends with the stream's capture if that fails; null: none.
  CUgraph GraphOf(CUstream stream) const;
  // Where the capture began that the graph ends with if that fails; null: none.
  CUstream StreamOf(CUgraph graph) const;
  bool Has(CUgraph graph) const;
  // The stream captures no more; nothing: it did not.
  std::optional<Capture> Take(CUstream stream);
  // It captures still, into a graph that no question here finds: the driver may be ending that, and give its
  // pointer again. What was known comes back, for Begin.
  std::optional<Capture> HideGraph(CUstream stream);

 private:
  mutable std::mutex mutex_;
  std::map<CUstream, Capture> captures_;
  std::atomic<size_t> count_{0};
};

// A worker has one session.
Captures& TheCaptures();

// Puts the guards that see captures begin.
void WatchCaptures(Driver& driver);

}  // namespace causeway::host
