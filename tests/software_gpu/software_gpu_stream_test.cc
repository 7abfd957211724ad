// SPDX-License-Identifier: Apache-2.0
// Streams, events, launches and graphs of the software GPU: what runs at once, what waits, and in which
// order.
#include <chrono>
#include <cstring>
#include <thread>

#include "tests/software_gpu/test_driver.h"

namespace causeway::software_gpu_test {
namespace {

class StreamTest : public DriverTest {
 protected:
  void SetUp() override {
    Start();
    LoadKernels();
    flag_ = AllocateFlag();
    data_ = Allocate(4096);
  }

  unsigned* flag_ = nullptr;
  CUdeviceptr data_ = 0;
};

TEST_F(StreamTest, LaunchReturnsBeforeTheKernelEnds) {
  CUstream stream = MakeStream(CU_STREAM_NON_BLOCKING);
  CUevent event = nullptr;
  ASSERT_EQ(CU(cuEventCreate)(&event, 0), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuEventQuery)(event), CUDA_SUCCESS);  // never recorded
  ASSERT_EQ(LaunchSpin(flag_, stream), CUDA_SUCCESS);
  ASSERT_EQ(LaunchAdd(data_, 100, 3, stream), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuEventRecord)(event, stream), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuStreamQuery)(stream), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(CU(cuEventQuery)(event), CUDA_ERROR_NOT_READY);
  Release(flag_);
  EXPECT_EQ(CU(cuEventSynchronize)(event), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuStreamSynchronize)(stream), CUDA_SUCCESS);
  std::vector<unsigned> words = Read(data_, 101);
  EXPECT_EQ(words[0], 3u);
  EXPECT_EQ(words[99], 3u);
  EXPECT_EQ(words[100], 0u);
  EXPECT_EQ(CU(cuStreamDestroy_v2)(stream), CUDA_SUCCESS);
  if (IsOtherLibrary()) return;  // stale handles are recognised here only
  EXPECT_EQ(CU(cuStreamDestroy_v2)(stream), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(StreamTest, LegacyStreamOrdersWithBlockingStreamsBothWays) {
  CUstream blocking = MakeStream(0);
  CUstream free_running = MakeStream(CU_STREAM_NON_BLOCKING);
  ASSERT_EQ(LaunchSpin(flag_, blocking), CUDA_SUCCESS);
  // The legacy stream waits for the blocking one, and the other blocking stream for the legacy stream.
  CUstream other = MakeStream(0);
  ASSERT_EQ(LaunchAdd(data_, 1, 1, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(LaunchAdd(data_, 1, 1, other), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuStreamQuery)(nullptr), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(CU(cuStreamQuery)(other), CUDA_ERROR_NOT_READY);
  // A non-blocking stream passes by.
  CUdeviceptr second = data_ + 2048;
  ASSERT_EQ(LaunchAdd(second, 1, 5, free_running), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuStreamSynchronize)(free_running), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuStreamQuery)(other), CUDA_ERROR_NOT_READY);
  Release(flag_);
  EXPECT_EQ(CU(cuCtxSynchronize)(), CUDA_SUCCESS);
  EXPECT_EQ(Read(data_, 1)[0], 2u);
  EXPECT_EQ(Read(second, 1)[0], 5u);
}

TEST_F(StreamTest, PerThreadStreamsAreDistinct) {
  unsigned long long mine = 0;
  unsigned long long theirs = 0;
  ASSERT_EQ(CU(cuStreamGetId)(CU_STREAM_PER_THREAD, &mine), CUDA_SUCCESS);
  std::thread([&] {
    ASSERT_EQ(CU(cuCtxSetCurrent)(context_), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuStreamGetId)(CU_STREAM_PER_THREAD, &theirs), CUDA_SUCCESS);
    EXPECT_EQ(LaunchAdd(data_, 1, 4, CU_STREAM_PER_THREAD), CUDA_SUCCESS);
  }).join();
  EXPECT_NE(mine, theirs);
  EXPECT_EQ(CU(cuCtxSynchronize)(), CUDA_SUCCESS);  // covers streams of threads that have ended
  EXPECT_EQ(Read(data_, 1)[0], 4u);
}

