// SPDX-License-Identifier: Apache-2.0
// The kernels of generated programs, as text for every GPU and the software GPU. Each writes what it saw into memory of
// its own launch and ends by itself, whatever the shape of the launch.
//   fill(dst, n, value)       dst[i] = value + i
//   add(dst, src, n, value)   dst[i] = src[i] + value
//   saw(dst, n, value)        dst[i] = a number made of the launch's shape, this thread's place in it, and value
//   idle(value)               does nothing
// i is the thread's number in the whole launch; threads with i >= n write nothing. The variable `table` is the module's.
#pragma once

namespace causeway::differential {

inline constexpr const char* kKernelNames[] = {"fill", "add", "saw", "idle"};
inline constexpr int kKernelCount = 4;
inline constexpr int kIdle = 3;

// Ends the kernel in threads beyond n; %rd3 is the address of this thread's word, %r6 the thread's number.
#define DIFFERENTIAL_PLACE(parameters)                                              \
  "(.param .u64 dst, " parameters                                                   \
  ".param .u32 n, .param .u32 value)\n{\n"                                          \
  "  .reg .pred %p<2>; .reg .b32 %r<20>; .reg .b64 %rd<7>;\n"                       \
  "  ld.param.u64 %rd1, [dst]; ld.param.u32 %r1, [n]; ld.param.u32 %r2, [value];\n" \
  "  mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mov.u32 %r5, %tid.x;\n"           \
  "  mad.lo.s32 %r6, %r3, %r4, %r5; setp.ge.u32 %p1, %r6, %r1; @%p1 bra DONE;\n"    \
  "  mul.wide.u32 %rd2, %r6, 4; add.s64 %rd3, %rd1, %rd2;\n"

inline constexpr char kKernels[] =
    ".version 8.0\n.target sm_80\n.address_size 64\n"
    ".visible .global .align 8 .b8 table[64] = {1, 2, 3, 4, 5, 6, 7, 8};\n"
    ".visible .const .align 4 .u32 fixed = 7;\n"
    ".visible .entry fill" DIFFERENTIAL_PLACE("") R"(
  add.u32 %r8, %r6, %r2;
  st.global.u32 [%rd3], %r8;
DONE:
  ret;
}
.visible .entry add)" DIFFERENTIAL_PLACE(".param .u64 src, ") R"(
  ld.param.u64 %rd4, [src];
  add.s64 %rd5, %rd4, %rd2;
  ld.global.u32 %r7, [%rd5];
  add.u32 %r8, %r7, %r2;
  st.global.u32 [%rd3], %r8;
DONE:
  ret;
}
.visible .entry saw)" DIFFERENTIAL_PLACE("") R"(
  mov.u32 %r7, %nctaid.x;
  mad.lo.s32 %r8, %r7, 31, %r4;
  mov.u32 %r9, %ntid.y;
  mad.lo.s32 %r10, %r8, 31, %r9;
  mov.u32 %r11, %nctaid.y;
  mad.lo.s32 %r12, %r10, 31, %r11;
  mov.u32 %r13, %ntid.z;
  mad.lo.s32 %r14, %r12, 31, %r13;
  mad.lo.s32 %r15, %r14, 31, %r6;
  add.u32 %r16, %r15, %r2;
  st.global.u32 [%rd3], %r16;
DONE:
  ret;
}
.visible .entry idle(.param .u32 value)
{
  ret;
}
)";
#undef DIFFERENTIAL_PLACE

}  // namespace causeway::differential
