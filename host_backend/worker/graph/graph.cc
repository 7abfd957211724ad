// SPDX-License-Identifier: Apache-2.0
// Graphs as a whole: lists of nodes and edges, instantiation, update, description; what a capture is about.
#include "host_backend/worker/session/session.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "host_backend/worker/accounting/accounting.h"
#include "host_backend/worker/driver/capture.h"
#include "host_backend/worker/driver/host_nodes.h"
#include "host_backend/worker/driver/private_text.h"
#include "ivshmem_ring/messages/graph_messages.h"
#include "ivshmem_ring/protocol/known_values.h"

namespace causeway::host {
namespace {

// The driver's answer to a list: as much as was wanted, and the count that it reports.
struct Listed {
  std::vector<CUgraphNode> first, second;
  std::vector<CUgraphEdgeData> edges;
  size_t count = 0;
};

CUresult AskList(const ListBody& body, void* subject, CUgraphNode* first, CUgraphNode* second,
                 CUgraphEdgeData* edges, size_t* count) {
  const Driver& driver = TheDriver();
  const auto graph = static_cast<CUgraph>(subject);
  const auto node = static_cast<CUgraphNode>(subject);
  switch (body.list) {
    case NodeList::kNodes:
      return driver.cuGraphGetNodes(graph, first, count);
    case NodeList::kRoots:
      return driver.cuGraphGetRootNodes(graph, first, count);
    case NodeList::kEdges:
      if (body.old_form != 0) return driver.cuGraphGetEdges(graph, first, second, count);
      return driver.cuGraphGetEdges_v2(graph, first, second, edges, count);
    case NodeList::kDependencies:
      if (body.old_form != 0) return driver.cuGraphNodeGetDependencies(node, first, count);
      return driver.cuGraphNodeGetDependencies_v2(node, first, edges, count);
    case NodeList::kDependents:
      if (body.old_form != 0) return driver.cuGraphNodeGetDependentNodes(node, first, count);
      return driver.cuGraphNodeGetDependentNodes_v2(node, first, edges, count);
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult TakeList(const ListBody& body, void* subject, Listed* listed) {
  const bool wants_any = body.wants_first != 0 || body.wants_second != 0 || body.wants_edges != 0;
  if (!wants_any) return AskList(body, subject, nullptr, nullptr, nullptr, &listed->count);
  size_t whole = 0;
  if (const CUresult result = AskList(body, subject, nullptr, nullptr, nullptr, &whole)) return result;
  listed->count = std::min<uint64_t>(body.first + body.room, whole);
  // The program has room for some and there are none. Room for none goes to the driver as it is.
  if (listed->count == 0 && body.room != 0) return CUDA_SUCCESS;
  // One place more than needed: an array is never null, which would ask for the count alone.
  auto room = [&](auto& array, bool wanted) {
    if (wanted) array.resize(listed->count + 1);
    return wanted ? array.data() : nullptr;
  };
  return AskList(body, subject, room(listed->first, body.wants_first != 0),
                 room(listed->second, body.wants_second != 0), room(listed->edges, body.wants_edges != 0),
                 &listed->count);
}

// Whether launches of the graph can be refused at the call: what allocates must have been freed before.
bool MayRefuseLaunch(CUgraph graph) {
  const Driver& driver = TheDriver();
  std::vector<CUgraph> open{graph};
  for (size_t looked = 0; !open.empty() && looked < 1000; ++looked) {
    const CUgraph here = open.back();
    open.pop_back();
    std::vector<CUgraphNode> nodes;
    if (NodesOf(here, &nodes) != CUDA_SUCCESS) return true;
    for (CUgraphNode node : nodes) {
      CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
      CUgraph child = nullptr;
      if (driver.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS) return true;
      if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || type == CU_GRAPH_NODE_TYPE_MEM_FREE) return true;
      if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
          driver.cuGraphChildGraphNodeGetGraph(node, &child) == CUDA_SUCCESS && child != nullptr) {
        open.push_back(child);
      }
    }
  }
  return !open.empty();
}

// The handle of a node that an error is about. One that was never named must lie in the graph itself: what
// ends a node of a graph further down is not known here, and the driver may remember one that is gone.
WireHandle ErrorNode(Session& session, WireHandle of, CUgraph graph, CUgraphNode node, WireHandle fresh,
                     Writer& out) {
  if (const WireHandle known = session.objects().Known(HandleKind::kGraphNode, node);
      known != 0 || node == nullptr)
    return known;
  std::vector<CUgraphNode> nodes;
  if (NodesOf(graph, &nodes) != CUDA_SUCCESS) return 0;
  if (std::find(nodes.begin(), nodes.end(), node) == nodes.end()) return 0;
  return session.objects().BindOrKnownTo({of, graph}, HandleKind::kGraphNode, fresh, node, out);
}

// What the driver writes into a file, taken from a file in memory.
CUresult PrintToText(CUgraph graph, unsigned flags, std::string* text) {
  text->clear();
  const int file = memfd_create("causeway-graph", MFD_CLOEXEC);
  if (file < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  CUresult result = TheDriver().cuGraphDebugDotPrint(graph, path.c_str(), flags);
  char piece[4096];
  ssize_t got = 0;
  for (off_t at = 0; result == CUDA_SUCCESS && (got = pread(file, piece, sizeof piece, at)) > 0; at += got) {
    text->append(piece, static_cast<size_t>(got));
  }
  close(file);
  return got < 0 ? CUDA_ERROR_OPERATING_SYSTEM : result;
}

}  // namespace

CUresult Serve_cuGraphGetNodes(Session& session, Request& request) {
  Reader& in = request.in;
  const auto body = in.Get<ListBody>();
  const bool of_node = body.list == NodeList::kDependencies || body.list == NodeList::kDependents;
  void* subject =
      session.objects().ToDriver(of_node ? HandleKind::kGraphNode : HandleKind::kGraph, body.subject, in);
  if (!in.ok()) return in.error();
  if (body.room > kListPage || body.first > kMaxHandles * kListPage) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = session.objects().Prepare()) return result;
  Listed listed;
  if (const CUresult result = TakeList(body, subject, &listed)) return result;
  Writer& out = request.out;
  out.Put(static_cast<uint64_t>(listed.count));
  auto put = [&](const std::vector<CUgraphNode>& nodes, uint64_t i, WireHandle fresh) {
    out.Put(session.objects().BindOrKnown(HandleKind::kGraphNode, fresh, nodes[i], out));
  };
  for (uint64_t i = body.first; i < listed.count && i < body.first + body.room && out.ok() && in.ok(); ++i) {
    if (!listed.first.empty()) put(listed.first, i, in.Get<WireHandle>());
    if (!listed.second.empty()) put(listed.second, i, in.Get<WireHandle>());
    if (!listed.edges.empty()) out.Put(listed.edges[i]);
  }
  return in.ok() ? out.error() : in.error();
}

CUresult Serve_cuGraphInstantiateWithParams(Session& session, Request& request) {
  Reader& in = request.in;
  const auto body = in.Get<InstantiateBody>();
  auto graph = session.objects().ToDriver<CUgraph>(body.graph, in);
  CUDA_GRAPH_INSTANTIATE_PARAMS parameters{};
  parameters.flags = body.flags;
  parameters.hUploadStream = session.objects().ToDriver<CUstream>(body.stream, in);
  if (!in.ok()) return in.error();
  const Driver& driver = TheDriver();
  CUgraphExec exec = nullptr;
  std::vector<char> log(std::min(body.log_bytes, kMaxGraphLogBytes) + 1);
  const auto instantiate = [&]() -> CUresult {
    switch (body.form) {
      case InstantiateForm::kWithFlags:
        return driver.cuGraphInstantiateWithFlags(&exec, graph, body.flags);
      case InstantiateForm::kWithParams:
        return driver.cuGraphInstantiateWithParams(&exec, graph, &parameters);
      case InstantiateForm::kWithLog:
        return driver.cuGraphInstantiate_v2(&exec, graph, &parameters.hErrNode_out,
                                            log.size() > 1 ? log.data() : nullptr, log.size() - 1);
    }
    return CUDA_ERROR_INVALID_VALUE;
  };
  if (!OnlyFlags(body.flags, kInstantiateFlags)) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = RequireNumber(HandleKind::kGraphExec, body.exec)) return result;
  InstantiateReply reply{};
  if (const CUresult result = session.objects().Prepare()) return result;
  const CUresult result = TheHostNodes().Instantiate(graph, exec, &reply.announced, instantiate);
  reply.result = parameters.result_out;
  if (result == CUDA_SUCCESS) {
    reply.may_refuse = MayRefuseLaunch(graph) ? 1 : 0;
    if (reply.may_refuse != 0) TheAccounting().KnowGraph(exec, graph);
    session.objects().Bind(HandleKind::kGraphExec, body.exec, exec, request.out);
  } else {
    reply.error_node =
        ErrorNode(session, body.graph, graph, parameters.hErrNode_out, body.error_node, request.out);
  }
  request.out.Put(reply);
  const std::string text =
      WithoutAddresses(std::string(log.data(), strnlen(log.data(), log.size() - 1)), Keep::kDriversMemory);
  request.out.PutBytes(text.data(), std::min(text.size(), log.size() - 1));
  return request.out.ok() ? result : request.out.error();
}

