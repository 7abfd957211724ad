// SPDX-License-Identifier: Apache-2.0
// Building graphs by hand: adding nodes and changing their parameters.
#include <algorithm>

#include "tests/software_gpu/copy_box.h"
#include "tests/software_gpu/event.h"
#include "tests/software_gpu/faults.h"
#include "tests/software_gpu/graph_exec.h"
#include "tests/software_gpu/graph_operations.h"
#include "tests/software_gpu/kernel_node.h"
#include "tests/software_gpu/memset_node.h"

namespace causeway::software_gpu {
namespace {

// Adds a node whose operation `make` prepares.
template <typename Make>
CUresult Add(const char* function, CUgraphNode* handle, CUgraph hgraph, const CUgraphNode* dependencies,
             size_t count, const Make& make) {
  return OnDevice(function, [&]() -> CUresult {
    if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    GraphRef graph = Graphs().Find(hgraph);
    if (graph == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    std::vector<NodeRef> nodes;
    if (!FindNodes(dependencies, count, &nodes)) return CUDA_ERROR_INVALID_VALUE;
    Operation operation;
    CUresult result = make(CurrentContext(), &operation);
    if (result != CUDA_SUCCESS) return result;
    std::lock_guard lock(GraphLock());
    *handle = AddNode(graph, std::move(operation), std::move(nodes))->handle;
    return CUDA_SUCCESS;
  });
}

// Adds a node with a copy of the child graph.
// Whether a graph is another one, or lies in one of its nodes at any depth.
bool IsWithin(const GraphRef& graph, const GraphRef& other) {
  return graph == other || std::any_of(other->nodes.begin(), other->nodes.end(), [&](const NodeRef& node) {
           return node->child != nullptr && IsWithin(graph, node->child);
         });
}

// As NVIDIA's driver (580.159): a graph within a node cannot be another node's, and one that is put into
// itself crashes the process.
CUresult AddChild(const char* function, CUgraphNode* handle, CUgraph hgraph, const CUgraphNode* dependencies,
                  size_t count, CUgraph hchild) {
  GraphRef copy;
  CUresult result =
      Add(function, handle, hgraph, dependencies, count,
          [&](const ContextRef&, Operation* operation) -> CUresult {
            GraphRef child = Graphs().Find(hchild);
            if (child == nullptr) return CUDA_ERROR_INVALID_HANDLE;
            if (child->embedded) return CUDA_ERROR_NOT_SUPPORTED;
            std::lock_guard lock(GraphLock());
            if (const GraphRef graph = Graphs().Find(hgraph); graph != nullptr && IsWithin(graph, child))
              NoteGraphIntoItself(reinterpret_cast<uint64_t>(hchild));
            copy = CloneGraph(child);
            if (copy == nullptr) return CUDA_ERROR_INVALID_VALUE;
            copy->embedded = true;
            operation->type = CU_GRAPH_NODE_TYPE_GRAPH;
            operation->run = [] {};
            return CUDA_SUCCESS;
          });
  if (result == CUDA_SUCCESS) Nodes().Find(*handle)->child = copy;
  return result;
}

// Replaces the operation of an existing node of the given type.
template <typename Make>
CUresult Change(const char* function, CUgraphNode handle, CUgraphNodeType type, const Make& make) {
  return OnDevice(function, [&]() -> CUresult {
    NodeRef node = Nodes().Find(handle);
    if (node == nullptr || node->operation.type != type) return CUDA_ERROR_INVALID_VALUE;
    Operation operation;
    CUresult result = make(CurrentContext(), &operation);
    if (result != CUDA_SUCCESS) return result;
    std::lock_guard lock(GraphLock());
    node->operation = std::move(operation);
    return CUDA_SUCCESS;
  });
}

// Copies a node's parameters to the caller.
template <typename Parameters>
CUresult Get(const char* function, CUgraphNode handle, CUgraphNodeType type, Parameters* parameters) {
  return OnDevice(function, [&]() -> CUresult {
    NodeRef node = Nodes().Find(handle);
    if (parameters == nullptr || node == nullptr || node->operation.type != type)
      return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard lock(GraphLock());
    if (node->operation.parameters == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
    *parameters = *static_cast<const Parameters*>(node->operation.parameters.get());
    return CUDA_SUCCESS;
  });
}

CUresult MakeHostOperation(const CUDA_HOST_NODE_PARAMS* parameters, Operation* operation) {
  if (parameters == nullptr || parameters->fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  operation->type = CU_GRAPH_NODE_TYPE_HOST;
  operation->run = [fn = parameters->fn, data = parameters->userData] {
    ScopedHostFunction scope;
    fn(data);
  };
  operation->parameters = std::make_shared<CUDA_HOST_NODE_PARAMS>(*parameters);
  return CUDA_SUCCESS;
}

CUresult MakeFill(const CUDA_MEMSET_NODE_PARAMS* parameters, Operation* operation) {
  if (parameters == nullptr || parameters->width == 0 || parameters->height == 0)
    return CUDA_ERROR_INVALID_VALUE;
  return MakeMemsetOperation(*parameters, operation);
}

CUresult MakeCopy(const CUDA_MEMCPY3D* parameters, Operation* operation) {
  return parameters == nullptr ? CUDA_ERROR_INVALID_VALUE : MakeBoxCopyOperation(*parameters, operation);
}

}  // namespace

CUresult MakeEventOperation(CUevent handle, bool record, Operation* operation) {
  EventRef event = FindEvent(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  operation->type = record ? CU_GRAPH_NODE_TYPE_EVENT_RECORD : CU_GRAPH_NODE_TYPE_WAIT_EVENT;
  operation->run = [event, record] { record ? MarkEvent(*event) : WaitForEvent(*event); };
  operation->parameters = std::make_shared<CUevent>(handle);
  return CUDA_SUCCESS;
}

CUresult MakeKernelNodeOperation(const ContextRef& context, const CUDA_KERNEL_NODE_PARAMS* parameters,
                                 Operation* operation) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  ContextRef owner = context;
  if (parameters->ctx != nullptr) owner = FindContext(parameters->ctx);
  if (owner == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  CUfunction function =
      parameters->func != nullptr ? parameters->func : reinterpret_cast<CUfunction>(parameters->kern);
  Launch launch{{parameters->gridDimX, parameters->gridDimY, parameters->gridDimZ},
                {parameters->blockDimX, parameters->blockDimY, parameters->blockDimZ},
                parameters->sharedMemBytes,
                nullptr,
                false};
  return MakeKernelOperation(owner, function, launch, parameters->kernelParams, parameters->extra, operation);
}

}  // namespace causeway::software_gpu

using namespace causeway::software_gpu;

extern "C" {

CUresult cuGraphAddKernelNode_v2(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                                 size_t numDependencies, const CUDA_KERNEL_NODE_PARAMS* nodeParams) {
  return Add(__func__, phGraphNode, hGraph, dependencies, numDependencies,
             [&](const ContextRef& context, Operation* operation) {
               return MakeKernelNodeOperation(context, nodeParams, operation);
             });
}

CUresult cuGraphAddMemcpyNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                              size_t numDependencies, const CUDA_MEMCPY3D* copyParams, CUcontext) {
  return Add(__func__, phGraphNode, hGraph, dependencies, numDependencies,
             [&](const ContextRef&, Operation* operation) { return MakeCopy(copyParams, operation); });
}

CUresult cuGraphAddMemsetNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                              size_t numDependencies, const CUDA_MEMSET_NODE_PARAMS* memsetParams,
                              CUcontext) {
  return Add(__func__, phGraphNode, hGraph, dependencies, numDependencies,
             [&](const ContextRef&, Operation* operation) { return MakeFill(memsetParams, operation); });
}

CUresult cuGraphAddHostNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                            size_t numDependencies, const CUDA_HOST_NODE_PARAMS* nodeParams) {
  return Add(
      __func__, phGraphNode, hGraph, dependencies, numDependencies,
      [&](const ContextRef&, Operation* operation) { return MakeHostOperation(nodeParams, operation); });
}

CUresult cuGraphAddEmptyNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                             size_t numDependencies) {
  return Add(__func__, phGraphNode, hGraph, dependencies, numDependencies,
             [](const ContextRef&, Operation* operation) {
               operation->run = [] {};
               return CUDA_SUCCESS;
             });
}

CUresult cuGraphAddEventRecordNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                                   size_t numDependencies, CUevent event) {
  return Add(
      __func__, phGraphNode, hGraph, dependencies, numDependencies,
      [&](const ContextRef&, Operation* operation) { return MakeEventOperation(event, true, operation); });
}

CUresult cuGraphAddEventWaitNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                                 size_t numDependencies, CUevent event) {
  return Add(
      __func__, phGraphNode, hGraph, dependencies, numDependencies,
      [&](const ContextRef&, Operation* operation) { return MakeEventOperation(event, false, operation); });
}

CUresult cuGraphAddChildGraphNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                                  size_t numDependencies, CUgraph childGraph) {
  return AddChild(__func__, phGraphNode, hGraph, dependencies, numDependencies, childGraph);
}

CUresult cuGraphAddNode_v2(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                           const CUgraphEdgeData*, size_t numDependencies, CUgraphNodeParams* nodeParams) {
  if (nodeParams != nullptr && nodeParams->type == CU_GRAPH_NODE_TYPE_GRAPH) {
    return AddChild(__func__, phGraphNode, hGraph, dependencies, numDependencies, nodeParams->graph.graph);
  }
  return Add(__func__, phGraphNode, hGraph, dependencies, numDependencies,
             [&](const ContextRef& context, Operation* operation) -> CUresult {
               if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
               return MakeOperation(context, *nodeParams, operation);
             });
}

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS* nodeParams) {
  return OnDevice(__func__, [&]() -> CUresult {
    NodeRef node = Nodes().Find(hNode);
    if (nodeParams == nullptr || node == nullptr || node->operation.type != CU_GRAPH_NODE_TYPE_KERNEL) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    std::lock_guard lock(GraphLock());
    const auto& kernel = *static_cast<const KernelNode*>(node->operation.parameters.get());
    *nodeParams = {};
    nodeParams->func = kernel.function->handle;
    nodeParams->gridDimX = kernel.launch.grid.x;
    nodeParams->gridDimY = kernel.launch.grid.y;
    nodeParams->gridDimZ = kernel.launch.grid.z;
    nodeParams->blockDimX = kernel.launch.block.x;
    nodeParams->blockDimY = kernel.launch.block.y;
    nodeParams->blockDimZ = kernel.launch.block.z;
    nodeParams->sharedMemBytes = kernel.launch.dynamic_shared_bytes;
    nodeParams->kernelParams = const_cast<void**>(kernel.pointers.data());
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS* nodeParams) {
  return Change(__func__, hNode, CU_GRAPH_NODE_TYPE_KERNEL,
                [&](const ContextRef& context, Operation* operation) {
                  return MakeKernelNodeOperation(context, nodeParams, operation);
                });
}

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode hNode, CUDA_MEMCPY3D* nodeParams) {
  return Get(__func__, hNode, CU_GRAPH_NODE_TYPE_MEMCPY, nodeParams);
}

CUresult cuGraphMemcpyNodeSetParams(CUgraphNode hNode, const CUDA_MEMCPY3D* nodeParams) {
  return Change(__func__, hNode, CU_GRAPH_NODE_TYPE_MEMCPY,
                [&](const ContextRef&, Operation* operation) { return MakeCopy(nodeParams, operation); });
}

CUresult cuGraphMemsetNodeGetParams(CUgraphNode hNode, CUDA_MEMSET_NODE_PARAMS* nodeParams) {
  return Get(__func__, hNode, CU_GRAPH_NODE_TYPE_MEMSET, nodeParams);
}

CUresult cuGraphMemsetNodeSetParams(CUgraphNode hNode, const CUDA_MEMSET_NODE_PARAMS* nodeParams) {
  return Change(__func__, hNode, CU_GRAPH_NODE_TYPE_MEMSET,
                [&](const ContextRef&, Operation* operation) { return MakeFill(nodeParams, operation); });
}

CUresult cuGraphHostNodeGetParams(CUgraphNode hNode, CUDA_HOST_NODE_PARAMS* nodeParams) {
  return Get(__func__, hNode, CU_GRAPH_NODE_TYPE_HOST, nodeParams);
}

CUresult cuGraphHostNodeSetParams(CUgraphNode hNode, const CUDA_HOST_NODE_PARAMS* nodeParams) {
  return Change(__func__, hNode, CU_GRAPH_NODE_TYPE_HOST, [&](const ContextRef&, Operation* operation) {
    return MakeHostOperation(nodeParams, operation);
  });
}

CUresult cuGraphNodeSetParams(CUgraphNode hNode, CUgraphNodeParams* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return Change(__func__, hNode, nodeParams->type, [&](const ContextRef& context, Operation* operation) {
    return MakeOperation(context, *nodeParams, operation);
  });
}

CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode hNode, CUevent event) {
  return Change(
      __func__, hNode, CU_GRAPH_NODE_TYPE_EVENT_RECORD,
      [&](const ContextRef&, Operation* operation) { return MakeEventOperation(event, true, operation); });
}

CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode hNode, CUevent event) {
  return Change(__func__, hNode, CU_GRAPH_NODE_TYPE_WAIT_EVENT, [&](const ContextRef&, Operation* operation) {
    return MakeEventOperation(event, false, operation);
  });
}

CUresult cuGraphAddBatchMemOpNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                                  size_t numDependencies, const CUDA_BATCH_MEM_OP_NODE_PARAMS* nodeParams) {
  return Add(
      __func__, phGraphNode, hGraph, dependencies, numDependencies,
      [&](const ContextRef&, Operation* operation) { return MakeBatchOperation(nodeParams, operation); });
}

CUresult cuGraphBatchMemOpNodeSetParams(CUgraphNode hNode, const CUDA_BATCH_MEM_OP_NODE_PARAMS* nodeParams) {
  return Change(
      __func__, hNode, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
      [&](const ContextRef&, Operation* operation) { return MakeBatchOperation(nodeParams, operation); });
}

CUresult cuGraphBatchMemOpNodeGetParams(CUgraphNode hNode, CUDA_BATCH_MEM_OP_NODE_PARAMS* nodeParams) {
  return Get(__func__, hNode, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, nodeParams);
}

CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode hNode, CUevent* event_out) {
  return Get(__func__, hNode, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event_out);
}

CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode hNode, CUevent* event_out) {
  return Get(__func__, hNode, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event_out);
}

}  // extern "C"

namespace causeway::software_gpu {

CUresult MakeOperation(const ContextRef& context, const CUgraphNodeParams& parameters, Operation* operation) {
  switch (parameters.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      const CUDA_KERNEL_NODE_PARAMS_v3& v3 = parameters.kernel;
      CUDA_KERNEL_NODE_PARAMS kernel{v3.func,         v3.gridDimX,  v3.gridDimY,  v3.gridDimZ,
                                     v3.blockDimX,    v3.blockDimY, v3.blockDimZ, v3.sharedMemBytes,
                                     v3.kernelParams, v3.extra,     v3.kern,      v3.ctx};
      return MakeKernelNodeOperation(context, &kernel, operation);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return MakeCopy(&parameters.memcpy.copyParams, operation);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const CUDA_MEMSET_NODE_PARAMS_v2& v2 = parameters.memset;
      CUDA_MEMSET_NODE_PARAMS fill{v2.dst, v2.pitch, v2.value, v2.elementSize, v2.width, v2.height};
      return MakeFill(&fill, operation);
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
      CUDA_HOST_NODE_PARAMS host{parameters.host.fn, parameters.host.userData};
      return MakeHostOperation(&host, operation);
    }
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
      const CUDA_BATCH_MEM_OP_NODE_PARAMS_v2& v2 = parameters.memOp;
      CUDA_BATCH_MEM_OP_NODE_PARAMS batch{v2.ctx, v2.count, v2.paramArray, v2.flags};
      return MakeBatchOperation(&batch, operation);
    }
    case CU_GRAPH_NODE_TYPE_EMPTY:
      operation->run = [] {};
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return MakeEventOperation(parameters.eventWait.event, false, operation);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return MakeEventOperation(parameters.eventRecord.event, true, operation);
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUresult MakeMemcpyOperation(const CUDA_MEMCPY3D* parameters, Operation* operation) {
  return MakeCopy(parameters, operation);
}
CUresult MakeFillOperation(const CUDA_MEMSET_NODE_PARAMS* parameters, Operation* operation) {
  return MakeFill(parameters, operation);
}
CUresult MakeHostNodeOperation(const CUDA_HOST_NODE_PARAMS* parameters, Operation* operation) {
  return MakeHostOperation(parameters, operation);
}

}  // namespace causeway::software_gpu
