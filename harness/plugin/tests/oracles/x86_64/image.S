/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A machine of known branches. Beside every branch that is taken between Arm and Disarm stands what must be recorded
 * of it; the test reads these expectations from the section .expected, in the order of the source, which is the order
 * of execution.
 *
 * Started by `-kernel` through the PVH entry: 32-bit, flat, no paging.
 */
#include "../expect.S"

	.macro magic number
	.byte 0x0f, 0x1f, 0x80, \number, 0x42, 0x72, 0x54
	.endm

	/* A branch that ends a stretch with these data accesses. */
	.macro stretch label, reads, writes
\label:	jmp	9f
	expect	\label, 9f, JUMP
	accesses \label, \reads, \writes
9:
	.endm

	.macro gate vector, handler
	movl	$\handler, %edi
	movl	$idt + 16 * \vector, %esi
	call	set_gate
	.endm

	/* Sends this CPU an interrupt, which is taken behind the instruction that follows. */
	.macro ipi
	movl	$LAPIC_ICR, %ebx
	movl	$0x00044040, (%rbx)
	nop
	sti
	.endm

	/* Traps behind the instruction that follows, which finds the zero flag set. */
	.macro step
	xorl	%eax, %eax
	pushfq
	orl	$0x100, (%rsp)
	popfq
	.endm

	/* Not mapped, but in some tests. */
	.set NOWHERE, 0x20000000
	.set KERNEL, 0xffff800000000000
	.set NOWHERE_ENTRY, pd + 8 * (NOWHERE >> 21)
	.set LAPIC, 0xfee00000
	.set LAPIC_ID, LAPIC + 0x20
	.set LAPIC_EOI, LAPIC + 0xb0
	.set LAPIC_SPURIOUS, LAPIC + 0xf0
	.set LAPIC_ICR, LAPIC + 0x300
	.set LAPIC_TIMER, LAPIC + 0x320
	.set LAPIC_INITIAL, LAPIC + 0x380

	.section .note.pvh, "a", @note
	.long 4, 8, 18		/* XEN_ELFNOTE_PHYS32_ENTRY */
	.asciz "Xen"
	.quad start32

	.text
	.code32
	.globl start32
start32:
	movl	$stack_top, %esp
	/*
	 * The first 4 GiB mapped as they are, by pages of 2 MiB, for all privileges, and once more where kernels are;
	 * beyond them nothing is.
	 */
	movl	$pdpt + 7, pml4
	movl	$pdpt + 7, pml4 + 8 * 256
	movl	$4, %ecx
	movl	$pd + 7, %eax
	movl	$pdpt, %edi
1:	movl	%eax, (%edi)
	addl	$4096, %eax
	addl	$8, %edi
	loop	1b
	movl	$2048, %ecx
	movl	$0x87, %eax
	movl	$pd, %edi
1:	movl	%eax, (%edi)
	addl	$0x200000, %eax
	addl	$8, %edi
	loop	1b
	movl	$pml4, %eax
	movl	%eax, %cr3
	movl	%cr4, %eax
	orl	$0x20, %eax
	movl	%eax, %cr4
	movl	$0xc0000080, %ecx	/* EFER: long mode, syscall */
	rdmsr
	orl	$0x101, %eax
	wrmsr
	movl	%cr0, %eax
	orl	$0x80000001, %eax
	movl	%eax, %cr0
	lgdt	gdt_pointer
	ljmp	$8, $start64

	.code64
	/* %edi: handler, %esi: gate */
set_gate:
	movw	%di, (%rsi)
	movw	$8, 2(%rsi)
	movw	$0x8e00, 4(%rsi)
	shrl	$16, %edi
	movw	%di, 6(%rsi)
	ret

