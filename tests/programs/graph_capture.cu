// SPDX-License-Identifier: Apache-2.0
// Graphs: capture from two streams, replay many times, and what capture forbids.
#include <vector>

#include "tests/programs/check.h"

constexpr int kCount = 2048;

__global__ void Affine(int* values, int count, int factor, int offset) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) values[i] = values[i] * factor + offset;
}

__global__ void AddInto(int* to, const int* from, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) to[i] += from[i];
}

struct Buffers {
  int *in, *out, *left, *right;
};

// in -> left -> x2 and, beside it, right = 0x01010101 * 3; then left += right -> out.
static cudaGraph_t Capture(cudaStream_t stream, cudaStream_t side, const Buffers& b) {
  const size_t bytes = kCount * sizeof(int);
  cudaEvent_t fork, join;
  cudaGraph_t graph;
  CHECK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
  CHECK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  CHECK(cudaEventRecord(fork, stream));
  CHECK(cudaStreamWaitEvent(side, fork, 0));
  CHECK(cudaMemcpyAsync(b.left, b.in, bytes, cudaMemcpyHostToDevice, stream));
  Affine<<<kCount / 128, 128, 0, stream>>>(b.left, kCount, 2, 0);
  CHECK(cudaMemsetAsync(b.right, 1, bytes, side));
  Affine<<<kCount / 128, 128, 0, side>>>(b.right, kCount, 3, 0);
  CHECK(cudaEventRecord(join, side));
  CHECK(cudaStreamWaitEvent(stream, join, 0));
  AddInto<<<kCount / 128, 128, 0, stream>>>(b.left, b.right, kCount);
  CHECK(cudaMemcpyAsync(b.out, b.left, bytes, cudaMemcpyDeviceToHost, stream));
  cudaStreamCaptureStatus status;
  CHECK(cudaStreamIsCapturing(side, &status));
  REQUIRE(status == cudaStreamCaptureStatusActive);
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaStreamIsCapturing(side, &status));
  REQUIRE(status == cudaStreamCaptureStatusNone);
  CHECK(cudaEventDestroy(fork));
  CHECK(cudaEventDestroy(join));
  return graph;
}

static void Replay(cudaGraph_t graph, cudaStream_t stream, const Buffers& b) {
  cudaGraphExec_t executable;
  size_t nodes = 0, edges = 0;
  CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
  CHECK(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
  std::printf("graph_capture: %zu nodes, %zu edges\n", nodes, edges);
  CHECK(cudaGraphInstantiate(&executable, graph, 0));
  CHECK(cudaGraphDestroy(graph));
  for (int replay = 0; replay < 40; ++replay) {
    for (int i = 0; i < kCount; ++i) b.in[i] = i + replay;
    CHECK(cudaGraphLaunch(executable, stream));
    CHECK(cudaStreamSynchronize(stream));
    for (int i = 0; i < kCount; ++i) REQUIRE(b.out[i] == (i + replay) * 2 + 0x03030303);
  }
  for (int replay = 0; replay < 100; ++replay) CHECK(cudaGraphLaunch(executable, stream));
  CHECK(cudaStreamSynchronize(stream));
  CHECK(cudaGraphExecDestroy(executable));
}

static void Forbidden(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  cudaError_t synchronise = cudaStreamSynchronize(stream);
  cudaError_t end = cudaStreamEndCapture(stream, &graph);
  cudaError_t end_again = cudaStreamEndCapture(stream, &graph);
  cudaError_t legacy = cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal);
  cudaGetLastError();
  std::printf("graph_capture: synchronise %s, end %s, end again %s, legacy stream %s\n",
              cudaGetErrorName(synchronise), cudaGetErrorName(end), cudaGetErrorName(end_again),
              cudaGetErrorName(legacy));
  REQUIRE(synchronise == cudaErrorStreamCaptureUnsupported && end == cudaErrorStreamCaptureInvalidated);
  REQUIRE(end_again != cudaSuccess && legacy == cudaErrorStreamCaptureUnsupported && graph == nullptr);
}

int main() {
  const size_t bytes = kCount * sizeof(int);
  Buffers b;
  cudaStream_t stream, side;
  CHECK(cudaMallocHost(&b.in, bytes));
  CHECK(cudaMallocHost(&b.out, bytes));
  CHECK(cudaMalloc(&b.left, bytes));
  CHECK(cudaMalloc(&b.right, bytes));
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  Replay(Capture(stream, side, b), stream, b);
  Forbidden(stream);
  CHECK(cudaStreamDestroy(stream));
  CHECK(cudaStreamDestroy(side));
  CHECK(cudaFree(b.left));
  CHECK(cudaFree(b.right));
  CHECK(cudaFreeHost(b.in));
  CHECK(cudaFreeHost(b.out));
  std::printf("graph_capture: done\n");
  return 0;
}
