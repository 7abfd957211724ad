// SPDX-License-Identifier: Apache-2.0
// Graphs as a whole: families, lists of nodes and edges, instantiation, update, description.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "guest_lib/graph/graph_copy.h"
#include "guest_lib/graph/graph_node.h"
#include "guest_lib/graph/graph_objects.h"
#include "guest_lib/stream/callback_words.h"
#include "guest_lib/stream/remote.h"

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
  const CUresult result = w.ok() ? call.Finish() : w.error();
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
  if (const CUresult result = NeedContext()) return result;
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

struct Instantiation {
  InstantiateForm form;
  uint64_t flags = 0;
  CUstream stream = nullptr;
  CUgraphNode error_node = nullptr;
  CUgraphInstantiateResult result = CUDA_GRAPH_INSTANTIATE_ERROR;
  char* log = nullptr;
  size_t log_room = 0;
};

CUresult Instantiate(CUgraphExec* exec, CUgraph graph, Instantiation* how) {
  if (const CUresult result = NeedContext()) return result;
  if (exec == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto log_bytes =
      static_cast<uint32_t>(std::min<size_t>(how->log != nullptr ? how->log_room : 0, kMaxGraphLogBytes));
  PendingCall call(Op::cuGraphInstantiateWithParams, sizeof(InstantiateReply) + log_bytes);
  Writer& w = call.writer();
  Remote remote;
  auto fresh = remote.Make<CUgraphExec>(w);
  auto node = remote.Make<CUgraphNode>(w);
  w.Put(InstantiateBody{remote.ToWire(fresh, w), remote.ToWire(graph, w), remote.ToWire(how->stream, w),
                        remote.ToWire(node, w), how->flags, how->form, log_bytes});
  const CUresult result = w.ok() ? call.Finish() : w.error();
  Reader& r = call.reader();
  const auto reply = r.Get<InstantiateReply>();  // zeros when none came
  how->error_node = remote.Settle(node, result != CUDA_SUCCESS ? reply.error_node : 0);
  OwnNode(graph, how->error_node);
  how->result = r.ok() ? static_cast<CUgraphInstantiateResult>(reply.result) : CUDA_GRAPH_INSTANTIATE_ERROR;
  if (how->log != nullptr && how->log_room != 0) {
    const size_t text = std::min<size_t>(r.left(), how->log_room - 1);
    std::memcpy(how->log, r.Take(text), text);
    how->log[text] = '\0';
  }
  if (result != CUDA_SUCCESS) {
    remote.Forget(fresh);
    return result;
  }
  Find(fresh)->flags = reply.may_refuse;
  Find(fresh)->number = static_cast<int32_t>(std::min(reply.announced, kGraphWords));
  *exec = fresh;
  return CUDA_SUCCESS;
}

CUresult Update(CUgraphExec exec, CUgraph graph, bool first_form, CUgraphExecUpdateResultInfo* info) {
  if (const CUresult result = NeedContext()) return result;
  PendingCall call(Op::cuGraphExecUpdate_v2);
  Writer& w = call.writer();
  Remote remote;
  auto node = remote.Make<CUgraphNode>(w);
  auto from = remote.Make<CUgraphNode>(w);
  w.Put(UpdateBody{remote.ToWire(exec, w), remote.ToWire(graph, w), remote.ToWire(node, w),
                   remote.ToWire(from, w), first_form ? 1u : 0u, 0});
  const CUresult result = w.ok() ? call.Finish() : w.error();
  Reader& r = call.reader();
  const auto reply = r.Get<UpdateReply>();  // zeros when none came
  info->result = r.ok() ? static_cast<CUgraphExecUpdateResult>(reply.result) : CU_GRAPH_EXEC_UPDATE_ERROR;
  info->errorNode = remote.Settle(node, reply.error_node);
  info->errorFromNode = remote.Settle(from, reply.error_from_node);
  OwnNode(graph, info->errorNode);
  OwnNode(graph, info->errorFromNode);
  return result;
}

// The description's bytes from `first` on; *total is its whole size.
CUresult FetchDot(CUgraph graph, unsigned flags, uint64_t first, std::string* text, uint64_t* total) {
  PendingCall call(Op::cuGraphDebugDotPrint, kBulkBytes);
  Writer& w = call.writer();
  w.Put(DotBody{Remote{}.ToWire(graph, w), first, flags, 0});
  if (const CUresult result = w.ok() ? call.Finish() : w.error()) return result;
  *total = call.reader().Get<uint64_t>();
  const size_t bytes = call.reader().left();
  text->append(reinterpret_cast<const char*>(call.reader().Take(bytes)), bytes);
  return call.reader().error();
}

// Ends a graph or a node, and every handle that goes with it.
template <class T>
CUresult Destroy(Op op, T handle) {
  if (const CUresult result = NeedContext()) return result;
  if (Find(handle) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  PendingCall call(op);
  call.writer().Put(Remote{}.ToWire(handle, call.writer()));
  const CUresult result = call.writer().ok() ? call.Finish() : call.writer().error();
  if (result != CUDA_SUCCESS) return result;
  EndContents(handle);
  FreeObject(Find(handle));
  return CUDA_SUCCESS;
}

// Adds a node by a row of its own: the older calls without pointers inside.
template <Op op, class... P>
CUresult AddByRow(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                  P... rest) {
  if (const CUresult result = NeedContext()) return result;
  if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return AddInPieces(node, graph, {dependencies, count, nullptr}, [&](const Dependencies& first) {
    const CUresult result = Wait<op>(node, graph, first.nodes, first.count, rest...);
    if (result == CUDA_SUCCESS) OwnNode(graph, *node);
    return result;
  });
}

// Posted, unless the driver may refuse the launch at once: what the graph allocates must have been freed.
CUresult Launch(CUgraphExec exec, const Object* object, CUstream stream) {
  return object == nullptr || object->flags != 0 ? Wait<Op::cuGraphLaunch>(exec, stream)
                                                 : Post<Op::cuGraphLaunch>(exec, stream);
}

}  // namespace

}  // namespace causeway::guest

