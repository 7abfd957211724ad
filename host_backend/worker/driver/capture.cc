// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/driver/capture.h"

#include <algorithm>
#include <utility>

#include "host_backend/worker/driver/guard.h"

namespace causeway::host {

void Captures::Begin(CUstream stream, Capture capture) {
  const std::lock_guard lock(mutex_);
  captures_[stream] = capture;
  Count();
}

void Captures::CountBeginnings(int more) {
  const std::lock_guard lock(mutex_);
  beginnings_ += more;
  Count();
}

CUgraph Captures::GraphOf(CUstream stream) const {
  const std::lock_guard lock(mutex_);
  const auto found = captures_.find(stream);
  return found == captures_.end() || found->second.into_existing ? nullptr : found->second.graph;
}

CUstream Captures::StreamOf(CUgraph graph) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [stream, capture] : captures_) {
    if (capture.graph == graph && !capture.into_existing) return stream;
  }
  return nullptr;
}

bool Captures::Has(CUgraph graph) const {
  if (!Any()) return false;
  const std::lock_guard lock(mutex_);
  for (const auto& [stream, capture] : captures_) {
    if (capture.graph == graph) return true;
  }
  return false;
}

bool Captures::IsInto(CUgraph graph) const {
  if (!Any()) return false;
  const std::lock_guard lock(mutex_);
  return std::any_of(captures_.begin(), captures_.end(), [graph](const auto& entry) {
    return entry.second.graph == graph && entry.second.into_existing;
  });
}

std::optional<Captures::Capture> Captures::Of(CUstream stream) const {
  if (!Any()) return {};
  const std::lock_guard lock(mutex_);
  const auto found = captures_.find(stream);
  return found != captures_.end() ? std::optional(found->second) : std::nullopt;
}

std::optional<Captures::Capture> Captures::Take(CUstream stream) {
  if (!Any()) return {};
  const std::lock_guard lock(mutex_);
  const auto taken = captures_.extract(stream);
  Count();
  return taken.empty() ? std::nullopt : std::optional(taken.mapped());
}

std::optional<Captures::Capture> Captures::HideGraph(CUstream stream) {
  const std::lock_guard lock(mutex_);
  const auto found = captures_.find(stream);
  if (found == captures_.end()) return {};
  return std::exchange(found->second, Capture{nullptr, true});
}

Captures& TheCaptures() {
  static auto* captures = new Captures;
  return *captures;
}

namespace {

using Watched = Guards<struct WatchesCaptures>;

CUresult Begin(CUstream stream, CUstreamCaptureMode mode) {
  const auto alone = TheCaptures().AwaitHolders();
  const Captures::Beginning beginning(TheCaptures());
  const CUresult result = Watched::own<&Driver::cuStreamBeginCapture_v2>(stream, mode);
  if (result != CUDA_SUCCESS) return result;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  CUgraph graph = nullptr;
  TheDriver().cuStreamGetCaptureInfo_v2(stream, &status, &id, &graph, nullptr, nullptr);
  TheCaptures().Begin(stream, {graph, false});
  return CUDA_SUCCESS;
}

CUresult BeginInGraph(CUstream stream, CUgraph graph, const CUgraphNode* nodes, const CUgraphEdgeData* edges,
                      size_t count, CUstreamCaptureMode mode) {
  const auto alone = TheCaptures().AwaitHolders();
  const Captures::Beginning beginning(TheCaptures());
  const CUresult result =
      Watched::own<&Driver::cuStreamBeginCaptureToGraph>(stream, graph, nodes, edges, count, mode);
  if (result == CUDA_SUCCESS) TheCaptures().Begin(stream, {graph, true});
  return result;
}

// It may be that by which the stream joins a capture.
CUresult WaitEvent(CUstream stream, CUevent event, unsigned flags) {
  const auto alone =
      Captures::Any() ? TheCaptures().AwaitHolders() : std::unique_lock<std::shared_timed_mutex>();
  return Watched::own<&Driver::cuStreamWaitEvent>(stream, event, flags);
}

}  // namespace

void WatchCaptures(Driver& driver) {
  Watched::Put<&Driver::cuStreamWaitEvent>(driver, &WaitEvent);
  Watched::Put<&Driver::cuStreamBeginCapture_v2>(driver, &Begin);
  Watched::Put<&Driver::cuStreamBeginCaptureToGraph>(driver, &BeginInGraph);
}

}  // namespace causeway::host
