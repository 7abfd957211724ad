/* SPDX-License-Identifier: Apache-2.0
 * The first sector of a disk that boots Linux, for HVM guests. QEMU under Xen gives a kernel of its own command line to the firmware byte
 * by byte through an I/O port, which takes minutes where everything is emulated; a disk with AHCI is read by DMA.
 *
 * boot_disk.py fills in the numbers and appends: four sectors with the command line, the kernel's setup code, the kernel, the initial
 * RAM disk. Each is copied to where the boot protocol of Linux wants it (Documentation/arch/x86/boot.rst), and the setup code is entered. */
	.code16
	.set	setup_segment, 0x9000	/* the setup code, its heap and its stack, below 0x9e000 */
	.set	words_at, 0x8000	/* the command line */
	.set	bounce_segment, 0x1000	/* what the firmware reads into */
	.set	kernel_at, 0x100000
	.set	disk_at, 0x0c000000	/* above what the kernel unpacks itself to */
	.set	most_sectors, 127	/* in one read */

	.globl	start
start:	ljmp	$0, $1f
1:	xorw	%ax, %ax
	movw	%ax, %ds
	movw	%ax, %es
	movw	%ax, %ss
	movw	$0x7c00, %sp
	movb	%dl, drive

	movw	$4, count
	movw	$(words_at >> 4), segment
	call	read
	movw	setup_sectors, %ax
	movw	%ax, count
	movw	$setup_segment, segment
	call	read
	movw	$bounce_segment, segment
	movl	$kernel_at, %edi
	movl	kernel_sectors, %ecx
	call	read_high
	movl	$disk_at, %edi
	movl	disk_sectors, %ecx
	call	read_high

	movw	$setup_segment, %ax
	movw	%ax, %ds
	movw	%ax, %es
	movw	%ax, %fs
	movw	%ax, %gs
	movb	$0xff, 0x210		/* type_of_loader: another one */
	orb	$0x80, 0x211		/* loadflags: there is a heap */
	movl	$disk_at, 0x218		/* ramdisk_image */
	movl	%cs:disk_bytes, %eax
	movl	%eax, 0x21c		/* ramdisk_size */
	movw	$(0xe000 - 0x200), 0x224	/* heap_end_ptr */
	movl	$words_at, 0x228	/* cmd_line_ptr */
	cli
	movw	$setup_segment, %ax
	movw	%ax, %ss
	movw	$0xe000, %sp
	ljmp	$(setup_segment + 0x20), $0

/* Reads `count` sectors to `segment`, and goes on behind them. */
read:	movw	$packet, %si
	movb	drive, %dl
	movb	$0x42, %ah
	pushal
	int	$0x13
	popal
	jc	stop
	movzwl	count, %eax
	addl	%eax, sector
	ret

/* Reads %ecx sectors to the address %edi. */
read_high:
1:	movl	%ecx, %eax
	cmpl	$most_sectors, %eax
	jbe	2f
	movl	$most_sectors, %eax
2:	movw	%ax, count
	call	read
	movl	%edi, %eax
	movw	%ax, target_low
	shrl	$16, %eax
	movb	%al, target_middle
	movb	%ah, target_high
	pushal
	movw	count, %cx
	shlw	$8, %cx			/* in words */
	movw	$table, %si
	movb	$0x87, %ah
	int	$0x15
	popal
	jc	stop
	movzwl	count, %eax
	subl	%eax, %ecx
	shll	$9, %eax
	addl	%eax, %edi
	testl	%ecx, %ecx
	jnz	1b
	ret

stop:	hlt
	jmp	stop

drive:	.byte	0
	.balign	4
packet:	.byte	16, 0
count:	.word	0
	.word	0			/* offset */
segment: .word	0
sector:	.long	1, 0
/* Of the copy, as the firmware wants it: a source and a target of 64 KiB. */
table:	.fill	16, 1, 0
	.word	0xffff, 0
	.byte	bounce_segment >> 12, 0x93, 0, 0
	.word	0xffff
target_low: .word	0
target_middle: .byte	0
	.byte	0x93, 0
target_high: .byte	0
	.fill	16, 1, 0

	.org	start + 494		/* boot_disk.py writes these */
setup_sectors: .word	0
kernel_sectors: .long	0
disk_sectors: .long	0
disk_bytes: .long	0
	.org	start + 510
	.word	0xaa55
