// SPDX-License-Identifier: Apache-2.0
// Four-point stencil whose halves run in two streams; events order the rows that the halves exchange.
#include <vector>

#include "tests/programs/check.h"

constexpr int kWidth = 128, kHeight = 96, kSteps = 10, kHalf = kHeight / 2;

// Computes rows [first, last); the border of the grid keeps its values.
__global__ void Step(const float* from, float* to, int first, int last) {
  int x = blockIdx.x * blockDim.x + threadIdx.x;
  int y = first + blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= kWidth || y >= last) return;
  int i = y * kWidth + x;
  bool border = x == 0 || y == 0 || x == kWidth - 1 || y == kHeight - 1;
  to[i] = border ? from[i] : (from[i - 1] + from[i + 1] + from[i - kWidth] + from[i + kWidth]) * 0.25f;
}

static void StepOnCpu(std::vector<float>& grid) {
  std::vector<float> from = grid;
  for (int y = 1; y < kHeight - 1; ++y) {
    for (int x = 1; x < kWidth - 1; ++x) {
      int i = y * kWidth + x;
      grid[i] = (from[i - 1] + from[i + 1] + from[i - kWidth] + from[i + kWidth]) * 0.25f;
    }
  }
}

int main() {
  const size_t bytes = sizeof(float) * kWidth * kHeight, half_bytes = bytes / 2;
  float *input, *output, *grid[2];
  CHECK(cudaMallocHost(&input, bytes));
  CHECK(cudaMallocHost(&output, bytes));
  CHECK(cudaMalloc(&grid[0], bytes));
  CHECK(cudaMalloc(&grid[1], bytes));
  uint32_t seed = 5;
  for (int i = 0; i < kWidth * kHeight; ++i) input[i] = float(check::Next(seed) % 1000);
  std::vector<float> expected(input, input + kWidth * kHeight);
  for (int step = 0; step < kSteps; ++step) StepOnCpu(expected);

  cudaStream_t streams[2];
  cudaEvent_t done[2], start, stop;
  for (int half = 0; half < 2; ++half) {
    CHECK(cudaStreamCreateWithFlags(&streams[half], cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&done[half], cudaEventDisableTiming));
  }
  CHECK(cudaEventCreate(&start));
  CHECK(cudaEventCreate(&stop));
  CHECK(cudaEventRecord(start, streams[0]));
  for (int half = 0; half < 2; ++half) {
    int offset = half * kHalf * kWidth;
    CHECK(
        cudaMemcpyAsync(grid[0] + offset, input + offset, half_bytes, cudaMemcpyHostToDevice, streams[half]));
    CHECK(cudaEventRecord(done[half], streams[half]));
  }
  for (int step = 0; step < kSteps; ++step) {
    // Each half waits until the other has finished the step before this one.
    for (int half = 0; half < 2; ++half) CHECK(cudaStreamWaitEvent(streams[half], done[1 - half], 0));
    for (int half = 0; half < 2; ++half) {
      dim3 block(32, 4), blocks(kWidth / 32, kHalf / 4);
      Step<<<blocks, block, 0, streams[half]>>>(grid[step % 2], grid[1 - step % 2], half * kHalf,
                                                (half + 1) * kHalf);
      CHECK(cudaGetLastError());
      CHECK(cudaEventRecord(done[half], streams[half]));
    }
  }
  for (int half = 0; half < 2; ++half) {
    int offset = half * kHalf * kWidth;
    CHECK(cudaMemcpyAsync(output + offset, grid[kSteps % 2] + offset, half_bytes, cudaMemcpyDeviceToHost,
                          streams[half]));
    CHECK(cudaEventRecord(done[half], streams[half]));
  }
  CHECK(cudaStreamWaitEvent(streams[0], done[1], 0));
  CHECK(cudaEventRecord(stop, streams[0]));
  CHECK(cudaEventSynchronize(stop));
  CHECK(cudaEventQuery(done[0]));
  CHECK(cudaStreamQuery(streams[1]));
  float milliseconds = 0;
  CHECK(cudaEventElapsedTime(&milliseconds, start, stop));
  REQUIRE(milliseconds > 0);
  cudaError_t untimed = cudaEventElapsedTime(&milliseconds, start, done[0]);
  REQUIRE(untimed == cudaErrorInvalidResourceHandle);
  check::Equal(output, expected.data(), expected.size(), "grid");
  for (int half = 0; half < 2; ++half) {
    CHECK(cudaStreamDestroy(streams[half]));
    CHECK(cudaEventDestroy(done[half]));
    CHECK(cudaFree(grid[half]));
  }
  CHECK(cudaEventDestroy(start));
  CHECK(cudaEventDestroy(stop));
  std::printf("stencil_2d: %d steps equal, checksum %016llx\n", kSteps,
              (unsigned long long)check::Checksum(output, bytes));
  CHECK(cudaFreeHost(input));
  CHECK(cudaFreeHost(output));
  return 0;
}
