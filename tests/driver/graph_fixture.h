// SPDX-License-Identifier: Apache-2.0
// What the graph tests share: device words, nodes that add to them, launches that are waited for.
#pragma once
#include <cstring>
#include <vector>

#include "tests/driver/driver_test.h"

namespace causeway::driver_test {

class GraphTest : public DriverTest {
 protected:
  static constexpr unsigned kWords = 64;

  void SetUp() override {
    DriverTest::SetUp();
    OK(cuMemAlloc(&words_, kWords * 4));
    OK(cuMemsetD32(words_, 0, kWords));
    OK(cuCtxSynchronize());  // the stream below does not wait for it
    OK(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    OK(cuGraphCreate(&graph_, 0));
  }
  void TearDown() override {
    if (graph_ != nullptr) {
      EXPECT_EQ(cuGraphDestroy(graph_), CUDA_SUCCESS);
    }
    EXPECT_EQ(cuStreamDestroy(stream_), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFree(words_), CUDA_SUCCESS);
    DriverTest::TearDown();
  }

  // A launch of add(words, kWords, value), whose arguments lie here.
  struct AddLaunch {
    CUdeviceptr words;
    unsigned count, value;
    void* pointers[3];
    CUDA_KERNEL_NODE_PARAMS params;
    AddLaunch(CUfunction function, CUdeviceptr to, unsigned v) : words(to), count(kWords), value(v) {
      pointers[0] = &words;
      pointers[1] = &count;
      pointers[2] = &value;
      params = {};
      params.func = function;
      params.gridDimX = params.gridDimY = params.gridDimZ = 1;
      params.blockDimX = kWords;
      params.blockDimY = params.blockDimZ = 1;
      params.kernelParams = pointers;
    }
  };
  CUgraphNode AddKernel(CUgraph graph, unsigned value, const std::vector<CUgraphNode>& after = {}) {
    AddLaunch launch(Kernel("add"), words_, value);
    CUgraphNode node = nullptr;
    EXPECT_EQ(cuGraphAddKernelNode(&node, graph, after.data(), after.size(), &launch.params), CUDA_SUCCESS);
    return node;
  }
  CUgraphNode AddEmpty(CUgraph graph, const std::vector<CUgraphNode>& after = {}) {
    CUgraphNode node = nullptr;
    EXPECT_EQ(cuGraphAddEmptyNode(&node, graph, after.data(), after.size()), CUDA_SUCCESS);
    return node;
  }
  CUgraphExec Instantiate(CUgraph graph) {
    CUgraphExec exec = nullptr;
    EXPECT_EQ(cuGraphInstantiate(&exec, graph, 0), CUDA_SUCCESS);
    return exec;
  }
  void Launch(CUgraphExec exec) {
    EXPECT_EQ(cuGraphLaunch(exec, stream_), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
  }
  // Instantiates, launches once and forgets.
  void Run(CUgraph graph) {
    const CUgraphExec exec = Instantiate(graph);
    Launch(exec);
    EXPECT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
  }
  unsigned Word(unsigned index = 0) {
    unsigned value = 0;
    EXPECT_EQ(cuMemcpyDtoH(&value, words_ + index * 4, 4), CUDA_SUCCESS);
    return value;
  }
  CUgraphNodeType TypeOf(CUgraphNode node) {
    CUgraphNodeType type{};
    EXPECT_EQ(cuGraphNodeGetType(node, &type), CUDA_SUCCESS);
    return type;
  }

  CUdeviceptr words_ = 0;
  CUstream stream_ = nullptr;
  CUgraph graph_ = nullptr;
};

}  // namespace causeway::driver_test