start64:
	xorl	%eax, %eax
	movw	%ax, %ds
	movw	%ax, %es
	movw	%ax, %ss
	movl	$tss, %eax
	movw	%ax, gdt_tss + 2
	shrl	$16, %eax
	movb	%al, gdt_tss + 4
	movb	%ah, gdt_tss + 7
	movl	$0x30, %eax
	ltr	%ax
	movl	$0x10, %eax
	movl	%eax, %ss
	gate	0, on_divide
	gate	1, on_debug
	gate	3, on_int3
	movw	$0xee00, idt + 16 * 3 + 4	/* user space may use it */
	gate	6, on_ud
	gate	14, on_page_fault
	gate	0x40, on_ipi
	gate	0x41, on_timer
	gate	0x80, on_int80
	lidt	idt_pointer
	movl	$0xc0000081, %ecx	/* STAR */
	xorl	%eax, %eax
	movl	$0x00180008, %edx
	wrmsr
	movl	$0xc0000082, %ecx	/* LSTAR */
	movl	$on_syscall, %eax
	xorl	%edx, %edx
	wrmsr
	movl	$0xc0000084, %ecx	/* FMASK */
	xorl	%eax, %eax
	wrmsr
	movb	$0xff, %al		/* what the firmware left: no interrupts from the PICs */
	outb	%al, $0x21
	outb	%al, $0xa1
	movl	$LAPIC_SPURIOUS, %ebx
	movl	$0x1ff, (%rbx)
	movl	$0x41, %eax
	movl	$LAPIC_TIMER, %ebx
	movl	%eax, (%rbx)
	.if ARM == 4
	jmp	asks
	.endif
	/* Windows: the whole list is run twice, into two traces. */
	movl	$2, %ebp
again:
	magic	2			/* not armed: nothing happens */
	movabsq	$KERNEL + kernel_arms, %rax
	call	*%rax			/* in the kernel: nothing happens */
	movl	$setup, %eax
	magic	ARM
arming:	movq	%cr3, %rax
	movq	%rax, %cr3		/* ends the block that arms, however long blocks are */
armed:
	magic	ARM			/* armed already: nothing happens */
	movabsq	$KERNEL + kernel_disarms, %rax
b_kernel: call	*%rax
	expect	b_kernel, KERNEL + kernel_disarms, IND_CALL
	expect	KERNEL + kernel_disarms_ret, 1f, RET
1:

	/* Conditional. */
	xorl	%eax, %eax
	jnz	wrong
b_jz:	jz	1f
	expect	b_jz, 1f, COND
	jmp	wrong
1:	movl	$7, %ecx
	jecxz	wrong_near
	/* A long one, backwards and forwards. */
b_fwd:	.byte 0x0f, 0x84		/* jz near */
	.long	far_place - (b_fwd + 6)
	expect	b_fwd, far_place, COND
	expect	b_back, back_place, COND
wrong_near: jmp	wrong
	.skip	300, 0x90
back_place:
	/* More than fits in a block. */
	.skip	1500, 0x90
	/* Direct and indirect jumps. */
b_jmp:	jmp	1f
	expect	b_jmp, 1f, JUMP
1:	movl	$2f, %eax
b_ijmp:	jmp	*%rax
	expect	b_ijmp, 2f, IND_JUMP
	jmp	wrong
2:
b_mjmp:	jmp	*pointer_1
	expect	b_mjmp, 3f, IND_JUMP
	accesses b_mjmp, 1, 0
	.pushsection .data
pointer_1: .quad 3f
	.popsection
	jmp	wrong
3:	/* Calls and returns. */
b_call:	call	leaf
	expect	b_call, leaf, CALL
	accesses b_call, 0, 1
	expect	leaf_ret, 1f, RET
1:	movl	$leaf, %eax
b_icall: call	*%rax
	expect	b_icall, leaf, IND_CALL
	expect	leaf_ret, 2f, RET
2:
b_mcall: call	*pointer_leaf
	expect	b_mcall, leaf, IND_CALL
	accesses b_mcall, 1, 1
	expect	leaf_ret, 3f, RET
