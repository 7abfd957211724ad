// SPDX-License-Identifier: Apache-2.0
// cuSOLVER: LU, Cholesky and symmetric eigenvalues of a small dense matrix; solutions are checked on the CPU.
#include <cusolverDn.h>

#include <cmath>
#include <vector>

#include "tests/programs/check.h"

#define CHECK_SOLVER(call) REQUIRE((call) == CUSOLVER_STATUS_SUCCESS)

namespace {

constexpr int kSize = 96;

// Symmetric, its diagonal larger than the rest of the row: well conditioned and positive definite.
std::vector<double> Matrix() {
  std::vector<double> a(kSize * kSize);
  uint32_t seed = 14;
  for (int i = 0; i < kSize; ++i) {
    for (int j = 0; j <= i; ++j)
      a[i * kSize + j] = a[j * kSize + i] = double(int(check::Next(seed) % 9) - 4) / 8;
    a[i * kSize + i] = kSize + i;
  }
  return a;
}

class Solver {
 public:
  Solver() {
    CHECK_SOLVER(cusolverDnCreate(&handle_));
    CHECK(cudaMalloc(&a_, kSize * kSize * sizeof(double)));
    CHECK(cudaMalloc(&b_, kSize * sizeof(double)));
    CHECK(cudaMalloc(&pivots_, kSize * sizeof(int)));
    CHECK(cudaMalloc(&info_, sizeof(int)));
  }
  ~Solver() {
    for (void* memory : {static_cast<void*>(a_), static_cast<void*>(b_), static_cast<void*>(work_),
                         static_cast<void*>(pivots_), static_cast<void*>(info_)}) {
      cudaFree(memory);
    }
    cusolverDnDestroy(handle_);
  }
  void Run() {
    Load();
    int count = 0;
    CHECK_SOLVER(cusolverDnDgetrf_bufferSize(handle_, kSize, kSize, a_, kSize, &count));
    Work(count);
    CHECK_SOLVER(cusolverDnDgetrf(handle_, kSize, kSize, a_, kSize, work_, pivots_, info_));
    CHECK_SOLVER(cusolverDnDgetrs(handle_, CUBLAS_OP_N, kSize, 1, a_, kSize, pivots_, b_, kSize, info_));
    Verify("LU");
    Load();
    CHECK_SOLVER(cusolverDnDpotrf_bufferSize(handle_, CUBLAS_FILL_MODE_LOWER, kSize, a_, kSize, &count));
    Work(count);
    CHECK_SOLVER(cusolverDnDpotrf(handle_, CUBLAS_FILL_MODE_LOWER, kSize, a_, kSize, work_, count, info_));
    CHECK_SOLVER(cusolverDnDpotrs(handle_, CUBLAS_FILL_MODE_LOWER, kSize, 1, a_, kSize, b_, kSize, info_));
    Verify("Cholesky");
    Load();
    CHECK_SOLVER(cusolverDnDsyevd_bufferSize(handle_, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, kSize,
                                             a_, kSize, b_, &count));
    Work(count);
    CHECK_SOLVER(cusolverDnDsyevd(handle_, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, kSize, a_, kSize,
                                  b_, work_, count, info_));
    const std::vector<double> values = Result();
    double sum = 0, trace = 0;
    for (int i = 0; i < kSize; ++i) sum += values[i], trace += matrix_[i * kSize + i];
    REQUIRE(std::fabs(sum - trace) < 1e-6);
    std::printf("cusolver_dense: eigenvalues from %.6f to %.6f\n", values.front(), values.back());
  }

 private:
  void Load() {
    std::vector<double> ones(kSize, 1.0);
    CHECK(cudaMemcpy(a_, matrix_.data(), matrix_.size() * sizeof(double), cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(b_, ones.data(), kSize * sizeof(double), cudaMemcpyHostToDevice));
  }
  void Work(int count) {
    CHECK(cudaFree(work_));
    CHECK(cudaMalloc(&work_, (count + 1) * sizeof(double)));
  }
  std::vector<double> Result() {
    int info = -1;
    CHECK(cudaMemcpy(&info, info_, sizeof info, cudaMemcpyDeviceToHost));
    REQUIRE(info == 0);
    std::vector<double> x(kSize);
    CHECK(cudaMemcpy(x.data(), b_, kSize * sizeof(double), cudaMemcpyDeviceToHost));
    return x;
  }
  void Verify(const char* what) {
    const std::vector<double> x = Result();
    double worst = 0;
    for (int i = 0; i < kSize; ++i) {
      double sum = -1;
      for (int j = 0; j < kSize; ++j) sum += matrix_[j * kSize + i] * x[j];
      worst = std::fmax(worst, std::fabs(sum));
    }
    REQUIRE(worst < 1e-10);
    std::printf("cusolver_dense: %s solves, x[0] %.10f, x[95] %.10f\n", what, x[0], x[95]);
  }

  const std::vector<double> matrix_ = Matrix();
  cusolverDnHandle_t handle_ = nullptr;
  double *a_ = nullptr, *b_ = nullptr, *work_ = nullptr;
  int *pivots_ = nullptr, *info_ = nullptr;
};

}  // namespace

int main() {
  Solver().Run();
  return 0;
}
