// SPDX-License-Identifier: Apache-2.0
// Arithmetic, conversions and bit operations whose results are defined exactly: the CPU must have the same
// bits. Transcendental functions are compared within the error bound that NVIDIA documents, and none of their
// digits printed.
#include <cmath>
#include <vector>

#include "tests/programs/check.h"

constexpr int kCount = 2048, kExactFloat = 8, kExactDouble = 6, kIntegers = 14, kApproximate = 10;

__host__ __device__ inline uint32_t FloatBits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// Operations that IEEE 754 rounds once (no product is added to anything, which the device would fuse). sqrt
// and division are exact because nvcc compiles them so by default.
__host__ __device__ inline void ExactFloat(float x, float y, float* out) {
  out[0] = x / y;
  out[1] = sqrtf(fabsf(x));
  out[2] = fmaf(x, y, x);
  out[3] = fminf(x, y) - fmaxf(x, y);
  out[4] = floorf(x) + ceilf(y);
  out[5] = truncf(x * 0.125f);
  out[6] = rintf(x * 0.5f);
  out[7] = 1.0f / x;
}

__host__ __device__ inline void ExactDouble(double x, double y, double* out) {
  out[0] = x / y;
  out[1] = sqrt(fabs(x));
  out[2] = fma(x, y, -x);
  out[3] = rint(x * 0.5) + floor(y);
  out[4] = fmin(x, y) * 3.0;
  out[5] = double(float(x / 3.0));
}

__host__ __device__ inline void Integers(int a, int b, float x, uint64_t* out) {
  uint64_t wide = (uint64_t(uint32_t(a)) << 32 | uint32_t(b)) + 0x9e3779b97f4a7c15ull;
  int divisor = b | 1;
  out[0] = uint32_t(a / divisor);
  out[1] = uint32_t(a % divisor);
  out[2] = uint32_t(a) / uint32_t(divisor);
  out[3] = uint32_t(a) % uint32_t(divisor);
  out[4] = wide / uint32_t(divisor);
  out[5] = uint64_t(int64_t(wide) % int64_t(divisor));
  out[6] = uint64_t(int64_t(a) * b);
  out[7] = wide * wide >> (b & 63);
  out[8] = uint64_t(int64_t(wide) >> (a & 31));
  out[9] = uint32_t(int(x)) + (uint64_t(uint32_t(fabsf(x))) << 32);
  out[10] = uint64_t((long long)(x * 1000.0f));
  out[11] = FloatBits(float(a)) ^ (uint64_t(FloatBits(float(wide))) << 32);
  out[12] = uint8_t(a) * uint16_t(b) + int8_t(a >> 8) + int16_t(b >> 4);
  out[13] = a < b ? uint64_t(a & b) : uint64_t(a | b) ^ uint64_t(~a);
}

__device__ void BitIntrinsics(unsigned a, unsigned b, unsigned* out) {
  out[0] = __popc(a) + 100 * __clz(b) + 10000 * __ffs(a);
  out[1] = __brev(a) ^ __byte_perm(a, b, 0x5162);
  out[2] = __funnelshift_l(a, b, a & 31) ^ __umulhi(a, b);
  out[3] = unsigned(__popcll((unsigned long long)a << 32 | b)) + unsigned(__clzll(b));
}

static void BitIntrinsicsOnCpu(uint32_t a, uint32_t b, uint32_t* out) {
  uint32_t reversed = 0;
  for (int bit = 0; bit < 32; ++bit) reversed |= (a >> bit & 1) << (31 - bit);
  auto clz = [](uint32_t value) { return value == 0 ? 32 : __builtin_clz(value); };
  uint64_t bytes = uint64_t(b) << 32 | a;
  auto byte = [&](int index) { return uint32_t(bytes >> 8 * index & 255); };
  out[0] = __builtin_popcount(a) + 100 * clz(b) + 10000 * __builtin_ffs(int(a));
  out[1] = reversed ^ (byte(2) | byte(6) << 8 | byte(1) << 16 | byte(5) << 24);
  out[2] = uint32_t((uint64_t(b) << 32 | a) << (a & 31) >> 32) ^ uint32_t(uint64_t(a) * b >> 32);
  out[3] = __builtin_popcount(a) + __builtin_popcount(b) + (32 + clz(b));
}

