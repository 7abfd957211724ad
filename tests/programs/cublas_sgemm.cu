// SPDX-License-Identifier: Apache-2.0
// cuBLAS SGEMM on seeded matrices of small whole numbers: any order of summation gives the same bits.
#include <cublas_v2.h>

#include <vector>

#include "tests/programs/check.h"

#define CHECK_BLAS(call) REQUIRE((call) == CUBLAS_STATUS_SUCCESS)

static void Multiply(cublasHandle_t handle, int rows, int columns, int inner) {
  std::vector<float> a(size_t(rows) * inner), b(size_t(inner) * columns), c(size_t(rows) * columns);
  uint32_t seed = 8;
  for (float& value : a) value = float(int(check::Next(seed) % 17) - 8);
  for (float& value : b) value = float(int(check::Next(seed) % 17) - 8);
  for (float& value : c) value = float(int(check::Next(seed) % 17) - 8);
  std::vector<float> expected = c;
  const float alpha = 2.0f, beta = -1.0f;
  for (int column = 0; column < columns; ++column) {
    for (int row = 0; row < rows; ++row) {
      float sum = 0;
      for (int k = 0; k < inner; ++k) sum += a[size_t(k) * rows + row] * b[size_t(column) * inner + k];
      float& value = expected[size_t(column) * rows + row];
      value = alpha * sum + beta * value;
    }
  }
  float *device_a, *device_b, *device_c;
  CHECK(cudaMalloc(&device_a, a.size() * sizeof(float)));
  CHECK(cudaMalloc(&device_b, b.size() * sizeof(float)));
  CHECK(cudaMalloc(&device_c, c.size() * sizeof(float)));
  CHECK_BLAS(cublasSetMatrix(rows, inner, sizeof(float), a.data(), rows, device_a, rows));
  CHECK_BLAS(cublasSetMatrix(inner, columns, sizeof(float), b.data(), inner, device_b, inner));
  CHECK_BLAS(cublasSetMatrix(rows, columns, sizeof(float), c.data(), rows, device_c, rows));
  CHECK_BLAS(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, rows, columns, inner, &alpha, device_a, rows,
                         device_b, inner, &beta, device_c, rows));
  CHECK_BLAS(cublasGetMatrix(rows, columns, sizeof(float), device_c, rows, c.data(), rows));
  for (size_t i = 0; i < c.size(); ++i) REQUIRE(c[i] == expected[i]);
  float dot = 0;
  CHECK_BLAS(cublasSdot(handle, rows * inner, device_a, 1, device_a, 1, &dot));
  double total = 0;
  for (float value : c) total += value;
  std::printf("cublas_sgemm: %dx%dx%d equal, total %.0f, dot %.0f\n", rows, columns, inner, total,
              double(dot));
  CHECK(cudaFree(device_a));
  CHECK(cudaFree(device_b));
  CHECK(cudaFree(device_c));
}

int main() {
  cublasHandle_t handle;
  cudaStream_t stream;
  CHECK_BLAS(cublasCreate(&handle));
  CHECK(cudaStreamCreate(&stream));
  Multiply(handle, 5, 3, 7);
  Multiply(handle, 130, 70, 99);
  CHECK_BLAS(cublasSetStream(handle, stream));
  Multiply(handle, 512, 512, 512);
  CHECK_BLAS(cublasDestroy(handle));
  CHECK(cudaStreamDestroy(stream));
  return 0;
}
