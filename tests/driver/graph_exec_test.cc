// SPDX-License-Identifier: Apache-2.0
// Census category graph: executable graphs. Instantiation with its errors, changes, updates, enabled nodes.
#include <cstring>

#include "tests/driver/graph_fixture.h"

namespace causeway::driver_test {
namespace {

class GraphExecTest : public GraphTest {};

TEST_F(GraphExecTest, AllFormsOfInstantiation) {
  const CUgraphNode node = AddKernel(graph_, 1);
  CUgraphExec exec = nullptr;
  OK(cuGraphInstantiateWithFlags(&exec, graph_, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
  cuuint64_t flags = 0;
  OK(cuGraphExecGetFlags(exec, &flags));
  EXPECT_EQ(flags, cuuint64_t{CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH});
  OK(cuGraphUpload(exec, stream_));
  Launch(exec);
  OK(cuGraphExecDestroy(exec));
  using WithLog = CUresult(CUgraphExec*, CUgraph, CUgraphNode*, char*, size_t);
  for (const char* name : {"cuGraphInstantiate", "cuGraphInstantiate_v2"}) {
    auto* instantiate = SymbolAs<WithLog>(name);
    if (instantiate == nullptr) continue;
    char log[64] = "before";
    CUgraphNode error_node = node;
    OK(instantiate(&exec, graph_, &error_node, log, sizeof log));
    Launch(exec);
    OK(cuGraphExecDestroy(exec));
    OK(instantiate(&exec, graph_, nullptr, nullptr, 0));
    OK(cuGraphExecDestroy(exec));
  }
  CUDA_GRAPH_INSTANTIATE_PARAMS params{};
  params.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
  params.hUploadStream = stream_;
  params.result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
  params.hErrNode_out = node;
  OK(cuGraphInstantiateWithParams(&exec, graph_, &params));
  EXPECT_EQ(params.result_out, CUDA_GRAPH_INSTANTIATE_SUCCESS);
  EXPECT_EQ(params.hErrNode_out, nullptr);
  Launch(exec);
  OK(cuGraphExecDestroy(exec));
  EXPECT_EQ(cuGraphInstantiateWithFlags(nullptr, graph_, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphInstantiateWithFlags(&exec, graph_, 1u << 20), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphInstantiateWithParams(&exec, graph_, nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(GraphExecTest, LaunchErrors) {
  CUcontext before = nullptr;
  CUgraphExec exec = nullptr;
  EXPECT_EQ(cuGraphLaunch(nullptr, stream_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphInstantiate(&exec, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  OK(cuCtxPopCurrent(&before));  // the stream has one
  EXPECT_EQ(cuGraphLaunch(nullptr, stream_), CUDA_ERROR_INVALID_VALUE);
  OK(cuCtxPushCurrent(before));
}

// A node that cannot be launched from the device is named.
TEST_F(GraphExecTest, ErrorNode) {
  NEEDS_HARDWARE("device launch");
  CUevent event = nullptr;
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  CUgraphNode kernel = AddKernel(graph_, 1), record = nullptr;
  OK(cuGraphAddEventRecordNode(&record, graph_, &kernel, 1, event));
  CUDA_GRAPH_INSTANTIATE_PARAMS params{};
  params.flags = CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH;
  CUgraphExec exec = nullptr;
  const CUresult result = cuGraphInstantiateWithParams(&exec, graph_, &params);
  EXPECT_NE(result, CUDA_SUCCESS);
  Say("result", result);
  Say("result_out", params.result_out);
  EXPECT_EQ(params.hErrNode_out, record);
  OK(cuGraphDestroyNode(record));
  params.hErrNode_out = nullptr;
  OK(cuGraphInstantiateWithParams(&exec, graph_, &params));
  Launch(exec);
  EXPECT_EQ(Word(), 1u);
  OK(cuGraphExecDestroy(exec));
  OK(cuEventDestroy(event));
}

TEST_F(GraphExecTest, Cycle) {
  const CUgraphNode a = AddEmpty(graph_), b = AddEmpty(graph_, {a});
  const CUresult added = cuGraphAddDependencies(graph_, &b, &a, nullptr, 1);
  Say("added", added);
  CUDA_GRAPH_INSTANTIATE_PARAMS params{};
  CUgraphExec exec = nullptr;
  if (added == CUDA_SUCCESS) {
    EXPECT_NE(cuGraphInstantiateWithParams(&exec, graph_, &params), CUDA_SUCCESS);
    EXPECT_NE(params.result_out, CUDA_GRAPH_INSTANTIATE_SUCCESS);
  }
}

TEST_F(GraphExecTest, KernelParameters) {
  AddLaunch launch(Kernel("add"), words_, 1);
  CUgraphNode node = nullptr;
  OK(cuGraphAddKernelNode(&node, graph_, nullptr, 0, &launch.params));
  const CUgraphExec exec = Instantiate(graph_);
  Launch(exec);
  launch.value = 10;
  OK(cuGraphExecKernelNodeSetParams(exec, node, &launch.params));
  Launch(exec);
  EXPECT_EQ(Word(), 11u);
  // The node itself is as it was.
  CUDA_KERNEL_NODE_PARAMS got{};
  OK(cuGraphKernelNodeGetParams(node, &got));
  EXPECT_EQ(*static_cast<unsigned*>(got.kernelParams[2]), 1u);
  EXPECT_EQ(cuGraphExecKernelNodeSetParams(exec, node, nullptr), CUDA_ERROR_INVALID_VALUE);
  OK(cuGraphExecDestroy(exec));
}

TEST_F(GraphExecTest, EnabledNodes) {
  const CUgraphNode first = AddKernel(graph_, 1), second = AddKernel(graph_, 10, {first});
  const CUgraphExec exec = Instantiate(graph_);
  unsigned enabled = 0;
  OK(cuGraphNodeGetEnabled(exec, first, &enabled));
  EXPECT_EQ(enabled, 1u);
  OK(cuGraphNodeSetEnabled(exec, first, 0));
  OK(cuGraphNodeGetEnabled(exec, first, &enabled));
  EXPECT_EQ(enabled, 0u);
  Launch(exec);
  EXPECT_EQ(Word(), 10u);
  OK(cuGraphNodeSetEnabled(exec, first, 1));
  Launch(exec);
  EXPECT_EQ(Word(), 21u);
  EXPECT_EQ(cuGraphNodeGetEnabled(exec, second, nullptr), CUDA_ERROR_INVALID_VALUE);
  OK(cuGraphExecDestroy(exec));
}

TEST_F(GraphExecTest, Update) {
  AddKernel(graph_, 1);
  const CUgraphExec exec = Instantiate(graph_);
  CUgraph other = nullptr;
  OK(cuGraphCreate(&other, 0));
  AddKernel(other, 50);
  CUgraphExecUpdateResultInfo info{};
  info.result = CU_GRAPH_EXEC_UPDATE_ERROR;
  OK(cuGraphExecUpdate(exec, other, &info));
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_SUCCESS);
  EXPECT_EQ(info.errorNode, nullptr);
  Launch(exec);
  EXPECT_EQ(Word(), 50u);
  auto* first_form =
      SymbolAs<CUresult(CUgraphExec, CUgraph, CUgraphNode*, CUgraphExecUpdateResult*)>("cuGraphExecUpdate");
  CUgraphNode error_node = nullptr;
  CUgraphExecUpdateResult result = CU_GRAPH_EXEC_UPDATE_ERROR;
  OK(first_form(exec, graph_, &error_node, &result));
  EXPECT_EQ(result, CU_GRAPH_EXEC_UPDATE_SUCCESS);
  Launch(exec);
  EXPECT_EQ(Word(), 51u);
  OK(cuGraphDestroy(other));
  OK(cuGraphExecDestroy(exec));
}

TEST_F(GraphExecTest, UpdateThatCannotBe) {
  AddKernel(graph_, 1);
  const CUgraphExec exec = Instantiate(graph_);
  CUgraph more = nullptr, other = nullptr;
  OK(cuGraphCreate(&more, 0));
  AddKernel(more, 1);
  AddKernel(more, 1);
  CUgraphExecUpdateResultInfo info{};
  EXPECT_EQ(cuGraphExecUpdate(exec, more, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
  EXPECT_EQ(info.errorNode, nullptr);
  OK(cuGraphCreate(&other, 0));
  CUDA_MEMSET_NODE_PARAMS fill{};
  fill.dst = words_;
  fill.elementSize = 4;
  fill.width = fill.height = 1;
  CUgraphNode node = nullptr;
  OK(cuGraphAddMemsetNode(&node, other, nullptr, 0, &fill, context_));
  EXPECT_EQ(cuGraphExecUpdate(exec, other, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED);
  EXPECT_EQ(info.errorNode, node);
  auto* first_form =
      SymbolAs<CUresult(CUgraphExec, CUgraph, CUgraphNode*, CUgraphExecUpdateResult*)>("cuGraphExecUpdate");
  CUgraphNode error_node = nullptr;
  CUgraphExecUpdateResult result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
  EXPECT_EQ(first_form(exec, other, &error_node, &result), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  EXPECT_EQ(result, CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED);
  EXPECT_EQ(error_node, node);
  Launch(exec);  // as it was
  EXPECT_EQ(Word(), 1u);
  OK(cuGraphDestroy(more));
  OK(cuGraphDestroy(other));
  OK(cuGraphExecDestroy(exec));
}

// An executable graph needs its graph no longer.
TEST_F(GraphExecTest, OutlivesItsGraph) {
  AddKernel(graph_, 3);
  const CUgraphExec exec = Instantiate(graph_);
  OK(cuGraphDestroy(graph_));
  graph_ = nullptr;
  Launch(exec);
  EXPECT_EQ(Word(), 3u);
  OK(cuGraphExecDestroy(exec));
}

TEST_F(GraphExecTest, LaunchReturnsBeforeTheWork) {
  AddKernel(graph_, 3);
  const CUgraphExec exec = Instantiate(graph_);
  {
    Spinner spinner(Kernel("spin"), stream_);
    EXPECT_FALSE(Waits(
        spinner, [&] { EXPECT_EQ(cuGraphLaunch(exec, stream_), CUDA_SUCCESS); }, false));
  }
  OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(Word(), 3u);
  OK(cuGraphExecDestroy(exec));
}

}  // namespace
}  // namespace causeway::driver_test
