// SPDX-License-Identifier: Apache-2.0
// The calls that add, change and show nodes with pointers inside, in all their forms.
#include <bit>
#include <cstring>

#include "guest_lib/graph/graph_copy.h"
#include "guest_lib/graph/graph_node.h"
#include "guest_lib/graph/graph_objects.h"
#include "guest_lib/graph/host_nodes.h"
#include "guest_lib/memory/memory.h"
#include "guest_lib/stream/remote.h"

namespace causeway::guest {
namespace {

// The older structs in the union that all nodes share; a kernel's first form lacks the last two fields.
CUgraphNodeParams Widen(const CUDA_KERNEL_NODE_PARAMS& kernel) {
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_KERNEL;
  params.kernel = std::bit_cast<CUDA_KERNEL_NODE_PARAMS_v3>(kernel);
  return params;
}
CUgraphNodeParams Widen(const CUDA_KERNEL_NODE_PARAMS_v1& first) {
  CUDA_KERNEL_NODE_PARAMS kernel{};
  std::memcpy(&kernel, &first, sizeof first);
  return Widen(kernel);
}
CUgraphNodeParams Widen(const CUDA_MEMCPY3D& box, CUcontext context = nullptr) {
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_MEMCPY;
  params.memcpy.copyCtx = context;
  params.memcpy.copyParams = box;
  return params;
}
CUgraphNodeParams Widen(const CUDA_MEM_ALLOC_NODE_PARAMS& alloc) {
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  params.alloc = std::bit_cast<CUDA_MEM_ALLOC_NODE_PARAMS_v2>(alloc);
  return params;
}
CUgraphNodeParams Widen(const CUDA_BATCH_MEM_OP_NODE_PARAMS& batch) {
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  params.memOp = std::bit_cast<CUDA_BATCH_MEM_OP_NODE_PARAMS_v2>(batch);
  return params;
}

// Whether the node copies from or to ordinary memory. Pinned memory that the copy names is not ordinary: this call has the device
// reach it, so that it does so when the node is sent.
bool CopiesOrdinaryMemory(const CUgraphNodeParams& params) {
  if (params.type != CU_GRAPH_NODE_TYPE_MEMCPY) return false;
  NameOnDevice(params.memcpy.copyParams);
  return NeedsStaging(params.memcpy.copyParams);
}

// A node of any type: those that call back or touch ordinary memory need more than a message.
CUresult AddAny(NodeForm form, CUgraphNode* node, CUgraph graph, const Dependencies& dependencies,
                CUgraphNodeParams* params) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (node == nullptr || params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (params->type == CU_GRAPH_NODE_TYPE_HOST)
    return AddHostNode(form, node, graph, dependencies, params->host.fn, params->host.userData);
  if (CopiesOrdinaryMemory(*params))
    return AddStagedCopy(node, graph, dependencies, params->memcpy.copyParams, params->memcpy.copyCtx);
  return AddNode(form, node, graph, dependencies, params);
}

CUresult SetAny(NodeForm form, CUgraphExec exec, CUgraphNode node, const CUgraphNodeParams& params) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (params.type == CU_GRAPH_NODE_TYPE_HOST) return SetHostNode(form, exec, node, params);
  if (params.type == CU_GRAPH_NODE_TYPE_MEMCPY && IsStagedCopy(node))
    return SetStagedCopy(exec, node, params.memcpy.copyParams, params.memcpy.copyCtx);
  const bool is_staged = CopiesOrdinaryMemory(params);
  const CUresult result = SetNode(form, exec, node, params);
  return result == CUDA_ERROR_NOT_SUPPORTED && is_staged ? RefusedCopy(node, params.memcpy.copyParams)
                                                         : result;
}

template <class Params, class... Rest>
CUresult AddTyped(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                  const Params* typed, Rest... rest) {
  if (typed == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUgraphNodeParams params = Widen(*typed, rest...);
  return AddAny(NodeForm::kTyped, node, graph, {dependencies, count, nullptr}, &params);
}
template <class Params, class... Rest>
CUresult SetTyped(CUgraphNode node, const Params* typed, Rest... rest) {
  if (typed == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return SetAny(NodeForm::kTyped, nullptr, node, Widen(*typed, rest...));
}
template <class Params, class... Rest>
CUresult SetTypedInExec(CUgraphExec exec, CUgraphNode node, const Params* typed, Rest... rest) {
  if (typed == nullptr || exec == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return SetAny(NodeForm::kTyped, exec, node, Widen(*typed, rest...));
}

// `from` picks the member of the union.
template <class Params, class From>
CUresult GetTyped(CUgraphNode node, CUgraphNodeType type, Params* typed, const From& from) {
  if (typed == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUgraphNodeParams params{};
  const CUresult result = GetNode(node, type, &params);
  if (result == CUDA_SUCCESS) std::memcpy(typed, from(params), sizeof *typed);
  return result;
}

}  // namespace
}  // namespace causeway::guest

using namespace causeway;
using namespace causeway::guest;

extern "C" {

CUresult cuGraphAddNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                           const CUgraphEdgeData* edges, size_t count, CUgraphNodeParams* params) {
  return AddAny(NodeForm::kGeneric, node, graph, {dependencies, count, edges}, params);
}
CUresult cuGraphAddNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                        CUgraphNodeParams* params) {
  return AddAny(NodeForm::kGeneric, node, graph, {dependencies, count, nullptr}, params);
}
CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams* params) {
  return params != nullptr ? SetAny(NodeForm::kGeneric, nullptr, node, *params) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams* params) {
  if (params == nullptr || exec == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return SetAny(NodeForm::kGeneric, exec, node, *params);
}

CUresult cuGraphAddKernelNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                              const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return AddTyped(node, graph, dependencies, count, params);
}
CUresult cuGraphAddKernelNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                 size_t count, const CUDA_KERNEL_NODE_PARAMS* params) {
  return AddTyped(node, graph, dependencies, count, params);
}
CUresult cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return SetTyped(node, params);
}
CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* params) {
  return SetTyped(node, params);
}
CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                        const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return SetTypedInExec(exec, node, params);
}
CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                           const CUDA_KERNEL_NODE_PARAMS* params) {
  return SetTypedInExec(exec, node, params);
}
CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* params) {
  return GetTyped(node, CU_GRAPH_NODE_TYPE_KERNEL, params, [](auto& all) { return &all.kernel; });
}
CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1* params) {
  CUDA_KERNEL_NODE_PARAMS kernel{};
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = cuGraphKernelNodeGetParams_v2(node, &kernel)) return result;
  if (kernel.func == nullptr && kernel.kern != nullptr) {
    if (const CUresult result = cuKernelGetFunction(&kernel.func, kernel.kern)) return result;
  }
  std::memcpy(params, &kernel, sizeof *params);
  return CUDA_SUCCESS;
}

