// SPDX-License-Identifier: Apache-2.0
// half and bfloat16, scalar and packed. Operands and results travel as bits.
// Lists of X(...) have no semicolons, so clang-format would indent them anew each time.
// clang-format off
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#define X(expression) out[k++ * n + i] = Bits(expression);

__device__ uint16_t Bits(__half x) {
  return __half_as_ushort(x);
}
__device__ uint16_t Bits(__nv_bfloat16 x) {
  return __bfloat16_as_ushort(x);
}
__device__ uint16_t Bits(bool x) {
  return x;
}

extern "C" {

__global__ void HalfMath(const uint16_t* pa, const uint16_t* pb, const uint16_t* pc, const float* pf,
                         uint16_t* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const __half a = __ushort_as_half(pa[i]), b = __ushort_as_half(pb[i]), c = __ushort_as_half(pc[i]);
  int k = 0;
  X(__hadd(a, b))
  X(__hsub(a, b)) X(__hmul(a, b)) X(__hfma(a, b, c)) X(__hdiv(a, b)) X(hsqrt(a)) X(__hneg(a)) X(__habs(a))
      X(__hmin(a, b)) X(__hmax(a, b)) X(__hlt(a, b)) X(__hgeu(a, b)) X(__float2half_rn(pf[i]))
          X(__float2half_rz(pf[i])) X(__float2half_ru(pf[i])) X(__float2half_rd(pf[i]))
              X(__int2half_rn(int(pa[i]) * 5)) X(__hadd_sat(a, b)) X(__double2half(pf[i]))
                  const __half2 p = __halves2half2(a, b),
                                q = __halves2half2(b, c), r = __hfma2(p, q, __halves2half2(c, a));
  X(__low2half(r))
  X(__high2half(r)) X(__low2half(__hadd2(p, q))) X(__high2half(__hmul2(p, q))) X(__low2half(__heq2(p, q)))
      X(__high2half(__hgt2(p, q)))
}

__global__ void BFloatMath(const uint16_t* pa, const uint16_t* pb, const uint16_t* pc, const float* pf,
                           uint16_t* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const __nv_bfloat16 a = __ushort_as_bfloat16(pa[i]), b = __ushort_as_bfloat16(pb[i]),
                      c = __ushort_as_bfloat16(pc[i]);
  int k = 0;
  X(__hadd(a, b))
  X(__hsub(a, b)) X(__hmul(a, b)) X(__hfma(a, b, c)) X(__hneg(a)) X(__habs(a)) X(__hmin(a, b)) X(__hmax(a, b))
      X(__hlt(a, b)) X(__float2bfloat16_rn(pf[i])) X(__float2bfloat16_rz(pf[i]))
          const __nv_bfloat162 p = __halves2bfloat162(a, b),
                               q = __halves2bfloat162(b, c), r = __hfma2(p, q, __halves2bfloat162(c, a));
  X(__low2bfloat16(r)) X(__high2bfloat16(r)) X(__low2bfloat16(__hadd2(p, q)))
}

__global__ void HalfToFloat(const uint16_t* in, float* half, float* bfloat, int* integers) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  half[i] = __half2float(__ushort_as_half(in[i]));
  bfloat[i] = __bfloat162float(__ushort_as_bfloat16(in[i]));
  integers[i] = __half2int_rn(__ushort_as_half(in[i]));
}

__global__ void HalfAtomics(__half2* pair, __half* one, __nv_bfloat162* bpair) {
  atomicAdd(pair, __floats2half2_rn(0.5f, 2.0f));
  atomicAdd(one, __float2half(1.0f));
  atomicAdd(bpair, __floats2bfloat162_rn(1.0f, 0.25f));
}

__global__ void Reductions(const int* in, int* out) {
  out[threadIdx.x] = __reduce_add_sync(~0u, in[threadIdx.x]);
  out[32 + threadIdx.x] = __reduce_min_sync(~0u, in[threadIdx.x]);
  out[64 + threadIdx.x] = __reduce_max_sync(~0u, in[threadIdx.x]);
  out[96 + threadIdx.x] = __reduce_xor_sync(~0u, unsigned(in[threadIdx.x]));
}

// cp.async into shared memory, the Ampere way.
__global__ void AsyncCopy(const float4* in, float4* out) {
  __shared__ float4 stage[64];
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(stage + threadIdx.x));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(in + threadIdx.x));
  asm volatile("cp.async.commit_group;");
  asm volatile("cp.async.wait_group 0;");
  __syncthreads();
  out[threadIdx.x] = stage[blockDim.x - 1 - threadIdx.x];
}

}  // extern "C"
