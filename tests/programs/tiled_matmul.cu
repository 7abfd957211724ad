// SPDX-License-Identifier: Apache-2.0
// Matrix product through tiles in shared memory, with edges that do not fill a tile. Whole numbers keep it
// exact.
#include <vector>

#include "tests/programs/check.h"

constexpr int kTile = 16;

__global__ void Multiply(const float* a, const float* b, float* c, int rows, int inner, int columns) {
  __shared__ float tile_a[kTile][kTile];
  __shared__ float tile_b[kTile][kTile + 1];
  int row = blockIdx.y * kTile + threadIdx.y;
  int column = blockIdx.x * kTile + threadIdx.x;
  float sum = 0.0f;
  for (int start = 0; start < inner; start += kTile) {
    int a_column = start + threadIdx.x;
    int b_row = start + threadIdx.y;
    tile_a[threadIdx.y][threadIdx.x] = row < rows && a_column < inner ? a[row * inner + a_column] : 0.0f;
    tile_b[threadIdx.y][threadIdx.x] = b_row < inner && column < columns ? b[b_row * columns + column] : 0.0f;
    __syncthreads();
    for (int k = 0; k < kTile; ++k) sum += tile_a[threadIdx.y][k] * tile_b[k][threadIdx.x];
    __syncthreads();
  }
  if (row < rows && column < columns) c[row * columns + column] = sum;
}

int main() {
  const int rows = 70, inner = 50, columns = 90;
  std::vector<float> a(rows * inner), b(inner * columns), c(rows * columns), expected(rows * columns);
  uint32_t seed = 2;
  for (float& value : a) value = float(int(check::Next(seed) % 21) - 10);
  for (float& value : b) value = float(int(check::Next(seed) % 21) - 10);
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < columns; ++j) {
      float sum = 0.0f;
      for (int k = 0; k < inner; ++k) sum += a[i * inner + k] * b[k * columns + j];
      expected[i * columns + j] = sum + 0.0f;
    }
  }
  float *device_a, *device_b, *device_c;
  CHECK(cudaMalloc(&device_a, a.size() * sizeof(float)));
  CHECK(cudaMalloc(&device_b, b.size() * sizeof(float)));
  CHECK(cudaMalloc(&device_c, c.size() * sizeof(float)));
  CHECK(cudaMemcpy(device_a, a.data(), a.size() * sizeof(float), cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(device_b, b.data(), b.size() * sizeof(float), cudaMemcpyHostToDevice));
  dim3 block(kTile, kTile), grid((columns + kTile - 1) / kTile, (rows + kTile - 1) / kTile);
  Multiply<<<grid, block>>>(device_a, device_b, device_c, rows, inner, columns);
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaMemcpy(c.data(), device_c, c.size() * sizeof(float), cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < c.size(); ++i) REQUIRE(c[i] == expected[i]);
  CHECK(cudaFree(device_a));
  CHECK(cudaFree(device_b));
  CHECK(cudaFree(device_c));
  double total = 0;
  for (float value : c) total += value;
  std::printf("tiled_matmul: %dx%dx%d equal, total %.0f\n", rows, inner, columns, total);
  return 0;
}
