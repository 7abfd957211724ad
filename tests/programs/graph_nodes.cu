// SPDX-License-Identifier: Apache-2.0
// A graph built node by node.
#include <vector>

#include "tests/programs/check.h"

constexpr int kCount = 2048;

__global__ void Affine(int* values, int count, int factor, int offset) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) values[i] = values[i] * factor + offset;
}

// A graph made of explicit nodes, whose kernel's arguments are changed after instantiation.
static void ByHand(cudaStream_t stream, int* left) {
  cudaGraph_t graph;
  cudaGraphNode_t fill, kernel;
  cudaGraphExec_t executable;
  CHECK(cudaGraphCreate(&graph, 0));
  cudaMemsetParams fill_params = {};
  fill_params.dst = left;
  fill_params.elementSize = 4;
  fill_params.value = 5;
  fill_params.width = kCount;
  fill_params.height = 1;
  CHECK(cudaGraphAddMemsetNode(&fill, graph, nullptr, 0, &fill_params));
  int count = kCount, factor = 10, offset = 1;
  void* arguments[] = {&left, &count, &factor, &offset};
  cudaKernelNodeParams params = {};
  params.func = (void*)Affine;
  params.gridDim = dim3(kCount / 128);
  params.blockDim = dim3(128);
  params.kernelParams = arguments;
  CHECK(cudaGraphAddKernelNode(&kernel, graph, &fill, 1, &params));
  CHECK(cudaGraphInstantiate(&executable, graph, 0));
  std::vector<int> result(kCount);
  for (offset = 1; offset <= 3; ++offset) {
    CHECK(cudaGraphExecKernelNodeSetParams(executable, kernel, &params));
    CHECK(cudaGraphLaunch(executable, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaMemcpy(result.data(), left, kCount * sizeof(int), cudaMemcpyDeviceToHost));
    for (int value : result) REQUIRE(value == 50 + offset);
  }
  CHECK(cudaGraphExecDestroy(executable));
  CHECK(cudaGraphDestroy(graph));
}

int main() {
  int* left;
  cudaStream_t stream;
  CHECK(cudaMalloc(&left, kCount * sizeof(int)));
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  ByHand(stream, left);
  CHECK(cudaStreamDestroy(stream));
  CHECK(cudaFree(left));
  std::printf("graph_nodes: done\n");
  return 0;
}