CUresult cuGraphAddMemcpyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                              const CUDA_MEMCPY3D* params, CUcontext context) {
  return AddTyped(node, graph, dependencies, count, params, context);
}
CUresult cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D* params) {
  return SetTyped(node, params);
}
CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D* params,
                                        CUcontext context) {
  return SetTypedInExec(exec, node, params, context);
}
CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (IsStagedCopy(node, params)) return CUDA_SUCCESS;
  return GetTyped(node, CU_GRAPH_NODE_TYPE_MEMCPY, params, [](auto& all) { return &all.memcpy.copyParams; });
}

CUresult cuGraphAddMemAllocNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                size_t count, CUDA_MEM_ALLOC_NODE_PARAMS* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUgraphNodeParams widened = Widen(*params);
  const CUresult result = AddAny(NodeForm::kTyped, node, graph, {dependencies, count, nullptr}, &widened);
  if (result == CUDA_SUCCESS) params->dptr = widened.alloc.dptr;
  return result;
}
CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS* params) {
  return GetTyped(node, CU_GRAPH_NODE_TYPE_MEM_ALLOC, params, [](auto& all) { return &all.alloc; });
}

CUresult cuGraphAddBatchMemOpNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                  size_t count, const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  return AddTyped(node, graph, dependencies, count, params);
}
CUresult cuGraphBatchMemOpNodeSetParams(CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  return SetTyped(node, params);
}
CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                            const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  return SetTypedInExec(exec, node, params);
}
CUresult cuGraphBatchMemOpNodeGetParams(CUgraphNode node, CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  return GetTyped(node, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, params, [](auto& all) { return &all.memOp; });
}

}  // extern "C"
