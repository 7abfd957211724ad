// SPDX-License-Identifier: Apache-2.0
// What takes a stream: each question for each kind of stream.
#include "tests/answers/questions.h"

namespace causeway::answers {
namespace {

void AskBatchesOfCopies(const World& w, CUstream stream, const std::string& n, const Ask& ask) {
  ask("2DAsync nul" + n, [=] { return cuMemcpy2DAsync(nullptr, stream); });
  ask("3DAsync nul" + n, [=] { return cuMemcpy3DAsync(nullptr, stream); });
  ask("HtoAAsync null" + n, [=] { return cuMemcpyHtoAAsync(w.array, 0, nullptr, 64, stream); });
  ask("AtoHAsync none" + n, [=] { return cuMemcpyAtoHAsync(w.pinned, w.array, 0, 0, stream); });
  const auto copy = [=](CUdeviceptr to, size_t count) {
    CUdeviceptr from = w.memory + 4096;
    size_t bytes = 64, first = 0;
    CUmemcpyAttributes attributes{};
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    return cuMemcpyBatchAsync_v2(&to, &from, &bytes, count, &attributes, &first, 1, stream);
  };
  ask("BatchAsync 0" + n, [=] { return copy(w.memory, 0); });
  ask("BatchAsync ok" + n, [=] { return copy(w.memory, 1); });
  ask("BatchAsync null" + n, [=] { return copy(0, 1); });
  const auto copy_boxes = [=](size_t count, unsigned long long flags) {
    CUDA_MEMCPY3D_BATCH_OP nothing{};
    return cuMemcpy3DBatchAsync_v2(count, &nothing, flags, stream);
  };
  ask("3DBatch 0" + n, [=] { return copy_boxes(0, 0); });
  ask("3DBatch empty" + n, [=] { return copy_boxes(1, 0); });
  ask("3DBatch flags" + n, [=] { return copy_boxes(1, 7); });
}

void AskPrefetches(const World& w, CUstream stream, const std::string& n, const Ask& ask) {
  const CUmemLocation here{CU_MEM_LOCATION_TYPE_DEVICE, {0}}, nowhere{CU_MEM_LOCATION_TYPE_DEVICE, {77}};
  ask("Prefetch ok" + n, [=] { return cuMemPrefetchAsync(w.managed, 4096, here, 0, stream); });
  ask("Prefetch 0" + n, [=] { return cuMemPrefetchAsync(0, 1, here, 0, stream); });
  ask("Prefetch none" + n, [=] { return cuMemPrefetchAsync(w.managed, 0, here, 0, stream); });
  ask("Prefetch dev" + n, [=] { return cuMemPrefetchAsync(w.managed, 4096, nowhere, 0, stream); });
  ask("Prefetch flags" + n, [=] { return cuMemPrefetchAsync(w.managed, 4096, here, 3, stream); });
  ask("Prefetch d" + n, [=] { return cuMemPrefetchAsync(w.memory, 4096, here, 0, stream); });
  const auto prefetch = [=](size_t count, unsigned long long flags) {
    CUdeviceptr at = w.managed;
    size_t bytes = 4096, first = 0;
    CUmemLocation location = here;
    return cuMemPrefetchBatchAsync(&at, &bytes, count, &location, &first, count, flags, stream);
  };
  ask("PrefetchBatch ok" + n, [=] { return prefetch(1, 0); });
  ask("PrefetchBatch flags" + n, [=] { return prefetch(1, 9); });
  ask("PrefetchBatch none" + n, [=] { return prefetch(0, 0); });
  const auto discard = [=](size_t count, unsigned long long flags) {
    CUdeviceptr at = w.managed;
    size_t bytes = 4096;
    return cuMemDiscardBatchAsync(&at, &bytes, count, flags, stream);
  };
  ask("DiscardBatch ok" + n, [=] { return discard(1, 0); });
  ask("DiscardBatch flags" + n, [=] { return discard(1, 3); });
  ask("DiscardBatch none" + n, [=] { return discard(0, 0); });
  ask("DiscardBatch nul" + n,
      [=]() -> CUresult { return cuMemDiscardBatchAsync(nullptr, nullptr, 1, 0, stream); });
}

void AskAboutStream(const World&, CUstream stream, const std::string& n, const Ask& ask) {
  ask("GetPriority" + n, [=]() -> CUresult {
    int p;
    return cuStreamGetPriority(stream, &p);
  });
  ask("GetPriority nul" + n, [=] { return cuStreamGetPriority(stream, nullptr); });
  ask("GetFlags" + n, [=]() -> CUresult {
    unsigned p;
    return cuStreamGetFlags(stream, &p);
  });
  ask("GetId" + n, [=]() -> CUresult {
    unsigned long long p;
    return cuStreamGetId(stream, &p);
  });
  ask("GetDevice" + n, [=]() -> CUresult {
    CUdevice p;
    return cuStreamGetDevice(stream, &p);
  });
  ask("GetCtx" + n, [=]() -> CUresult {
    CUcontext p;
    return Function<CUresult(CUstream, CUcontext*)>("cuStreamGetCtx")(stream, &p);
  });
  ask("GetCtx_v2" + n, [=]() -> CUresult {
    CUcontext p;
    CUgreenCtx g2;
    return cuStreamGetCtx_v2(stream, &p, &g2);
  });
  ask("GetGreenCtx" + n, [=]() -> CUresult {
    CUgreenCtx g2;
    return cuStreamGetGreenCtx(stream, &g2);
  });
  ask("GetGreenCtx nul" + n, [=] { return cuStreamGetGreenCtx(stream, nullptr); });
  ask("GetFlags nul" + n, [=] { return cuStreamGetFlags(stream, nullptr); });
  ask("GetId nul" + n, [=] { return cuStreamGetId(stream, nullptr); });
  ask("Query" + n, [=] { return cuStreamQuery(stream); });
  ask("Sync" + n, [=] { return cuStreamSynchronize(stream); });
  ask("IsCapturing" + n, [=]() -> CUresult {
    CUstreamCaptureStatus t;
    return cuStreamIsCapturing(stream, &t);
  });
  ask("IsCapturing nul" + n, [=] { return cuStreamIsCapturing(stream, nullptr); });
  ask("CaptureInfo" + n, [=]() -> CUresult {
    CUstreamCaptureStatus t;
    return cuStreamGetCaptureInfo(stream, &t, 0, 0, 0, 0, 0);
  });
  ask("CaptureInfo nul" + n, [=] { return cuStreamGetCaptureInfo(stream, nullptr, 0, 0, 0, 0, 0); });
}

void AskAttributes(const World& w, CUstream stream, const std::string& n, const Ask& ask) {
  ask("GetAttr" + n, [=]() -> CUresult {
    CUstreamAttrValue t{};
    return cuStreamGetAttribute(stream, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &t);
  });
  ask("GetAttr bad" + n, [=]() -> CUresult {
    CUstreamAttrValue t{};
    return cuStreamGetAttribute(stream, CUlaunchAttributeID(99), &t);
  });
  ask("SetAttr bad" + n, [=]() -> CUresult {
    CUstreamAttrValue t{};
    return cuStreamSetAttribute(stream, CUlaunchAttributeID(99), &t);
  });
  ask("SetAttr pol" + n, [=]() -> CUresult {
    CUstreamAttrValue t{};
    t.syncPolicy = CUsynchronizationPolicy(77);
    return cuStreamSetAttribute(stream, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &t);
  });
  ask("SetAttr ok" + n, [=]() -> CUresult {
    CUstreamAttrValue t{};
    t.syncPolicy = CU_SYNC_POLICY_AUTO;
    return cuStreamSetAttribute(stream, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &t);
  });
  ask("CopyAttr" + n, [=] { return cuStreamCopyAttributes(stream, w.other); });
  ask("CopyAttr to" + n, [=] { return cuStreamCopyAttributes(w.other, stream); });
  ask("Attach bad" + n, [=] { return cuStreamAttachMemAsync(stream, w.memory, 0, 1); });
  ask("Attach flags" + n, [=] { return cuStreamAttachMemAsync(stream, w.managed, 0, 9); });
  ask("Attach ok" + n, [=] { return cuStreamAttachMemAsync(stream, w.managed, 0, 1); });
}

void AskEventsAndFunctions(const World& w, CUstream stream, const std::string& n, const Ask& ask) {
  ask("WaitEvent" + n, [=] { return cuStreamWaitEvent(stream, w.event, 0); });
  ask("WaitEvent flags" + n, [=] { return cuStreamWaitEvent(stream, w.event, 9); });
  ask("WaitEvent nul" + n, [=] { return cuStreamWaitEvent(stream, nullptr, 0); });
  ask("Record" + n, [=] { return cuEventRecord(w.untimed_event, stream); });
  ask("Record flags" + n, [=] { return cuEventRecordWithFlags(w.untimed_event, stream, 9); });
  ask("Record nul" + n, [=] { return cuEventRecord(nullptr, stream); });
  ask("Callback nul" + n, [=] { return cuStreamAddCallback(stream, nullptr, nullptr, 0); });
  ask("Callback flags" + n, [=] {
    return cuStreamAddCallback(
        stream, [](CUstream, CUresult, void*) {}, nullptr, 9);
  });
  ask("HostFunc nul" + n, [=] { return cuLaunchHostFunc(stream, nullptr, nullptr); });
  ask("HostFunc ok" + n, [=] {
    return cuLaunchHostFunc(
        stream, [](void*) {}, nullptr);
  });
}

void AskMemoryOperations(const World& w, CUstream stream, const std::string& n, const Ask& ask) {
  ask("Write flags" + n, [=] { return cuStreamWriteValue32(stream, w.memory, 1, 99); });
  ask("Write null" + n, [=] { return cuStreamWriteValue32(stream, 0, 1, 0); });
  ask("Write odd" + n, [=] { return cuStreamWriteValue32(stream, w.memory + 1, 1, 0); });
  ask("Write ok" + n, [=] { return cuStreamWriteValue32(stream, w.memory, 1, 0); });
  ask("Wait flags" + n, [=] { return cuStreamWaitValue32(stream, w.memory, 1, 99); });
  ask("Wait null" + n, [=] { return cuStreamWaitValue32(stream, 0, 0, 0); });
  ask("BatchMemOp none" + n, [=] { return cuStreamBatchMemOp(stream, 0, nullptr, 0); });
  ask("BatchMemOp flags" + n, [=] { return cuStreamBatchMemOp(stream, 0, nullptr, 5); });
  ask("MapArray nul" + n, [=] { return cuMemMapArrayAsync(nullptr, 1, stream); });
  ask("MapArray none" + n, [=] { return cuMemMapArrayAsync(nullptr, 0, stream); });
}

void AskCaptures(const World&, CUstream stream, const std::string& n, const Ask& ask) {
  ask("UpdateDeps none" + n, [=] {
    return Function<CUresult(CUstream, CUgraphNode*, size_t, unsigned)>("cuStreamUpdateCaptureDependencies")(
        stream, nullptr, 0, 0);
  });
  ask("UpdateDeps nul" + n, [=] {
    return Function<CUresult(CUstream, CUgraphNode*, size_t, unsigned)>("cuStreamUpdateCaptureDependencies")(
        stream, nullptr, 2, 0);
  });
  ask("UpdateDeps flags" + n, [=] {
    return Function<CUresult(CUstream, CUgraphNode*, size_t, unsigned)>("cuStreamUpdateCaptureDependencies")(
        stream, nullptr, 0, 9);
  });
  ask("Begin bad" + n, [=] { return cuStreamBeginCapture(stream, CUstreamCaptureMode(9)); });
  ask("BeginTo nul" + n, [=] {
    return cuStreamBeginCaptureToGraph(stream, nullptr, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_GLOBAL);
  });
  ask("End nul" + n, [=] { return cuStreamEndCapture(stream, nullptr); });
}

void AskLaunches(const World& w, CUstream stream, const std::string& n, const Ask& ask) {
  ask("Launch nul" + n,
      [=] { return cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr); });
  ask("Launch grid0" + n, [=]() -> CUresult {
    void* a_[] = {const_cast<CUdeviceptr*>(&w.memory)};
    return cuLaunchKernel(w.function, 0, 1, 1, 1, 1, 1, 0, stream, a_, nullptr);
  });
  ask("Launch block0" + n, [=]() -> CUresult {
    void* a_[] = {const_cast<CUdeviceptr*>(&w.memory)};
    return cuLaunchKernel(w.function, 1, 1, 1, 0, 1, 1, 0, stream, a_, nullptr);
  });
  ask("Launch smem" + n, [=]() -> CUresult {
    void* a_[] = {const_cast<CUdeviceptr*>(&w.memory)};
    return cuLaunchKernel(w.function, 1, 1, 1, 1, 1, 1, 1 << 20, stream, a_, nullptr);
  });
  ask("Launch ok" + n, [=]() -> CUresult {
    void* a_[] = {const_cast<CUdeviceptr*>(&w.memory)};
    return cuLaunchKernel(w.function, 1, 1, 1, 1, 1, 1, 0, stream, a_, nullptr);
  });
  ask("GraphLaunch nul" + n, [=] { return cuGraphLaunch(nullptr, stream); });
  ask("GraphUpload nul" + n, [=] { return cuGraphUpload(nullptr, stream); });
}

void AskAllocations(const World& w, CUstream stream, const std::string& n, const Ask& ask) {
  ask("AllocAsync" + n, [=]() -> CUresult {
    CUdeviceptr p = 0;
    return cuMemAllocAsync(&p, 64, stream);
  });
  ask("AllocAsync none" + n, [=]() -> CUresult {
    CUdeviceptr p = 0;
    return cuMemAllocAsync(&p, 0, stream);
  });
  ask("AllocAsync nul" + n, [=] { return cuMemAllocAsync(nullptr, 64, stream); });
  ask("FreeAsync 0" + n, [=] { return cuMemFreeAsync(0, stream); });
  ask("FreeAsync bad" + n, [=] { return cuMemFreeAsync(w.unknown, stream); });
  ask("FreeAsync d+" + n, [=] { return cuMemFreeAsync(w.memory + 64, stream); });
  ask("AllocPool nul" + n, [=]() -> CUresult {
    CUdeviceptr p = 0;
    return cuMemAllocFromPoolAsync(&p, 64, nullptr, stream);
  });
  ask("SignalExt" + n, [=] { return cuSignalExternalSemaphoresAsync(nullptr, nullptr, 0, stream); });
  ask("WaitExt" + n, [=] { return cuWaitExternalSemaphoresAsync(nullptr, nullptr, 1, stream); });
}

}  // namespace

void AskInStreams(const World& w, const Ask& ask) {
  for (const auto& [name, stream] : w.streams) {
    const std::string n = std::string(" ") + name;
    for (const auto part :
         {AskBatchesOfCopies, AskPrefetches, AskAboutStream, AskAttributes, AskEventsAndFunctions,
          AskMemoryOperations, AskCaptures, AskLaunches, AskAllocations})
      part(w, stream, n, ask);
  }
}

}  // namespace causeway::answers
