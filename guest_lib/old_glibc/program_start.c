// SPDX-License-Identifier: Apache-2.0
// Where programs for old systems begin (-e old_system_start). Since glibc 2.34 a program's own start code leaves its
// constructors to the C library, which older releases expect to be given a function for.
#include <stddef.h>

typedef void (*Constructor)(int, char**, char**);
extern Constructor __init_array_start[], __init_array_end[];

__attribute__((used)) static void old_system_construct(int argc, char** argv, char** environment) {
  const size_t count = (size_t)(__init_array_end - __init_array_start);
  for (size_t i = 0; i < count; ++i) __init_array_start[i](argc, argv, environment);
}

// As glibc's own `_start`: the arguments of __libc_start_main are main, argc, argv, the function above, none for the
// end, the dynamic loader's function for the end, and the end of the stack.
__asm__(
    ".globl old_system_start\n"
    "old_system_start:\n"
    "  xor %ebp, %ebp\n"
    "  mov %rdx, %r9\n"
    "  pop %rsi\n"
    "  mov %rsp, %rdx\n"
    "  and $-16, %rsp\n"
    "  push %rax\n"
    "  push %rsp\n"
    "  xor %r8d, %r8d\n"
    "  lea old_system_construct(%rip), %rcx\n"
    "  mov main@GOTPCREL(%rip), %rdi\n"
    "  call *__libc_start_main@GOTPCREL(%rip)\n"
    "  hlt\n");
