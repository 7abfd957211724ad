// SPDX-License-Identifier: Apache-2.0
// cuGetProcAddress: from a name and a version to the function that had this name in that version.
#include <cstring>
#include <string_view>

#include "tests/software_gpu/stream.h"

namespace causeway::software_gpu {
namespace {

// A function for callers whose default stream is the per-thread one.
template <auto kFunction>
struct PerThread;

template <typename... Arguments, CUresult (*kFunction)(Arguments...)>
struct PerThread<kFunction> {
  static CUresult Call(Arguments... arguments) {
    ScopedPerThreadDefault scope;
    return kFunction(arguments...);
  }
};

struct Entry {
  std::string_view name;
  int since;         // first CUDA version in which the name meant this function
  void* plain;       // stream 0 is the legacy stream
  void* per_thread;  // stream 0 is the per-thread stream; null where that makes no difference
};

template <typename Function>
Entry Plain(Function* function, std::string_view name, int since) {
  return {name, since, reinterpret_cast<void*>(function), nullptr};
}

template <auto kFunction>
Entry Both(std::string_view name, int since) {
  return {name, since, reinterpret_cast<void*>(kFunction),
          reinterpret_cast<void*>(&PerThread<kFunction>::Call)};
}

const Entry kEntries[] = {
    Plain(cuArray3DCreate_v2, "cuArray3DCreate", 3020),
    Plain(cuArray3DGetDescriptor_v2, "cuArray3DGetDescriptor", 3020),
    Plain(cuArrayCreate_v2, "cuArrayCreate", 3020),
    Plain(cuArrayDestroy, "cuArrayDestroy", 2000),
    Plain(cuArrayGetDescriptor_v2, "cuArrayGetDescriptor", 3020),
    Plain(cuArrayGetSparseProperties, "cuArrayGetSparseProperties", 11010),
    Plain(cuArrayGetPlane, "cuArrayGetPlane", 11020),
    Plain(cuArrayGetMemoryRequirements, "cuArrayGetMemoryRequirements", 11060),
    Plain(cuCheckpointProcessCheckpoint, "cuCheckpointProcessCheckpoint", 12080),
    Plain(cuCheckpointProcessGetRestoreThreadId, "cuCheckpointProcessGetRestoreThreadId", 12080),
    Plain(cuCheckpointProcessGetState, "cuCheckpointProcessGetState", 12080),
    Plain(cuCheckpointProcessLock, "cuCheckpointProcessLock", 12080),
    Plain(cuCheckpointProcessRestore, "cuCheckpointProcessRestore", 12080),
    Plain(cuCheckpointProcessUnlock, "cuCheckpointProcessUnlock", 12080),
    Plain(cuCtxCreate_v2, "cuCtxCreate", 3020),
    Plain(cuCtxCreate_v3, "cuCtxCreate", 11040),
    Plain(cuCtxCreate_v4, "cuCtxCreate", 12050),
    Plain(cuCtxDestroy_v2, "cuCtxDestroy", 4000),
    Plain(cuCtxDisablePeerAccess, "cuCtxDisablePeerAccess", 4000),
    Plain(cuCtxEnablePeerAccess, "cuCtxEnablePeerAccess", 4000),
    Plain(cuCtxGetApiVersion, "cuCtxGetApiVersion", 3020),
    Plain(cuCtxGetCacheConfig, "cuCtxGetCacheConfig", 3020),
    Plain(cuCtxGetCurrent, "cuCtxGetCurrent", 4000),
    Plain(cuCtxGetDevice, "cuCtxGetDevice", 2000),
    Plain(cuCtxGetDevice_v2, "cuCtxGetDevice", 13000),
    Plain(cuCtxGetFlags, "cuCtxGetFlags", 7000),
    Plain(cuCtxGetId, "cuCtxGetId", 12000),
    Plain(cuCtxGetLimit, "cuCtxGetLimit", 3010),
    Plain(cuCtxGetSharedMemConfig, "cuCtxGetSharedMemConfig", 4020),
    Plain(cuCtxGetStreamPriorityRange, "cuCtxGetStreamPriorityRange", 5050),
    Plain(cuCtxPopCurrent_v2, "cuCtxPopCurrent", 4000),
    Plain(cuCtxPushCurrent_v2, "cuCtxPushCurrent", 4000),
    Plain(cuCtxResetPersistingL2Cache, "cuCtxResetPersistingL2Cache", 11000),
    Plain(cuCtxSetCacheConfig, "cuCtxSetCacheConfig", 3020),
    Plain(cuCtxSetCurrent, "cuCtxSetCurrent", 4000),
    Plain(cuCtxSetFlags, "cuCtxSetFlags", 12010),
    Plain(cuCtxSetLimit, "cuCtxSetLimit", 3010),
    Plain(cuCtxSetSharedMemConfig, "cuCtxSetSharedMemConfig", 4020),
    Plain(cuCtxSynchronize, "cuCtxSynchronize", 2000),
    Plain(cuCtxSynchronize_v2, "cuCtxSynchronize", 13000),
    Plain(cuDeviceCanAccessPeer, "cuDeviceCanAccessPeer", 4000),
    Plain(cuDeviceComputeCapability, "cuDeviceComputeCapability", 2000),
    Plain(cuDeviceGet, "cuDeviceGet", 2000),
    Plain(cuDeviceGetAttribute, "cuDeviceGetAttribute", 2000),
    Plain(cuDeviceGetByPCIBusId, "cuDeviceGetByPCIBusId", 4010),
    Plain(cuDeviceGetCount, "cuDeviceGetCount", 2000),
    Plain(cuDeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool", 11020),
    Plain(cuDeviceGetExecAffinitySupport, "cuDeviceGetExecAffinitySupport", 11040),
    Plain(cuDeviceGetLuid, "cuDeviceGetLuid", 10000),
    Plain(cuDeviceGetMemPool, "cuDeviceGetMemPool", 11020),
    Plain(cuDeviceGetName, "cuDeviceGetName", 2000),
    Plain(cuDeviceGetP2PAttribute, "cuDeviceGetP2PAttribute", 8000),
    Plain(cuDeviceGetPCIBusId, "cuDeviceGetPCIBusId", 4010),
    Plain(cuDeviceGetUuid, "cuDeviceGetUuid", 9020),
    Plain(cuDeviceGetUuid_v2, "cuDeviceGetUuid", 11040),
    Plain(cuDeviceGraphMemTrim, "cuDeviceGraphMemTrim", 11040),
    Plain(cuDevicePrimaryCtxGetState, "cuDevicePrimaryCtxGetState", 7000),
    Plain(cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease", 11000),
    Plain(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", 11000),
    Plain(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000),
    Plain(cuDevicePrimaryCtxSetFlags_v2, "cuDevicePrimaryCtxSetFlags", 11000),
    Plain(cuDeviceRegisterAsyncNotification, "cuDeviceRegisterAsyncNotification", 12040),
    Plain(cuDeviceSetMemPool, "cuDeviceSetMemPool", 11020),
    Plain(cuDeviceTotalMem_v2, "cuDeviceTotalMem", 3020),
    Plain(cuDeviceUnregisterAsyncNotification, "cuDeviceUnregisterAsyncNotification", 12040),
    Plain(cuDriverGetVersion, "cuDriverGetVersion", 2020),
    Plain(cuEventCreate, "cuEventCreate", 2000),
    Plain(cuEventDestroy_v2, "cuEventDestroy", 4000),
    Plain(cuEventElapsedTime, "cuEventElapsedTime", 2000),
    Plain(cuEventElapsedTime_v2, "cuEventElapsedTime", 12080),
    Plain(cuEventQuery, "cuEventQuery", 2000),
    Both<cuEventRecord>("cuEventRecord", 2000),
    Both<cuEventRecordWithFlags>("cuEventRecordWithFlags", 11010),
    Plain(cuEventSynchronize, "cuEventSynchronize", 2000),
    Plain(cuFuncGetAttribute, "cuFuncGetAttribute", 2020),
    Plain(cuFuncGetModule, "cuFuncGetModule", 11000),
    Plain(cuFuncGetName, "cuFuncGetName", 12030),
    Plain(cuFuncGetParamInfo, "cuFuncGetParamInfo", 12040),
    Plain(cuFuncIsLoaded, "cuFuncIsLoaded", 12040),
    Plain(cuFuncLoad, "cuFuncLoad", 12040),
    Plain(cuFuncSetAttribute, "cuFuncSetAttribute", 9000),
    Plain(cuFuncSetCacheConfig, "cuFuncSetCacheConfig", 3000),
    Plain(cuGetErrorName, "cuGetErrorName", 6000),
    Plain(cuGetErrorString, "cuGetErrorString", 6000),
    Plain(cuGetExportTable, "cuGetExportTable", 3000),
    Plain(cuGetProcAddress, "cuGetProcAddress", 11030),
    Plain(cuGetProcAddress_v2, "cuGetProcAddress", 12000),
    Plain(cuGraphAddChildGraphNode, "cuGraphAddChildGraphNode", 10000),
    Plain(cuGraphAddDependencies, "cuGraphAddDependencies", 10000),
    Plain(cuGraphAddDependencies_v2, "cuGraphAddDependencies", 12030),
    Plain(cuGraphAddEmptyNode, "cuGraphAddEmptyNode", 10000),
    Plain(cuGraphAddEventRecordNode, "cuGraphAddEventRecordNode", 11010),
    Plain(cuGraphAddEventWaitNode, "cuGraphAddEventWaitNode", 11010),
    Plain(cuGraphAddHostNode, "cuGraphAddHostNode", 10000),
    Plain(cuGraphAddKernelNode_v2, "cuGraphAddKernelNode", 12000),
    Plain(cuGraphAddMemcpyNode, "cuGraphAddMemcpyNode", 10000),
    Plain(cuGraphAddMemsetNode, "cuGraphAddMemsetNode", 10000),
    Plain(cuGraphAddNode_v2, "cuGraphAddNode", 12030),
    Plain(cuGraphClone, "cuGraphClone", 10000),
    Plain(cuGraphCreate, "cuGraphCreate", 10000),
    Plain(cuGraphDestroy, "cuGraphDestroy", 10000),
    Plain(cuGraphDestroyNode, "cuGraphDestroyNode", 10000),
    Plain(cuGraphEventRecordNodeGetEvent, "cuGraphEventRecordNodeGetEvent", 11010),
    Plain(cuGraphEventWaitNodeGetEvent, "cuGraphEventWaitNodeGetEvent", 11010),
    Plain(cuGraphExecDestroy, "cuGraphExecDestroy", 10000),
    Plain(cuGraphExecGetFlags, "cuGraphExecGetFlags", 12000),
    Plain(cuGraphExecHostNodeSetParams, "cuGraphExecHostNodeSetParams", 10020),
    Plain(cuGraphExecKernelNodeSetParams_v2, "cuGraphExecKernelNodeSetParams", 12000),
    Plain(cuGraphExecMemcpyNodeSetParams, "cuGraphExecMemcpyNodeSetParams", 10020),
    Plain(cuGraphExecMemsetNodeSetParams, "cuGraphExecMemsetNodeSetParams", 10020),
    Plain(cuGraphExecUpdate_v2, "cuGraphExecUpdate", 12000),
    Plain(cuGraphGetEdges, "cuGraphGetEdges", 10000),
    Plain(cuGraphGetEdges_v2, "cuGraphGetEdges", 12030),
    Plain(cuGraphGetNodes, "cuGraphGetNodes", 10000),
    Plain(cuGraphGetRootNodes, "cuGraphGetRootNodes", 10000),
    Plain(cuGraphHostNodeGetParams, "cuGraphHostNodeGetParams", 10000),
    Plain(cuGraphHostNodeSetParams, "cuGraphHostNodeSetParams", 10000),
    Plain(cuGraphInstantiate_v2, "cuGraphInstantiate", 11000),
    Plain(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", 11040),
    Both<cuGraphInstantiateWithParams>("cuGraphInstantiateWithParams", 12000),
    Plain(cuGraphKernelNodeGetParams_v2, "cuGraphKernelNodeGetParams", 12000),
    Plain(cuGraphKernelNodeSetParams_v2, "cuGraphKernelNodeSetParams", 12000),
    Both<cuGraphLaunch>("cuGraphLaunch", 10000),
    Plain(cuGraphMemcpyNodeGetParams, "cuGraphMemcpyNodeGetParams", 10000),
    Plain(cuGraphMemcpyNodeSetParams, "cuGraphMemcpyNodeSetParams", 10000),
    Plain(cuGraphMemsetNodeGetParams, "cuGraphMemsetNodeGetParams", 10000),
    Plain(cuGraphMemsetNodeSetParams, "cuGraphMemsetNodeSetParams", 10000),
    Plain(cuGraphNodeFindInClone, "cuGraphNodeFindInClone", 10000),
    Plain(cuGraphNodeGetDependencies, "cuGraphNodeGetDependencies", 10000),
    Plain(cuGraphNodeGetDependencies_v2, "cuGraphNodeGetDependencies", 12030),
    Plain(cuGraphNodeGetDependentNodes, "cuGraphNodeGetDependentNodes", 10000),
    Plain(cuGraphNodeGetDependentNodes_v2, "cuGraphNodeGetDependentNodes", 12030),
    Plain(cuGraphNodeGetEnabled, "cuGraphNodeGetEnabled", 11060),
    Plain(cuGraphNodeGetType, "cuGraphNodeGetType", 10000),
    Plain(cuGraphNodeSetEnabled, "cuGraphNodeSetEnabled", 11060),
    Plain(cuGraphRemoveDependencies, "cuGraphRemoveDependencies", 10000),
    Plain(cuGraphRemoveDependencies_v2, "cuGraphRemoveDependencies", 12030),
    Both<cuGraphUpload>("cuGraphUpload", 11010),
    Plain(cuInit, "cuInit", 2000),
    Plain(cuKernelGetAttribute, "cuKernelGetAttribute", 12000),
    Plain(cuKernelGetFunction, "cuKernelGetFunction", 12000),
    Plain(cuKernelGetLibrary, "cuKernelGetLibrary", 12050),
    Plain(cuKernelGetName, "cuKernelGetName", 12030),
    Plain(cuKernelGetParamInfo, "cuKernelGetParamInfo", 12040),
    Plain(cuKernelSetAttribute, "cuKernelSetAttribute", 12000),
    Plain(cuKernelSetCacheConfig, "cuKernelSetCacheConfig", 12000),
    Both<cuLaunchCooperativeKernel>("cuLaunchCooperativeKernel", 9000),
    Both<cuLaunchHostFunc>("cuLaunchHostFunc", 10000),
    Both<cuLaunchKernel>("cuLaunchKernel", 4000),
    Both<cuLaunchKernelEx>("cuLaunchKernelEx", 11060),
    Plain(cuLibraryEnumerateKernels, "cuLibraryEnumerateKernels", 12040),
    Plain(cuLibraryGetGlobal, "cuLibraryGetGlobal", 12000),
    Plain(cuLibraryGetKernel, "cuLibraryGetKernel", 12000),
    Plain(cuLibraryGetKernelCount, "cuLibraryGetKernelCount", 12040),
    Plain(cuLibraryGetManaged, "cuLibraryGetManaged", 12000),
    Plain(cuLibraryGetModule, "cuLibraryGetModule", 12000),
    Plain(cuLibraryLoadData, "cuLibraryLoadData", 12000),
    Plain(cuLibraryLoadFromFile, "cuLibraryLoadFromFile", 12000),
    Plain(cuLibraryUnload, "cuLibraryUnload", 12000),
    Plain(cuLogsCurrent, "cuLogsCurrent", 12090),
    Plain(cuLogsDumpToFile, "cuLogsDumpToFile", 12090),
    Plain(cuLogsDumpToMemory, "cuLogsDumpToMemory", 12090),
    Plain(cuLogsRegisterCallback, "cuLogsRegisterCallback", 12090),
    Plain(cuLogsUnregisterCallback, "cuLogsUnregisterCallback", 12090),
    Plain(cuCtxFromGreenCtx, "cuCtxFromGreenCtx", 12040),
    Plain(cuCtxGetDevResource, "cuCtxGetDevResource", 12040),
    Plain(cuDevResourceGenerateDesc, "cuDevResourceGenerateDesc", 12040),
    Plain(cuDevSmResourceSplitByCount, "cuDevSmResourceSplitByCount", 12040),
    Plain(cuDeviceGetDevResource, "cuDeviceGetDevResource", 12040),
    Plain(cuGreenCtxCreate, "cuGreenCtxCreate", 12040),
    Plain(cuGreenCtxDestroy, "cuGreenCtxDestroy", 12040),
    Plain(cuGreenCtxGetDevResource, "cuGreenCtxGetDevResource", 12040),
    Plain(cuGreenCtxGetId, "cuGreenCtxGetId", 12090),
    Plain(cuGreenCtxRecordEvent, "cuGreenCtxRecordEvent", 12040),
    Plain(cuGreenCtxStreamCreate, "cuGreenCtxStreamCreate", 12050),
    Plain(cuGreenCtxWaitEvent, "cuGreenCtxWaitEvent", 12040),
    Plain(cuStreamGetGreenCtx, "cuStreamGetGreenCtx", 12040),
    Plain(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", 4010),
    Plain(cuIpcGetMemHandle, "cuIpcGetMemHandle", 4010),
    Plain(cuMemAddressFree, "cuMemAddressFree", 10020),
    Plain(cuMemAddressReserve, "cuMemAddressReserve", 10020),
    Plain(cuMemCreate, "cuMemCreate", 10020),
    Plain(cuMemExportToShareableHandle, "cuMemExportToShareableHandle", 10020),
    Plain(cuMemGetAccess, "cuMemGetAccess", 10020),
    Plain(cuMemGetAllocationGranularity, "cuMemGetAllocationGranularity", 10020),
    Plain(cuMemGetAllocationPropertiesFromHandle, "cuMemGetAllocationPropertiesFromHandle", 10020),
    Plain(cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle", 10020),
    Plain(cuMemMap, "cuMemMap", 10020),
    Plain(cuMemRelease, "cuMemRelease", 10020),
    Plain(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle", 11000),
    Plain(cuMemSetAccess, "cuMemSetAccess", 10020),
    Plain(cuMemUnmap, "cuMemUnmap", 10020),
    Plain(cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle", 11000),
    Plain(cuMemAdvise, "cuMemAdvise", 8000),
    Plain(cuMemAdvise_v2, "cuMemAdvise", 12020),
    Plain(cuMemAlloc_v2, "cuMemAlloc", 3020),
    Both<cuMemAllocAsync>("cuMemAllocAsync", 11020),
    Both<cuMemAllocFromPoolAsync>("cuMemAllocFromPoolAsync", 11020),
    Plain(cuMemAllocHost_v2, "cuMemAllocHost", 3020),
    Plain(cuMemAllocManaged, "cuMemAllocManaged", 6000),
    Plain(cuMemAllocPitch_v2, "cuMemAllocPitch", 3020),
    Plain(cuMemFree_v2, "cuMemFree", 3020),
    Both<cuMemFreeAsync>("cuMemFreeAsync", 11020),
    Plain(cuMemFreeHost, "cuMemFreeHost", 2000),
    Plain(cuMemGetAddressRange_v2, "cuMemGetAddressRange", 3020),
    Plain(cuMemGetDefaultMemPool, "cuMemGetDefaultMemPool", 13000),
    Plain(cuMemGetInfo_v2, "cuMemGetInfo", 3020),
    Plain(cuMemGetMemPool, "cuMemGetMemPool", 13000),
    Plain(cuMemHostAlloc, "cuMemHostAlloc", 2020),
    Plain(cuMemHostGetDevicePointer_v2, "cuMemHostGetDevicePointer", 3020),
    Plain(cuMemHostGetFlags, "cuMemHostGetFlags", 2030),
    Plain(cuMemHostRegister_v2, "cuMemHostRegister", 6050),
    Plain(cuMemHostUnregister, "cuMemHostUnregister", 4000),
    Plain(cuMemPoolCreate, "cuMemPoolCreate", 11020),
    Plain(cuMemPoolDestroy, "cuMemPoolDestroy", 11020),
    Plain(cuMemPoolGetAccess, "cuMemPoolGetAccess", 11020),
    Plain(cuMemPoolGetAttribute, "cuMemPoolGetAttribute", 11020),
    Plain(cuMemPoolSetAccess, "cuMemPoolSetAccess", 11020),
    Plain(cuMemPoolSetAttribute, "cuMemPoolSetAttribute", 11020),
    Plain(cuMemPoolTrimTo, "cuMemPoolTrimTo", 11020),
    Plain(cuMemSetMemPool, "cuMemSetMemPool", 13000),
    Both<cuMemPrefetchAsync>("cuMemPrefetchAsync", 8000),
    Both<cuMemPrefetchAsync_v2>("cuMemPrefetchAsync", 12020),
    Plain(cuMemRangeGetAttribute, "cuMemRangeGetAttribute", 8000),
    Plain(cuMemRangeGetAttributes, "cuMemRangeGetAttributes", 8000),
    Both<cuMemcpy>("cuMemcpy", 4000),
    Both<cuMemcpy2D_v2>("cuMemcpy2D", 3020),
    Both<cuMemcpy2DAsync_v2>("cuMemcpy2DAsync", 3020),
    Both<cuMemcpy2DUnaligned_v2>("cuMemcpy2DUnaligned", 3020),
    Both<cuMemcpy3D_v2>("cuMemcpy3D", 3020),
    Both<cuMemcpy3DAsync_v2>("cuMemcpy3DAsync", 3020),
    Both<cuMemcpy3DPeer>("cuMemcpy3DPeer", 4000),
    Both<cuMemcpy3DPeerAsync>("cuMemcpy3DPeerAsync", 4000),
    Both<cuMemcpyAsync>("cuMemcpyAsync", 4000),
    Both<cuMemcpyDtoD_v2>("cuMemcpyDtoD", 3020),
    Both<cuMemcpyDtoDAsync_v2>("cuMemcpyDtoDAsync", 3020),
    Both<cuMemcpyAtoA_v2>("cuMemcpyAtoA", 3020),
    Both<cuMemcpyAtoD_v2>("cuMemcpyAtoD", 3020),
    Both<cuMemcpyAtoH_v2>("cuMemcpyAtoH", 3020),
    Both<cuMemcpyAtoHAsync_v2>("cuMemcpyAtoHAsync", 3020),
    Both<cuMemcpyDtoA_v2>("cuMemcpyDtoA", 3020),
    Both<cuMemcpyDtoH_v2>("cuMemcpyDtoH", 3020),
    Both<cuMemcpyDtoHAsync_v2>("cuMemcpyDtoHAsync", 3020),
    Both<cuMemcpyHtoA_v2>("cuMemcpyHtoA", 3020),
    Both<cuMemcpyHtoAAsync_v2>("cuMemcpyHtoAAsync", 3020),
    Both<cuMemcpyHtoD_v2>("cuMemcpyHtoD", 3020),
    Both<cuMemcpyHtoDAsync_v2>("cuMemcpyHtoDAsync", 3020),
    Both<cuMemcpyPeer>("cuMemcpyPeer", 4000),
    Both<cuMemcpyPeerAsync>("cuMemcpyPeerAsync", 4000),
    Both<cuMemsetD16_v2>("cuMemsetD16", 3020),
    Both<cuMemsetD16Async>("cuMemsetD16Async", 3020),
    Both<cuMemsetD2D16_v2>("cuMemsetD2D16", 3020),
    Both<cuMemsetD2D16Async>("cuMemsetD2D16Async", 3020),
    Both<cuMemsetD2D32_v2>("cuMemsetD2D32", 3020),
    Both<cuMemsetD2D32Async>("cuMemsetD2D32Async", 3020),
    Both<cuMemsetD2D8_v2>("cuMemsetD2D8", 3020),
    Both<cuMemsetD2D8Async>("cuMemsetD2D8Async", 3020),
    Both<cuMemsetD32_v2>("cuMemsetD32", 3020),
    Both<cuMemsetD32Async>("cuMemsetD32Async", 3020),
    Both<cuMemsetD8_v2>("cuMemsetD8", 3020),
    Both<cuMemsetD8Async>("cuMemsetD8Async", 3020),
    Plain(cuMipmappedArrayCreate, "cuMipmappedArrayCreate", 5000),
    Plain(cuMipmappedArrayDestroy, "cuMipmappedArrayDestroy", 5000),
    Plain(cuMipmappedArrayGetLevel, "cuMipmappedArrayGetLevel", 5000),
    Plain(cuModuleEnumerateFunctions, "cuModuleEnumerateFunctions", 12040),
    Plain(cuModuleGetFunction, "cuModuleGetFunction", 2000),
    Plain(cuModuleGetFunctionCount, "cuModuleGetFunctionCount", 12040),
    Plain(cuModuleGetGlobal_v2, "cuModuleGetGlobal", 3020),
    Plain(cuModuleGetLoadingMode, "cuModuleGetLoadingMode", 11070),
    Plain(cuModuleLoad, "cuModuleLoad", 2000),
    Plain(cuModuleLoadData, "cuModuleLoadData", 2000),
    Plain(cuModuleLoadDataEx, "cuModuleLoadDataEx", 2010),
    Plain(cuModuleLoadFatBinary, "cuModuleLoadFatBinary", 2000),
    Plain(cuModuleUnload, "cuModuleUnload", 2000),
    Plain(cuOccupancyAvailableDynamicSMemPerBlock, "cuOccupancyAvailableDynamicSMemPerBlock", 10020),
    Plain(cuOccupancyMaxActiveBlocksPerMultiprocessor, "cuOccupancyMaxActiveBlocksPerMultiprocessor", 6050),
    Plain(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
          "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", 7000),
    Plain(cuOccupancyMaxActiveClusters, "cuOccupancyMaxActiveClusters", 11070),
    Plain(cuOccupancyMaxPotentialBlockSize, "cuOccupancyMaxPotentialBlockSize", 6050),
    Plain(cuOccupancyMaxPotentialBlockSizeWithFlags, "cuOccupancyMaxPotentialBlockSizeWithFlags", 7000),
    Plain(cuOccupancyMaxPotentialClusterSize, "cuOccupancyMaxPotentialClusterSize", 11070),
    Plain(cuPointerGetAttribute, "cuPointerGetAttribute", 4000),
    Plain(cuPointerGetAttributes, "cuPointerGetAttributes", 7000),
    Plain(cuPointerSetAttribute, "cuPointerSetAttribute", 6000),
    Plain(cuProfilerStart, "cuProfilerStart", 4000),
    Plain(cuProfilerStop, "cuProfilerStop", 4000),
    Both<cuStreamAddCallback>("cuStreamAddCallback", 5000),
    Both<cuStreamAttachMemAsync>("cuStreamAttachMemAsync", 6000),
    Both<cuStreamBatchMemOp_v2>("cuStreamBatchMemOp", 11070),
    Both<cuStreamBeginCapture_v2>("cuStreamBeginCapture", 10010),
    Both<cuStreamBeginCaptureToGraph>("cuStreamBeginCaptureToGraph", 12030),
    Both<cuStreamCopyAttributes>("cuStreamCopyAttributes", 11000),
    Plain(cuStreamCreate, "cuStreamCreate", 2000),
    Plain(cuStreamCreateWithPriority, "cuStreamCreateWithPriority", 5050),
    Plain(cuStreamDestroy_v2, "cuStreamDestroy", 4000),
    Both<cuStreamEndCapture>("cuStreamEndCapture", 10000),
    Both<cuStreamGetAttribute>("cuStreamGetAttribute", 11000),
    Both<cuStreamGetCaptureInfo_v2>("cuStreamGetCaptureInfo", 11030),
    Both<cuStreamGetCaptureInfo_v3>("cuStreamGetCaptureInfo", 12030),
    Both<cuStreamGetCtx>("cuStreamGetCtx", 9020),
    Both<cuStreamGetCtx_v2>("cuStreamGetCtx", 12050),
    Both<cuStreamGetDevice>("cuStreamGetDevice", 12080),
    Both<cuStreamGetFlags>("cuStreamGetFlags", 5050),
    Both<cuStreamGetId>("cuStreamGetId", 12000),
    Both<cuStreamGetPriority>("cuStreamGetPriority", 5050),
    Both<cuStreamIsCapturing>("cuStreamIsCapturing", 10000),
    Both<cuStreamQuery>("cuStreamQuery", 2000),
    Both<cuStreamSetAttribute>("cuStreamSetAttribute", 11000),
    Both<cuStreamSynchronize>("cuStreamSynchronize", 2000),
    Both<cuStreamUpdateCaptureDependencies_v2>("cuStreamUpdateCaptureDependencies", 12030),
    Both<cuStreamWaitEvent>("cuStreamWaitEvent", 3020),
    Both<cuStreamWaitValue32_v2>("cuStreamWaitValue32", 11070),
    Both<cuStreamWaitValue64_v2>("cuStreamWaitValue64", 11070),
    Both<cuStreamWriteValue32_v2>("cuStreamWriteValue32", 11070),
    Both<cuStreamWriteValue64_v2>("cuStreamWriteValue64", 11070),
    Plain(cuSurfObjectCreate, "cuSurfObjectCreate", 5000),
    Plain(cuSurfObjectDestroy, "cuSurfObjectDestroy", 5000),
    Plain(cuSurfObjectGetResourceDesc, "cuSurfObjectGetResourceDesc", 5000),
    Plain(cuTexObjectCreate, "cuTexObjectCreate", 5000),
    Plain(cuTexObjectDestroy, "cuTexObjectDestroy", 5000),
    Plain(cuTexObjectGetResourceDesc, "cuTexObjectGetResourceDesc", 5000),
    Plain(cuTexObjectGetResourceViewDesc, "cuTexObjectGetResourceViewDesc", 5000),
    Plain(cuTexObjectGetTextureDesc, "cuTexObjectGetTextureDesc", 5000),
    Plain(cuModuleGetSurfRef, "cuModuleGetSurfRef", 3000),
    Plain(cuModuleGetTexRef, "cuModuleGetTexRef", 2000),
    Plain(cuSurfRefGetArray, "cuSurfRefGetArray", 3000),
    Plain(cuSurfRefSetArray, "cuSurfRefSetArray", 3000),
    Plain(cuTexRefCreate, "cuTexRefCreate", 2000),
    Plain(cuTexRefDestroy, "cuTexRefDestroy", 2000),
    Plain(cuTexRefGetAddressMode, "cuTexRefGetAddressMode", 2000),
    Plain(cuTexRefGetAddress_v2, "cuTexRefGetAddress", 3020),
    Plain(cuTexRefGetArray, "cuTexRefGetArray", 2000),
    Plain(cuTexRefGetBorderColor, "cuTexRefGetBorderColor", 8000),
    Plain(cuTexRefGetFilterMode, "cuTexRefGetFilterMode", 2000),
    Plain(cuTexRefGetFlags, "cuTexRefGetFlags", 2000),
    Plain(cuTexRefGetFormat, "cuTexRefGetFormat", 2000),
    Plain(cuTexRefGetMaxAnisotropy, "cuTexRefGetMaxAnisotropy", 5000),
    Plain(cuTexRefGetMipmapFilterMode, "cuTexRefGetMipmapFilterMode", 5000),
    Plain(cuTexRefGetMipmapLevelBias, "cuTexRefGetMipmapLevelBias", 5000),
    Plain(cuTexRefGetMipmapLevelClamp, "cuTexRefGetMipmapLevelClamp", 5000),
    Plain(cuTexRefGetMipmappedArray, "cuTexRefGetMipmappedArray", 5000),
    Plain(cuTexRefSetAddress2D_v2, "cuTexRefSetAddress2D", 3020),
    Plain(cuTexRefSetAddress2D_v3, "cuTexRefSetAddress2D", 4010),
    Plain(cuTexRefSetAddressMode, "cuTexRefSetAddressMode", 2000),
    Plain(cuTexRefSetAddress_v2, "cuTexRefSetAddress", 3020),
    Plain(cuTexRefSetArray, "cuTexRefSetArray", 2000),
    Plain(cuTexRefSetBorderColor, "cuTexRefSetBorderColor", 8000),
    Plain(cuTexRefSetFilterMode, "cuTexRefSetFilterMode", 2000),
    Plain(cuTexRefSetFlags, "cuTexRefSetFlags", 2000),
    Plain(cuTexRefSetFormat, "cuTexRefSetFormat", 2000),
    Plain(cuTexRefSetMaxAnisotropy, "cuTexRefSetMaxAnisotropy", 5000),
    Plain(cuTexRefSetMipmapFilterMode, "cuTexRefSetMipmapFilterMode", 5000),
    Plain(cuTexRefSetMipmapLevelBias, "cuTexRefSetMipmapLevelBias", 5000),
    Plain(cuTexRefSetMipmapLevelClamp, "cuTexRefSetMipmapLevelClamp", 5000),
    Plain(cuTexRefSetMipmappedArray, "cuTexRefSetMipmappedArray", 5000),
    Plain(cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", 10010),
};

constexpr int kFirstPerThreadVersion = 7000;
constexpr int kFirstRefusedVersion = 14000;

CUresult FindFunction(const char* name, int version, cuuint64_t flags, void** function,
                      CUdriverProcAddressQueryResult* status) {
  if (flags > 3 || version >= kFirstRefusedVersion) return CUDA_ERROR_INVALID_VALUE;
  bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  const Entry* best = nullptr;
  *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  for (const Entry& entry : kEntries) {
    if (entry.name != name) continue;
    bool old = entry.since > version ||
               (per_thread && entry.per_thread != nullptr && version < kFirstPerThreadVersion);
    if (old) {
      if (best == nullptr) *status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    } else if (best == nullptr || entry.since > best->since) {
      best = &entry;
    }
  }
  *function = nullptr;
  if (best == nullptr) return CUDA_SUCCESS;
  *status = CU_GET_PROC_ADDRESS_SUCCESS;
  *function = per_thread && best->per_thread != nullptr ? best->per_thread : best->plain;
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace causeway::software_gpu

using namespace causeway::software_gpu;

extern "C" {

CUresult cuGetProcAddress_v2(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* symbolStatus) {
  return Always(__func__, [&]() -> CUresult {
    if (symbol == nullptr || pfn == nullptr) return CUDA_ERROR_INVALID_VALUE;
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    CUresult result = FindFunction(symbol, cudaVersion, flags, pfn, &status);
    if (result == CUDA_SUCCESS && symbolStatus != nullptr) *symbolStatus = status;
    return result;
  });
}

CUresult cuGetProcAddress(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags) {
  return Always(__func__, [&]() -> CUresult {
    if (symbol == nullptr || pfn == nullptr) return CUDA_ERROR_INVALID_VALUE;
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    void* function = nullptr;
    CUresult result = FindFunction(symbol, cudaVersion, flags, &function, &status);
    if (result != CUDA_SUCCESS) return result;
    if (function == nullptr) return CUDA_ERROR_NOT_FOUND;
    *pfn = function;
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