3:	pushq	%rax
b_pcall: call	pops
	expect	b_pcall, pops, CALL
	accesses b_pcall, 0, 2
	expect	pops_ret, 4f, RET
	accesses pops_ret, 1, 0
4:	/* A call of the next instruction. */
b_call0: call	1f
	expect	b_call0, 1f, CALL
1:	popq	%rax
	/* The function that switches threads, when a profile is made. */
	movl	$first_task, %edi
	movl	$second_task, %esi
b_switch: call	switch_threads
	expect	b_switch, switch_threads, CALL
	expect	switch_ret, 1f, RET
1:	/* A far return. */
	pushq	$8
	pushq	$2f
b_lret:	lretq
	expect	b_lret, 2f, RET
2:	/* Loops. */
	movl	$3, %ecx
b_loop:	loop	b_loop
	expect	b_loop, b_loop, COND
	expect	b_loop, b_loop, COND
b_jecxz: jecxz	1f
	expect	b_jecxz, 1f, COND
	jmp	wrong
1:	movl	$3, %ecx
own:	decl	%ecx
b_own:	jnz	own
	expect	b_own, own, COND
	expect	b_own, own, COND
	/* The iterations of a `rep` are no branches. */
	cld
	movl	$buffer, %esi
	movl	$buffer + 5000, %edi
	movl	$4500, %ecx
	rep movsb
	movl	$buffer, %edi
	movl	$600, %ecx
	rep stosq
	/* Instructions that leave the block's code for other reasons. */
	xorl	%eax, %eax
	cpuid
	rdtsc
	lock incl buffer + 62		/* crosses a cache line: all CPUs are stopped for it */
	nop
	movb	$(2f - 1f), 1f - 1	/* changes its own block */
	nop
b_smc:	.byte	0xeb, 0
1:	jmp	wrong
2:	nop
	expect	b_smc, 2b, JUMP
	/* Data accesses. */
	stretch	a_none, 0, 0
	movq	buffer, %rax
	movl	%eax, buffer
	movb	buffer + 1, %al
	stretch	a_plain, 2, 1
	movq	buffer - 4, %rax	/* from one page to the next */
	leaq	buffer, %rax
	prefetcht0 buffer
	nopl	buffer
	stretch	a_one, 1, 0
	incl	buffer
	addl	%eax, buffer
	cmpl	%eax, buffer
	stretch	a_rmw, 3, 2
	movl	buffer, %eax
	lock incl buffer
	xchgl	%ecx, buffer
	lock xaddl %ecx, buffer
	lock cmpxchgl %ecx, buffer
	cmpxchgl %ecx, buffer		/* stores even if it does not exchange */
	lock cmpxchg8b buffer
	lock cmpxchg16b buffer
	stretch	a_atomic, 8, 7
	pushq	%rax
	pushq	buffer
	pushfq
	popfq
	popq	%rax
	popq	%rax
	enter	$8, $0
	leave
	stretch	a_stack, 5, 4
	movl	$buffer, %esi
	movl	$buffer + 5000, %edi
	movl	$10, %ecx
	rep movsb
	movl	$6, %ecx
	rep stosq
	movl	$0, %ecx
	rep stosq
	lodsb
	stretch	a_string, 11, 16
	movl	$buffer, %esi
	movl	%esi, %edi
	movl	$5, %ecx
	repe cmpsb
	stretch	a_compare, 10, 0
	movl	$LAPIC_ID, %eax		/* of a device */
	nop
	movl	(%rax), %ecx
	nop
	stretch	a_device, 1, 0
	/* A block that crosses a page. */
b_page:	jmp	before_page_end
	expect	b_page, before_page_end, JUMP
	expect	b_cross, after_page, JUMP
after_page:
	/* An access to a device in mid-block, and a branch behind it. */
	movl	$LAPIC_ID, %ebx
	nop
	movl	(%rbx), %eax
	nop
	testl	%eax, %eax
	movl	(%rbx), %eax
b_mmio:	jmp	1f
	expect	b_mmio, 1f, JUMP
