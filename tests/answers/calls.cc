// SPDX-License-Identifier: Apache-2.0
// Calls without a stream, most of which captures may forbid.
#include "tests/answers/questions.h"

namespace causeway::answers {
namespace {

void AskMemory(const World& w, const Ask& ask) {
  ask("Alloc 0", [=]() -> CUresult {
    CUdeviceptr p;
    return cuMemAlloc(&p, 0);
  });
  ask("Alloc nul", [=] { return cuMemAlloc(nullptr, 64); });
  ask("AllocPitch el", [=]() -> CUresult {
    CUdeviceptr p;
    size_t z;
    return cuMemAllocPitch(&p, &z, 64, 4, 3);
  });
  ask("AllocPitch 0", [=]() -> CUresult {
    CUdeviceptr p;
    size_t z;
    return cuMemAllocPitch(&p, &z, 0, 4, 4);
  });
  ask("Free 0", [=] { return cuMemFree(0); });
  ask("Free bad", [=] { return cuMemFree(w.unknown); });
  ask("Free mid", [=] { return cuMemFree(w.memory + 64); });
  ask("Free managed mid", [=] { return cuMemFree(w.managed + 64); });
  ask("AllocManaged 0", [=]() -> CUresult {
    CUdeviceptr p;
    return cuMemAllocManaged(&p, 0, 1);
  });
  ask("AllocManaged flags", [=]() -> CUresult {
    CUdeviceptr p;
    return cuMemAllocManaged(&p, 64, 9);
  });
  ask("HostAlloc 0", [=]() -> CUresult {
    void* p;
    return cuMemHostAlloc(&p, 0, 0);
  });
  ask("HostAlloc flags", [=]() -> CUresult {
    void* p;
    return cuMemHostAlloc(&p, 64, 0x99);
  });
  ask("AllocHost 0", [=]() -> CUresult {
    void* p;
    return cuMemAllocHost(&p, 0);
  });
  ask("AllocHost nul", [=] { return cuMemAllocHost(nullptr, 64); });
  ask("FreeHost 0", [=] { return cuMemFreeHost(nullptr); });
  ask("FreeHost bad", [=] { return cuMemFreeHost(w.ordinary); });
  ask("Register nul", [=] { return cuMemHostRegister(nullptr, 64, 0); });
  ask("Register 0", [=] { return cuMemHostRegister(w.aligned, 0, 0); });
  ask("Register flags", [=] { return cuMemHostRegister(w.aligned, 4096, 0x99); });
  ask("Unregister bad", [=] { return cuMemHostUnregister(w.ordinary); });
  ask("Unregister nul", [=] { return cuMemHostUnregister(nullptr); });
}

void AskArrays(const World&, const Ask& ask) {
  ask("ArrayCreate fmt", [=]() -> CUresult {
    CUDA_ARRAY_DESCRIPTOR a{4, 4, CUarray_format(99), 1};
    CUarray p;
    return cuArrayCreate(&p, &a);
  });
  ask("ArrayCreate ch", [=]() -> CUresult {
    CUDA_ARRAY_DESCRIPTOR a{4, 4, CU_AD_FORMAT_FLOAT, 3};
    CUarray p;
    return cuArrayCreate(&p, &a);
  });
  ask("ArrayCreate w0", [=]() -> CUresult {
    CUDA_ARRAY_DESCRIPTOR a{0, 4, CU_AD_FORMAT_FLOAT, 1};
    CUarray p;
    return cuArrayCreate(&p, &a);
  });
  ask("ArrayCreate nul", [=] { return cuArrayCreate(nullptr, nullptr); });
  ask("Array3DCreate fmt", [=]() -> CUresult {
    CUDA_ARRAY3D_DESCRIPTOR a{4, 4, 0, CUarray_format(99), 1, 0};
    CUarray p;
    return cuArray3DCreate(&p, &a);
  });
  ask("Array3DCreate flags", [=]() -> CUresult {
    CUDA_ARRAY3D_DESCRIPTOR a{4, 4, 0, CU_AD_FORMAT_FLOAT, 1, 0x10000};
    CUarray p;
    return cuArray3DCreate(&p, &a);
  });
  ask("Mipmapped fmt", [=]() -> CUresult {
    CUDA_ARRAY3D_DESCRIPTOR a{4, 4, 0, CUarray_format(99), 1, 0};
    CUmipmappedArray p;
    return cuMipmappedArrayCreate(&p, &a, 1);
  });
  ask("Mipmapped 0", [=]() -> CUresult {
    CUDA_ARRAY3D_DESCRIPTOR a{4, 4, 0, CU_AD_FORMAT_FLOAT, 1, 0};
    CUmipmappedArray p;
    return cuMipmappedArrayCreate(&p, &a, 0);
  });
  ask("ArrayDestroy nul", [=] { return cuArrayDestroy(nullptr); });
  ask("MipmappedDestroy nul", [=] { return cuMipmappedArrayDestroy(nullptr); });
}

void AskPools(const World& w, const Ask& ask) {
  ask("PtrSet bad", [=]() -> CUresult {
    unsigned x = 1;
    return cuPointerSetAttribute(&x, CUpointer_attribute(-1), w.memory);
  });
  ask("PtrSet ok", [=]() -> CUresult {
    unsigned x = 0;
    return cuPointerSetAttribute(&x, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, w.memory);
  });
  ask("PtrSet unk", [=]() -> CUresult {
    unsigned x = 0;
    return cuPointerSetAttribute(&x, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, w.unknown);
  });
  ask("PtrSet nul",
      [=] { return cuPointerSetAttribute(nullptr, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, w.memory); });
  ask("PoolCreate bad", [=]() -> CUresult {
    CUmemPoolProps x{};
    CUmemoryPool p;
    return cuMemPoolCreate(&p, &x);
  });
  ask("PoolCreate nul", [=] { return cuMemPoolCreate(nullptr, nullptr); });
  ask("PoolTrim", [=] { return cuMemPoolTrimTo(w.pool, 0); });
  ask("PoolTrim nul", [=] { return cuMemPoolTrimTo(nullptr, 0); });
  ask("PoolDestroy nul", [=] { return cuMemPoolDestroy(nullptr); });
  ask("PoolSet bad", [=]() -> CUresult {
    unsigned long long x = 0;
    return cuMemPoolSetAttribute(w.pool, CUmemPool_attribute(99), &x);
  });
  ask("PoolGet bad", [=]() -> CUresult {
    unsigned long long x = 0;
    return cuMemPoolGetAttribute(w.pool, CUmemPool_attribute(99), &x);
  });
  ask("VmmCreate bad", [=]() -> CUresult {
    CUmemGenericAllocationHandle h;
    CUmemAllocationProp p{};
    return cuMemCreate(&h, 4096, &p, 0);
  });
  ask("Reserve 0", [=]() -> CUresult {
    CUdeviceptr p;
    return cuMemAddressReserve(&p, 0, 0, 0, 0);
  });
  ask("AddressFree bad", [=] { return cuMemAddressFree(w.unknown, 4096); });
  ask("Unmap bad", [=] { return cuMemUnmap(w.unknown, 4096); });
  ask("Map bad", [=] { return cuMemMap(w.unknown, 4096, 0, 0, 0); });
  ask("Release bad", [=] { return cuMemRelease(0); });
}

void AskEventsAndStreams(const World& w, const Ask& ask) {
  ask("EventCreate flags", [=]() -> CUresult {
    CUevent e;
    return cuEventCreate(&e, 0x99);
  });
  ask("EventQuery", [=] { return cuEventQuery(w.event); });
  ask("EventQuery nul", [=] { return cuEventQuery(nullptr); });
  ask("EventSync", [=] { return cuEventSynchronize(w.event); });
  ask("EventSync nul", [=] { return cuEventSynchronize(nullptr); });
  ask("Elapsed", [=]() -> CUresult {
    float ms;
    return cuEventElapsedTime(&ms, w.event, w.event);
  });
  ask("EventDestroy nul", [=] { return cuEventDestroy(nullptr); });
  ask("StreamCreate flags", [=]() -> CUresult {
    CUstream e;
    return cuStreamCreate(&e, 0x99);
  });
  ask("StreamCreate ok", [=]() -> CUresult {
    CUstream e;
    CUresult r = cuStreamCreate(&e, 0);
    return r;
  });
  ask("StreamDestroy nul", [=] { return cuStreamDestroy(nullptr); });
  ask("StreamDestroy L", [=] { return cuStreamDestroy(CU_STREAM_LEGACY); });
}

void AskCode(const World& w, const Ask& ask) {
  ask("ModuleLoad nul", [=]() -> CUresult {
    CUmodule x;
    return cuModuleLoadData(&x, nullptr);
  });
  ask("ModuleLoad bad", [=]() -> CUresult {
    CUmodule x;
    return cuModuleLoadData(&x, "nonsense, not an image");
  });
  ask("ModuleUnload nul", [=] { return cuModuleUnload(nullptr); });
  ask("LibraryLoad bad", [=]() -> CUresult {
    CUlibrary x;
    return cuLibraryLoadData(&x, "nonsense, not an image", 0, 0, 0, 0, 0, 0);
  });
  ask("CtxSync", [=] { return cuCtxSynchronize(); });
  ask("CtxSetLimit bad", [=]() -> CUresult { return cuCtxSetLimit(CUlimit(99), 1); });
  ask("CtxSetLimit ok", [=]() -> CUresult { return cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024); });
  ask("CtxGetLimit", [=]() -> CUresult {
    size_t x;
    return cuCtxGetLimit(&x, CU_LIMIT_STACK_SIZE);
  });
  ask("CtxSetCache", [=] { return cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_L1); });
  ask("CtxSetCache bad", [=] { return cuCtxSetCacheConfig(CUfunc_cache(99)); });
  ask("ResetL2", [=] { return cuCtxResetPersistingL2Cache(); });
  ask("FuncSet bad", [=] { return cuFuncSetAttribute(w.function, CU_FUNC_ATTRIBUTE_NUM_REGS, 1); });
  ask("FuncSet ok",
      [=] { return cuFuncSetAttribute(w.function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1024); });
}

