#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Changes Linux 6.1's sources so that it runs where KVM executes user code itself and emulates the kernel's (kernel.sh).

usage: kernel_edits.py SOURCES
The sources are as Debian has them: each change has to find its place exactly once.
"""
import pathlib
import re
import sys

# Such a KVM goes to MSR_LSTAR for SYSCALL without leaving user mode, so that the call arrives as the page fault of the entry's first
# instruction, with the registers as SYSCALL leaves them. The call is made there, and the fault's end returns from it.
TRAPPED = """
/* Causeway: a system call that has come as a page fault. */
noinstr void causeway_trapped_syscall(struct pt_regs *regs)
{
	unsigned int number = regs->ax;

	regs->ip = regs->cx;
	regs->flags = (regs->r11 & 0x3f7fd7) | X86_EFLAGS_IF;
	regs->orig_ax = regs->ax;
	regs->ax = -ENOSYS;
	instrumentation_begin();
	do_syscall_x64(regs, number);
	instrumentation_end();
}
"""

TO_IT = """	/* Causeway: kernel_edits.py */
	if (user_mode(regs) && address == (unsigned long)entry_SYSCALL_64) {
		local_irq_enable();
		causeway_trapped_syscall(regs);
		local_irq_disable();
		return;
	}
"""

EDITS = [
    # (file, pattern, what takes its place): the emulator has no int3, which this self-test executes.
    ("arch/x86/kernel/alternative.c", r"^\tint3_selftest\(\);$", "\t(void)int3_selftest;"),
    # Nor fwait, which each end of a process executes.
    ("arch/x86/kernel/fpu/core.c", r'^\t\tasm volatile\("1: fwait\\n"\n.*\n.*;$', "\t\t/* Causeway: no fwait */"),
    # The kernel module needs vmap_pfn, which is built for graphics drivers only.
    ("mm/Kconfig", r"^config VMAP_PFN\n\tbool$", "config VMAP_PFN\n\tdef_bool y"),
    ("arch/x86/mm/fault.c", r"^(static __always_inline void\nhandle_page_fault\([^{]*\{)$",
     r"void causeway_trapped_syscall(struct pt_regs *regs);" "\n" r"extern void entry_SYSCALL_64(void);" "\n\n" r"\1" "\n" + TO_IT),
]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sources = pathlib.Path(sys.argv[1])
    for name, pattern, text in EDITS:
        file = sources / name
        after, count = re.subn(pattern, text, file.read_text(), flags=re.MULTILINE)
        if count != 1:
            sys.exit(f"kernel_edits.py: {file} is not as in Linux 6.1: found {count} places to change")
        file.write_text(after)
    entry = sources / "arch/x86/entry/common.c"
    entry.write_text(entry.read_text() + TRAPPED)


if __name__ == "__main__":
    main()
