// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/driver/user_objects.h"

#include "host_backend/worker/driver/guard.h"

namespace causeway::host {
namespace {

using Counted = Guards<struct CountsUserObjects>;

// The guard that is a function of TheUserObjects().
template <auto function, class... Arguments>
CUresult Count(Arguments... arguments) {
  return (TheUserObjects().*function)(arguments...);
}

}  // namespace

UserObjects& TheUserObjects() {
  static auto* objects = new UserObjects;
  return *objects;
}

// A driver that counts in 32 bits would count to zero, and end an object that is held.
bool UserObjects::HasRoom(const Counts& counts, uint64_t more) {
  constexpr uint64_t kMost = INT32_MAX;
  uint64_t held = counts.owned;
  for (const auto& [graph, count] : counts.by_graph) held += count;
  return held <= kMost && more <= kMost - held;
}

UserObjects::Counts* UserObjects::Find(CUuserObject object) {
  const auto found = counts_.find(object);
  return found != counts_.end() ? &found->second : nullptr;
}

void UserObjects::ForgetIfGone(CUuserObject object) {
  const auto found = counts_.find(object);
  if (found != counts_.end() && found->second.owned == 0 && found->second.by_graph.empty())
    counts_.erase(found);
}

void UserObjects::Begin(CUuserObject object, unsigned count) {
  const std::lock_guard lock(mutex_);
  counts_[object] = {.owned = count, .by_graph = {}};
}

CUresult UserObjects::Retain(CUuserObject object, unsigned count) {
  const std::lock_guard lock(mutex_);
  Counts* counts = Find(object);
  if (counts == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!HasRoom(*counts, count)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = Counted::own<&Driver::cuUserObjectRetain>(object, count);
  if (result == CUDA_SUCCESS) counts->owned += count;
  return result;
}

CUresult UserObjects::Release(CUuserObject object, unsigned count) {
  const std::lock_guard lock(mutex_);
  Counts* counts = Find(object);
  if (counts == nullptr || counts->owned < count) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = Counted::own<&Driver::cuUserObjectRelease>(object, count);
  if (result == CUDA_SUCCESS) counts->owned -= count;
  ForgetIfGone(object);
  return result;
}

CUresult UserObjects::RetainByGraph(CUgraph graph, CUuserObject object, unsigned count, unsigned flags) {
  const std::lock_guard lock(mutex_);
  Counts* counts = Find(object);
  const bool moves = (flags & CU_GRAPH_USER_OBJECT_MOVE) != 0;
  if (counts == nullptr || (moves && counts->owned < count)) return CUDA_ERROR_INVALID_VALUE;
  if (!moves && !HasRoom(*counts, count)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = Counted::own<&Driver::cuGraphRetainUserObject>(graph, object, count, flags);
  if (result != CUDA_SUCCESS) return result;
  counts->by_graph[graph] += count;
  if (moves) counts->owned -= count;
  return result;
}

// No more than the graph was seen to get. The driver would be asked about an object that may be gone, and
// what it does with a graph that holds fewer references is not known for each of its versions.
CUresult UserObjects::ReleaseByGraph(CUgraph graph, CUuserObject object, unsigned count) {
  const std::lock_guard lock(mutex_);
  Counts* counts = Find(object);
  if (counts == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto held = counts->by_graph.find(graph);
  if (held == counts->by_graph.end() || held->second < count) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = Counted::own<&Driver::cuGraphReleaseUserObject>(graph, object, count);
  if (result != CUDA_SUCCESS) return result;
  held->second -= count;
  if (held->second == 0) counts->by_graph.erase(held);
  ForgetIfGone(object);
  return result;
}

CUresult UserObjects::Clone(CUgraph* copy, CUgraph graph) {
  const std::lock_guard lock(mutex_);
  for (const auto& [object, counts] : counts_) {
    const auto held = counts.by_graph.find(graph);
    if (held != counts.by_graph.end() && !HasRoom(counts, held->second)) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const CUresult result = Counted::own<&Driver::cuGraphClone>(copy, graph);
  if (result != CUDA_SUCCESS) return result;
  for (auto& [object, counts] : counts_) {
    const auto held = counts.by_graph.find(graph);
    if (held != counts.by_graph.end()) counts.by_graph[*copy] = held->second;
  }
  return result;
}

UserObjects::Held UserObjects::GraphEnds(CUgraph graph) {
  Held held;
  const std::lock_guard lock(mutex_);
  for (auto entry = counts_.begin(); entry != counts_.end();) {
    const auto at = entry++;
    const auto count = at->second.by_graph.find(graph);
    if (count == at->second.by_graph.end()) continue;
    held.emplace_back(at->first, count->second);
    at->second.by_graph.erase(count);
    ForgetIfGone(at->first);
  }
  return held;
}

void UserObjects::GraphLives(CUgraph graph, const Held& held) {
  const std::lock_guard lock(mutex_);
  for (const auto& [object, count] : held) counts_[object].by_graph[graph] += count;
}

void CountUserObjects(Driver& driver) {
  Counted::Put<&Driver::cuUserObjectRetain>(driver, &Count<&UserObjects::Retain>);
  Counted::Put<&Driver::cuUserObjectRelease>(driver, &Count<&UserObjects::Release>);
  Counted::Put<&Driver::cuGraphRetainUserObject>(driver, &Count<&UserObjects::RetainByGraph>);
  Counted::Put<&Driver::cuGraphReleaseUserObject>(driver, &Count<&UserObjects::ReleaseByGraph>);
  Counted::Put<&Driver::cuGraphClone>(driver, &Count<&UserObjects::Clone>);
}

CUresult UncountedUserObjects::RetainByGraph(CUgraph graph, CUuserObject object) {
  return Counted::own<&Driver::cuGraphRetainUserObject>(graph, object, 1, 0);
}
CUresult UncountedUserObjects::ReleaseByGraph(CUgraph graph, CUuserObject object) {
  return Counted::own<&Driver::cuGraphReleaseUserObject>(graph, object, 1);
}
CUresult UncountedUserObjects::Release(CUuserObject object) {
  return Counted::own<&Driver::cuUserObjectRelease>(object, 1);
}

}  // namespace causeway::host
