// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/graph/host_nodes.h"

#include <climits>

#include "guest_lib/callbacks/callbacks.h"
#include "guest_lib/graph/graph_objects.h"
#include "guest_lib/stream/remote.h"

namespace causeway::guest {
namespace {

void CUDA_CB GiveBack(void* number) {
  callbacks::Release(reinterpret_cast<uint64_t>(number));
}

// A destructor of the program, with the handle that ends with it.
struct UserObject {
  CUhostFn destroy;
  void* data;
  CUuserObject handle;
};
void CUDA_CB Destroy(void* object) {
  auto* user_object = static_cast<UserObject*>(object);
  FreeObject(Find(user_object->handle));
  user_object->destroy(user_object->data);
  delete user_object;
}

CUresult Number(CUhostFn function, void* user_data, uint64_t* id) {
  CUresult error = CUDA_SUCCESS;
  *id = callbacks::Register(function, user_data, callbacks::Kind::kEach, &error);
  return *id != 0 ? CUDA_SUCCESS : error;
}

CUresult CountOrError(unsigned count) {
  return count == 0 || count > INT_MAX ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

}  // namespace

CUresult TieToGraph(CUgraph graph, CUhostFn destroy, void* data, CUuserObject* object) {
  CUuserObject made = nullptr;
  if (const CUresult result = cuUserObjectCreate(&made, data, destroy, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC))
    return result;
  if (object != nullptr) *object = made;
  return cuGraphRetainUserObject(graph, made, 1, CU_GRAPH_USER_OBJECT_MOVE);
}

CUresult AddHostNode(NodeForm form, CUgraphNode* node, CUgraph graph, const Dependencies& dependencies,
                     CUhostFn function, void* user_data, uint64_t* number) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  uint64_t id = 0;
  if (const CUresult result = Number(function, user_data, &id)) return result;
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_HOST;
  params.host.userData = reinterpret_cast<void*>(id);
  const CUresult result = AddNode(form, node, graph, dependencies, &params);
  if (result != CUDA_SUCCESS) {
    callbacks::Release(id);
  } else if (number != nullptr) {
    *number = id;
  } else {
    TieToGraph(graph, &GiveBack, reinterpret_cast<void*>(id));  // without it the number stays, no more
  }
  return result;
}

// The number stays: what has been launched or instantiated may still want the old one and the new one.
CUresult SetHostNode(NodeForm form, CUgraphExec exec, CUgraphNode node, const CUgraphNodeParams& params) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (params.host.fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  uint64_t id = 0;
  if (const CUresult result = Number(params.host.fn, params.host.userData, &id)) return result;
  CUgraphNodeParams numbered = params;
  numbered.host.fn = nullptr;
  numbered.host.userData = reinterpret_cast<void*>(id);
  const CUresult result = SetNode(form, exec, node, numbered);
  if (result != CUDA_SUCCESS) callbacks::Release(id);
  return result;
}

}  // namespace causeway::guest

using namespace causeway;
using namespace causeway::guest;

extern "C" {

CUresult cuGraphAddHostNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                            const CUDA_HOST_NODE_PARAMS* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return AddHostNode(NodeForm::kTyped, node, graph, {dependencies, count, nullptr}, params->fn,
                     params->userData);
}

CUresult cuGraphHostNodeSetParams(CUgraphNode node, const CUDA_HOST_NODE_PARAMS* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUgraphNodeParams all{};
  all.type = CU_GRAPH_NODE_TYPE_HOST;
  all.host = {params->fn, params->userData};
  return SetHostNode(NodeForm::kTyped, nullptr, node, all);
}

CUresult cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                      const CUDA_HOST_NODE_PARAMS* params) {
  if (params == nullptr || exec == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUgraphNodeParams all{};
  all.type = CU_GRAPH_NODE_TYPE_HOST;
  all.host = {params->fn, params->userData};
  return SetHostNode(NodeForm::kTyped, exec, node, all);
}

CUresult cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUgraphNodeParams all{};
  if (const CUresult result = GetNode(node, CU_GRAPH_NODE_TYPE_HOST, &all)) return result;
  const bool known =
      callbacks::Find(reinterpret_cast<uint64_t>(all.host.userData), &params->fn, &params->userData);
  return known ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

CUresult cuUserObjectCreate(CUuserObject* object, void* data, CUhostFn destroy, unsigned int references,
                            unsigned int flags) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (object == nullptr || destroy == nullptr || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
    return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = CountOrError(references)) return result;
  auto* ours = new UserObject{destroy, data, nullptr};
  CUresult error = CUDA_SUCCESS;
  const uint64_t id = callbacks::Register(&Destroy, ours, callbacks::Kind::kOnce, &error);
  if (id == 0) {
    delete ours;
    return error;
  }
  PendingCall call(Op::cuUserObjectCreate);
  Writer& w = call.writer();
  Remote remote;
  auto fresh = remote.Make<CUuserObject>(w);
  ours->handle = fresh;
  w.Put(UserObjectBody{remote.ToWire(fresh, w), id, references, flags});
  const CUresult result = call.Finish();
  if (result != CUDA_SUCCESS) {
    callbacks::Release(id);
    remote.Forget(fresh);
    delete ours;
    return result;
  }
  *object = fresh;
  return CUDA_SUCCESS;
}

CUresult cuUserObjectRetain(CUuserObject object, unsigned int count) {
  if (const CUresult result = CountOrError(count)) return result;
  return Wait<Op::cuUserObjectRetain>(object, count);
}
CUresult cuUserObjectRelease(CUuserObject object, unsigned int count) {
  if (const CUresult result = CountOrError(count)) return result;
  return Wait<Op::cuUserObjectRelease>(object, count);
}
CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count, unsigned int flags) {
  if (const CUresult result = CountOrError(count)) return result;
  return Wait<Op::cuGraphRetainUserObject>(graph, object, count, flags);
}
CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count) {
  if (const CUresult result = CountOrError(count)) return result;
  return Wait<Op::cuGraphReleaseUserObject>(graph, object, count);
}

}  // extern "C"