CUresult Serve_cuGraphExecUpdate_v2(Session& session, Request& request) {
  Reader& in = request.in;
  const auto body = in.Get<UpdateBody>();
  auto exec = session.objects().ToDriver<CUgraphExec>(body.exec, in);
  auto graph = session.objects().ToDriver<CUgraph>(body.graph, in);
  if (!in.ok()) return in.error();
  const Driver& driver = TheDriver();
  CUgraphExecUpdateResultInfo info{};
  if (const CUresult result = session.objects().Prepare()) return result;
  const CUresult result = TheHostNodes().Update(exec, graph, [&] {
    return body.first_form != 0 && Has(driver.cuGraphExecUpdate)
               ? driver.cuGraphExecUpdate(exec, graph, &info.errorNode, &info.result)
               : driver.cuGraphExecUpdate_v2(exec, graph, &info);
  });
  UpdateReply reply{};
  reply.result = info.result;
  if (result != CUDA_SUCCESS) {
    reply.error_node = ErrorNode(session, body.graph, graph, info.errorNode, body.error_node, request.out);
    reply.error_from_node =
        ErrorNode(session, body.graph, graph, info.errorFromNode, body.error_from_node, request.out);
  }
  request.out.Put(reply);
  return request.out.ok() ? result : request.out.error();
}

