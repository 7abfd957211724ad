// SPDX-License-Identifier: Apache-2.0
// Half precision and bfloat16: conversions, arithmetic, comparisons, packed pairs. Operands are chosen so
// that every exact result fits a double; the CPU rounds it once, and the device's bits must be the same.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <vector>

#include "tests/programs/check.h"

constexpr int kCount = 4096, kResults = 6;

__device__ __half ToHalf(float x, __half) {
  return __float2half_rn(x);
}
__device__ __nv_bfloat16 ToHalf(float x, __nv_bfloat16) {
  return __float2bfloat16_rn(x);
}

__device__ __half MultiplyAdd(__half x, __half y, __half z) {
  return __hfma(x, y, z);
}
__device__ __nv_bfloat16 MultiplyAdd(__nv_bfloat16 x, __nv_bfloat16 y, __nv_bfloat16 z) {
#if __CUDA_ARCH__ >= 800
  return __hfma(x, y, z);
#else
  return __float2bfloat16_rn(fmaf(__bfloat162float(x), __bfloat162float(y), __bfloat162float(z)));
#endif
}

template <typename T>
__global__ void Arithmetic(const float* a, const float* b, T* results) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  T x = ToHalf(a[i], T{}), y = ToHalf(b[i], T{});
  results[i] = x + y;
  results[kCount + i] = x * y;
  results[2 * kCount + i] = MultiplyAdd(x, y, x);
  results[3 * kCount + i] = x < y ? x : y;
  results[4 * kCount + i] = __hmax(x, __hneg(y));
  results[5 * kCount + i] = x - y;
}

__global__ void Pairs(const float2* values, __half2* sums, float* lengths) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  __half2 pair = __float22half2_rn(values[i]);
  sums[i] = __hadd2(pair, __lowhigh2highlow(pair));
  float2 wide = __half22float2(pair);
  lengths[i] = wide.x + wide.y + __half2float(__int2half_rn(i & 1023));
}

static double Exact(int kind, double x, double y) {
  switch (kind) {
    case 0:
      return x + y;
    case 1:
      return x * y;
    case 2:
      return x * y + x;
    case 3:
      return x < y ? x : y;
    case 4:
      return std::fmax(x, -y);
    default:
      return x - y;
  }
}

static uint16_t Bits(double value, __half) {
  return __half_raw(__double2half(value)).x;
}
static uint16_t Bits(double value, __nv_bfloat16) {
  return __nv_bfloat16_raw(__double2bfloat16(value)).x;
}

template <typename T>
static unsigned long long Run(const char* name, const std::vector<float>& a, const std::vector<float>& b) {
  float *device_a, *device_b;
  T* device_results;
  std::vector<uint16_t> results(kCount * kResults);
  CHECK(cudaMalloc(&device_a, kCount * sizeof(float)));
  CHECK(cudaMalloc(&device_b, kCount * sizeof(float)));
  CHECK(cudaMalloc(&device_results, results.size() * 2));
  CHECK(cudaMemcpy(device_a, a.data(), kCount * sizeof(float), cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(device_b, b.data(), kCount * sizeof(float), cudaMemcpyHostToDevice));
  Arithmetic<T><<<kCount / 128, 128>>>(device_a, device_b, device_results);
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpy(results.data(), device_results, results.size() * 2, cudaMemcpyDeviceToHost));
  for (int kind = 0; kind < kResults; ++kind) {
    for (int i = 0; i < kCount; ++i) {
      uint16_t got = results[kind * kCount + i], wanted = Bits(Exact(kind, a[i], b[i]), T{});
      // Both zeros are right: the sign of a zero sum differs between fused and separate forms.
      if (((got | wanted) & 0x7fff) == 0) results[kind * kCount + i] = got = wanted = 0;
      if (got == wanted) continue;
      std::printf("%s, operation %d of %g and %g: bits %04x, the CPU has %04x\n", name, kind, a[i], b[i], got,
                  wanted);
      std::exit(1);
    }
  }
  CHECK(cudaFree(device_a));
  CHECK(cudaFree(device_b));
  CHECK(cudaFree(device_results));
  return check::Checksum(results.data(), results.size() * 2);
}

static void RunPairs(const std::vector<float>& a) {
  float2* device_values;
  __half2* device_sums;
  float* device_lengths;
  const int pairs = kCount / 2;
  std::vector<uint16_t> sums(kCount);
  std::vector<float> lengths(pairs);
  CHECK(cudaMalloc(&device_values, kCount * sizeof(float)));
  CHECK(cudaMalloc(&device_sums, kCount * 2));
  CHECK(cudaMalloc(&device_lengths, pairs * sizeof(float)));
  CHECK(cudaMemcpy(device_values, a.data(), kCount * sizeof(float), cudaMemcpyHostToDevice));
  Pairs<<<pairs / 128, 128>>>(device_values, device_sums, device_lengths);
  CHECK(cudaMemcpy(sums.data(), device_sums, kCount * 2, cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpy(lengths.data(), device_lengths, pairs * sizeof(float), cudaMemcpyDeviceToHost));
  for (int i = 0; i < pairs; ++i) {
    double sum = double(a[2 * i]) + a[2 * i + 1];
    REQUIRE((sums[2 * i] & 0x7fff) == (Bits(sum, __half{}) & 0x7fff) && sums[2 * i] == sums[2 * i + 1]);
    REQUIRE(lengths[i] == float(sum + (i & 1023)));
  }
  CHECK(cudaFree(device_values));
  CHECK(cudaFree(device_sums));
  CHECK(cudaFree(device_lengths));
}

int main() {
  // Multiples of 1/16 below 8: seven significant bits, exact in both formats.
  std::vector<float> a(kCount), b(kCount);
  uint32_t seed = 7;
  for (float& value : a) value = float(int(check::Next(seed) % 255) - 127) / 16.0f;
  for (float& value : b) value = float(int(check::Next(seed) % 255) - 127) / 16.0f;
  unsigned long long half = Run<__half>("half", a, b);
  unsigned long long bfloat = Run<__nv_bfloat16>("bfloat16", a, b);
  RunPairs(a);
  std::printf("half_math: equal, checksums %016llx %016llx\n", half, bfloat);
  return 0;
}