1:	call	reads_device
	expect	1b, reads_device, CALL
	expect	device_ret, 2f, RET
2:	/* Exceptions: at a block's end, and in its middle. */
	nop
b_ud:	ud2
	expect	b_ud, on_ud, INTERRUPT
	expect	ud_iret, 1f, IRET
1:	xorl	%ecx, %ecx
	nop
b_div:	divl	%ecx
	expect	b_div, on_divide, INTERRUPT
	expect	divide_iret, 1f, IRET
	nop
1:	nop
	xorl	%r14d, %r14d		/* %r14: what to map at NOWHERE, %r15: where to go on */
	movq	$0x8000000000, %rbx
	movl	$pf_resume, %r15d
	nop
b_pf:	movq	(%rbx), %rax
	expect	b_pf, on_page_fault, INTERRUPT
	expect	pf_iret, pf_resume, IRET
	nop
	jmp	wrong
pf_resume:
	nop
	/* At a block's end, then done again: a `rep` that fails in its middle. */
	movq	$0, NOWHERE_ENTRY
	invlpg	NOWHERE
	movl	$0x02000087, %r14d
	movl	$b_repf, %r15d
	movl	$NOWHERE - 1000, %edi
	movl	$2000, %ecx
b_repf:	rep stosb
	expect	b_repf, on_page_fault, INTERRUPT
	accesses b_repf, 0, 1001	/* the last of them fails */
	expect	pf_iret, b_repf, IRET
	nop
	/* In mid-block, then done again. */
	movq	$0, NOWHERE_ENTRY
	invlpg	NOWHERE
	movl	$b_again, %r15d
	movl	$NOWHERE, %ebx
b_again: movl	(%rbx), %eax
	expect	b_again, on_page_fault, INTERRUPT
	accesses b_again, 0, 1001
	expect	pf_iret, b_again, IRET
	nop
b_after: jmp	1f
	expect	b_after, 1f, JUMP
	accesses b_after, 1, 0
1:	/* A call to where nothing is. */
	movq	$0, NOWHERE_ENTRY
	invlpg	NOWHERE
	xorl	%r14d, %r14d
	movl	$1f, %r15d
b_void:	.byte	0xe8
	.long	NOWHERE - void_end
void_end:
	expect	b_void, NOWHERE, CALL
	expect	NOWHERE, on_page_fault, INTERRUPT
	expect	pf_iret, 1f, IRET
	jmp	wrong
1:	popq	%rax
	/* An indirect call that cannot read its target. */
	movl	$1f, %r15d
	movl	$NOWHERE, %ebx
b_vcall: call	*(%rbx)
	expect_told b_vcall, on_page_fault, INTERRUPT
	expect_inferred b_vcall, on_page_fault, IND_CALL
	expect	pf_iret, 1f, IRET
	jmp	wrong
1:	/* Single steps, over branches. */
	step
b_step:	jmp	1f
	expect	b_step, 1f, JUMP
	expect	1f, on_debug, INTERRUPT
	expect	debug_iret, 1f, IRET
	jmp	wrong
1:	step
b_stk:	jz	1f
	expect	b_stk, 1f, COND
	expect	1f, on_debug, INTERRUPT
	expect	debug_iret, 1f, IRET
	jmp	wrong
1:	step
b_snt:	jnz	wrong
1:	nop
	expect	1b, on_debug, INTERRUPT
	expect	debug_iret, 1b, IRET
	/* Software interrupts and system calls. */
b_int:	int	$0x80
	expect	b_int, on_int80, INT
	accesses b_int, 0, 0		/* what the CPU pushes for an interrupt is not seen */
	expect	int80_iret, 1f, IRET
	accesses int80_iret, 9, 0	/* five words, and two descriptors by halves */
1:	nop
b_int3:	int3
	expect	b_int3, on_int3, INT
	expect	int3_iret, 2f, IRET
2:	nop
b_sys:	syscall
	expect	b_sys, on_syscall, SYSCALL
	expect	sys_back, 3f, IND_JUMP
