// SPDX-License-Identifier: Apache-2.0
// Arithmetic of every type: plain expressions, and intrinsics that become single instructions.
// Lists of X(...) have no semicolons, so clang-format would indent them anew each time.
// clang-format off
#include <cstdint>

#include "plain_expressions.h"

#define X(expression) out[k++ * n + i] = expression;

extern "C" {

__global__ void PlainU32(const uint32_t* pa, const uint32_t* pb, const uint32_t* pc, uint32_t* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const uint32_t a = pa[i], b = pb[i], c = pc[i];
  int k = 0;
  U32_EXPRESSIONS
}

__global__ void PlainS32(const int32_t* pa, const int32_t* pb, const int32_t* pc, int32_t* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const int32_t a = pa[i], b = pb[i], c = pc[i];
  int k = 0;
  S32_EXPRESSIONS
}

__global__ void PlainS64(const int64_t* pa, const int64_t* pb, const int64_t* pc, int64_t* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const int64_t a = pa[i], b = pb[i], c = pc[i];
  int k = 0;
  S64_EXPRESSIONS
}

__global__ void PlainF32(const float* pa, const float* pb, const float* pc, const int32_t* pbits, float* out,
                         int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float a = pa[i], b = pb[i], c = pc[i];
  const int32_t bits = pbits[i];
  int k = 0;
  F32_EXPRESSIONS
}

__global__ void PlainF64(const double* pa, const double* pb, const double* pc, const int32_t* pbits,
                         double* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const double a = pa[i], b = pb[i], c = pc[i];
  const int32_t bits = pbits[i];
  int k = 0;
  F64_EXPRESSIONS
}

// The host's versions are in interpreter_arithmetic_test.cc, in the same order.
__global__ void Intrinsics(const uint32_t* pa, const uint32_t* pb, const uint32_t* pc, uint32_t* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const uint32_t a = pa[i], b = pb[i], c = pc[i];
  uint32_t t = 0, u = 0;
  int k = 0;
  X(__popc(a))
  X(__clz(a)) X(__brev(a)) X(__ffs(a)) X(__byte_perm(a, b, c)) X(__funnelshift_l(a, b, c))
      X(__funnelshift_rc(a, b, c & 63)) X(__umulhi(a, b)) X(__mulhi(int(a), int(b))) X(__umul24(a, b))
          X(__mul24(int(a), int(b))) X(__usad(a, b, c)) X(__sad(int(a), int(b), c))
              X(__dp4a(int(a), int(b), int(c))) X(__dp4a(a, b, c)) X(__popcll(uint64_t(a) << 32 | b))
                  X(__clzll(uint64_t(a & 0xff) << 20 | (b & 1))) X(__vadd4(a, b))
                      X(__vmaxs2(a, b)) asm("bfe.u32 %0, %1, %2, %3;"
                                            : "=r"(t)
                                            : "r"(a), "r"(b & 0xff), "r"(c & 0xff));
  X(t)
  asm("bfe.s32 %0, %1, %2, %3;" : "=r"(t) : "r"(a), "r"(b & 31), "r"(c & 31));
  X(t)
  asm("bfi.b32 %0, %1, %2, %3, %4;" : "=r"(t) : "r"(a), "r"(b), "r"(c & 0xff), "r"(c >> 8 & 0xff));
  X(t)
  asm("bfind.u32 %0, %1;" : "=r"(t) : "r"(a));
  X(t)
  asm("bfind.shiftamt.s32 %0, %1;" : "=r"(t) : "r"(a));
  X(t)
  asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(t) : "r"(a), "r"(b), "r"(c));
  X(t)
  asm("{ add.cc.u32 %0, %2, %3; addc.u32 %1, %4, 0; }" : "=r"(t), "=r"(u) : "r"(a), "r"(b), "r"(c));
  X(t) X(u) asm("{ sub.cc.u32 %0, %2, %3; subc.u32 %1, %4, 0; }" : "=r"(t), "=r"(u) : "r"(a), "r"(b), "r"(c));
  X(t)
  X(u) asm("{ mad.lo.cc.u32 %0, %2, %3, %4; madc.hi.u32 %1, %2, %3, 0; }"
           : "=r"(t), "=r"(u)
           : "r"(a), "r"(b), "r"(c));
  X(t) X(u) asm("add.sat.s32 %0, %1, %2;" : "=r"(t) : "r"(a), "r"(b));
  X(t)
  asm("sub.sat.s32 %0, %1, %2;" : "=r"(t) : "r"(a), "r"(b));
  X(t)
  asm("prmt.b32.f4e %0, %1, %2, %3;" : "=r"(t) : "r"(a), "r"(b), "r"(c));
  X(t)
  asm("{ .reg .pred p, q; setp.lt.and.u32 p|q, %1, %2, 1; selp.u32 %0, 1, 0, q; }"
      : "=r"(t)
      : "r"(a), "r"(b));
  X(t)
  asm("set.ge.u32.s32 %0, %1, %2;" : "=r"(t) : "r"(a), "r"(b));
  X(t)
  asm("slct.b32.s32 %0, %1, %2, %3;" : "=r"(t) : "r"(a), "r"(b), "r"(c));
  X(t)
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, l}; }" : "=r"(t) : "r"(a));
  X(t)
  asm("cvt.sat.s8.s32 %0, %1;" : "=r"(t) : "r"(a >> 23));
  X(t)
  asm("cvt.sat.u16.s32 %0, %1;" : "=r"(t) : "r"(a));
  X(t)
  asm("shl.b32 %0, %1, %2;" : "=r"(t) : "r"(a), "r"(b & 63));
  X(t)
  asm("shr.s32 %0, %1, %2;" : "=r"(t) : "r"(a), "r"(b & 63));
  X(t)
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(t) : "r"(a), "r"(b), "r"(c));
  X(t)
}

__global__ void FloatIntrinsics(const float* pa, const float* pb, const float* pc, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float a = pa[i], b = pb[i], c = pc[i];
  int k = 0;
  X(__fadd_rz(a, b))
  X(__fadd_ru(a, b)) X(__fadd_rd(a, b)) X(__fmul_rz(a, b)) X(__fmul_ru(a, b)) X(__fmaf_rd(a, b, c))
      X(__fdiv_ru(a, b)) X(__fsqrt_rz(a)) X(__frcp_rd(a)) X(__saturatef(a)) X(float(__float2int_rn(a)))
          X(float(__float2uint_rz(a))) X(float(__float2ll_rd(a))) X(__int2float_rz(__float_as_int(a)))
              X(__ull2float_ru(uint64_t(__float_as_uint(a)) << 24))
                  X(__double2float_rd(double(a) * 1.0000000001)) X(float(__double2int_ru(double(a) / 3)))
}

// Conversions of every float to every integer type, out of range and NaN included.
__global__ void FloatToInteger(const float* pa, int64_t* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float a = pa[i];
  const double d = a;
  int k = 0;
  X(int32_t(a)) X(uint32_t(a)) X(int64_t(a)) X(int64_t(uint64_t(a))) X(int32_t(d)) X(int64_t(d)) int16_t s;
  uint16_t u;
  asm("cvt.rni.s16.f32 %0, %1;" : "=h"(s) : "f"(a));
  X(s)
  asm("cvt.rpi.u16.f64 %0, %1;" : "=h"(u) : "d"(d));
  X(u)
}

}  // extern "C"