using namespace causeway;
using namespace causeway::guest;

extern "C" {

CUresult cuGraphCreate(CUgraph* graph, unsigned int flags) {
  if (const CUresult result = NeedContext()) return result;
  return flags == 0 ? Post<Op::cuGraphCreate>(graph, flags) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphDestroy(CUgraph graph) {
  return Destroy(Op::cuGraphDestroy, graph);
}
CUresult cuGraphDestroyNode(CUgraphNode node) {
  return Destroy(Op::cuGraphDestroyNode, node);
}

CUresult cuGraphAddEmptyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                             size_t count) {
  return AddByRow<Op::cuGraphAddEmptyNode>(node, graph, dependencies, count);
}
CUresult cuGraphAddChildGraphNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                  size_t count, CUgraph child) {
  return AddByRow<Op::cuGraphAddChildGraphNode>(node, graph, dependencies, count, child);
}
CUresult cuGraphAddEventRecordNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                   size_t count, CUevent event) {
  return AddByRow<Op::cuGraphAddEventRecordNode>(node, graph, dependencies, count, event);
}
CUresult cuGraphAddEventWaitNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                 size_t count, CUevent event) {
  return AddByRow<Op::cuGraphAddEventWaitNode>(node, graph, dependencies, count, event);
}
CUresult cuGraphAddMemsetNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                              const CUDA_MEMSET_NODE_PARAMS* params, CUcontext context) {
  return AddByRow<Op::cuGraphAddMemsetNode>(node, graph, dependencies, count, params, context);
}
CUresult cuGraphAddMemFreeNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                               size_t count, CUdeviceptr address) {
  return AddByRow<Op::cuGraphAddMemFreeNode>(node, graph, dependencies, count, address);
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

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type) {
  const CUresult result = Wait<Op::cuGraphNodeGetType>(node, type);
  if (result == CUDA_SUCCESS && *type == CU_GRAPH_NODE_TYPE_GRAPH && IsStagedCopy(node))
    *type = CU_GRAPH_NODE_TYPE_MEMCPY;
  return result;
}

CUresult cuGraphNodeFindInClone(CUgraphNode* node, CUgraphNode original, CUgraph clone) {
  const CUresult result = Wait<Op::cuGraphNodeFindInClone>(node, original, clone);
  if (result == CUDA_SUCCESS) OwnNode(clone, *node);
  return result;
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph* graph) {
  const CUresult result = Wait<Op::cuGraphChildGraphNodeGetGraph>(node, graph);
  if (result == CUDA_SUCCESS) OwnGraph(node, *graph);
  return result;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
  Instantiation how{InstantiateForm::kWithFlags};
  how.flags = flags;
  return Instantiate(exec, graph, &how);
}

CUresult cuGraphInstantiate_v2(CUgraphExec* exec, CUgraph graph, CUgraphNode* error_node, char* log,
                               size_t room) {
  Instantiation how{InstantiateForm::kWithLog};
  how.log = log;
  how.log_room = room;
  const CUresult result = Instantiate(exec, graph, &how);
  if (error_node != nullptr) *error_node = how.error_node;
  return result;
}

CUresult cuGraphInstantiateWithParams(CUgraphExec* exec, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Instantiation how{InstantiateForm::kWithParams};
  how.flags = parameters->flags;
  how.stream = parameters->hUploadStream;
  const CUresult result = Instantiate(exec, graph, &how);
  parameters->hErrNode_out = how.error_node;
  parameters->result_out = how.result;
  return result;
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo* info) {
  return info != nullptr ? Update(exec, graph, false, info) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode* error_node,
                           CUgraphExecUpdateResult* update_result) {
  if (error_node == nullptr || update_result == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUgraphExecUpdateResultInfo info{};
  const CUresult result = Update(exec, graph, true, &info);
  *error_node = info.errorNode;
  *update_result = info.result;
  return result;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  if (const CUresult result = NeedContext()) return result;
  const Object* object = Find(exec);
  if (object == nullptr && exec != nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const int32_t announced = object != nullptr ? object->number : 0;
  if (announced == 0) return Launch(exec, object, stream);
  callback_words::Expect(
      announced);  // rather too many, of a launch that is captured, than one that nobody sees
  const CUresult result = Launch(exec, object, stream);
  if (result != CUDA_SUCCESS) callback_words::Expect(-announced);
  return result;
}

CUresult cuGraphDebugDotPrint(CUgraph graph, const char* path, unsigned int flags) {
  if (const CUresult result = NeedContext()) return result;
  if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::string text;
  uint64_t total = 0;
  do {
    const size_t before = text.size();
    if (const CUresult result = FetchDot(graph, flags, before, &text, &total)) return result;
    if (text.size() == before && before < total) return CUDA_ERROR_UNKNOWN;
  } while (text.size() < total);
  FILE* file = std::fopen(path, "w");
  if (file == nullptr) return CUDA_ERROR_OPERATING_SYSTEM;
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  return std::fclose(file) == 0 && written ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

}  // extern "C"
