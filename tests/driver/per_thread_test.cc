// SPDX-License-Identifier: Apache-2.0
// The forms of calls whose stream 0 is the calling thread's own default stream, by their exact names. What
// goes to that stream is caught by capturing it: on the legacy stream the same call would fail there.
#include <cstring>
#include <vector>

#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

// The form of a function with that name; cuda.h's own declaration gives the type.
template <class F>
F* As(F*, const char* name) {
  auto* function = SymbolAs<F>(name);
  EXPECT_NE(function, nullptr) << name;
  return function;
}

constexpr CUstream kOwn = nullptr;  // what these forms take for the thread's own stream

class PerThreadTest : public DriverTest {
 protected:
  void SetUp() override {
    if (Symbol("cuMemcpy_ptds") == nullptr) GTEST_SKIP() << "this library has no such names";
    DriverTest::SetUp();
    OK(cuMemAlloc(&a_, kBytes));
    OK(cuMemAlloc(&b_, kBytes));
    OK(cuMemsetD8(a_, 0, kBytes));
    OK(cuMemsetD8(b_, 0, kBytes));
    OK(cuCtxSynchronize());
  }
  void TearDown() override {
    if (context_ != nullptr) DriverTest::TearDown();
  }
  std::vector<unsigned char> Bytes(CUdeviceptr from, size_t count = kBytes) {
    std::vector<unsigned char> bytes(count);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(cuMemcpyDtoH(bytes.data(), from, count), CUDA_SUCCESS);
    return bytes;
  }
  // How many nodes the calls made on the thread's own stream; then runs them.
  template <class Calls>
  size_t Nodes(Calls calls) {
    EXPECT_EQ(As(&cuStreamBeginCapture, "cuStreamBeginCapture_v2_ptsz")(kOwn, CU_STREAM_CAPTURE_MODE_RELAXED),
              CUDA_SUCCESS);
    calls();
    CUgraph graph = nullptr;
    CUgraphExec executable = nullptr;
    size_t count = 0;
    EXPECT_EQ(As(&cuStreamEndCapture, "cuStreamEndCapture_ptsz")(kOwn, &graph), CUDA_SUCCESS);
    if (graph == nullptr) return 0;
    EXPECT_EQ(cuGraphGetNodes(graph, nullptr, &count), CUDA_SUCCESS);
    CUDA_GRAPH_INSTANTIATE_PARAMS parameters{};
    EXPECT_EQ(As(&cuGraphInstantiateWithParams, "cuGraphInstantiateWithParams_ptsz")(&executable, graph,
                                                                                     &parameters),
              CUDA_SUCCESS);
    EXPECT_EQ(As(&cuGraphUpload, "cuGraphUpload_ptsz")(executable, kOwn), CUDA_SUCCESS);
    EXPECT_EQ(As(&cuGraphLaunch, "cuGraphLaunch_ptsz")(executable, kOwn), CUDA_SUCCESS);
    EXPECT_EQ(As(&cuStreamSynchronize, "cuStreamSynchronize_ptsz")(kOwn), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphExecDestroy(executable), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
    return count;
  }
  CUDA_MEMCPY2D Plane(CUdeviceptr to, CUdeviceptr from) {
    CUDA_MEMCPY2D copy{};
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = from;
    copy.dstDevice = to;
    copy.srcPitch = copy.dstPitch = 64;
    copy.WidthInBytes = 64;
    copy.Height = kBytes / 64;
    return copy;
  }
  CUDA_MEMCPY3D Box(CUdeviceptr to, CUdeviceptr from) {
    CUDA_MEMCPY3D copy{};
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = from;
    copy.dstDevice = to;
    copy.srcPitch = copy.dstPitch = 64;
    copy.srcHeight = copy.dstHeight = 4;
    copy.WidthInBytes = 64;
    copy.Height = 4;
    copy.Depth = kBytes / 256;
    return copy;
  }
  static constexpr size_t kBytes = 1024;
  CUdeviceptr a_ = 0, b_ = 0;
};

TEST_F(PerThreadTest, LinearCopies) {
  std::vector<unsigned char> values(kBytes), back(kBytes);
  for (size_t i = 0; i < kBytes; ++i) values[i] = static_cast<unsigned char>(i * 7);
  EXPECT_EQ(As(&cuMemcpyHtoD, "cuMemcpyHtoD_v2_ptds")(a_, values.data(), kBytes), CUDA_SUCCESS);
  EXPECT_EQ(As(&cuMemcpyDtoD, "cuMemcpyDtoD_v2_ptds")(b_, a_, kBytes), CUDA_SUCCESS);
  EXPECT_EQ(As(&cuMemcpyDtoH, "cuMemcpyDtoH_v2_ptds")(back.data(), b_, kBytes), CUDA_SUCCESS);
  EXPECT_EQ(back, values);
  EXPECT_EQ(cuMemsetD8(b_, 0, kBytes), CUDA_SUCCESS);
  EXPECT_EQ(As(&cuMemcpy, "cuMemcpy_ptds")(b_, a_, kBytes), CUDA_SUCCESS);
  EXPECT_EQ(Bytes(b_), values);
  EXPECT_EQ(cuMemsetD8(b_, 0, kBytes), CUDA_SUCCESS);
  EXPECT_EQ(As(&cuMemcpyPeer, "cuMemcpyPeer_ptds")(b_, context_, a_, context_, kBytes), CUDA_SUCCESS);
  EXPECT_EQ(Bytes(b_), values);
  // Ordinary memory, both ways.
  EXPECT_EQ(cuMemsetD8(a_, 0, kBytes), CUDA_SUCCESS);
  EXPECT_EQ(As(&cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2_ptsz")(a_, values.data(), kBytes, kOwn),
            CUDA_SUCCESS);
  std::fill(back.begin(), back.end(), 0);
  EXPECT_EQ(As(&cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2_ptsz")(back.data(), a_, kBytes, kOwn), CUDA_SUCCESS);
  EXPECT_EQ(As(&cuStreamSynchronize, "cuStreamSynchronize_ptsz")(kOwn), CUDA_SUCCESS);
  EXPECT_EQ(back, values);
}

TEST_F(PerThreadTest, BoxesAndArrays) {
  std::vector<unsigned char> values(kBytes);
  for (size_t i = 0; i < kBytes; ++i) values[i] = static_cast<unsigned char>(i * 5);
  EXPECT_EQ(cuMemcpyHtoD(a_, values.data(), kBytes), CUDA_SUCCESS);
  const CUDA_MEMCPY2D plane = Plane(b_, a_);
  const CUDA_MEMCPY3D box = Box(b_, a_);
  EXPECT_EQ(As(&cuMemcpy2D, "cuMemcpy2D_v2_ptds")(&plane), CUDA_SUCCESS);
  EXPECT_EQ(Bytes(b_), values);
  EXPECT_EQ(cuMemsetD8(b_, 0, kBytes), CUDA_SUCCESS);
  EXPECT_EQ(As(&cuMemcpy2DUnaligned, "cuMemcpy2DUnaligned_v2_ptds")(&plane), CUDA_SUCCESS);
  EXPECT_EQ(Bytes(b_), values);
  EXPECT_EQ(cuMemsetD8(b_, 0, kBytes), CUDA_SUCCESS);
  EXPECT_EQ(As(&cuMemcpy3D, "cuMemcpy3D_v2_ptds")(&box), CUDA_SUCCESS);
  EXPECT_EQ(Bytes(b_), values);
  EXPECT_EQ(cuMemsetD8(b_, 0, kBytes), CUDA_SUCCESS);
  const CUDA_ARRAY_DESCRIPTOR shape{kBytes, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1};
  CUarray first = nullptr, second = nullptr;
  OK(cuArrayCreate(&first, &shape));
  OK(cuArrayCreate(&second, &shape));
  EXPECT_EQ(As(&cuMemcpyDtoA, "cuMemcpyDtoA_v2_ptds")(first, 0, a_, kBytes), CUDA_SUCCESS);
  EXPECT_EQ(As(&cuMemcpyAtoA, "cuMemcpyAtoA_v2_ptds")(second, 0, first, 0, kBytes), CUDA_SUCCESS);
  EXPECT_EQ(As(&cuMemcpyAtoD, "cuMemcpyAtoD_v2_ptds")(b_, second, 0, kBytes), CUDA_SUCCESS);
  EXPECT_EQ(Bytes(b_), values);
  std::vector<unsigned char> back(kBytes);
  const std::vector<unsigned char> ones(kBytes, 1), twos(kBytes, 2);
  EXPECT_EQ(As(&cuMemcpyHtoA, "cuMemcpyHtoA_v2_ptds")(first, 0, ones.data(), kBytes), CUDA_SUCCESS);
  EXPECT_EQ(As(&cuMemcpyAtoH, "cuMemcpyAtoH_v2_ptds")(back.data(), first, 0, kBytes), CUDA_SUCCESS);
  EXPECT_EQ(back, ones);
  EXPECT_EQ(As(&cuMemcpyHtoAAsync, "cuMemcpyHtoAAsync_v2_ptsz")(first, 0, twos.data(), kBytes, kOwn),
            CUDA_SUCCESS);
  EXPECT_EQ(As(&cuMemcpyAtoHAsync, "cuMemcpyAtoHAsync_v2_ptsz")(back.data(), first, 0, kBytes, kOwn),
            CUDA_SUCCESS);
  EXPECT_EQ(As(&cuStreamSynchronize, "cuStreamSynchronize_ptsz")(kOwn), CUDA_SUCCESS);
  EXPECT_EQ(back, twos);
  OK(cuArrayDestroy(first));
  OK(cuArrayDestroy(second));
  CUDA_MEMCPY3D_PEER peer{};
  peer.srcMemoryType = peer.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  peer.srcDevice = a_;
  peer.dstDevice = b_;
  peer.srcContext = peer.dstContext = context_;
  peer.srcPitch = peer.dstPitch = peer.WidthInBytes = 64;
  peer.srcHeight = peer.dstHeight = peer.Height = kBytes / 64;
  peer.Depth = 1;
  EXPECT_EQ(cuMemsetD8(b_, 0, kBytes), CUDA_SUCCESS);
  EXPECT_EQ(As(&cuMemcpy3DPeer, "cuMemcpy3DPeer_ptds")(&peer), CUDA_SUCCESS);
  EXPECT_EQ(Bytes(b_), values);
  EXPECT_EQ(cuMemsetD8(b_, 0, kBytes), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(As(&cuMemcpy3DPeerAsync, "cuMemcpy3DPeerAsync_ptsz")(&peer, kOwn), CUDA_SUCCESS);
  EXPECT_EQ(Bytes(b_), values);
}

TEST_F(PerThreadTest, Fills) {
  EXPECT_EQ(As(&cuMemsetD8, "cuMemsetD8_v2_ptds")(a_, 0x11, 16), CUDA_SUCCESS);
  EXPECT_EQ(As(&cuMemsetD16, "cuMemsetD16_v2_ptds")(a_ + 16, 0x2222, 8), CUDA_SUCCESS);
  EXPECT_EQ(As(&cuMemsetD32, "cuMemsetD32_v2_ptds")(a_ + 32, 0x33333333, 4), CUDA_SUCCESS);
  EXPECT_EQ(As(&cuMemsetD2D8, "cuMemsetD2D8_v2_ptds")(a_ + 64, 64, 0x44, 16, 2), CUDA_SUCCESS);
  EXPECT_EQ(As(&cuMemsetD2D16, "cuMemsetD2D16_v2_ptds")(a_ + 80, 64, 0x5555, 8, 2), CUDA_SUCCESS);
  EXPECT_EQ(As(&cuMemsetD2D32, "cuMemsetD2D32_v2_ptds")(a_ + 96, 64, 0x66666666, 4, 2), CUDA_SUCCESS);
  const auto bytes = Bytes(a_, 192);
  for (size_t i = 0; i < 192; ++i) {
    const size_t column = i % 64, row = i / 64;
    const unsigned wanted = column >= 48 ? 0 : (row == 0 ? 0x11 : 0x44) + 0x11 * (column / 16);
    ASSERT_EQ(bytes[i], wanted) << i;
  }
}

TEST_F(PerThreadTest, AsynchronousWorkGoesToTheThreadsStream) {
  const CUDA_MEMCPY2D plane = Plane(b_, a_);
  const CUDA_MEMCPY3D box = Box(b_, a_);
  EXPECT_EQ(Nodes([&] {
              EXPECT_EQ(As(&cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2_ptsz")(b_, a_, kBytes, kOwn),
                        CUDA_SUCCESS);
              EXPECT_EQ(As(&cuMemcpyAsync, "cuMemcpyAsync_ptsz")(b_, a_, kBytes, kOwn), CUDA_SUCCESS);
              EXPECT_EQ(As(&cuMemcpy2DAsync, "cuMemcpy2DAsync_v2_ptsz")(&plane, kOwn), CUDA_SUCCESS);
              EXPECT_EQ(As(&cuMemcpy3DAsync, "cuMemcpy3DAsync_v2_ptsz")(&box, kOwn), CUDA_SUCCESS);
            }),
            4u);
  // Between contexts no capture takes it.
  EXPECT_EQ(As(&cuMemcpyPeerAsync, "cuMemcpyPeerAsync_ptsz")(b_, context_, a_, context_, kBytes, kOwn),
            CUDA_SUCCESS);
  EXPECT_EQ(
      Nodes([&] {
        EXPECT_EQ(As(&cuMemsetD8Async, "cuMemsetD8Async_ptsz")(a_, 0x11, 16, kOwn), CUDA_SUCCESS);
        EXPECT_EQ(As(&cuMemsetD16Async, "cuMemsetD16Async_ptsz")(a_ + 16, 0x2222, 8, kOwn), CUDA_SUCCESS);
        EXPECT_EQ(As(&cuMemsetD32Async, "cuMemsetD32Async_ptsz")(a_ + 32, 0x33333333, 4, kOwn), CUDA_SUCCESS);
        EXPECT_EQ(As(&cuMemsetD2D8Async, "cuMemsetD2D8Async_ptsz")(a_ + 64, 64, 0x44, 16, 2, kOwn),
                  CUDA_SUCCESS);
        EXPECT_EQ(As(&cuMemsetD2D16Async, "cuMemsetD2D16Async_ptsz")(a_ + 80, 64, 0x5555, 8, 2, kOwn),
                  CUDA_SUCCESS);
        EXPECT_EQ(As(&cuMemsetD2D32Async, "cuMemsetD2D32Async_ptsz")(a_ + 96, 64, 0x66666666, 4, 2, kOwn),
                  CUDA_SUCCESS);
      }),
      6u);
  EXPECT_EQ(Bytes(a_, 64)[40], 0x33);
  EXPECT_EQ(Bytes(a_, 192)[64 + 64 + 20], 0x55);
}

TEST_F(PerThreadTest, Launches) {
  const CUfunction add = Kernel("add");
  unsigned count = 64, value = 1;
  void* parameters[] = {&a_, &count, &value};
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
  config.blockDimX = 64;
  EXPECT_EQ(Nodes([&] {
              EXPECT_EQ(As(&cuLaunchKernel, "cuLaunchKernel_ptsz")(add, 1, 1, 1, 64, 1, 1, 0, kOwn,
                                                                   parameters, nullptr),
                        CUDA_SUCCESS);
              EXPECT_EQ(As(&cuLaunchKernelEx, "cuLaunchKernelEx_ptsz")(&config, add, parameters, nullptr),
                        CUDA_SUCCESS);
              EXPECT_EQ(As(&cuLaunchCooperativeKernel, "cuLaunchCooperativeKernel_ptsz")(
                            add, 1, 1, 1, 64, 1, 1, 0, kOwn, parameters),
                        CUDA_SUCCESS);
            }),
            3u);
  EXPECT_EQ(Bytes(a_, 4)[0], 3);
}

TEST_F(PerThreadTest, HostFunctions) {
  std::atomic<int> calls{0};
  const CUhostFn host = [](void* data) { static_cast<std::atomic<int>*>(data)->fetch_add(1); };
  const CUstreamCallback callback = [](CUstream, CUresult, void* data) {
    static_cast<std::atomic<int>*>(data)->fetch_add(10);
  };
  EXPECT_EQ(As(&cuLaunchHostFunc, "cuLaunchHostFunc_ptsz")(kOwn, host, &calls), CUDA_SUCCESS);
  EXPECT_EQ(As(&cuStreamAddCallback, "cuStreamAddCallback_ptsz")(kOwn, callback, &calls, 0), CUDA_SUCCESS);
  EXPECT_EQ(As(&cuStreamSynchronize, "cuStreamSynchronize_ptsz")(kOwn), CUDA_SUCCESS);
  EXPECT_EQ(calls.load(), 11);
  EXPECT_EQ(As(&cuStreamQuery, "cuStreamQuery_ptsz")(kOwn), CUDA_SUCCESS);
}

TEST_F(PerThreadTest, EventsAndWaits) {
  CUevent event = nullptr;
  OK(cuEventCreate(&event, 0));
  EXPECT_EQ(As(&cuEventRecord, "cuEventRecord_ptsz")(event, kOwn), CUDA_SUCCESS);
  EXPECT_EQ(cuEventSynchronize(event), CUDA_SUCCESS);
  EXPECT_EQ(As(&cuEventRecordWithFlags, "cuEventRecordWithFlags_ptsz")(event, kOwn, CU_EVENT_RECORD_DEFAULT),
            CUDA_SUCCESS);
  EXPECT_EQ(As(&cuStreamWaitEvent, "cuStreamWaitEvent_ptsz")(kOwn, event, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuEventSynchronize(event), CUDA_SUCCESS);
  OK(cuEventDestroy(event));
}

TEST_F(PerThreadTest, WhatTheStreamIs) {
  unsigned flags = 9;
  int priority = 9;
  unsigned long long id = 0, same = 0, legacy = 0;
  CUcontext context = nullptr;
  CUgreenCtx green = nullptr;
  CUdevice device = 9;
  EXPECT_EQ(As(&cuStreamGetFlags, "cuStreamGetFlags_ptsz")(kOwn, &flags), CUDA_SUCCESS);
  Say("flags", flags);
  EXPECT_EQ(As(&cuStreamGetPriority, "cuStreamGetPriority_ptsz")(kOwn, &priority), CUDA_SUCCESS);
  EXPECT_EQ(priority, 0);
  EXPECT_EQ(As(&cuStreamGetId, "cuStreamGetId_ptsz")(kOwn, &id), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamGetId(CU_STREAM_PER_THREAD, &same), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamGetId(CU_STREAM_LEGACY, &legacy), CUDA_SUCCESS);
  EXPECT_EQ(id, same);
  EXPECT_NE(id, legacy);
  using GetContext = CUresult(CUstream, CUcontext*);  // cuda.h calls the newer form by this name
  EXPECT_EQ(SymbolAs<GetContext>("cuStreamGetCtx_ptsz")(kOwn, &context), CUDA_SUCCESS);
  EXPECT_EQ(context, context_);
  using GetContexts = CUresult(CUstream, CUcontext*, CUgreenCtx*);
  EXPECT_EQ(SymbolAs<GetContexts>("cuStreamGetCtx_v2_ptsz")(kOwn, &context, &green), CUDA_SUCCESS);
  EXPECT_EQ(context, context_);
  EXPECT_EQ(green, nullptr);
  EXPECT_EQ(As(&cuStreamGetDevice, "cuStreamGetDevice_ptsz")(kOwn, &device), CUDA_SUCCESS);
  EXPECT_EQ(device, 0);
  CUstreamAttrValue value{}, back{};
  value.syncPolicy = CU_SYNC_POLICY_YIELD;
  const auto id_of_policy = CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY;
  EXPECT_EQ(As(&cuStreamSetAttribute, "cuStreamSetAttribute_ptsz")(kOwn, id_of_policy, &value), CUDA_SUCCESS);
  EXPECT_EQ(As(&cuStreamGetAttribute, "cuStreamGetAttribute_ptsz")(kOwn, id_of_policy, &back), CUDA_SUCCESS);
  Say("policy", static_cast<int>(back.syncPolicy));
  CUstream other = nullptr;
  OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  EXPECT_EQ(As(&cuStreamCopyAttributes, "cuStreamCopyAttributes_ptsz")(other, kOwn), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamGetAttribute(other, id_of_policy, &back), CUDA_SUCCESS);
  Say("copied policy", static_cast<int>(back.syncPolicy));
  OK(cuStreamDestroy(other));
}

TEST_F(PerThreadTest, Captures) {
  CUstreamCaptureStatus status{};
  EXPECT_EQ(As(&cuStreamIsCapturing, "cuStreamIsCapturing_ptsz")(kOwn, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_EQ(
      As(&cuStreamBeginCapture, "cuStreamBeginCapture_v2_ptsz")(kOwn, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
      CUDA_SUCCESS);
  EXPECT_EQ(As(&cuStreamIsCapturing, "cuStreamIsCapturing_ptsz")(kOwn, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(As(&cuMemsetD8Async, "cuMemsetD8Async_ptsz")(a_, 1, 16, kOwn), CUDA_SUCCESS);
  cuuint64_t id = 0, id2 = 0, id3 = 0;
  CUgraph graph = nullptr, graph3 = nullptr;
  const CUgraphNode* nodes = nullptr;
  const CUgraphEdgeData* edges = nullptr;
  size_t count = 0;
  using Info = CUresult(CUstream, CUstreamCaptureStatus*, cuuint64_t*);
  using Info2 =
      CUresult(CUstream, CUstreamCaptureStatus*, cuuint64_t*, CUgraph*, const CUgraphNode**, size_t*);
  EXPECT_EQ(SymbolAs<Info>("cuStreamGetCaptureInfo_ptsz")(kOwn, &status, &id), CUDA_SUCCESS);
  EXPECT_EQ(SymbolAs<Info2>("cuStreamGetCaptureInfo_v2_ptsz")(kOwn, &status, &id2, &graph, &nodes, &count),
            CUDA_SUCCESS);
  EXPECT_EQ(count, 1u);
  EXPECT_EQ(As(&cuStreamGetCaptureInfo, "cuStreamGetCaptureInfo_v3_ptsz")(kOwn, &status, &id3, &graph3,
                                                                          &nodes, &edges, &count),
            CUDA_SUCCESS);
  EXPECT_EQ(id, id2);
  EXPECT_EQ(id, id3);
  EXPECT_EQ(graph, graph3);
  using Update = CUresult(CUstream, CUgraphNode*, size_t, unsigned);
  auto* update = SymbolAs<Update>("cuStreamUpdateCaptureDependencies_ptsz");
  Say("first form of update", static_cast<int>(update(kOwn, nullptr, 0, CU_STREAM_SET_CAPTURE_DEPENDENCIES)));
  EXPECT_EQ(As(&cuStreamUpdateCaptureDependencies, "cuStreamUpdateCaptureDependencies_v2_ptsz")(
                kOwn, nullptr, nullptr, 0, CU_STREAM_SET_CAPTURE_DEPENDENCIES),
            CUDA_SUCCESS);
  EXPECT_EQ(As(&cuStreamEndCapture, "cuStreamEndCapture_ptsz")(kOwn, &graph), CUDA_SUCCESS);
  EXPECT_EQ(As(&cuStreamBeginCaptureToGraph, "cuStreamBeginCaptureToGraph_ptsz")(
                kOwn, graph, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_RELAXED),
            CUDA_SUCCESS);
  EXPECT_EQ(As(&cuMemsetD8Async, "cuMemsetD8Async_ptsz")(a_, 2, 16, kOwn), CUDA_SUCCESS);
  CUgraph same = nullptr;
  EXPECT_EQ(As(&cuStreamEndCapture, "cuStreamEndCapture_ptsz")(kOwn, &same), CUDA_SUCCESS);
  EXPECT_EQ(same, graph);
  OK(cuGraphGetNodes(graph, nullptr, &count));
  EXPECT_EQ(count, 2u);
  OK(cuGraphDestroy(graph));
  // The form of CUDA 10.0 has no mode.
  using Begin = CUresult(CUstream);
  EXPECT_EQ(SymbolAs<Begin>("cuStreamBeginCapture_ptsz")(kOwn), CUDA_SUCCESS);
  EXPECT_EQ(As(&cuStreamEndCapture, "cuStreamEndCapture_ptsz")(kOwn, &graph), CUDA_SUCCESS);
  OK(cuGraphDestroy(graph));
}

TEST_F(PerThreadTest, Pools) {
  CUdeviceptr first = 0, second = 0;
  CUmemoryPool pool = nullptr;
  OK(cuDeviceGetDefaultMemPool(&pool, 0));
  EXPECT_EQ(As(&cuMemAllocAsync, "cuMemAllocAsync_ptsz")(&first, kBytes, kOwn), CUDA_SUCCESS);
  EXPECT_EQ(As(&cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync_ptsz")(&second, kBytes, pool, kOwn),
            CUDA_SUCCESS);
  EXPECT_EQ(As(&cuMemsetD8Async, "cuMemsetD8Async_ptsz")(second, 3, kBytes, kOwn), CUDA_SUCCESS);
  EXPECT_EQ(As(&cuStreamSynchronize, "cuStreamSynchronize_ptsz")(kOwn), CUDA_SUCCESS);
  EXPECT_EQ(Bytes(second)[kBytes - 1], 3);
  EXPECT_EQ(As(&cuMemFreeAsync, "cuMemFreeAsync_ptsz")(first, kOwn), CUDA_SUCCESS);
  EXPECT_EQ(As(&cuMemFreeAsync, "cuMemFreeAsync_ptsz")(second, kOwn), CUDA_SUCCESS);
  EXPECT_EQ(As(&cuStreamSynchronize, "cuStreamSynchronize_ptsz")(kOwn), CUDA_SUCCESS);
}

// The forms before CUDA 11.7 exist where the host enables them for its driver.
TEST_F(PerThreadTest, MemoryOperations) {
  EXPECT_EQ(As(&cuStreamWriteValue32, "cuStreamWriteValue32_v2_ptsz")(kOwn, a_, 7, 0), CUDA_SUCCESS);
  EXPECT_EQ(As(&cuStreamWriteValue64, "cuStreamWriteValue64_v2_ptsz")(kOwn, a_ + 8, 9, 0), CUDA_SUCCESS);
  EXPECT_EQ(As(&cuStreamWaitValue32, "cuStreamWaitValue32_v2_ptsz")(kOwn, a_, 7, CU_STREAM_WAIT_VALUE_EQ),
            CUDA_SUCCESS);
  EXPECT_EQ(As(&cuStreamWaitValue64, "cuStreamWaitValue64_v2_ptsz")(kOwn, a_ + 8, 9, CU_STREAM_WAIT_VALUE_EQ),
            CUDA_SUCCESS);
  CUstreamBatchMemOpParams write{};
  write.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  write.writeValue.address = a_ + 16;
  write.writeValue.value = 11;
  EXPECT_EQ(As(&cuStreamBatchMemOp, "cuStreamBatchMemOp_v2_ptsz")(kOwn, 1, &write, 0), CUDA_SUCCESS);
  EXPECT_EQ(As(&cuStreamSynchronize, "cuStreamSynchronize_ptsz")(kOwn), CUDA_SUCCESS);
  const auto bytes = Bytes(a_, 20);
  EXPECT_EQ(bytes[0], 7);
  EXPECT_EQ(bytes[8], 9);
  EXPECT_EQ(bytes[16], 11);
  auto old = [](auto* plain, const char* name, auto... p) {
    Say(name, static_cast<int>(As(plain, name)(p...)));
  };
  old(&cuStreamWriteValue32, "cuStreamWriteValue32_ptsz", kOwn, a_, 7u, 0u);
  old(&cuStreamWaitValue32, "cuStreamWaitValue32_ptsz", kOwn, a_, 7u, 1u);
  old(&cuStreamWriteValue64, "cuStreamWriteValue64_ptsz", kOwn, a_ + 8, 9u, 0u);
  old(&cuStreamWaitValue64, "cuStreamWaitValue64_ptsz", kOwn, a_ + 8, 9u, 1u);
  old(&cuStreamBatchMemOp, "cuStreamBatchMemOp_ptsz", kOwn, 1u, &write, 0u);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
}

}  // namespace
}  // namespace causeway::driver_test
