// SPDX-License-Identifier: Apache-2.0
// What a graph is made of: its nodes, the edges between them, and child graphs.
#include <algorithm>

#include "guest_lib/graph/graph_objects.h"
#include "guest_lib/stream/remote.h"
#include "ivshmem_ring/messages/graph_messages.h"

namespace causeway::guest {
namespace {

// One list call. Arrays that are null are not wanted.
struct ListCall {
  NodeList list;
  bool old_form;
  CUgraphNode* first = nullptr;
  CUgraphNode* second = nullptr;
  CUgraphEdgeData* edges = nullptr;
};

// Items [first, first + room). *got: how many there were of the caller's whole room up to here.
template <class Subject>
CUresult GetPage(const ListCall& what, Subject subject, uint64_t first, uint64_t room, uint64_t* got) {
  const size_t arrays = (what.first != nullptr) + (what.second != nullptr);
  const size_t item_bytes =
      arrays * sizeof(WireHandle) + (what.edges != nullptr ? sizeof(CUgraphEdgeData) : 0);
  PendingCall call(Op::cuGraphGetNodes, room * item_bytes + sizeof(uint64_t));
  if (room * arrays * sizeof(WireHandle) > kMaxChannelRecordBytes / 2) call.Enlarge();
  Writer& w = call.writer();
  Remote remote;
  w.Put(ListBody{remote.ToWire(subject, w), first, room, what.list, what.first != nullptr,
                 what.second != nullptr, what.edges != nullptr, what.old_form});
  std::vector<CUgraphNode> fresh(room * arrays);
  for (CUgraphNode& node : fresh) {
    node = remote.Make<CUgraphNode>(w);
    w.Put(remote.ToWire(node, w));
  }
  const CUresult result = call.Finish();
  Reader& r = call.reader();
  *got = result == CUDA_SUCCESS ? r.Get<uint64_t>() : 0;
  size_t used = 0;
  auto take = [&](CUgraphNode* array, uint64_t i, bool present) {
    if (array == nullptr) return;
    const CUgraphNode node = remote.Settle(fresh[used++], present ? r.Get<WireHandle>() : 0);
    if constexpr (std::is_same_v<Subject, CUgraph>) {
      OwnNode(subject, node);
    } else {
      OwnNodeLike(subject, node);
    }
    array[first + i] = node;
  };
  for (uint64_t i = 0; i < room; ++i) {
    const bool present = first + i < *got;
    take(what.first, i, present);
    take(what.second, i, present);
    if (what.edges != nullptr) what.edges[first + i] = present ? r.Get<CUgraphEdgeData>() : CUgraphEdgeData{};
  }
  return result != CUDA_SUCCESS ? result : r.error();
}

template <class Subject>
CUresult GetList(const ListCall& what, Subject subject, size_t* count) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const bool wants_any = what.first != nullptr || what.second != nullptr || what.edges != nullptr;
  const uint64_t whole = wants_any ? *count : 0;
  uint64_t first = 0, got = 0;
  do {
    const uint64_t room = std::min<uint64_t>(whole - first, kListPage);
    if (const CUresult result = GetPage(what, subject, first, room, &got)) return result;
    first += room;
  } while (first < whole && got >= first);
  // The driver fills what lies behind the last one with null.
  for (uint64_t i = first; i < whole; ++i) {
    if (what.first != nullptr) what.first[i] = nullptr;
    if (what.second != nullptr) what.second[i] = nullptr;
  }
  *count = got;
  return CUDA_SUCCESS;
}

// Edges in pieces that a message holds.
template <class Send>
CUresult InPieces(const CUgraphNode* from, const CUgraphNode* to, const CUgraphEdgeData* edges, size_t count,
                  const Send& send) {
  constexpr size_t kMost = 32768;
  size_t at = 0;
  do {
    const size_t piece = std::min(count - at, kMost);
    if (const CUresult result = send(from == nullptr ? from : from + at, to == nullptr ? to : to + at,
                                     edges == nullptr ? edges : edges + at, piece)) {
      return result;
    }
    at += piece;
  } while (at < count);
  return CUDA_SUCCESS;
}

// Ends a graph or a node, and every handle that goes with it.
template <class T>
CUresult Destroy(Op op, T handle) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Object* object = Find(handle);
  if (object == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = AskHost(op, WireOf(object))) return result;
  EndContents(handle);
  FreeObject(Find(handle));
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace causeway::guest

using namespace causeway;
using namespace causeway::guest;

extern "C" {

CUresult cuGraphCreate(CUgraph* graph, unsigned int flags) {
  if (const CUresult result = InitialisedOrError()) return result;
  return flags == 0 ? Post<Op::cuGraphCreate>(graph, flags) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphDestroy(CUgraph graph) {
  return Destroy(Op::cuGraphDestroy, graph);
}
CUresult cuGraphDestroyNode(CUgraphNode node) {
  return Destroy(Op::cuGraphDestroyNode, node);
}

CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                   const CUgraphEdgeData* edges, size_t count) {
  return InPieces(from, to, edges, count, [&](auto* f, auto* t, auto* e, size_t piece) {
    return Wait<Op::cuGraphAddDependencies_v2>(graph, f, t, e, piece);
  });
}
CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  return InPieces(from, to, nullptr, count, [&](auto* f, auto* t, auto*, size_t piece) {
    return Wait<Op::cuGraphAddDependencies>(graph, f, t, piece);
  });
}
CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                      const CUgraphEdgeData* edges, size_t count) {
  return InPieces(from, to, edges, count, [&](auto* f, auto* t, auto* e, size_t piece) {
    return Wait<Op::cuGraphRemoveDependencies_v2>(graph, f, t, e, piece);
  });
}
CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                   size_t count) {
  return InPieces(from, to, nullptr, count, [&](auto* f, auto* t, auto*, size_t piece) {
    return Wait<Op::cuGraphRemoveDependencies>(graph, f, t, piece);
  });
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  return GetList({NodeList::kNodes, false, nodes}, graph, count);
}
CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  return GetList({NodeList::kRoots, false, nodes}, graph, count);
}
CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode* from, CUgraphNode* to, size_t* count) {
  return GetList({NodeList::kEdges, true, from, to}, graph, count);
}
CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* edges,
                            size_t* count) {
  return GetList({NodeList::kEdges, false, from, to, edges}, graph, count);
}
CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode* nodes, size_t* count) {
  return GetList({NodeList::kDependencies, true, nodes}, node, count);
}
CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode* nodes, CUgraphEdgeData* edges,
                                       size_t* count) {
  return GetList({NodeList::kDependencies, false, nodes, nullptr, edges}, node, count);
}
CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode* nodes, size_t* count) {
  return GetList({NodeList::kDependents, true, nodes}, node, count);
}
CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode* nodes, CUgraphEdgeData* edges,
                                         size_t* count) {
  return GetList({NodeList::kDependents, false, nodes, nullptr, edges}, node, count);
}

CUresult cuGraphNodeFindInClone(CUgraphNode* node, CUgraphNode original, CUgraph clone) {
  const CUresult result = Wait<Op::cuGraphNodeFindInClone>(node, original, clone);
  if (result == CUDA_SUCCESS) OwnNode(clone, *node);
  return result;
}

}  // extern "C"
