// SPDX-License-Identifier: Apache-2.0
// math.h, which nvcc expands to PTX: results within a few units in the last place of the host's.
// Lists of X(...) have no semicolons, so clang-format would indent them anew each time.
// clang-format off
#include <cmath>
#define FLOAT_FUNCTIONS                                                                                      \
  X(sinf(a))                                                                                                 \
  X(cosf(a)) X(tanf(a)) X(expf(a)) X(logf(fabsf(a))) X(powf(fabsf(a), b)) X(tanhf(a)) X(erff(a)) X(exp2f(a)) \
      X(log2f(fabsf(a))) X(log10f(fabsf(a))) X(atan2f(a, b)) X(hypotf(a, b)) X(cbrtf(a)) X(fmodf(a, b))      \
          X(atanf(a)) X(expm1f(a)) X(log1pf(fabsf(a))) X(sinhf(a)) X(coshf(a)) X(asinhf(a)) X(erfcf(a))      \
              X(tgammaf(fabsf(a) + 0.5f)) X(lgammaf(fabsf(a) + 3))
#define DOUBLE_FUNCTIONS                                                                                    \
  X(sin(a))                                                                                                 \
  X(cos(a)) X(tan(a)) X(exp(a)) X(log(fabs(a))) X(pow(fabs(a), b)) X(tanh(a)) X(erf(a)) X(exp2(a))          \
      X(log2(fabs(a))) X(atan2(a, b)) X(hypot(a, b)) X(cbrt(a)) X(fmod(a, b)) X(expm1(a)) X(log1p(fabs(a))) \
          X(sinh(a)) X(asin(a / 1000)) X(erfc(a)) X(1 / sqrt(fabs(a)))

#ifdef __CUDACC__
#define X(expression) out[k++ * n + i] = expression;
extern "C" __global__ void FloatMath(const float* pa, const float* pb, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const float a = pa[i], b = pb[i];
  int k = 0;
  FLOAT_FUNCTIONS
}
extern "C" __global__ void DoubleMath(const double* pa, const double* pb, double* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const double a = pa[i], b = pb[i];
  int k = 0;
  DOUBLE_FUNCTIONS
}
// rsqrt and the fast forms, against functions that the host has.
extern "C" __global__ void FastMath(const float* pa, const float* pb, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const float a = pa[i], b = pb[i];
  int k = 0;
  X(rsqrtf(fabsf(a)))
  X(__sinf(a)) X(__cosf(a)) X(__expf(b)) X(__logf(fabsf(a))) X(__fdividef(a, b)) X(__powf(fabsf(a), b))
}
#undef X
#endif