3:	/* User space: a fault there, and a system call. */
	movl	$user_fault, %ecx
	movl	$2, %r11d
	movl	$user, %r15d
	movl	$NOWHERE, %ebx
	movq	%rsp, %r13
b_sysret: sysretq
	expect	b_sysret, user_fault, SYSRET
user_fault:
	movl	(%rbx), %eax
	expect	user_fault, on_page_fault, INTERRUPT
	expect	pf_iret, user, IRET
	jmp	wrong
user:	nop
	/* A uprobe there: a breakpoint, in place of an instruction whose copy is stepped elsewhere. */
	movq	$copy - b_probe - 1, %r12
	movl	$0x100, %r10d
b_probe: int3
	expect	b_probe, on_int3, INT
	expect	int3_iret, copy, IRET
	expect	copied, on_debug, INTERRUPT
	expect	debug_iret, probed, IRET
	.skip	5, 0x90
probed:	xorl	%r12d, %r12d
	xorl	%r10d, %r10d
b_usys:	syscall
	expect	b_usys, on_syscall, SYSCALL
	expect	sys_back, 3f, IND_JUMP
3:	movq	%r13, %rsp
	/* An interrupt: sent by the CPU to itself, taken behind the instruction after `sti`. */
	movl	$LAPIC_ICR, %ebx
	movl	$0x00044040, (%rbx)
	nop
	sti
	nop
b_ipi:	nop
	expect	b_ipi, on_ipi, INTERRUPT
	expect	ipi_iret, b_ipi, IRET
	cli
	/* One right behind the access to a device that sends it. */
	sti
	movl	$LAPIC_ICR, %ebx
	nop
	movl	$0x00044040, (%rbx)
1:	nop
	expect	1b, on_ipi, INTERRUPT
	expect	ipi_iret, 1b, IRET
	cli
	/* One right behind a branch that is not taken, a call, and a return. */
	xorl	%eax, %eax
	ipi
b_int_not: jnz	wrong
1:	cli
	expect	1b, on_ipi, INTERRUPT
	expect	ipi_iret, 1b, IRET
	ipi
b_icl:	call	leaf
	expect	b_icl, leaf, CALL
	expect	leaf, on_ipi, INTERRUPT
	expect	ipi_iret, leaf, IRET
	expect	leaf_ret, 1f, RET
1:	cli
	pushq	$1f
	ipi
b_irt:	ret
	expect_told b_irt, 1f, RET
	expect_told 1f, on_ipi, INTERRUPT
	expect_inferred b_irt, on_ipi, RET
	expect	ipi_iret, 1f, IRET
	jmp	wrong
1:	cli
	/* One between the iterations of a `rep`. */
	movl	$buffer, %edi
	movl	$10, %ecx
	ipi
b_irep:	rep stosb
	expect	b_irep, on_ipi, INTERRUPT
	expect	ipi_iret, b_irep, IRET
	cli
	/* One that ends a `hlt`. */
	movl	$LAPIC_INITIAL, %ebx
	movl	$100000, (%rbx)
	sti
	hlt
b_hlt:	nop
	expect	b_hlt, on_timer, INTERRUPT
	expect	timer_iret, b_hlt, IRET
	cli
disarm:	magic	2
	jmp	disarmed		/* in the block that disarms: not recorded */
disarmed:
	decl	%ebp
	jnz	again

	/* A third window, of two CPUs, where there are two: the answer is fw_cfg's. */
	movw	$0x510, %dx
	movw	$5, %ax
	outw	%ax, %dx
	incl	%edx
	inb	%dx, %al
	cmpb	$2, %al
	jb	done
	movl	$trampoline, %esi
	movl	$TRAMPOLINE, %edi
	movl	$trampoline_end - trampoline, %ecx
	rep movsb
	movl	$LAPIC_ICR, %ebx
	movl	$0x000c4500, (%rbx)	/* INIT to all others */
	movl	$0x000c4600 + (TRAMPOLINE >> 12), (%rbx)
