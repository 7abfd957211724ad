// SPDX-License-Identifier: Apache-2.0
// The driver library that a worker runs calls on: NVIDIA's, or another that exports the same names, opened by
// path.
#pragma once
#include <string>

#include "ivshmem_ring/protocol/call.h"

namespace causeway::host {

// Driver functions that the worker itself calls beside the rows it serves.
#define CAUSEWAY_WORKER_FUNCTIONS(F)   \
  F(cuInit)                            \
  F(cuDriverGetVersion)                \
  F(cuGetErrorName)                    \
  F(cuModuleGetLoadingMode)            \
  F(cuDeviceGetCount)                  \
  F(cuDeviceGet)                       \
  F(cuDeviceGetName)                   \
  F(cuDeviceGetUuid)                   \
  F(cuDeviceGetUuid_v2)                \
  F(cuDeviceGetLuid)                   \
  F(cuDeviceTotalMem_v2)               \
  F(cuDeviceGetAttribute)              \
  F(cuDeviceGetPCIBusId)               \
  F(cuDevicePrimaryCtxRetain)          \
  F(cuDevicePrimaryCtxRelease_v2)      \
  F(cuDevicePrimaryCtxReset_v2)        \
  F(cuDevicePrimaryCtxGetState)        \
  F(cuCtxSetCurrent)                   \
  F(cuCtxGetCurrent)                   \
  F(cuCtxGetDevice)                    \
  F(cuCtxSynchronize)                  \
  F(cuCtxCreate_v2)                    \
  F(cuCtxCreate_v3)                    \
  F(cuCtxCreate_v4)                    \
  F(cuCtxDestroy_v2)                   \
  F(cuThreadExchangeStreamCaptureMode) \
  F(cuMemAlloc_v2)                     \
  F(cuMemFree_v2)                      \
  F(cuMemHostRegister_v2)              \
  F(cuMemHostUnregister)               \
  F(cuMemHostGetDevicePointer_v2)      \
  F(cuMemBatchDecompressAsync)         \
  F(cuMemPrefetchAsync_v2)             \
  F(cuMemAdvise_v2)                    \
  F(cuMemRangeGetAttribute)            \
  F(cuPointerGetAttribute)             \
  F(cuMemcpyHtoD_v2)                   \
  F(cuMemcpyDtoH_v2)                   \
  F(cuMemcpyHtoDAsync_v2)              \
  F(cuMemcpyDtoHAsync_v2)              \
  F(cuMemcpy3D_v2)                     \
  F(cuMemcpy3DAsync_v2)                \
  F(cuMemcpy3DPeer)                    \
  F(cuMemcpy3DPeerAsync)               \
  F(cuStreamSynchronize)               \
  F(cuStreamCreate)                    \
  F(cuStreamQuery)                     \
  F(cuStreamWaitEvent)                 \
  F(cuStreamBatchMemOp_v2)             \
  F(cuStreamWriteValue64_v2)           \
  F(cuStreamDestroy_v2)                \
  F(cuEventCreate)                     \
  F(cuEventRecord)                     \
  F(cuEventQuery)                      \
  F(cuEventSynchronize)                \
  F(cuEventDestroy_v2)                 \
  F(cuLaunchHostFunc)                  \
  F(cuStreamAddCallback)               \
  F(cuDeviceRegisterAsyncNotification) \
  F(cuLogsRegisterCallback)            \
  F(cuLogsUnregisterCallback)          \
  F(cuLogsDumpToMemory)                \
  F(cuLinkCreate_v2)                   \
  F(cuLinkAddData_v2)                  \
  F(cuLinkComplete)                    \
  F(cuLinkDestroy)                     \
  F(cuModuleLoadData)                  \
  F(cuModuleLoadDataEx)                \
  F(cuModuleUnload)                    \
  F(cuModuleGetFunction)               \
  F(cuModuleGetGlobal_v2)              \
  F(cuModuleGetFunctionCount)          \
  F(cuModuleEnumerateFunctions)        \
  F(cuLibraryLoadData)                 \
  F(cuLibraryUnload)                   \
  F(cuLibraryGetKernel)                \
  F(cuLibraryGetModule)                \
  F(cuLibraryGetGlobal)                \
  F(cuLibraryGetKernelCount)           \
  F(cuLibraryEnumerateKernels)         \
  F(cuKernelGetFunction)               \
  F(cuKernelGetAttribute)              \
  F(cuKernelGetParamInfo)              \
  F(cuKernelGetName)                   \
  F(cuFuncGetAttribute)                \
  F(cuFuncGetParamInfo)                \
  F(cuFuncGetName)                     \
  F(cuLaunchKernel)                    \
  F(cuLaunchKernelEx)                  \
  F(cuLaunchCooperativeKernel)         \
  F(cuTensorMapEncodeTiled)            \
  F(cuTensorMapEncodeIm2col)           \
  F(cuTensorMapEncodeIm2colWide)       \
  F(cuTensorMapReplaceAddress)

// Those behind the graph calls that are written by hand.
#define CAUSEWAY_GRAPH_FUNCTIONS(F)     \
  F(cuFuncGetModule)                    \
  F(cuGraphAddNode)                     \
  F(cuGraphAddNode_v2)                  \
  F(cuGraphAddKernelNode_v2)            \
  F(cuGraphAddMemcpyNode)               \
  F(cuGraphAddHostNode)                 \
  F(cuGraphAddMemAllocNode)             \
  F(cuGraphAddBatchMemOpNode)           \
  F(cuGraphNodeSetParams)               \
  F(cuGraphKernelNodeSetParams_v2)      \
  F(cuGraphMemcpyNodeSetParams)         \
  F(cuGraphHostNodeSetParams)           \
  F(cuGraphBatchMemOpNodeSetParams)     \
  F(cuGraphExecNodeSetParams)           \
  F(cuGraphExecKernelNodeSetParams_v2)  \
  F(cuGraphExecMemcpyNodeSetParams)     \
  F(cuGraphExecHostNodeSetParams)       \
  F(cuGraphExecBatchMemOpNodeSetParams) \
  F(cuGraphKernelNodeGetParams_v2)      \
  F(cuGraphMemcpyNodeGetParams)         \
  F(cuGraphHostNodeGetParams)           \
  F(cuUserObjectCreate)                 \
  F(cuGraphMemAllocNodeGetParams)       \
  F(cuGraphBatchMemOpNodeGetParams)     \
  F(cuGraphRetainUserObject)            \
  F(cuGraphReleaseUserObject)           \
  F(cuUserObjectRelease)                \
  F(cuGraphDestroyNode)                 \
  F(cuGraphGetNodes)                    \
  F(cuGraphGetRootNodes)                \
  F(cuGraphGetEdges)                    \
  F(cuGraphGetEdges_v2)                 \
  F(cuGraphNodeGetDependencies)         \
  F(cuGraphNodeGetDependencies_v2)      \
  F(cuGraphNodeGetDependentNodes)       \
  F(cuGraphNodeGetDependentNodes_v2)    \
  F(cuGraphNodeGetType)                 \
  F(cuGraphChildGraphNodeGetGraph)      \
  F(cuGraphInstantiate_v2)              \
  F(cuGraphInstantiateWithFlags)        \
  F(cuGraphInstantiateWithParams)       \
  F(cuGraphExecUpdate)                  \
  F(cuGraphExecUpdate_v2)               \
  F(cuGraphDebugDotPrint)               \
  F(cuStreamEndCapture)                 \
  F(cuStreamGetCaptureInfo_v2)          \
  F(cuStreamGetCaptureInfo_v3)          \
  F(cuStreamUpdateCaptureDependencies)

struct Driver {
#define DECLARE(fn) decltype(&::fn) fn = nullptr;
  CAUSEWAY_WORKER_FUNCTIONS(DECLARE)
  CAUSEWAY_GRAPH_FUNCTIONS(DECLARE)
#undef DECLARE
  // By opcode minus Op::kFirstRow; null where the library lacks the name.
  void (*row[static_cast<size_t>(Op::kCount)])() = {};

 private:
  friend bool OpenDriver(const std::string& path, std::string* error);  // guarded_driver.h
  // False and one sentence in *error if the library cannot be opened or lacks what nothing works without.
  bool Resolve(const std::string& path, std::string* error);
};

Driver& TheDriver();

}  // namespace causeway::host