TEST_F(StreamTest, PageableCopiesWaitAndPinnedOnesDoNot) {
  CUstream stream = MakeStream(CU_STREAM_NON_BLOCKING);
  void* pinned = nullptr;
  ASSERT_EQ(CU(cuMemHostAlloc)(&pinned, 4096, 0), CUDA_SUCCESS);
  ASSERT_EQ(LaunchSpin(flag_, stream), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuMemcpyDtoHAsync_v2)(pinned, data_, 4096, stream), CUDA_SUCCESS);
  std::vector<unsigned> source(16, 9);
  ASSERT_EQ(CU(cuMemcpyHtoDAsync_v2)(data_, source.data(), 64, stream), CUDA_SUCCESS);
  source.assign(16, 0);  // the small pageable source was captured by the call
  EXPECT_EQ(CU(cuStreamQuery)(stream), CUDA_ERROR_NOT_READY);
  std::thread releaser([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    Release(flag_);
  });
  std::vector<unsigned> back(16);
  ASSERT_EQ(CU(cuMemcpyDtoHAsync_v2)(back.data(), data_, 64, stream), CUDA_SUCCESS);
  EXPECT_EQ(back, std::vector<unsigned>(16, 9));
  releaser.join();
}

TEST_F(StreamTest, EventsOrderStreamsAndMeasureTime) {
  CUstream first = MakeStream(CU_STREAM_NON_BLOCKING);
  CUstream second = MakeStream(CU_STREAM_NON_BLOCKING);
  CUevent start = nullptr;
  CUevent end = nullptr;
  CUevent untimed = nullptr;
  ASSERT_EQ(CU(cuEventCreate)(&start, 0), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuEventCreate)(&end, CU_EVENT_BLOCKING_SYNC), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuEventCreate)(&untimed, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  float elapsed = -1;
  EXPECT_EQ(CU(cuEventElapsedTime_v2)(&elapsed, start, end), CUDA_ERROR_INVALID_HANDLE);
  ASSERT_EQ(CU(cuEventRecord)(start, first), CUDA_SUCCESS);
  ASSERT_EQ(LaunchSpin(flag_, first), CUDA_SUCCESS);
  ASSERT_EQ(LaunchAdd(data_, 1, 1, first), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuEventRecord)(end, first), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuStreamWaitEvent)(second, end, 0), CUDA_SUCCESS);
  ASSERT_EQ(LaunchAdd(data_, 1, 1, second), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuEventElapsedTime_v2)(&elapsed, start, end), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(CU(cuEventElapsedTime_v2)(&elapsed, start, untimed), CUDA_ERROR_INVALID_HANDLE);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(CU(cuStreamQuery)(second), CUDA_ERROR_NOT_READY);
  Release(flag_);
  EXPECT_EQ(CU(cuStreamSynchronize)(second), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuEventElapsedTime_v2)(&elapsed, start, end), CUDA_SUCCESS);
  EXPECT_GE(elapsed, 15.0f);
  EXPECT_LT(elapsed, 60000.0f);
  EXPECT_EQ(Read(data_, 1)[0], 2u);
}

TEST_F(StreamTest, HostFunctionsRunInOrderAndMayNotCallTheDriver) {
  struct Seen {
    CUresult inside = CUDA_SUCCESS;
    unsigned flag = 0;
    unsigned* word = nullptr;
  } seen;
  seen.word = flag_;
  CUstream stream = MakeStream(0);
  ASSERT_EQ(LaunchSpin(flag_, stream), CUDA_SUCCESS);
  auto function = [](void* data) {
    auto* result = static_cast<Seen*>(data);
    CUdeviceptr pointer = 0;
    result->inside = CU(cuMemAlloc_v2)(&pointer, 16);
    result->flag = *result->word;
  };
  ASSERT_EQ(CU(cuLaunchHostFunc)(stream, function, &seen), CUDA_SUCCESS);
  Release(flag_);
  ASSERT_EQ(CU(cuStreamSynchronize)(stream), CUDA_SUCCESS);
  EXPECT_EQ(seen.inside, CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(seen.flag, 1u);
}

TEST_F(StreamTest, MemoryOperationsHoldTheStream) {
  CUstream stream = MakeStream(CU_STREAM_NON_BLOCKING);
  CUdeviceptr flag = reinterpret_cast<uintptr_t>(flag_);
  ASSERT_EQ(CU(cuStreamWaitValue32_v2)(stream, flag, 1, CU_STREAM_WAIT_VALUE_GEQ), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuStreamWriteValue64_v2)(stream, data_, 0x1122334455667788, 0), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuStreamQuery)(stream), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(CU(cuStreamWaitValue32_v2)(stream, flag + 2, 1, 0), CUDA_ERROR_INVALID_VALUE);
  Release(flag_);
  ASSERT_EQ(CU(cuStreamSynchronize)(stream), CUDA_SUCCESS);
  EXPECT_EQ(Read(data_, 2), (std::vector<unsigned>{0x55667788, 0x11223344}));
}