1:	pause
	cmpb	$0, second_ready
	je	1b
	movl	$setup, %eax
	magic	ARM
	movq	%cr3, %rax
	movq	%rax, %cr3
	movb	$1, go
first_waits:
	pause
	cmpb	$0, second_done
b_first_waits: je	first_waits
	magic	2
	jmp	done
done:	/* isa-debug-exit: QEMU ends with 2 * 0 + 1. */
	movw	$0xf4, %dx
	xorl	%eax, %eax
	outb	%al, %dx
	hlt

second:	movl	$second_stack_top, %esp
	movb	$1, second_ready
second_waits:
	pause
	cmpb	$0, go
b_second_waits: je	second_waits
s_jmp:	jmp	1f
	expect_second s_jmp, 1f, JUMP
1:	call	leaf
	expect_second 1b, leaf, CALL
	expect_second leaf_ret, s_ret, RET
s_ret:	movl	$1f, %eax
s_ijmp:	jmp	*%rax
	expect_second s_ijmp, 1f, IND_JUMP
1:	xorl	%eax, %eax
s_jz:	jz	1f
	expect_second s_jz, 1f, COND
	jmp	wrong
1:	movb	$1, second_done
2:	hlt
	jmp	2b

	.set TRAMPOLINE, 0x8000
	.code16
trampoline:
	cli
	movl	$0x20, %eax
	movl	%eax, %cr4
	movl	$pml4, %eax
	movl	%eax, %cr3
	movl	$0xc0000080, %ecx
	rdmsr
	orl	$0x101, %eax
	wrmsr
	xorl	%eax, %eax
	movw	%ax, %ds
	lgdtl	TRAMPOLINE + (trampoline_gdt - trampoline)
	movl	%cr0, %eax
	orl	$0x80000001, %eax
	movl	%eax, %cr0
	ljmpl	$8, $second
trampoline_gdt:
	.word	gdt_end - gdt - 1
	.long	gdt
trampoline_end:
	.code64

wrong:
	/* QEMU ends with 2 * 1 + 1. */
	movw	$0xf4, %dx
	movl	$1, %eax
	outb	%al, %dx
	hlt

copy:	movl	$1, %eax
copied:	jmp	wrong

leaf:	nop
leaf_ret: ret
kernel_arms:
	magic	ARM
	movq	%cr3, %rax
	movq	%rax, %cr3
	ret
kernel_disarms:
	magic	2
	movq	%cr3, %rax
	movq	%rax, %cr3
kernel_disarms_ret: ret
switch_threads:
	nop
switch_ret: ret
pops:	nop
pops_ret: ret	$8
reads_device:
	movl	(%rbx), %eax
	nop
device_ret: ret
on_ud:	addq	$2, (%rsp)
ud_iret: iretq
on_divide: addq	$3, (%rsp)
divide_iret: iretq
on_debug: subq	%r12, (%rsp)
	andl	$~0x100, 16(%rsp)
debug_iret: iretq
on_page_fault:
	movq	%r14, NOWHERE_ENTRY
	movq	%r15, 8(%rsp)
	addq	$8, %rsp
pf_iret: iretq
on_int80: nop
int80_iret: iretq
on_int3: addq	%r12, (%rsp)		/* a uprobe goes on at the copy, with single steps */
	orq	%r10, 16(%rsp)
int3_iret: iretq
on_ipi:	movl	$LAPIC_EOI, %ebx
	movl	$0, (%rbx)
	nop
ipi_iret: iretq
on_timer: movl	$LAPIC_EOI, %ebx
	movl	$0, (%rbx)
	nop
timer_iret: iretq
on_syscall: nop
sys_back: jmp	*%rcx
far_place:
	nop
