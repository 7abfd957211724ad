// SPDX-License-Identifier: Apache-2.0
// Graphs as a whole: instantiation, update, launch, description.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "guest_lib/callbacks/callback_words.h"
#include "guest_lib/graph/graph_copy.h"
#include "guest_lib/graph/graph_objects.h"
#include "guest_lib/stream/completion.h"
#include "guest_lib/stream/remote.h"

namespace causeway::guest {
namespace {

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
  if (exec == nullptr || graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto log_bytes =
      static_cast<uint32_t>(std::min<size_t>(how->log != nullptr ? how->log_room : 0, kMaxGraphLogBytes));
  Remote remote;
  PendingCall call(Op::cuGraphInstantiateWithParams, sizeof(InstantiateReply) + log_bytes, remote.submission);
  Writer& w = call.writer();
  auto fresh = remote.Make<CUgraphExec>(w);
  auto node = remote.Make<CUgraphNode>(w);
  w.Put(InstantiateBody{remote.ToWire(fresh, w), remote.ToWire(graph, w), remote.ToWire(how->stream, w),
                        remote.ToWire(node, w), how->flags, how->form, log_bytes});
  const CUresult result = call.Finish();
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

// Instantiates without an upload. The driver looks at captures before it looks at the graph, so where Instantiate has found no graph
// the answer may still be that a capture forbids the call.
CUresult InstantiateOnly(CUgraphExec* exec, CUgraph graph, Instantiation* how) {
  const CUresult result = Instantiate(exec, graph, how);
  return result == CUDA_ERROR_INVALID_VALUE ? AnswerBesideCaptures(result, CaptureRule::kUnsafe) : result;
}

CUresult Update(CUgraphExec exec, CUgraph graph, bool first_form, CUgraphExecUpdateResultInfo* info) {
  if (const CUresult result = InitialisedOrError()) return result;
  PendingCall call(Op::cuGraphExecUpdate_v2);
  Writer& w = call.writer();
  Remote remote;
  auto node = remote.Make<CUgraphNode>(w);
  auto from = remote.Make<CUgraphNode>(w);
  w.Put(UpdateBody{remote.ToWire(exec, w), remote.ToWire(graph, w), remote.ToWire(node, w),
                   remote.ToWire(from, w), first_form ? 1u : 0u, 0});
  const CUresult result = call.Finish();
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
  if (const CUresult result = call.Finish()) return result;
  *total = call.reader().Get<uint64_t>();
  const size_t bytes = call.reader().left();
  text->append(reinterpret_cast<const char*>(call.reader().Take(bytes)), bytes);
  return call.reader().error();
}

// The driver looks at the flags first, then for a context, then at captures: of the stream to which it uploads, or otherwise
// whether they forbid the call.
CUresult InstantiateWithParams(CUgraphExec* exec, CUgraph graph, Instantiation* how) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (!OnlyFlags(how->flags, kInstantiateFlags)) return CUDA_ERROR_INVALID_VALUE;
  const bool uploads = (how->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0;
  const WithContextOf scope(uploads ? how->stream : nullptr);
  if (const CUresult result = NeedContext()) return result;
  const CaptureRule rule = uploads ? CaptureRule::kOutsideCaptures : CaptureRule::kUnsafe;
  if (const CUresult result = CaptureRefusal(rule, how->stream)) return result;
  return Instantiate(exec, graph, how);
}

// Posted, unless the driver may refuse the launch at once: what the graph allocates must have been freed.
CUresult Launch(CUgraphExec exec, const Object& object, CUstream stream) {
  return object.flags != 0 ? Wait<Op::cuGraphLaunch>(exec, stream) : Post<Op::cuGraphLaunch>(exec, stream);
}

}  // namespace
}  // namespace causeway::guest

using namespace causeway;
using namespace causeway::guest;

extern "C" {

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type) {
  const CUresult result = Wait<Op::cuGraphNodeGetType>(node, type);
  if (result == CUDA_SUCCESS && *type == CU_GRAPH_NODE_TYPE_GRAPH && IsStagedCopy(node))
    *type = CU_GRAPH_NODE_TYPE_MEMCPY;
  return result;
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph* graph) {
  return IsStagedCopy(node) ? CUDA_ERROR_INVALID_VALUE : GetChildGraph(node, graph);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
  if (const CUresult result = InitialisedOrError()) return result;
  // An upload needs a stream, and only cuGraphInstantiateWithParams names one.
  if (!OnlyFlags(flags, kInstantiateFlags) || (flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  Instantiation how{InstantiateForm::kWithFlags};
  how.flags = flags;
  return InstantiateOnly(exec, graph, &how);
}

CUresult cuGraphInstantiate_v2(CUgraphExec* exec, CUgraph graph, CUgraphNode* error_node, char* log,
                               size_t room) {
  Instantiation how{InstantiateForm::kWithLog};
  how.log = log;
  how.log_room = room;
  const CUresult result = InstantiateOnly(exec, graph, &how);
  if (error_node != nullptr) *error_node = how.error_node;
  return result;
}

CUresult cuGraphInstantiateWithParams(CUgraphExec* exec, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Instantiation how{InstantiateForm::kWithParams};
  how.flags = parameters->flags;
  how.stream = parameters->hUploadStream;
  const CUresult result = InstantiateWithParams(exec, graph, &how);
  parameters->hErrNode_out = how.error_node;
  const bool untold = result != CUDA_SUCCESS && how.result == CUDA_GRAPH_INSTANTIATE_SUCCESS;
  parameters->result_out = untold ? CUDA_GRAPH_INSTANTIATE_ERROR : how.result;
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

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
  const WithContextOf scope(stream);
  if (const CUresult result = NeedContext()) return result;
  if (exec != nullptr) return Post<Op::cuGraphUpload>(exec, stream);
  return AnswerBesideCaptures(CUDA_ERROR_INVALID_VALUE, CaptureRule::kOutsideCaptures, stream);
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (exec != nullptr) return Post<Op::cuGraphExecDestroy>(exec);
  return AnswerBesideCaptures(CUDA_ERROR_INVALID_VALUE, CaptureRule::kUnsafe);
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  const WithContextOf scope(stream);
  if (const CUresult result = NeedContext()) return result;
  if (exec == nullptr)
    return AnswerBesideCaptures(CUDA_ERROR_INVALID_VALUE, CaptureRule::kOutsideCaptures, stream);
  const Object* object = Find(exec);
  if (object == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const int32_t announced = object->number;
  if (announced == 0) return Launch(exec, *object, stream);
  callback_words::Expect(
      announced);  // rather too many, of a launch that is captured, than one that nobody sees
  const CUresult result = Launch(exec, *object, stream);
  if (result != CUDA_SUCCESS) callback_words::Expect(-announced);
  Hurry();  // the program may wait for what its functions do
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