TEST_F(StreamTest, MemFreeWaitsForTheDevice) {
  CUstream stream = MakeStream(CU_STREAM_NON_BLOCKING);
  CUdeviceptr unrelated = Allocate(64);
  ASSERT_EQ(CU(cuCtxSynchronize)(), CUDA_SUCCESS);
  ASSERT_EQ(LaunchSpin(flag_, stream), CUDA_SUCCESS);
  std::thread releaser([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    Release(flag_);
  });
  EXPECT_EQ(CU(cuMemFree_v2)(unrelated), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuStreamQuery)(stream), CUDA_SUCCESS);
  releaser.join();
}

// shared(out): static shared memory, at most 64 threads a block.
constexpr char kShared[] = R"(
.version 8.0
.target sm_80
.address_size 64
.visible .entry shared(.param .u64 out) .maxntid 64, 1, 1
{
  .shared .align 4 .b8 buffer[4096];
  .reg .b32 %r<2>; .reg .b64 %rd<2>;
  mov.u64 %rd1, buffer;
  mov.u32 %r1, 1;
  st.u32 [%rd1], %r1;
  ret;
}
)";

TEST_F(StreamTest, LaunchConfigurationErrors) {
  CUmodule module = nullptr;
  CUfunction shared = nullptr;
  ASSERT_EQ(CU(cuModuleLoadData)(&module, kShared), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuModuleGetFunction)(&shared, module, "shared"), CUDA_SUCCESS);
  unsigned count = 0;
  void* parameters[] = {&data_, &count, &count};
  auto launch = [&](CUfunction function, unsigned grid_y, unsigned block_x, unsigned block_z,
                    unsigned bytes) {
    return CU(cuLaunchKernel)(function, 1, grid_y, 1, block_x, 1, block_z, bytes, nullptr, parameters,
                              nullptr);
  };
  EXPECT_EQ(launch(add_, 1, 1, 1, 49152), CUDA_SUCCESS);
  EXPECT_EQ(launch(add_, 0, 1, 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(add_, 1, 0, 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(add_, 65536, 1, 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(add_, 1, 2048, 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(add_, 1, 1, 65, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(add_, 1, 1, 1, 50000), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(shared, 1, 128, 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(shared, 1, 64, 1, 49152), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(nullptr, 1, 1, 1, 0), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(CU(cuFuncSetAttribute)(add_, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100000),
            CUDA_SUCCESS);
  EXPECT_EQ(launch(add_, 1, 1, 1, 50000), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuFuncSetAttribute)(add_, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 232449),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuLaunchCooperativeKernel)(add_, 100000, 1, 1, 32, 1, 1, 0, nullptr, parameters),
            CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
  EXPECT_EQ(CU(cuCtxSynchronize)(), CUDA_SUCCESS);
}

TEST_F(StreamTest, ParametersInOneBuffer) {
  struct {
    CUdeviceptr data;
    unsigned count;
    unsigned value;
  } buffer{data_, 2, 8};
  size_t bytes = sizeof buffer;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  ASSERT_EQ(CU(cuLaunchKernel)(add_, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, extra), CUDA_SUCCESS);
  EXPECT_EQ(Read(data_, 3), (std::vector<unsigned>{8, 8, 0}));
}

TEST_F(StreamTest, CaptureForkAndReplay) {
  CUstream stream = MakeStream(CU_STREAM_NON_BLOCKING);
  CUstream branch = MakeStream(CU_STREAM_NON_BLOCKING);
  CUevent fork = nullptr;
  CUevent join = nullptr;
  ASSERT_EQ(CU(cuEventCreate)(&fork, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuEventCreate)(&join, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuMemsetD32Async)(data_, 10, 4, stream), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuEventRecord)(fork, stream), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuStreamWaitEvent)(branch, fork, 0), CUDA_SUCCESS);
  ASSERT_EQ(LaunchAdd(data_, 1, 1, branch), CUDA_SUCCESS);
  ASSERT_EQ(LaunchAdd(data_ + 4, 1, 2, stream), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuEventRecord)(join, branch), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuStreamWaitEvent)(stream, join, 0), CUDA_SUCCESS);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  EXPECT_EQ(CU(cuStreamIsCapturing)(branch, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CUgraph graph = nullptr;
  ASSERT_EQ(CU(cuStreamEndCapture)(stream, &graph), CUDA_SUCCESS);
  size_t nodes = 0;
  size_t edges = 0;
  EXPECT_EQ(CU(cuGraphGetNodes)(graph, nullptr, &nodes), CUDA_SUCCESS);
  EXPECT_EQ(nodes, 3u);
  EXPECT_EQ(CU(cuGraphGetEdges_v2)(graph, nullptr, nullptr, nullptr, &edges), CUDA_SUCCESS);
  EXPECT_EQ(edges, 2u);
  EXPECT_EQ(Read(data_, 2), (std::vector<unsigned>{0, 0}));  // captured, not run
  CUgraphExec exec = nullptr;
  ASSERT_EQ(CU(cuGraphInstantiateWithFlags)(&exec, graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuGraphDestroy)(graph), CUDA_SUCCESS);
  for (int replay = 0; replay < 3; ++replay) ASSERT_EQ(CU(cuGraphLaunch)(exec, stream), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuStreamSynchronize)(stream), CUDA_SUCCESS);
  EXPECT_EQ(Read(data_, 3), (std::vector<unsigned>{11, 12, 10}));
  EXPECT_EQ(CU(cuGraphExecDestroy)(exec), CUDA_SUCCESS);
  if (IsOtherLibrary()) return;  // stale handles are recognised here only
  EXPECT_EQ(CU(cuGraphLaunch)(exec, stream), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(StreamTest, CaptureRefusesWhatCannotBeCaptured) {
  CUstream stream = MakeStream(CU_STREAM_NON_BLOCKING);
  CUgraph graph = nullptr;
  EXPECT_EQ(CU(cuStreamBeginCapture_v2)(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  ASSERT_EQ(CU(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  CUdeviceptr pointer = 0;
  EXPECT_EQ(CU(cuMemAlloc_v2)(&pointer, 16), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(CU(cuStreamEndCapture)(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(graph, nullptr);
  ASSERT_EQ(CU(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuMemAlloc_v2)(&pointer, 16), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuStreamSynchronize)(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(CU(cuStreamEndCapture)(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(StreamTest, AskingForACapturedEventEndsTheCapture) {
  CUstream stream = MakeStream(CU_STREAM_NON_BLOCKING);
  CUevent event = nullptr;
  CUgraph graph = nullptr;
  ASSERT_EQ(CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuEventRecord)(event, stream), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuEventQuery)(event), CUDA_ERROR_CAPTURED_EVENT);
  EXPECT_EQ(CU(cuStreamEndCapture)(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(StreamTest, GraphBuiltByHand) {
  CUgraph graph = nullptr;
  CUgraphNode fill = nullptr;
  CUgraphNode kernel = nullptr;
  ASSERT_EQ(CU(cuGraphCreate)(&graph, 0), CUDA_SUCCESS);
  CUDA_MEMSET_NODE_PARAMS fill_parameters{data_, 16, 100, 4, 4, 1};
  ASSERT_EQ(CU(cuGraphAddMemsetNode)(&fill, graph, nullptr, 0, &fill_parameters, context_), CUDA_SUCCESS);
  unsigned count = 4;
  unsigned value = 1;
  void* parameters[] = {&data_, &count, &value};
  CUDA_KERNEL_NODE_PARAMS kernel_parameters{};
  kernel_parameters.func = add_;
  kernel_parameters.gridDimX = kernel_parameters.gridDimY = kernel_parameters.gridDimZ = 1;
  kernel_parameters.blockDimX = 32;
  kernel_parameters.blockDimY = kernel_parameters.blockDimZ = 1;
  kernel_parameters.kernelParams = parameters;
  ASSERT_EQ(CU(cuGraphAddKernelNode_v2)(&kernel, graph, &fill, 1, &kernel_parameters), CUDA_SUCCESS);
  CUgraphExec exec = nullptr;
  ASSERT_EQ(CU(cuGraphInstantiateWithFlags)(&exec, graph, 0), CUDA_SUCCESS);
  value = 7;
  ASSERT_EQ(CU(cuGraphExecKernelNodeSetParams_v2)(exec, kernel, &kernel_parameters), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuGraphLaunch)(exec, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(Read(data_, 5), (std::vector<unsigned>{107, 107, 107, 107, 0}));
}

TEST_F(StreamTest, ManyStreamsFromManyThreads) {
  constexpr unsigned kThreads = 4;
  constexpr unsigned kRounds = 50;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      ASSERT_EQ(CU(cuCtxSetCurrent)(context_), CUDA_SUCCESS);
      CUstream stream = MakeStream(t % 2 == 0 ? 0 : CU_STREAM_NON_BLOCKING);
      for (unsigned round = 0; round < kRounds; ++round) {
        ASSERT_EQ(LaunchAdd(data_ + 4 * t, 1, 1, stream), CUDA_SUCCESS);
        if (round % 10 == 0) {
          ASSERT_EQ(CU(cuStreamSynchronize)(stream), CUDA_SUCCESS);
        }
      }
      ASSERT_EQ(CU(cuStreamSynchronize)(stream), CUDA_SUCCESS);
      ASSERT_EQ(CU(cuStreamDestroy_v2)(stream), CUDA_SUCCESS);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Read(data_, kThreads), std::vector<unsigned>(kThreads, kRounds));
}

}  // namespace
}  // namespace causeway::software_gpu_test