CUresult Serve_cuGraphDebugDotPrint(Session& session, Request& request) {
  const auto body = request.in.Get<DotBody>();
  auto graph = session.objects().ToDriver<CUgraph>(body.graph, request.in);
  if (!request.in.ok()) return request.in.error();
  thread_local std::string text;  // of the channel's last description: a long one is fetched in pieces
  if (body.first == 0) {
    if (const CUresult result = session.objects().Prepare()) return result;
    // The driver passes over the flags that it does not know.
    if (const CUresult result = PrintToText(graph, body.flags & kDotFlags, &text)) return result;
    text = WithoutAddresses(text, Keep::kDriversMemory);
  }
  if (body.first > text.size()) return CUDA_ERROR_INVALID_VALUE;
  constexpr size_t kPiece = kBulkBytes - 64;
  request.out.Put(static_cast<uint64_t>(text.size()));
  request.out.PutBytes(text.data() + body.first, std::min(kPiece, text.size() - body.first));
  return request.out.error();
}

namespace {

// What the stream's next node will depend on, as the driver's lists said before its next call ended them.
struct Dependencies {
  std::vector<CUgraphNode> nodes;
  std::vector<CUgraphEdgeData> edges;
};

// A capture may still depend on a node that was destroyed: only what the graph has gets a number.
CUresult PutDependencies(Session& session, const CaptureBody& body, Found graph, const Dependencies& all,
                         Request& request) {
  std::vector<CUgraphNode> present;
  for (size_t i = 0; i < all.nodes.size() && request.in.ok(); ++i) {
    const auto fresh = request.in.Get<WireHandle>();
    CUgraphNode const node = all.nodes[i];
    if (session.objects().Known(HandleKind::kGraphNode, node) == 0) {
      if (present.empty()) NodesOf(static_cast<CUgraph>(graph.value), &present);  // none where that fails
      if (std::find(present.begin(), present.end(), node) == present.end()) return CUDA_ERROR_INVALID_VALUE;
    }
    request.out.Put(session.objects().BindOrKnownTo(graph, HandleKind::kGraphNode, fresh, node, request.out));
    if (body.wants_edges != 0) request.out.Put(all.edges.empty() ? CUgraphEdgeData{} : all.edges[i]);
  }
  return request.in.ok() ? request.out.error() : request.in.error();
}

}  // namespace

