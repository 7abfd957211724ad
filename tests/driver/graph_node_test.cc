// SPDX-License-Identifier: Apache-2.0
// Census category graph: nodes of every type, by the calls of their type and by the ones for all types.
#include <cstring>

#include "tests/driver/graph_fixture.h"

namespace causeway::driver_test {
namespace {

CUgraphNodeParams Generic(const CUDA_KERNEL_NODE_PARAMS& kernel) {
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_KERNEL;
  std::memcpy(&params.kernel, &kernel, sizeof kernel);
  return params;
}

class GraphNodeTest : public GraphTest {};

TEST_F(GraphNodeTest, KernelParameters) {
  AddLaunch launch(Kernel("add"), words_, 3);
  CUgraphNode node = nullptr;
  OK(cuGraphAddKernelNode(&node, graph_, nullptr, 0, &launch.params));
  EXPECT_EQ(TypeOf(node), CU_GRAPH_NODE_TYPE_KERNEL);
  const CUfunction function = launch.params.func;
  launch.value = 99;  // was copied
  CUDA_KERNEL_NODE_PARAMS got{};
  OK(cuGraphKernelNodeGetParams(node, &got));
  EXPECT_EQ(got.func, function);
  EXPECT_EQ(got.blockDimX, kWords);
  EXPECT_EQ(got.extra, nullptr);
  ASSERT_NE(got.kernelParams, nullptr);
  EXPECT_EQ(*static_cast<CUdeviceptr*>(got.kernelParams[0]), words_);
  EXPECT_EQ(*static_cast<unsigned*>(got.kernelParams[1]), kWords);
  EXPECT_EQ(*static_cast<unsigned*>(got.kernelParams[2]), 3u);
  CUDA_KERNEL_NODE_PARAMS again{};
  OK(cuGraphKernelNodeGetParams(node, &again));  // what the first call lent is still valid
  EXPECT_EQ(*static_cast<unsigned*>(got.kernelParams[2]), 3u);
  // What a node answers is what it takes.
  OK(cuGraphKernelNodeSetParams(node, &again));
  Run(graph_);
  EXPECT_EQ(Word(), 3u);
  OK(cuGraphKernelNodeSetParams(node, &launch.params));
  Run(graph_);
  EXPECT_EQ(Word(), 102u);
}

TEST_F(GraphNodeTest, KernelParametersInOneBuffer) {
  struct {
    CUdeviceptr words;
    unsigned count, value;
  } packed{words_, kWords, 6};
  size_t bytes = sizeof packed;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  AddLaunch launch(Kernel("add"), words_, 3);
  CUDA_KERNEL_NODE_PARAMS both = launch.params;
  both.extra = extra;
  CUgraphNode node = nullptr;
  EXPECT_EQ(cuGraphAddKernelNode(&node, graph_, nullptr, 0, &both), CUDA_ERROR_INVALID_VALUE);
  launch.params.kernelParams = nullptr;
  launch.params.extra = extra;
  OK(cuGraphAddKernelNode(&node, graph_, nullptr, 0, &launch.params));
  Run(graph_);
  EXPECT_EQ(Word(), 6u);
  CUDA_KERNEL_NODE_PARAMS got{};
  OK(cuGraphKernelNodeGetParams(node, &got));
  EXPECT_TRUE(got.extra != nullptr || got.kernelParams != nullptr);
  OK(cuGraphKernelNodeSetParams(node, &got));
  Run(graph_);
  EXPECT_EQ(Word(), 12u);
}

TEST_F(GraphNodeTest, KernelErrors) {
  AddLaunch launch(Kernel("add"), words_, 3);
  CUgraphNode node = nullptr;
  EXPECT_EQ(cuGraphAddKernelNode(nullptr, graph_, nullptr, 0, &launch.params), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphAddKernelNode(&node, graph_, nullptr, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphAddKernelNode(&node, graph_, nullptr, 1, &launch.params), CUDA_ERROR_INVALID_VALUE);
  launch.params.blockDimX = 5000;
  Say("block_too_large", cuGraphAddKernelNode(&node, graph_, nullptr, 0, &launch.params));
  launch.params.blockDimX = 0;
  Say("no_block", cuGraphAddKernelNode(&node, graph_, nullptr, 0, &launch.params));
  CUDA_KERNEL_NODE_PARAMS got{};
  node = AddEmpty(graph_);
  EXPECT_EQ(cuGraphKernelNodeGetParams(node, &got), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphKernelNodeGetParams(node, nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(GraphNodeTest, KernelFirstForm) {
  using Params = CUDA_KERNEL_NODE_PARAMS_v1;
  auto* add = SymbolAs<CUresult(CUgraphNode*, CUgraph, const CUgraphNode*, size_t, const Params*)>(
      "cuGraphAddKernelNode");
  auto* get = SymbolAs<CUresult(CUgraphNode, Params*)>("cuGraphKernelNodeGetParams");
  auto* set = SymbolAs<CUresult(CUgraphNode, const Params*)>("cuGraphKernelNodeSetParams");
  auto* set_in_exec =
      SymbolAs<CUresult(CUgraphExec, CUgraphNode, const Params*)>("cuGraphExecKernelNodeSetParams");
  AddLaunch launch(Kernel("add"), words_, 3);
  Params first;
  std::memcpy(&first, &launch.params, sizeof first);
  CUgraphNode node = nullptr;
  OK(add(&node, graph_, nullptr, 0, &first));
  Params got{};
  OK(get(node, &got));
  EXPECT_EQ(got.func, launch.params.func);
  ASSERT_NE(got.kernelParams, nullptr);
  EXPECT_EQ(*static_cast<unsigned*>(got.kernelParams[2]), 3u);
  launch.value = 4;
  OK(set(node, &first));
  const CUgraphExec exec = Instantiate(graph_);
  Launch(exec);
  EXPECT_EQ(Word(), 4u);
  launch.value = 10;
  OK(set_in_exec(exec, node, &first));
  Launch(exec);
  EXPECT_EQ(Word(), 14u);
  OK(cuGraphExecDestroy(exec));
}

TEST_F(GraphNodeTest, KernelOfLibrary) {
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  OK(cuLibraryLoadData(&library, kKernels, nullptr, nullptr, 0, nullptr, nullptr, 0));
  OK(cuLibraryGetKernel(&kernel, library, "add"));
  AddLaunch launch(nullptr, words_, 8);
  launch.params.kern = kernel;
  CUgraphNode node = nullptr;
  OK(cuGraphAddKernelNode(&node, graph_, nullptr, 0, &launch.params));
  CUDA_KERNEL_NODE_PARAMS got{};
  OK(cuGraphKernelNodeGetParams(node, &got));
  EXPECT_TRUE(got.kern == kernel || got.func != nullptr);
  ASSERT_NE(got.kernelParams, nullptr);
  EXPECT_EQ(*static_cast<unsigned*>(got.kernelParams[2]), 8u);
  OK(cuGraphKernelNodeSetParams(node, &got));
  Run(graph_);
  EXPECT_EQ(Word(), 8u);
  OK(cuGraphDestroyNode(node));
  OK(cuLibraryUnload(library));
}

TEST_F(GraphNodeTest, KernelAttributes) {
  const CUgraphNode a = AddKernel(graph_, 1), b = AddKernel(graph_, 1);
  CUkernelNodeAttrValue value{}, got{};
  value.priority = -1;
  OK(cuGraphKernelNodeSetAttribute(a, CU_KERNEL_NODE_ATTRIBUTE_PRIORITY, &value));
  OK(cuGraphKernelNodeGetAttribute(a, CU_KERNEL_NODE_ATTRIBUTE_PRIORITY, &got));
  EXPECT_EQ(got.priority, -1);
  OK(cuGraphKernelNodeCopyAttributes(b, a));
  OK(cuGraphKernelNodeGetAttribute(b, CU_KERNEL_NODE_ATTRIBUTE_PRIORITY, &got));
  EXPECT_EQ(got.priority, -1);
  OK(cuGraphKernelNodeGetAttribute(a, CU_KERNEL_NODE_ATTRIBUTE_COOPERATIVE, &got));
  EXPECT_EQ(got.cooperative, 0);
  EXPECT_EQ(cuGraphKernelNodeGetAttribute(AddEmpty(graph_), CU_KERNEL_NODE_ATTRIBUTE_PRIORITY, &got),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(GraphNodeTest, CopyBetweenDeviceMemories) {
  CUdeviceptr other = 0;
  OK(cuMemAlloc(&other, kWords * 4));
  OK(cuMemsetD32(other, 41, kWords));
  OK(cuCtxSynchronize());
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = other;
  copy.dstDevice = words_;
  copy.WidthInBytes = kWords * 4;
  copy.Height = copy.Depth = 1;
  CUgraphNode node = nullptr;
  OK(cuGraphAddMemcpyNode(&node, graph_, nullptr, 0, &copy, context_));
  EXPECT_EQ(TypeOf(node), CU_GRAPH_NODE_TYPE_MEMCPY);
  Run(graph_);
  EXPECT_EQ(Word(kWords - 1), 41u);
  CUDA_MEMCPY3D got{};
  OK(cuGraphMemcpyNodeGetParams(node, &got));
  EXPECT_EQ(got.srcDevice, other);
  EXPECT_EQ(got.dstDevice, words_);
  EXPECT_EQ(got.WidthInBytes, size_t{kWords} * 4);
  OK(cuMemsetD32(other, 42, kWords));
  OK(cuCtxSynchronize());
  got.WidthInBytes = 4;
  OK(cuGraphMemcpyNodeSetParams(node, &got));
  const CUgraphExec exec = Instantiate(graph_);
  Launch(exec);
  EXPECT_EQ(Word(0), 42u);
  EXPECT_EQ(Word(1), 41u);
  got.dstDevice = words_ + 4;
  OK(cuGraphExecMemcpyNodeSetParams(exec, node, &got, context_));
  Launch(exec);
  EXPECT_EQ(Word(1), 42u);
  OK(cuGraphExecDestroy(exec));
  OK(cuMemFree(other));
  EXPECT_EQ(cuGraphAddMemcpyNode(&node, graph_, nullptr, 0, nullptr, context_), CUDA_ERROR_INVALID_VALUE);
}

// No call before has named the pinned memory. An executable graph's copy goes on to be one from the host, as the driver demands.
TEST_F(GraphNodeTest, CopyIsChangedToPinnedMemory) {
  unsigned* host[3] = {};
  for (unsigned i = 0; i < 3; ++i) {
    OK(cuMemHostAlloc(reinterpret_cast<void**>(&host[i]), 4, 0));
    *host[i] = 51 + i;
  }
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = host[0];
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = words_;
  copy.WidthInBytes = 4;
  copy.Height = copy.Depth = 1;
  CUgraphNode node = nullptr;
  OK(cuGraphAddMemcpyNode(&node, graph_, nullptr, 0, &copy, context_));
  const CUgraphExec exec = Instantiate(graph_);
  Launch(exec);
  EXPECT_EQ(Word(0), 51u);
  copy.srcHost = host[1];
  OK(cuGraphExecMemcpyNodeSetParams(exec, node, &copy, context_));
  Launch(exec);
  EXPECT_EQ(Word(0), 52u);
  copy.srcHost = host[2];
  OK(cuGraphMemcpyNodeSetParams(node, &copy));
  Run(graph_);
  EXPECT_EQ(Word(0), 53u);
  OK(cuGraphExecDestroy(exec));
  for (unsigned* each : host) OK(cuMemFreeHost(each));
}

TEST_F(GraphNodeTest, CopyWithPinnedMemory) {
  unsigned* host = nullptr;
  OK(cuMemHostAlloc(reinterpret_cast<void**>(&host), kWords * 4, 0));
  for (unsigned i = 0; i < kWords; ++i) host[i] = i;
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_MEMCPY;
  params.memcpy.copyCtx = context_;
  CUDA_MEMCPY3D& copy = params.memcpy.copyParams;
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = host;
  copy.srcPitch = 32;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = words_;
  copy.dstPitch = 16;
  copy.WidthInBytes = 8;
  copy.Height = 4;
  copy.Depth = 1;
  CUgraphNode node = nullptr;
  OK(cuGraphAddNode(&node, graph_, nullptr, nullptr, 0, &params));
  Run(graph_);
  EXPECT_EQ(Word(1), 1u);
  EXPECT_EQ(Word(2), 0u);
  EXPECT_EQ(Word(4), 8u);
  EXPECT_EQ(Word(13), 25u);
  host[0] = 77;  // each launch reads it again
  Run(graph_);
  EXPECT_EQ(Word(0), 77u);
  OK(cuMemFreeHost(host));
}

TEST_F(GraphNodeTest, Memset) {
  CUDA_MEMSET_NODE_PARAMS fill{};
  fill.dst = words_;
  fill.value = 9;
  fill.elementSize = 4;
  fill.width = kWords;
  fill.height = 1;
  CUgraphNode node = nullptr, generic = nullptr;
  OK(cuGraphAddMemsetNode(&node, graph_, nullptr, 0, &fill, context_));
  CUDA_MEMSET_NODE_PARAMS got{};
  OK(cuGraphMemsetNodeGetParams(node, &got));
  EXPECT_EQ(got.dst, words_);
  EXPECT_EQ(got.value, 9u);
  got.value = 10;
  OK(cuGraphMemsetNodeSetParams(node, &got));
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_MEMSET;
  params.memset.dst = words_ + 4;
  params.memset.value = 11;
  params.memset.elementSize = 4;
  params.memset.width = params.memset.height = 1;
  params.memset.ctx = context_;
  OK(cuGraphAddNode(&generic, graph_, &node, nullptr, 1, &params));
  const CUgraphExec exec = Instantiate(graph_);
  Launch(exec);
  EXPECT_EQ(Word(0), 10u);
  EXPECT_EQ(Word(1), 11u);
  got.value = 12;
  OK(cuGraphExecMemsetNodeSetParams(exec, node, &got, context_));
  params.memset.value = 13;
  OK(cuGraphExecNodeSetParams(exec, generic, &params));
  Launch(exec);
  EXPECT_EQ(Word(0), 12u);
  EXPECT_EQ(Word(1), 13u);
  OK(cuGraphExecDestroy(exec));
}

TEST_F(GraphNodeTest, Events) {
  CUevent event = nullptr, other = nullptr, got = nullptr;
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  OK(cuEventCreate(&other, CU_EVENT_DISABLE_TIMING));
  CUgraphNode record = nullptr, wait = nullptr;
  OK(cuGraphAddEventRecordNode(&record, graph_, nullptr, 0, event));
  OK(cuGraphAddEventWaitNode(&wait, graph_, &record, 1, event));
  EXPECT_EQ(TypeOf(record), CU_GRAPH_NODE_TYPE_EVENT_RECORD);
  EXPECT_EQ(TypeOf(wait), CU_GRAPH_NODE_TYPE_WAIT_EVENT);
  OK(cuGraphEventRecordNodeGetEvent(record, &got));
  EXPECT_EQ(got, event);
  OK(cuGraphEventWaitNodeGetEvent(wait, &got));
  EXPECT_EQ(got, event);
  OK(cuGraphEventRecordNodeSetEvent(record, other));
  OK(cuGraphEventWaitNodeSetEvent(wait, other));
  OK(cuGraphEventRecordNodeGetEvent(record, &got));
  EXPECT_EQ(got, other);
  const CUgraphExec exec = Instantiate(graph_);
  OK(cuGraphExecEventRecordNodeSetEvent(exec, record, event));
  OK(cuGraphExecEventWaitNodeSetEvent(exec, wait, event));
  Launch(exec);
  EXPECT_EQ(cuEventQuery(event), CUDA_SUCCESS);
  OK(cuGraphExecDestroy(exec));
  OK(cuEventDestroy(event));
  OK(cuEventDestroy(other));
}

TEST_F(GraphNodeTest, BatchMemoryOperations) {
  constexpr unsigned kMany = 100;  // more than one message holds
  std::vector<CUstreamBatchMemOpParams> operations(kMany);
  for (unsigned i = 0; i < kMany; ++i) {
    operations[i].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    operations[i].writeValue.address = words_ + (i % kWords) * 4;
    operations[i].writeValue.value = i;
  }
  CUDA_BATCH_MEM_OP_NODE_PARAMS params{};
  params.ctx = context_;
  params.count = kMany;
  params.paramArray = operations.data();
  CUgraphNode node = nullptr;
  OK(cuGraphAddBatchMemOpNode(&node, graph_, nullptr, 0, &params));
  EXPECT_EQ(TypeOf(node), CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
  CUDA_BATCH_MEM_OP_NODE_PARAMS got{};
  OK(cuGraphBatchMemOpNodeGetParams(node, &got));
  EXPECT_EQ(got.count, kMany);
  ASSERT_NE(got.paramArray, nullptr);
  EXPECT_EQ(got.paramArray[7].writeValue.value, 7u);
  const CUgraphExec exec = Instantiate(graph_);
  Launch(exec);
  EXPECT_EQ(Word(63), 63u);
  EXPECT_EQ(Word(0), 64u);
  operations[64].writeValue.value = 1000;
  OK(cuGraphBatchMemOpNodeSetParams(node, &params));
  OK(cuGraphExecBatchMemOpNodeSetParams(exec, node, &params));
  Launch(exec);
  EXPECT_EQ(Word(0), 1000u);
  OK(cuGraphExecDestroy(exec));
}

TEST_F(GraphNodeTest, MemoryOfTheGraph) {
  NEEDS_HARDWARE("graph memory");
  CUDA_MEM_ALLOC_NODE_PARAMS params{};
  params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  params.bytesize = 4096;
  CUgraphNode alloc = nullptr, copy_in = nullptr, copy_out = nullptr, free_node = nullptr;
  OK(cuGraphAddMemAllocNode(&alloc, graph_, nullptr, 0, &params));
  ASSERT_NE(params.dptr, 0u);
  CUDA_MEM_ALLOC_NODE_PARAMS got{};
  OK(cuGraphMemAllocNodeGetParams(alloc, &got));
  EXPECT_EQ(got.dptr, params.dptr);
  EXPECT_EQ(got.bytesize, 4096u);
  CUDA_MEMSET_NODE_PARAMS fill{};
  fill.dst = params.dptr;
  fill.value = 31;
  fill.elementSize = 4;
  fill.width = 16;
  fill.height = 1;
  OK(cuGraphAddMemsetNode(&copy_in, graph_, &alloc, 1, &fill, context_));
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = params.dptr;
  copy.dstDevice = words_;
  copy.WidthInBytes = 64;
  copy.Height = copy.Depth = 1;
  OK(cuGraphAddMemcpyNode(&copy_out, graph_, &copy_in, 1, &copy, context_));
  OK(cuGraphAddMemFreeNode(&free_node, graph_, &copy_out, 1, params.dptr));
  CUdeviceptr freed = 0;
  OK(cuGraphMemFreeNodeGetParams(free_node, &freed));
  EXPECT_EQ(freed, params.dptr);
  CUgraph clone = nullptr;
  EXPECT_NE(cuGraphClone(&clone, graph_), CUDA_SUCCESS);
  const CUgraphExec exec = Instantiate(graph_);
  Launch(exec);
  Launch(exec);
  EXPECT_EQ(Word(15), 31u);
  OK(cuGraphExecDestroy(exec));
}

// What a graph leaves allocated must be freed before it is launched again.
TEST_F(GraphNodeTest, MemoryThatOutlivesTheLaunch) {
  NEEDS_HARDWARE("graph memory");
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  params.alloc.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.alloc.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  params.alloc.bytesize = 4096;
  CUgraphNode node = nullptr;
  OK(cuGraphAddNode(&node, graph_, nullptr, nullptr, 0, &params));
  const CUgraphExec exec = Instantiate(graph_);
  for (int round = 0; round < 3; ++round) {
    Launch(exec);
    Say("again" + std::to_string(round), cuGraphLaunch(exec, stream_));
    OK(cuMemsetD32Async(params.alloc.dptr, 5, 16, stream_));
    OK(cuMemFreeAsync(params.alloc.dptr, stream_));
    OK(cuStreamSynchronize(stream_));
  }
  OK(cuGraphExecDestroy(exec));
}

TEST_F(GraphNodeTest, Conditional) {
  NEEDS_HARDWARE("conditional nodes");
  CUgraphConditionalHandle handle = 0;
  OK(cuGraphConditionalHandleCreate(&handle, graph_, context_, 1, CU_GRAPH_COND_ASSIGN_DEFAULT));
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
  params.conditional.handle = handle;
  params.conditional.type = CU_GRAPH_COND_TYPE_IF;
  params.conditional.size = 2;
  params.conditional.ctx = context_;
  CUgraphNode node = nullptr;
  OK(cuGraphAddNode(&node, graph_, nullptr, nullptr, 0, &params));
  ASSERT_NE(params.conditional.phGraph_out, nullptr);
  EXPECT_EQ(TypeOf(node), CU_GRAPH_NODE_TYPE_CONDITIONAL);
  AddKernel(params.conditional.phGraph_out[0], 4);
  AddKernel(params.conditional.phGraph_out[1], 400);
  Run(graph_);
  EXPECT_EQ(Word(), 4u);
}

TEST_F(GraphNodeTest, GenericCalls) {
  AddLaunch launch(Kernel("add"), words_, 2);
  CUgraphNodeParams params = Generic(launch.params);
  CUgraphNode kernel = nullptr, empty = nullptr;
  OK(cuGraphAddNode(&kernel, graph_, nullptr, nullptr, 0, &params));
  launch.value = 3;
  OK(cuGraphNodeSetParams(kernel, &params));
  auto* first_form =
      SymbolAs<CUresult(CUgraphNode*, CUgraph, const CUgraphNode*, size_t, CUgraphNodeParams*)>(
          "cuGraphAddNode");
  CUgraphNodeParams nothing{};
  nothing.type = CU_GRAPH_NODE_TYPE_EMPTY;
  OK(first_form(&empty, graph_, &kernel, 1, &nothing));
  EXPECT_EQ(TypeOf(empty), CU_GRAPH_NODE_TYPE_EMPTY);
  const CUgraphExec exec = Instantiate(graph_);
  Launch(exec);
  EXPECT_EQ(Word(), 3u);
  launch.value = 20;
  OK(cuGraphExecNodeSetParams(exec, kernel, &params));
  Launch(exec);
  EXPECT_EQ(Word(), 23u);
  OK(cuGraphExecDestroy(exec));
  EXPECT_EQ(cuGraphAddNode(&empty, graph_, nullptr, nullptr, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphNodeSetParams(kernel, nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(GraphNodeTest, ParametersOfThirtyKilobytes) {
  NEEDS_HARDWARE("kernels with more than 4 KiB of parameters");
  static constexpr char kWide[] = R"(
.version 8.1
.target sm_80
.address_size 64
.visible .entry wide(.param .u64 to, .param .align 4 .b8 data[30000])
{
  .reg .b32 %r<2>; .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [to];
  ld.param.u32 %r1, [data+29996];
  st.global.u32 [%rd1], %r1;
  ret;
}
)";
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  OK(cuModuleLoadData(&module, kWide));
  OK(cuModuleGetFunction(&function, module, "wide"));
  std::vector<unsigned> data(7500, 1);
  data.back() = 55;
  void* pointers[] = {&words_, data.data()};
  CUDA_KERNEL_NODE_PARAMS params{};
  params.func = function;
  params.gridDimX = params.gridDimY = params.gridDimZ = 1;
  params.blockDimX = params.blockDimY = params.blockDimZ = 1;
  params.kernelParams = pointers;
  CUgraphNode node = nullptr;
  OK(cuGraphAddKernelNode(&node, graph_, nullptr, 0, &params));
  Run(graph_);
  EXPECT_EQ(Word(), 55u);
  CUDA_KERNEL_NODE_PARAMS got{};
  OK(cuGraphKernelNodeGetParams(node, &got));
  EXPECT_EQ(static_cast<unsigned*>(got.kernelParams[1])[7499], 55u);
}

}  // namespace
}  // namespace causeway::driver_test
