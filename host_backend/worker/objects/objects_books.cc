// SPDX-License-Identifier: Apache-2.0
// What is known of objects beside the table of their numbers: by the driver's pointers, which it may give again.
#include <algorithm>

#include "host_backend/worker/driver/capture.h"
#include "host_backend/worker/driver/user_objects.h"
#include "host_backend/worker/objects/objects.h"

namespace causeway::host {

// What the books of captures and user objects know of these goes before the call, because the driver may
// give their pointers again at once, and comes back if it refuses; but not what graphs hold of user objects, of
// which those may know too little. A capture into a graph that was there before stays known until the call has ended it,
// because so long the graph must not end; nobody binds the stream's pointer meanwhile.
CUresult Objects::EndInBooks(std::span<const HandleTable::Ended> ended, const HandleTable::Call& call) {
  std::vector<std::pair<CUstream, Captures::Capture>> captures;
  std::vector<std::pair<CUgraph, UserObjects::Held>> graphs;
  for (const auto& [kind, value] : ended) {
    if (kind == HandleKind::kGraph) {
      auto* graph = static_cast<CUgraph>(value);
      graphs.emplace_back(graph, TheUserObjects().GraphEnds(graph));
    }
    if (kind == HandleKind::kStream) {
      auto* stream = static_cast<CUstream>(value);
      if (const auto capture = TheCaptures().Of(stream)) {
        captures.emplace_back(stream, *capture);
        if (!capture->into_existing) TheCaptures().Take(stream);
      }
    }
  }
  const CUresult result = call();
  // Contexts end by a call of their own or with another object, as a green context's does. Also a call that fails may have taken one
  // from the thread.
  for (const auto& [kind, value] : ended) {
    if (kind != HandleKind::kContext) continue;
    NoteContextChange();
    if (result == CUDA_SUCCESS && on_context_end) on_context_end(static_cast<CUcontext>(value));
  }
  for (const auto& [stream, capture] : captures) {
    if (result != CUDA_SUCCESS) {
      TheCaptures().Begin(stream, capture);
    } else {
      // As in EndCapture. Such a graph outlasts the stream.
      const WireHandle holders[] = {HandleTable::kCapturing, handles_.HolderOf(capture.graph)};
      if (capture.into_existing && holders[1] != 0) handles_.HoldUsed(holders, handles_.UsedByOthers());
      TheCaptures().Take(stream);
    }
  }
  if (result != CUDA_SUCCESS) {
    for (const auto& [graph, held] : graphs) TheUserObjects().GraphLives(graph, held);
  }
  if (!captures.empty()) handles_.NoteCaptureEnd();
  return result;
}

void Objects::NoteUserObject(uint64_t callback, Found object) {
  const std::lock_guard lock(user_objects_mutex_);
  user_objects_[callback] = object;
}

void Objects::EndUserObject(uint64_t callback) {
  const std::lock_guard lock(user_objects_mutex_);
  const auto found = user_objects_.find(callback);
  if (found == user_objects_.end()) return;
  Unbind(found->second);
  user_objects_.erase(found);
}

void Objects::Keep(HandleKind kind, const void* object, std::shared_ptr<void> what) {
  const std::lock_guard lock(kept_mutex_);
  kept_.emplace(std::pair(kind, object), std::move(what));
}

// The newest: the pointer is of an object that lives.
std::shared_ptr<void> Objects::FindKept(HandleKind kind, const void* object) {
  const std::lock_guard lock(kept_mutex_);
  const auto [begin, end] = kept_.equal_range(std::pair(kind, object));
  return begin == end ? nullptr : std::prev(end)->second;
}

void Objects::Drop(HandleKind kind, const void* object, const std::shared_ptr<void>& what) {
  const std::lock_guard lock(kept_mutex_);
  const auto [begin, end] = kept_.equal_range(std::pair(kind, object));
  const auto found = std::find_if(begin, end, [&](const auto& entry) { return entry.second == what; });
  if (found != end) kept_.erase(found);
}

}  // namespace causeway::host
