// SPDX-License-Identifier: Apache-2.0
// cuBLASLt: matmul descriptors, layouts, the heuristic and an epilogue with bias and ReLU, in several types;
// whole numbers, so that any algorithm gives the same bits.
#include <cublasLt.h>
#include <cuda_fp16.h>

#include <vector>

#include "tests/programs/check.h"

#define CHECK_BLAS(call) REQUIRE((call) == CUBLAS_STATUS_SUCCESS)

namespace {

constexpr size_t kWorkspaceBytes = 4 << 20;

template <class T>
struct DeviceArray {
  explicit DeviceArray(const std::vector<T>& from) : count(from.size()) {
    CHECK(cudaMalloc(&data, count * sizeof(T)));
    CHECK(cudaMemcpy(data, from.data(), count * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~DeviceArray() { cudaFree(data); }
  std::vector<T> Get() const {
    std::vector<T> to(count);
    CHECK(cudaMemcpy(to.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost));
    return to;
  }
  T* data = nullptr;
  size_t count;
};

// c = relu(a * b + bias), column by column; a: rows x inner, b: inner x columns.
template <class T>
void Multiply(cublasLtHandle_t handle, cudaStream_t stream, cudaDataType_t type, const char* name, int rows,
              int columns, int inner) {
  uint32_t seed = 11;
  std::vector<T> a(size_t(rows) * inner), b(size_t(inner) * columns), bias(rows),
      zero(size_t(rows) * columns);
  for (T& value : a) value = T(float(int(check::Next(seed) % 7) - 3));
  for (T& value : b) value = T(float(int(check::Next(seed) % 7) - 3));
  for (T& value : bias) value = T(float(int(check::Next(seed) % 21) - 10));
  DeviceArray<T> device_a(a), device_b(b), device_bias(bias), device_c(zero);
  void* workspace = nullptr;
  CHECK(cudaMalloc(&workspace, kWorkspaceBytes));

  cublasLtMatmulDesc_t operation;
  cublasLtMatrixLayout_t layout_a, layout_b, layout_c;
  cublasLtMatmulPreference_t preference;
  CHECK_BLAS(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_RELU_BIAS;
  const void* bias_pointer = device_bias.data;
  CHECK_BLAS(
      cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
  CHECK_BLAS(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias_pointer,
                                            sizeof bias_pointer));
  CHECK_BLAS(cublasLtMatrixLayoutCreate(&layout_a, type, rows, inner, rows));
  CHECK_BLAS(cublasLtMatrixLayoutCreate(&layout_b, type, inner, columns, inner));
  CHECK_BLAS(cublasLtMatrixLayoutCreate(&layout_c, type, rows, columns, rows));
  CHECK_BLAS(cublasLtMatmulPreferenceCreate(&preference));
  CHECK_BLAS(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                  &kWorkspaceBytes, sizeof kWorkspaceBytes));
  cublasLtMatmulHeuristicResult_t results[4];
  int found = 0;
  CHECK_BLAS(cublasLtMatmulAlgoGetHeuristic(handle, operation, layout_a, layout_b, layout_c, layout_c,
                                            preference, 4, results, &found));
  REQUIRE(found > 0);
  const float alpha = 1, beta = 0;
  uint64_t sum = 0;
  for (int algorithm = 0; algorithm < found; ++algorithm) {
    CHECK(cudaMemsetAsync(device_c.data, 0xff, device_c.count * sizeof(T), stream));
    CHECK_BLAS(cublasLtMatmul(handle, operation, &alpha, device_a.data, layout_a, device_b.data, layout_b,
                              &beta, device_c.data, layout_c, device_c.data, layout_c,
                              &results[algorithm].algo, workspace, kWorkspaceBytes, stream));
    CHECK(cudaStreamSynchronize(stream));
    const std::vector<T> c = device_c.Get();
    for (int column = 0; column < columns; column += 7) {
      for (int row = 0; row < rows; ++row) {
        float expected = float(bias[row]);
        for (int k = 0; k < inner; ++k) {
          expected += float(a[size_t(k) * rows + row]) * float(b[size_t(column) * inner + k]);
        }
        REQUIRE(float(c[size_t(column) * rows + row]) == float(T(expected > 0 ? expected : 0)));
      }
    }
    sum = check::Checksum(c.data(), c.size() * sizeof(T));
  }
  std::printf("cublaslt_matmul: %s %dx%dx%d equal, %d algorithms, checksum %016llx\n", name, rows, columns,
              inner, found, static_cast<unsigned long long>(sum));
  CHECK_BLAS(cublasLtMatmulPreferenceDestroy(preference));
  for (cublasLtMatrixLayout_t layout : {layout_a, layout_b, layout_c})
    CHECK_BLAS(cublasLtMatrixLayoutDestroy(layout));
  CHECK_BLAS(cublasLtMatmulDescDestroy(operation));
  CHECK(cudaFree(workspace));
}

}  // namespace

int main() {
  cublasLtHandle_t handle;
  cudaStream_t stream;
  CHECK_BLAS(cublasLtCreate(&handle));
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  Multiply<float>(handle, stream, CUDA_R_32F, "float", 64, 48, 32);
  Multiply<float>(handle, stream, CUDA_R_32F, "float", 256, 128, 192);
  Multiply<__half>(handle, stream, CUDA_R_16F, "half", 128, 64, 96);
  Multiply<__half>(handle, stream, CUDA_R_16F, "half", 512, 256, 64);
  CHECK_BLAS(cublasLtDestroy(handle));
  CHECK(cudaStreamDestroy(stream));
  return 0;
}
