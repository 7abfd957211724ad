// SPDX-License-Identifier: Apache-2.0
// Attributes of kernel nodes, descriptions of graphs, and the older forms of graph calls.
#include <cstdio>
#include <cstring>

#include "tests/software_gpu/graph_exec.h"
#include "tests/software_gpu/graph_operations.h"

using namespace causeway::software_gpu;

namespace {

// Attributes that a kernel node can have, with what they are when nobody has set them.
bool IsKernelAttribute(CUkernelNodeAttrID attribute) {
  return attribute > CU_LAUNCH_ATTRIBUTE_IGNORE &&
         attribute <= CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING &&
         attribute != CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY;
}

template <typename Body>
CUresult OnKernelNode(const char* function, CUgraphNode handle, const Body& body) {
  return OnDevice(function, [&]() -> CUresult {
    NodeRef node = Nodes().Find(handle);
    if (node == nullptr || node->operation.type != CU_GRAPH_NODE_TYPE_KERNEL) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard lock(GraphLock());
    return body(*node);
  });
}

}  // namespace

extern "C" {

CUresult cuGraphKernelNodeGetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr,
                                       CUkernelNodeAttrValue* value_out) {
  return OnKernelNode(__func__, hNode, [&](Node& node) -> CUresult {
    if (value_out == nullptr || !IsKernelAttribute(attr)) return CUDA_ERROR_INVALID_VALUE;
    const auto found = node.attributes.find(attr);
    *value_out = found != node.attributes.end() ? found->second : CUkernelNodeAttrValue{};
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphKernelNodeSetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr,
                                       const CUkernelNodeAttrValue* value) {
  return OnKernelNode(__func__, hNode, [&](Node& node) -> CUresult {
    if (value == nullptr || !IsKernelAttribute(attr)) return CUDA_ERROR_INVALID_VALUE;
    node.attributes[attr] = *value;
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode dst, CUgraphNode src) {
  return OnKernelNode(__func__, dst, [&](Node& to) -> CUresult {
    NodeRef from = Nodes().Find(src);
    if (from == nullptr || from->operation.type != CU_GRAPH_NODE_TYPE_KERNEL) return CUDA_ERROR_INVALID_VALUE;
    to.attributes = from->attributes;
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphDebugDotPrint(CUgraph hGraph, const char* path, unsigned int) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    GraphRef graph = Graphs().Find(hGraph);
    if (graph == nullptr || path == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::FILE* file = std::fopen(path, "w");
    if (file == nullptr) return CUDA_ERROR_OPERATING_SYSTEM;
    std::lock_guard lock(GraphLock());
    std::fputs("digraph dot {\n", file);
    for (const NodeRef& node : graph->nodes) {
      std::fprintf(file, "\"%p\" [label=\"%d\"];\n", static_cast<void*>(node->handle), node->operation.type);
      for (const NodeRef& dependency : node->dependencies) {
        std::fprintf(file, "\"%p\" -> \"%p\";\n", static_cast<void*>(dependency->handle),
                     static_cast<void*>(node->handle));
      }
    }
    std::fputs("}\n", file);
    std::fclose(file);
    return CUDA_SUCCESS;
  });
}

// The first forms: without edge data, without a kernel and a context in a kernel's parameters.

CUresult cuGraphAddNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                        size_t numDependencies, CUgraphNodeParams* nodeParams) {
  return cuGraphAddNode_v2(phGraphNode, hGraph, dependencies, nullptr, numDependencies, nodeParams);
}

CUresult cuGraphAddKernelNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                              size_t numDependencies, const CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) {
  CUDA_KERNEL_NODE_PARAMS widened{};
  if (nodeParams != nullptr) std::memcpy(&widened, nodeParams, sizeof *nodeParams);
  return cuGraphAddKernelNode_v2(phGraphNode, hGraph, dependencies, numDependencies,
                                 nodeParams != nullptr ? &widened : nullptr);
}

CUresult cuGraphKernelNodeGetParams(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) {
  CUDA_KERNEL_NODE_PARAMS widened{};
  CUresult result = cuGraphKernelNodeGetParams_v2(hNode, nodeParams != nullptr ? &widened : nullptr);
  if (result == CUDA_SUCCESS) std::memcpy(nodeParams, &widened, sizeof *nodeParams);
  return result;
}

CUresult cuGraphKernelNodeSetParams(CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) {
  CUDA_KERNEL_NODE_PARAMS widened{};
  if (nodeParams != nullptr) std::memcpy(&widened, nodeParams, sizeof *nodeParams);
  return cuGraphKernelNodeSetParams_v2(hNode, nodeParams != nullptr ? &widened : nullptr);
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                        const CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) {
  CUDA_KERNEL_NODE_PARAMS widened{};
  if (nodeParams != nullptr) std::memcpy(&widened, nodeParams, sizeof *nodeParams);
  return cuGraphExecKernelNodeSetParams_v2(hGraphExec, hNode, nodeParams != nullptr ? &widened : nullptr);
}

CUresult cuGraphExecUpdate(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphNode* hErrorNode_out,
                           CUgraphExecUpdateResult* updateResult_out) {
  CUgraphExecUpdateResultInfo info{};
  CUresult result = cuGraphExecUpdate_v2(hGraphExec, hGraph, &info);
  if (hErrorNode_out != nullptr) *hErrorNode_out = info.errorNode;
  if (updateResult_out != nullptr) *updateResult_out = info.result;
  return result;
}

// CUDA 10.0 had no modes: its captures forbid no other call (seen on driver 580.159).
CUresult cuStreamBeginCapture(CUstream hStream) {
  return cuStreamBeginCapture_v2(hStream, CU_STREAM_CAPTURE_MODE_RELAXED);
}

CUresult cuStreamGetCaptureInfo(CUstream hStream, CUstreamCaptureStatus* captureStatus_out,
                                cuuint64_t* id_out) {
  return cuStreamGetCaptureInfo_v2(hStream, captureStatus_out, id_out, nullptr, nullptr, nullptr);
}

CUresult cuStreamUpdateCaptureDependencies(CUstream hStream, CUgraphNode* dependencies,
                                           size_t numDependencies, unsigned int flags) {
  return cuStreamUpdateCaptureDependencies_v2(hStream, dependencies, nullptr, numDependencies, flags);
}

}  // extern "C"