void AskGraphsAndObjects(const World& w, const Ask& ask) {
  ask("Instantiate nul", [=]() -> CUresult {
    CUgraphExec x;
    return cuGraphInstantiate(&x, nullptr, 0);
  });
  ask("Instantiate flags", [=]() -> CUresult {
    CUgraphExec x;
    return cuGraphInstantiate(&x, w.graph, 0x9900);
  });
  ask("Instantiate ok", [=]() -> CUresult {
    CUgraphExec x;
    return cuGraphInstantiate(&x, w.graph, 0);
  });
  ask("TexObj nul", [=] { return cuTexObjectCreate(nullptr, nullptr, nullptr, nullptr); });
  ask("SurfObj nul", [=] { return cuSurfObjectCreate(nullptr, nullptr); });
  ask("GetInfo", [=]() -> CUresult {
    size_t a, b;
    return cuMemGetInfo(&a, &b);
  });
  ask("GetInfo nul", [=] { return cuMemGetInfo(nullptr, nullptr); });
  ask("IpcGet bad", [=]() -> CUresult {
    CUipcMemHandle h;
    return cuIpcGetMemHandle(&h, w.unknown);
  });
  ask("GetFunction bad", [=]() -> CUresult {
    CUfunction x;
    return cuModuleGetFunction(&x, w.module, "nothing");
  });
  ask("DevGraphTrim", [=] { return cuDeviceGraphMemTrim(w.device); });
  ask("LinkCreate", [=]() -> CUresult {
    CUlinkState s;
    return cuLinkCreate(0, 0, 0, &s);
  });
  ask("Advise ok", [=] {
    return cuMemAdvise(w.managed, 4096, CU_MEM_ADVISE_SET_READ_MOSTLY,
                       CUmemLocation{CU_MEM_LOCATION_TYPE_DEVICE, {0}});
  });
  ask("Advise bad", [=] {
    return cuMemAdvise(w.memory, 4096, CU_MEM_ADVISE_SET_READ_MOSTLY,
                       CUmemLocation{CU_MEM_LOCATION_TYPE_DEVICE, {0}});
  });
  ask("DestroyExec nul", [=] { return cuGraphExecDestroy(nullptr); });
  ask("GraphDestroy nul", [=] { return cuGraphDestroy(nullptr); });
  ask("CtxCreate flags", [=]() -> CUresult {
    CUcontext x;
    return Function<CUresult(CUcontext*, unsigned, CUdevice)>("cuCtxCreate_v2")(&x, 0x9999, w.device);
  });
  ask("PeerEnable self", [=] { return cuCtxEnablePeerAccess(w.context, 0); });
  ask("ExchangeMode bad", [=]() -> CUresult {
    CUstreamCaptureMode x = CUstreamCaptureMode(9);
    return cuThreadExchangeStreamCaptureMode(&x);
  });
  ask("UserObj", [=]() -> CUresult {
    CUuserObject x;
    return cuUserObjectCreate(&x, nullptr, nullptr, 1, 1);
  });
  ask("CtxPushPop", [=] { return cuCtxPushCurrent(w.context); });
  ask("Occupancy", [=] { return cuOccupancyMaxActiveBlocksPerMultiprocessor(nullptr, w.function, 32, 0); });
  ask("FreeArrayless", [=] { return cuTexObjectDestroy(0); });
}

}  // namespace

void AskOfContext(const World& w, const Ask& ask) {
  for (const auto part : {AskMemory, AskArrays, AskPools, AskEventsAndStreams, AskCode, AskGraphsAndObjects})
    part(w, ask);
}

}  // namespace causeway::answers