CUresult Serve_cuStreamGetCaptureInfo_v2(Session& session, Request& request) {
  Reader& in = request.in;
  const auto body = in.Get<CaptureBody>();
  auto stream = session.objects().ToDriver<CUstream>(body.stream, in);
  if (!in.ok()) return in.error();
  const Driver& driver = TheDriver();
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  CUgraph graph = nullptr;
  const CUgraphNode* nodes = nullptr;
  const CUgraphEdgeData* edges = nullptr;
  size_t count = 0;
  session.objects().NameCapture();
  if (const CUresult result = session.objects().Prepare()) return result;
  const CUresult result =
      body.form == 3
          ? driver.cuStreamGetCaptureInfo_v3(stream, &status, &id, &graph,
                                             body.wants_dependencies != 0 ? &nodes : nullptr,
                                             body.wants_edges != 0 ? &edges : nullptr, &count)
          : driver.cuStreamGetCaptureInfo_v2(stream, &status, &id, &graph,
                                             body.wants_dependencies != 0 ? &nodes : nullptr, &count);
  if (result != CUDA_SUCCESS) return result;
  Dependencies all;
  const size_t room = std::min<size_t>(body.room, count);
  if (nodes != nullptr) all.nodes.assign(nodes, nodes + room);
  if (nodes != nullptr && edges != nullptr) all.edges.assign(edges, edges + room);
  CaptureReply reply{};
  reply.status = status;
  Writer& out = request.out;
  if (status == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
    reply.id = id;
    reply.graph = session.objects().BindCaptured(body.graph, graph, out);
    reply.dependency_count = count;
  }
  out.Put(reply);
  if (reply.graph == 0) return out.error();
  return PutDependencies(session, body, {reply.graph, graph}, all, request);
}

// All captures, and the graph that ends with a failed one, if it has a number already: from here they are the request's alone.
CUresult NameCaptured(Session& session, CUstream stream, Reader& in) {
  session.objects().NameCapture();
  const WireHandle captured = session.objects().Known(HandleKind::kGraph, TheCaptures().GraphOf(stream));
  if (captured != 0) session.objects().ToDriver(HandleKind::kGraph, captured, in);
  return in.ok() ? session.objects().Prepare() : in.error();
}

CUresult Serve_cuStreamEndCapture(Session& session, Request& request) {
  struct Body {
    WireHandle stream;
    WireHandle graph;       // fresh
    WireHandle seen_graph;  // what the guest takes for the graph that ends if this fails; known here as well
  };
  const auto body = request.in.Get<Body>();
  auto stream = session.objects().ToDriver<CUstream>(body.stream, request.in);
  if (!request.in.ok()) return request.in.error();
  CUgraph graph = nullptr;
  if (const CUresult named = NameCaptured(session, stream, request.in)) return named;
  if (const CUresult result = session.objects().EndCapture(
          stream, [&] { return TheDriver().cuStreamEndCapture(stream, &graph); }))
    return result;
  request.out.Put(session.objects().ReleaseCaptured(body.graph, graph, request.out));
  return request.out.error();
}

}  // namespace causeway::host
