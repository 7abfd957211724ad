// SPDX-License-Identifier: Apache-2.0
// PTX of the kernels that several conformance programs launch. Text, so that one form runs on every GPU and
// on the software GPU.
//   add(data, n, value)    data[i] += value for i < n, one thread for each i
//   spin(flag)             runs until *flag != 0
//   store(address, value)  *address = value
//   crash()                traps
#pragma once

namespace causeway::driver_test {

inline constexpr char kKernels[] = R"(
.version 8.0
.target sm_80
.address_size 64
.visible .global .align 4 .u32 counter = 5;
.visible .entry add(.param .u64 data, .param .u32 n, .param .u32 value)
{
  .reg .pred %p<2>; .reg .b32 %r<9>; .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [data];
  ld.param.u32 %r1, [n];
  ld.param.u32 %r2, [value];
  mov.u32 %r3, %ctaid.x;
  mov.u32 %r4, %ntid.x;
  mov.u32 %r5, %tid.x;
  mad.lo.s32 %r6, %r3, %r4, %r5;
  setp.ge.u32 %p1, %r6, %r1;
  @%p1 bra DONE;
  mul.wide.u32 %rd2, %r6, 4;
  add.s64 %rd3, %rd1, %rd2;
  ld.global.u32 %r7, [%rd3];
  add.u32 %r8, %r7, %r2;
  st.global.u32 [%rd3], %r8;
DONE:
  ret;
}
.visible .entry spin(.param .u64 flag)
{
  .reg .pred %p<2>; .reg .b32 %r<2>; .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [flag];
  bra LOOK;
AGAIN:
  nanosleep.u32 20000;
LOOK:
  ld.volatile.global.u32 %r1, [%rd1];
  setp.eq.u32 %p1, %r1, 0;
  @%p1 bra AGAIN;
  ret;
}
.visible .entry store(.param .u64 address, .param .u32 value)
{
  .reg .b32 %r<2>; .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [address];
  ld.param.u32 %r1, [value];
  st.global.u32 [%rd1], %r1;
  ret;
}
.visible .entry crash()
{
  trap;
  ret;
}
)";

}  // namespace causeway::driver_test
