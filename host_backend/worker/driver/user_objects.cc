// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/driver/user_objects.h"

#include <type_traits>

namespace causeway::host {
namespace {

decltype(&::cuUserObjectRetain) retain = nullptr;
decltype(&::cuUserObjectRelease) release = nullptr;
decltype(&::cuGraphRetainUserObject) retain_by_graph = nullptr;
decltype(&::cuGraphReleaseUserObject) release_by_graph = nullptr;
decltype(&::cuGraphClone) clone = nullptr;

CUresult CountedRetain(CUuserObject object, unsigned count) {
  return TheUserObjects().Retain(object, count);
}
CUresult CountedRelease(CUuserObject object, unsigned count) {
  return TheUserObjects().Release(object, count);
}
CUresult CountedRetainByGraph(CUgraph graph, CUuserObject object, unsigned count, unsigned flags) {
  return TheUserObjects().RetainByGraph(graph, object, count, flags);
}
CUresult CountedReleaseByGraph(CUgraph graph, CUuserObject object, unsigned count) {
  return TheUserObjects().ReleaseByGraph(graph, object, count);
}

CUresult CountedClone(CUgraph* copy, CUgraph graph) {
  return TheUserObjects().Clone(copy, graph);
}

}  // namespace

UserObjects& TheUserObjects() {
  static auto* objects = new UserObjects;
  return *objects;
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
  const CUresult result = retain(object, count);
  if (result == CUDA_SUCCESS) counts->owned += count;
  return result;
}

CUresult UserObjects::Release(CUuserObject object, unsigned count) {
  const std::lock_guard lock(mutex_);
  Counts* counts = Find(object);
  if (counts == nullptr || counts->owned < count) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = release(object, count);
  if (result == CUDA_SUCCESS) counts->owned -= count;
  ForgetIfGone(object);
  return result;
}

CUresult UserObjects::RetainByGraph(CUgraph graph, CUuserObject object, unsigned count, unsigned flags) {
  const std::lock_guard lock(mutex_);
  Counts* counts = Find(object);
  const bool moves = (flags & CU_GRAPH_USER_OBJECT_MOVE) != 0;
  if (counts == nullptr || (moves && counts->owned < count)) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = retain_by_graph(graph, object, count, flags);
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
  const CUresult result = release_by_graph(graph, object, count);
  if (result != CUDA_SUCCESS) return result;
  held->second -= count;
  if (held->second == 0) counts->by_graph.erase(held);
  ForgetIfGone(object);
  return result;
}

CUresult UserObjects::Clone(CUgraph* copy, CUgraph graph) {
  const std::lock_guard lock(mutex_);
  const CUresult result = clone(copy, graph);
  if (result != CUDA_SUCCESS) return result;
  for (auto& [object, counts] : counts_) {
    const auto held = counts.by_graph.find(graph);
    if (held != counts.by_graph.end()) counts.by_graph[*copy] = held->second;
  }
  return result;
}

void UserObjects::GraphEnds(CUgraph graph) {
  const std::lock_guard lock(mutex_);
  for (auto entry = counts_.begin(); entry != counts_.end();) {
    const auto at = entry++;
    if (at->second.by_graph.erase(graph) != 0) ForgetIfGone(at->first);
  }
}

void CountUserObjects(Driver& driver) {
  const auto count = [&driver](Op op, auto* original, auto* counted) {
    auto& row = driver.row[static_cast<size_t>(op)];
    if (row == nullptr) return;
    *original = reinterpret_cast<std::remove_pointer_t<decltype(original)>>(row);
    row = reinterpret_cast<void (*)()>(counted);
  };
  count(Op::cuUserObjectRetain, &retain, &CountedRetain);
  count(Op::cuUserObjectRelease, &release, &CountedRelease);
  count(Op::cuGraphRetainUserObject, &retain_by_graph, &CountedRetainByGraph);
  count(Op::cuGraphReleaseUserObject, &release_by_graph, &CountedReleaseByGraph);
  count(Op::cuGraphClone, &clone, &CountedClone);
}

}  // namespace causeway::host
