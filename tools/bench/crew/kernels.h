// SPDX-License-Identifier: Apache-2.0
// The kernels of a Gpu (driver.h) as PTX, which the driver compiles for the GPU at hand. Each ends by itself: the one that is
// meant to take time also looks at the clock of the GPU, so that no mistake of the program around it can leave the GPU busy.
//
//   Work(rounds, bound_ns, sink)    `rounds` times 64 multiplications in each thread: an amount of arithmetic, so that its
//                                   duration is time on the GPU and not time on the clock; ends early after bound_ns by the clock
//   Count(sink)                     adds 1 to the first word of `sink`
//   Mix(words, key)                 word i, for each thread one: word * 1664525 + 1013904223, exclusive or key
//   BadAddress, Trap, Assert, Misaligned, SharedOverflow, Stack (sink)     the six ways to end a context that a guest has; each
//                                   takes a zero from `sink`, so that no compiler sees through it
#pragma once

namespace causeway::bench {

inline constexpr char kKernels[] = R"(.version 7.0
.target sm_70
.address_size 64

.extern .func __assertfail (.param .b64 text, .param .b64 file, .param .b32 line, .param .b64 function, .param .b64 size);
.global .align 1 .b8 assert_text[5] = {122, 101, 114, 111, 0};

.visible .entry Work(.param .u32 rounds, .param .u64 bound_ns, .param .u64 sink)
{
  .reg .pred %p<5>;
  .reg .u32 %n, %v, %i;
  .reg .u64 %a, %begin, %now, %bound;
  ld.param.u32 %n, [rounds];
  ld.param.u64 %bound, [bound_ns];
  mov.u32 %v, %tid.x;
  add.u32 %v, %v, 1;
  setp.eq.u32 %p0, %n, 0;
  @%p0 bra finish;
  mov.u64 %begin, %globaltimer;
again:
  mov.u32 %i, 16;
inner:
  mad.lo.u32 %v, %v, 1664525, 1013904223;
  mad.lo.u32 %v, %v, 1664525, 1013904223;
  mad.lo.u32 %v, %v, 1664525, 1013904223;
  mad.lo.u32 %v, %v, 1664525, 1013904223;
  sub.u32 %i, %i, 1;
  setp.ne.u32 %p1, %i, 0;
  @%p1 bra inner;
  mov.u64 %now, %globaltimer;
  sub.u64 %now, %now, %begin;
  setp.gt.u64 %p2, %now, %bound;
  @%p2 bra finish;
  sub.u32 %n, %n, 1;
  setp.ne.u32 %p3, %n, 0;
  @%p3 bra again;
finish:
  setp.ne.u32 %p4, %v, 0;
  @%p4 bra done;
  ld.param.u64 %a, [sink];
  cvta.to.global.u64 %a, %a;
  st.global.u32 [%a], %v;
done:
  ret;
}

.visible .entry Count(.param .u64 sink)
{
  .reg .pred %p;
  .reg .u32 %t, %b, %old;
  .reg .u64 %a;
  mov.u32 %t, %tid.x;
  mov.u32 %b, %ctaid.x;
  or.b32 %t, %t, %b;
  setp.ne.u32 %p, %t, 0;
  @%p bra done;
  ld.param.u64 %a, [sink];
  cvta.to.global.u64 %a, %a;
  atom.global.add.u32 %old, [%a], 1;
done:
  ret;
}

.visible .entry Mix(.param .u64 words, .param .u32 key)
{
  .reg .u32 %t, %b, %n, %v, %k;
  .reg .u64 %a, %o;
  mov.u32 %t, %tid.x;
  mov.u32 %b, %ctaid.x;
  mov.u32 %n, %ntid.x;
  mad.lo.u32 %t, %b, %n, %t;
  mul.wide.u32 %o, %t, 4;
  ld.param.u64 %a, [words];
  ld.param.u32 %k, [key];
  cvta.to.global.u64 %a, %a;
  add.u64 %a, %a, %o;
  ld.global.u32 %v, [%a];
  mad.lo.u32 %v, %v, 1664525, 1013904223;
  xor.b32 %v, %v, %k;
  st.global.u32 [%a], %v;
  ret;
}

.visible .entry BadAddress(.param .u64 sink)
{
  .reg .u32 %zero;
  .reg .u64 %a;
  ld.param.u64 %a, [sink];
  cvta.to.global.u64 %a, %a;
  ld.volatile.global.u32 %zero, [%a];
  cvt.u64.u32 %a, %zero;
  add.u64 %a, %a, 16;
  st.global.u32 [%a], 1;
  ret;
}

.visible .entry Trap(.param .u64 sink)
{
  trap;
  ret;
}

.visible .entry Assert(.param .u64 sink)
{
  .reg .pred %p;
  .reg .u32 %zero;
  .reg .u64 %a, %text;
  ld.param.u64 %a, [sink];
  cvta.to.global.u64 %a, %a;
  ld.volatile.global.u32 %zero, [%a];
  setp.ne.u32 %p, %zero, 0;
  @%p bra done;
  mov.u64 %text, assert_text;
  cvta.global.u64 %text, %text;
  {
    .param .b64 p0;
    .param .b64 p1;
    .param .b32 p2;
    .param .b64 p3;
    .param .b64 p4;
    st.param.b64 [p0+0], %text;
    st.param.b64 [p1+0], %text;
    st.param.b32 [p2+0], 1;
    st.param.b64 [p3+0], %text;
    st.param.b64 [p4+0], 1;
    call.uni __assertfail, (p0, p1, p2, p3, p4);
  }
done:
  ret;
}

.visible .entry Misaligned(.param .u64 sink)
{
  .reg .u32 %zero;
  .reg .u64 %a, %o;
  ld.param.u64 %a, [sink];
  cvta.to.global.u64 %a, %a;
  ld.volatile.global.u32 %zero, [%a];
  cvt.u64.u32 %o, %zero;
  add.u64 %a, %a, %o;
  add.u64 %a, %a, 1;
  st.volatile.global.u32 [%a], 1;
  ret;
}

.visible .entry SharedOverflow(.param .u64 sink)
{
  .reg .u32 %zero;
  .reg .u64 %a;
  ld.param.u64 %a, [sink];
  cvta.to.global.u64 %a, %a;
  ld.volatile.global.u32 %zero, [%a];
  add.u32 %zero, %zero, 15728640;
  st.shared.u32 [%zero], 1;
  ret;
}

.func (.param .b32 result) Descend(.param .b32 depth, .param .b64 sink)
{
  .local .align 4 .b8 frame[512];
  .reg .pred %p;
  .reg .u32 %d, %v, %w;
  .reg .u64 %f, %o, %s;
  ld.param.u32 %d, [depth];
  ld.param.u64 %s, [sink];
  ld.volatile.global.u32 %v, [%s];
  add.u32 %v, %v, %d;
  and.b32 %w, %v, 127;
  mul.wide.u32 %o, %w, 4;
  mov.u64 %f, frame;
  add.u64 %o, %o, %f;
  st.local.u32 [%o], %v;
  setp.gt.u32 %p, %d, 1000000;
  @%p bra end;
  add.u32 %w, %d, 1;
  {
    .param .b32 deeper;
    .param .b64 same;
    .param .b32 returned;
    st.param.b32 [deeper+0], %w;
    st.param.b64 [same+0], %s;
    call.uni (returned), Descend, (deeper, same);
    ld.param.b32 %w, [returned+0];
  }
  mad.lo.u32 %v, %v, 7, %w;
  and.b32 %d, %v, 127;
  mul.wide.u32 %o, %d, 4;
  add.u64 %o, %o, %f;
  ld.local.u32 %v, [%o];
  add.u32 %v, %v, %w;
end:
  st.param.b32 [result+0], %v;
  ret;
}

.visible .entry Stack(.param .u64 sink)
{
  .reg .u32 %v;
  .reg .u64 %a;
  ld.param.u64 %a, [sink];
  cvta.to.global.u64 %a, %a;
  {
    .param .b32 depth;
    .param .b64 same;
    .param .b32 returned;
    st.param.b32 [depth+0], 0;
    st.param.b64 [same+0], %a;
    call.uni (returned), Descend, (depth, same);
    ld.param.b32 %v, [returned+0];
  }
  st.global.u32 [%a+4], %v;
  ret;
}
)";

}  // namespace causeway::bench
