// SPDX-License-Identifier: Apache-2.0
// Instantiating, launching and updating graphs. A launched graph is one operation of the stream, which runs
// the nodes one after the other in an order that respects their dependencies.
#include "tests/software_gpu/graph_exec.h"

#include <unordered_map>
#include <unordered_set>

#include "tests/software_gpu/faults.h"
#include "tests/software_gpu/graph_operations.h"
#include "tests/software_gpu/stream_handles.h"

namespace causeway::software_gpu {
namespace {

using GraphExecRef = std::shared_ptr<GraphExec>;

constexpr unsigned long long kKnownInstantiateFlags = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
                                                      CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
                                                      CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;

void RunAll(const std::vector<Operation>& operations) {
  for (const Operation& operation : operations) {
    if (StickyError() != CUDA_SUCCESS) return;
    operation.run();
  }
}

CUresult Instantiate(CUgraphExec* handle, CUgraph hgraph, unsigned long long flags) {
  if (handle == nullptr || hgraph == nullptr || (flags & ~kKnownInstantiateFlags) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  GraphRef graph = Graphs().Find(hgraph);
  if (graph == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  std::lock_guard lock(GraphLock());
  auto exec = std::make_shared<GraphExec>();
  if (!OrderNodes(*graph, &exec->sources)) return CUDA_ERROR_INVALID_VALUE;
  for (const NodeRef& node : exec->sources) {
    exec->operations.emplace_back();
    if (!OperationOf(node, &exec->operations.back())) return CUDA_ERROR_INVALID_VALUE;
  }
  exec->user_objects = graph->user_objects;
  exec->enabled.assign(exec->sources.size(), true);
  exec->flags = flags;
  exec->graph = graph;
  *handle = GraphExecs().Add(exec);
  return CUDA_SUCCESS;
}

CUresult LaunchGraph(const ContextRef& context, CUgraphExec handle, CUstream hstream) {
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  GraphExecRef exec = GraphExecs().Find(handle);
  StreamRef stream = FindStream(context, hstream);
  if (exec == nullptr || stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  std::vector<Operation> operations;
  CompletionRef previous;
  {
    std::lock_guard lock(GraphLock());
    for (size_t i = 0; i < exec->operations.size(); ++i) {
      if (exec->enabled[i]) operations.push_back(exec->operations[i]);
    }
    previous = exec->last_launch;
  }
  Operation operation;
  operation.type = CU_GRAPH_NODE_TYPE_GRAPH;
  // Launches of one executable graph never overlap, whatever their streams.
  operation.run = [operations = std::move(operations), previous, exec] {
    if (previous != nullptr) previous->Wait();
    RunAll(operations);
  };
  CompletionRef done;
  CUresult result = Submit(stream, std::move(operation), &done);
  if (result != CUDA_SUCCESS || done == nullptr) return result;
  std::lock_guard lock(GraphLock());
  exec->last_launch = done;
  return CUDA_SUCCESS;
}

// Replaces the operation that came from `hnode` in the executable graph.
template <typename Make>
CUresult ChangeInExec(const char* function, CUgraphExec hexec, CUgraphNode hnode, const Make& make) {
  return OnDevice(function, [&]() -> CUresult {
    GraphExecRef exec = GraphExecs().Find(hexec);
    NodeRef node = Nodes().Find(hnode);
    if (exec == nullptr || node == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    Operation operation;
    CUresult result = make(CurrentContext(), &operation);
    if (result != CUDA_SUCCESS) return result;
    std::lock_guard lock(GraphLock());
    for (size_t i = 0; i < exec->sources.size(); ++i) {
      if (exec->sources[i] != node) continue;
      if (exec->operations[i].type != operation.type) return CUDA_ERROR_INVALID_VALUE;
      exec->operations[i] = std::move(operation);
      return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
  });
}

// Caller holds GraphLock().
CUresult UpdateExec(GraphExec& exec, const Graph& graph, CUgraphExecUpdateResultInfo* info) {
  std::vector<NodeRef> ordered;
  if (!OrderNodes(graph, &ordered)) return CUDA_ERROR_INVALID_VALUE;
  info->result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
  if (ordered.size() != exec.sources.size()) info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
  for (size_t i = 0; i < ordered.size() && info->result == CU_GRAPH_EXEC_UPDATE_SUCCESS; ++i) {
    if (ordered[i]->operation.type != exec.operations[i].type) {
      info->result = CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
      info->errorNode = ordered[i]->handle;
    } else if (ordered[i]->dependencies.size() != exec.sources[i]->dependencies.size()) {
      info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
      info->errorNode = ordered[i]->handle;
    }
  }
  if (info->result != CU_GRAPH_EXEC_UPDATE_SUCCESS) return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  for (size_t i = 0; i < ordered.size(); ++i) {
    if (!OperationOf(ordered[i], &exec.operations[i])) return CUDA_ERROR_INVALID_VALUE;
  }
  exec.user_objects = graph.user_objects;
  return CUDA_SUCCESS;
}

}  // namespace

bool OrderNodes(const Graph& graph, std::vector<NodeRef>* ordered) {
  std::unordered_set<Node*> placed;
  std::vector<NodeRef> waiting = graph.nodes;
  while (!waiting.empty()) {
    std::vector<NodeRef> blocked;
    for (NodeRef& node : waiting) {
      bool ready = true;
      for (const NodeRef& dependency : node->dependencies) ready = ready && placed.contains(dependency.get());
      if (ready) {
        placed.insert(node.get());
        ordered->push_back(std::move(node));
      } else {
        blocked.push_back(std::move(node));
      }
    }
    if (blocked.size() == waiting.size()) return false;
    waiting = std::move(blocked);
  }
  return true;
}

bool OperationOf(const NodeRef& node, Operation* operation) {
  *operation = node->operation;
  if (node->child == nullptr) return true;
  std::vector<NodeRef> ordered;
  if (!OrderNodes(*node->child, &ordered)) return false;
  std::vector<Operation> operations(ordered.size());
  for (size_t i = 0; i < ordered.size(); ++i) {
    if (!OperationOf(ordered[i], &operations[i])) return false;
  }
  operation->run = [operations = std::move(operations), users = node->child->user_objects] {
    RunAll(operations);
  };
  return true;
}

}  // namespace causeway::software_gpu

using namespace causeway::software_gpu;

extern "C" {

CUresult cuGraphInstantiateWithFlags(CUgraphExec* phGraphExec, CUgraph hGraph, unsigned long long flags) {
  return InContext(__func__, [&](const ContextRef&) { return Instantiate(phGraphExec, hGraph, flags); });
}

CUresult cuGraphInstantiate_v2(CUgraphExec* phGraphExec, CUgraph hGraph, CUgraphNode* phErrorNode,
                               char* logBuffer, size_t bufferSize) {
  return InContext(__func__, [&](const ContextRef&) {
    if (phErrorNode != nullptr) *phErrorNode = nullptr;
    if (logBuffer != nullptr && bufferSize != 0) logBuffer[0] = '\0';
    return Instantiate(phGraphExec, hGraph, 0);
  });
}

CUresult cuGraphInstantiateWithParams(CUgraphExec* phGraphExec, CUgraph hGraph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS* instantiateParams) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    if (instantiateParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = Instantiate(phGraphExec, hGraph, instantiateParams->flags);
    instantiateParams->hErrNode_out = nullptr;
    instantiateParams->result_out =
        result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
    return result;
  });
}

CUresult cuGraphExecGetFlags(CUgraphExec hGraphExec, cuuint64_t* flags) {
  return OnDevice(__func__, [&]() -> CUresult {
    GraphExecRef exec = GraphExecs().Find(hGraphExec);
    if (exec == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *flags = exec->flags;
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphExecDestroy(CUgraphExec hGraphExec) {
  return OnDevice(__func__, [&]() -> CUresult {
    return GraphExecs().Remove(hGraphExec) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
  });
}

CUresult cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream) {
  return InContextOfStream(__func__, hStream, [&](const ContextRef& context) {
    return LaunchGraph(context, hGraphExec, hStream);
  });
}

CUresult cuGraphUpload(CUgraphExec hGraphExec, CUstream hStream) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    bool known = GraphExecs().Find(hGraphExec) != nullptr && FindStream(context, hStream) != nullptr;
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  });
}

CUresult cuGraphExecUpdate_v2(CUgraphExec hGraphExec, CUgraph hGraph,
                              CUgraphExecUpdateResultInfo* resultInfo) {
  return OnDevice(__func__, [&]() -> CUresult {
    GraphExecRef exec = GraphExecs().Find(hGraphExec);
    GraphRef graph = Graphs().Find(hGraph);
    if (exec == nullptr || graph == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    CUgraphExecUpdateResultInfo unused{};
    if (resultInfo != nullptr) *resultInfo = {};
    std::lock_guard lock(GraphLock());
    return UpdateExec(*exec, *graph, resultInfo != nullptr ? resultInfo : &unused);
  });
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec hGraphExec, CUgraphNode hNode,
                                           const CUDA_KERNEL_NODE_PARAMS* nodeParams) {
  return ChangeInExec(__func__, hGraphExec, hNode, [&](const ContextRef& context, Operation* operation) {
    return MakeKernelNodeOperation(context, nodeParams, operation);
  });
}

CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                        const CUDA_MEMCPY3D* copyParams, CUcontext) {
  return ChangeInExec(__func__, hGraphExec, hNode, [&](const ContextRef&, Operation* operation) {
    return MakeMemcpyOperation(copyParams, operation);
  });
}

CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                        const CUDA_MEMSET_NODE_PARAMS* memsetParams, CUcontext) {
  return ChangeInExec(__func__, hGraphExec, hNode, [&](const ContextRef&, Operation* operation) {
    return MakeFillOperation(memsetParams, operation);
  });
}

CUresult cuGraphExecHostNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                      const CUDA_HOST_NODE_PARAMS* nodeParams) {
  return ChangeInExec(__func__, hGraphExec, hNode, [&](const ContextRef&, Operation* operation) {
    return MakeHostNodeOperation(nodeParams, operation);
  });
}

CUresult cuGraphExecNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, CUgraphNodeParams* nodeParams) {
  return ChangeInExec(__func__, hGraphExec, hNode, [&](const ContextRef& context, Operation* operation) {
    return nodeParams == nullptr ? CUDA_ERROR_INVALID_VALUE : MakeOperation(context, *nodeParams, operation);
  });
}

CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode, CUevent event) {
  return ChangeInExec(__func__, hGraphExec, hNode, [&](const ContextRef&, Operation* operation) {
    return MakeEventOperation(event, true, operation);
  });
}

CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode, CUevent event) {
  return ChangeInExec(__func__, hGraphExec, hNode, [&](const ContextRef&, Operation* operation) {
    return MakeEventOperation(event, false, operation);
  });
}

CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                            const CUDA_BATCH_MEM_OP_NODE_PARAMS* nodeParams) {
  return ChangeInExec(__func__, hGraphExec, hNode, [&](const ContextRef&, Operation* operation) {
    return MakeBatchOperation(nodeParams, operation);
  });
}

CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, CUgraph childGraph) {
  return ChangeInExec(__func__, hGraphExec, hNode, [&](const ContextRef&, Operation* operation) -> CUresult {
    GraphRef child = Graphs().Find(childGraph);
    NodeRef before = Nodes().Find(hNode);
    if (child == nullptr || before->child == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard lock(GraphLock());
    auto node = std::make_shared<Node>();
    node->operation.type = CU_GRAPH_NODE_TYPE_GRAPH;
    node->child = CloneGraph(child);
    if (node->child == nullptr || node->child->nodes.size() != before->child->nodes.size())
      return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    return OperationOf(node, operation) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuGraphNodeSetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int isEnabled) {
  return OnDevice(__func__, [&]() -> CUresult {
    GraphExecRef exec = GraphExecs().Find(hGraphExec);
    if (exec == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    std::lock_guard lock(GraphLock());
    for (size_t i = 0; i < exec->sources.size(); ++i) {
      if (exec->sources[i]->handle != hNode) continue;
      exec->enabled[i] = isEnabled != 0;
      return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuGraphNodeGetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int* isEnabled) {
  return OnDevice(__func__, [&]() -> CUresult {
    GraphExecRef exec = GraphExecs().Find(hGraphExec);
    if (exec == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (isEnabled == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard lock(GraphLock());
    for (size_t i = 0; i < exec->sources.size(); ++i) {
      if (exec->sources[i]->handle != hNode) continue;
      *isEnabled = exec->enabled[i] ? 1 : 0;
      return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
  });
}

}  // extern "C"