b_back:	.byte 0x0f, 0x84		/* jz near */
	.long	back_place - (b_back + 6)
	jmp	wrong

	.if ARM == 4
	/*
	 * Instead of windows: programs of a hostile kernel ask for records. The setup lies nowhere, or names a
	 * stand-in that lies nowhere, or its CPU does. Then the place of the entries is a bad one.
	 */
	.macro	deliver	setup
	movq	$\setup, %rax
	magic	4
	movq	%cr3, %rax
	movq	%rax, %cr3
	.endm

asks:	movabsq	$KERNEL + kernel_arms, %rax
	call	*%rax			/* in the kernel: nothing happens */
	deliver	NOWHERE
	call	ask_all
	deliver	nowhere
	call	ask_all
	deliver	endless
	call	ask_all
	cmpq	$64, results		/* the room that was asked for */
	jne	wrong
	cmpq	$1024, results + 8	/* the most of any CPU */
	jne	wrong
	cmpq	$0, results + 16	/* no memory */
	jne	wrong
	jmp	done

ask_all:
	movl	$places, %ebp
	movl	$results, %ebx
1:	movq	(%rbp), %rdi
	movl	8(%rbp), %esi
	movabsq	$KERNEL + program, %rax
	call	*%rax
	movq	%rax, (%rbx)
	addq	$8, %rbx
	addq	$16, %rbp
	cmpl	$places_end, %ebp
	jb	1b
	magic	2
	jmp	1f
1:	ret

program:
	call	stand_in
	ret

	/* Records are written over it, and over the pages that follow. */
	.balign	4096
stand_in:
	xorl	%eax, %eax
	ret
	.skip	7 * 4096
	.balign	4096

	.pushsection .data
	.balign	8
stand_in_at: .quad KERNEL + stand_in
nowhere: .quad	NOWHERE, 0, 0, NOWHERE, -1
endless: .quad	stand_in_at, 0, 0, NOWHERE, -1
	/* Where to, and how many. */
places:	.quad	buffer, 64
	.quad	records, 0xffffffff
	.quad	NOWHERE, 32
	.quad	0, 32
	.quad	-8, 32			/* to the end of all addresses, and on */
	.quad	0x8000000000000000, 32	/* no address at all */
	.quad	KERNEL - 8, 32
	.quad	LAPIC_ICR, 32		/* devices */
	.quad	0xb0000000, 32
	.quad	0xfffff000, 1024	/* the firmware, to the end of 32 bits */
	.quad	0x3fffff0, 32		/* the end of memory */
	.quad	KERNEL + stand_in + 16, 0xffffffff /* its own code */
places_end:
	.popsection
	.pushsection .bss
	.balign	8
results: .skip	8 * 16
records: .skip	1024 * 24
	.popsection
	.endif

	.balign	4096
	.skip	4096 - 8, 0x90
before_page_end:
	.skip	20, 0x90
b_cross: jmp	after_page

	.data
pointer_leaf: .quad leaf
gdt:	.quad	0, 0x00af9b000000ffff, 0x00cf93000000ffff, 0
	.quad	0x00cff3000000ffff, 0x00affb000000ffff
gdt_tss: .quad	0x0000890000000067, 0
gdt_end:
gdt_pointer: .word gdt_end - gdt - 1
	.long	gdt
idt_pointer: .word 256 * 16 - 1
	.quad	idt

tss:	.long	0
	.quad	stack_top - 4096	/* the stack for what comes from user space */
	.skip	0x66 - 12
	.word	0x68
second_ready: .byte 0
go:	.byte	0
	.balign	16
setup:	.quad	switch_threads, 0, 0	/* of a profile */
	.long	8, 4
first_task: .long 0, 11
	.asciz	"first"
	.balign	32
second_task: .long 0, 12
	.asciz	"second"
	.balign	32
second_done: .byte 0

	.bss
	.balign	4096
pml4:	.skip	4096
pdpt:	.skip	4096
pd:	.skip	4 * 4096
idt:	.skip	256 * 16
buffer:	.skip	12000
	.balign	16
stack:	.skip	16384
stack_top:
	.skip	4096
second_stack_top:
