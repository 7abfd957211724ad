// SPDX-License-Identifier: Apache-2.0
// cuSPARSE: a sparse matrix times a vector and times a dense matrix, through the generic API; whole numbers,
// exact.
#include <cusparse.h>

#include <vector>

#include "tests/programs/check.h"

#define CHECK_SPARSE(call) REQUIRE((call) == CUSPARSE_STATUS_SUCCESS)

namespace {

constexpr int kRows = 1000, kColumns = 800, kWide = 16;

struct Sparse {
  std::vector<int> offsets{0}, columns;
  std::vector<float> values;
};

Sparse Make() {
  Sparse made;
  uint32_t seed = 12;
  for (int row = 0; row < kRows; ++row) {
    for (int column = int(check::Next(seed) % 40); column < kColumns;
         column += 1 + int(check::Next(seed) % 60)) {
      made.columns.push_back(column);
      made.values.push_back(float(int(check::Next(seed) % 19) - 9));
    }
    made.offsets.push_back(int(made.columns.size()));
  }
  return made;
}

template <class T>
T* OnDevice(const std::vector<T>& from) {
  T* to = nullptr;
  CHECK(cudaMalloc(&to, from.size() * sizeof(T)));
  CHECK(cudaMemcpy(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
  return to;
}

// dense: kColumns x wide by columns; result: kRows x wide.
void Verify(const Sparse& a, const std::vector<float>& dense, const float* device_result, int wide,
            const char* what) {
  std::vector<float> result(size_t(kRows) * wide);
  CHECK(cudaMemcpy(result.data(), device_result, result.size() * sizeof(float), cudaMemcpyDeviceToHost));
  double total = 0;
  for (int column = 0; column < wide; ++column) {
    for (int row = 0; row < kRows; ++row) {
      float expected = 0;
      for (int at = a.offsets[row]; at < a.offsets[row + 1]; ++at) {
        expected += 2 * a.values[at] * dense[size_t(column) * kColumns + a.columns[at]];
      }
      REQUIRE(result[size_t(column) * kRows + row] == expected);
      total += expected;
    }
  }
  std::printf("cusparse_spmv: %s equal, total %.0f, checksum %016llx\n", what, total,
              static_cast<unsigned long long>(check::Checksum(result.data(), result.size() * sizeof(float))));
}

}  // namespace

int main() {
  const Sparse a = Make();
  std::vector<float> dense(size_t(kColumns) * kWide), zero(size_t(kRows) * kWide);
  uint32_t seed = 13;
  for (float& value : dense) value = float(int(check::Next(seed) % 11) - 5);
  int *offsets = OnDevice(a.offsets), *columns = OnDevice(a.columns);
  float *values = OnDevice(a.values), *x = OnDevice(dense), *y = OnDevice(zero);
  cusparseHandle_t handle;
  cusparseSpMatDescr_t matrix;
  cusparseDnVecDescr_t vector_x, vector_y;
  cusparseDnMatDescr_t matrix_x, matrix_y;
  CHECK_SPARSE(cusparseCreate(&handle));
  CHECK_SPARSE(cusparseCreateCsr(&matrix, kRows, kColumns, int64_t(a.values.size()), offsets, columns, values,
                                 CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO,
                                 CUDA_R_32F));
  CHECK_SPARSE(cusparseCreateDnVec(&vector_x, kColumns, x, CUDA_R_32F));
  CHECK_SPARSE(cusparseCreateDnVec(&vector_y, kRows, y, CUDA_R_32F));
  CHECK_SPARSE(cusparseCreateDnMat(&matrix_x, kColumns, kWide, kColumns, x, CUDA_R_32F, CUSPARSE_ORDER_COL));
  CHECK_SPARSE(cusparseCreateDnMat(&matrix_y, kRows, kWide, kRows, y, CUDA_R_32F, CUSPARSE_ORDER_COL));
  const float alpha = 2, beta = 0;
  size_t bytes = 0;
  void* buffer = nullptr;
  CHECK_SPARSE(cusparseSpMV_bufferSize(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, &alpha, matrix, vector_x,
                                       &beta, vector_y, CUDA_R_32F, CUSPARSE_SPMV_CSR_ALG2, &bytes));
  CHECK(cudaMalloc(&buffer, bytes + 1));
  CHECK_SPARSE(cusparseSpMV(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, &alpha, matrix, vector_x, &beta,
                            vector_y, CUDA_R_32F, CUSPARSE_SPMV_CSR_ALG2, buffer));
  Verify(a, dense, y, 1, "matrix times vector");
  CHECK(cudaFree(buffer));
  CHECK_SPARSE(cusparseSpMM_bufferSize(handle, CUSPARSE_OPERATION_NON_TRANSPOSE,
                                       CUSPARSE_OPERATION_NON_TRANSPOSE, &alpha, matrix, matrix_x, &beta,
                                       matrix_y, CUDA_R_32F, CUSPARSE_SPMM_CSR_ALG1, &bytes));
  CHECK(cudaMalloc(&buffer, bytes + 1));
  CHECK_SPARSE(cusparseSpMM(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, CUSPARSE_OPERATION_NON_TRANSPOSE,
                            &alpha, matrix, matrix_x, &beta, matrix_y, CUDA_R_32F, CUSPARSE_SPMM_CSR_ALG1,
                            buffer));
  Verify(a, dense, y, kWide, "matrix times matrix");
  CHECK_SPARSE(cusparseDestroyDnMat(matrix_x));
  CHECK_SPARSE(cusparseDestroyDnMat(matrix_y));
  CHECK_SPARSE(cusparseDestroyDnVec(vector_x));
  CHECK_SPARSE(cusparseDestroyDnVec(vector_y));
  CHECK_SPARSE(cusparseDestroySpMat(matrix));
  CHECK_SPARSE(cusparseDestroy(handle));
  for (void* memory : {static_cast<void*>(offsets), static_cast<void*>(columns), static_cast<void*>(values),
                       static_cast<void*>(x), static_cast<void*>(y), buffer}) {
    CHECK(cudaFree(memory));
  }
  return 0;
}