// Every result of one index, one after the other: the same layout on both sides.
struct Results {
  double doubles[kExactDouble];
  uint64_t integers[kIntegers];
  float floats[kExactFloat];
  uint32_t bits[4];
};

__global__ void Compute(const float* x, const int* a, Results* results, float* approximate) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, j = (i * 7 + 3) % kCount;
  ExactFloat(x[i], x[j], results[i].floats);
  ExactDouble(x[i], x[j], results[i].doubles);
  Integers(a[i], a[j], x[i], results[i].integers);
  BitIntrinsics(a[i], a[j], results[i].bits);
  float* out = approximate + i * kApproximate;
  float small = x[i] * 0.01f, positive = fabsf(x[i]) + 0.5f;
  out[0] = sinf(small);
  out[1] = cosf(small);
  out[2] = expf(small);
  out[3] = logf(positive);
  out[4] = tanhf(small);
  out[5] = powf(positive, 0.3f);
  out[6] = rsqrtf(positive);
  out[7] = __expf(small);
  out[8] = __fdividef(small, positive);
  out[9] = __sinf(small * 0.1f);
}

static void CompareApproximate(const float* got, float x) {
  float small = x * 0.01f, positive = std::fabs(x) + 0.5f;
  const double wanted[kApproximate] = {
      std::sin(double(small)),         std::cos(double(small)),  std::exp(double(small)),
      std::log(double(positive)),      std::tanh(double(small)), std::pow(double(positive), double(0.3f)),
      1 / std::sqrt(double(positive)), std::exp(double(small)),  double(small) / positive,
      std::sin(double(small * 0.1f))};
  for (int k = 0; k < kApproximate; ++k) {
    double bound = 1e-6 + 1e-5 * std::fabs(wanted[k]);
    if (std::fabs(got[k] - wanted[k]) <= bound) continue;
    std::printf("function %d of %.9g is %.9g, the CPU has %.9g\n", k, x, got[k], wanted[k]);
    std::exit(1);
  }
}

int main() {
  std::vector<float> x(kCount), approximate(kCount * kApproximate);
  std::vector<int> a(kCount);
  std::vector<Results> results(kCount), expected(kCount);
  uint32_t seed = 21;
  for (float& value : x) value = float(int(check::Next(seed) % 200001) - 100000) / 128.0f + 0.001f;
  for (int& value : a) value = int(check::Next(seed));
  for (int i = 0; i < kCount; ++i) {
    int j = (i * 7 + 3) % kCount;
    ExactFloat(x[i], x[j], expected[i].floats);
    ExactDouble(x[i], x[j], expected[i].doubles);
    Integers(a[i], a[j], x[i], expected[i].integers);
    BitIntrinsicsOnCpu(a[i], a[j], expected[i].bits);
  }
  float *device_x, *device_approximate;
  int* device_a;
  Results* device_results;
  CHECK(cudaMalloc(&device_x, kCount * sizeof(float)));
  CHECK(cudaMalloc(&device_a, kCount * sizeof(int)));
  CHECK(cudaMalloc(&device_results, kCount * sizeof(Results)));
  CHECK(cudaMalloc(&device_approximate, approximate.size() * sizeof(float)));
  CHECK(cudaMemcpy(device_x, x.data(), kCount * sizeof(float), cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(device_a, a.data(), kCount * sizeof(int), cudaMemcpyHostToDevice));
  Compute<<<kCount / 128, 128>>>(device_x, device_a, device_results, device_approximate);
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpy(results.data(), device_results, kCount * sizeof(Results), cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpy(approximate.data(), device_approximate, approximate.size() * sizeof(float),
                   cudaMemcpyDeviceToHost));
  for (int i = 0; i < kCount; ++i) {
    check::Equal(results[i].floats, expected[i].floats, kExactFloat, "float operation");
    check::Equal(results[i].doubles, expected[i].doubles, kExactDouble, "double operation");
    check::Equal(results[i].integers, expected[i].integers, kIntegers, "integer operation");
    check::Equal(results[i].bits, expected[i].bits, 4, "bit operation");
    CompareApproximate(&approximate[i * kApproximate], x[i]);
  }
  std::printf("math_functions: equal, checksum %016llx\n",
              (unsigned long long)check::Checksum(results.data(), kCount * sizeof(Results)));
  return 0;
}
