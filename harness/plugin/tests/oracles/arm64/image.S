/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A machine of known branches, as x86_64/image.S is: beside every branch that is taken between Arm and Disarm stands what must
 * be recorded of it.
 *
 * Started by `-kernel` as an ELF file: at EL1, without the MMU.
 */
	.arch	armv8.8-a+sve
	.arch_extension mops

#include "../expect.S"

	.macro magic number
	movz	xzr, #0x7b40 + \number
	.endm

	.macro la register, symbol
	adrp	\register, \symbol
	add	\register, \register, :lo12:\symbol
	.endm

	/* A branch that ends a stretch with these data accesses. */
	.macro stretch label, reads, writes
\label:	b	9f
	expect	\label, 9f, JUMP
	accesses \label, \reads, \writes
9:
	.endm

	/* The next exception's handler goes on there. */
	.macro resume where
	adr	x26, \where
	.endm

	/* An exception at `from`, which goes on at `to`. */
	.macro expect_exception from, to
	expect	\from, v_sync, INTERRUPT
	expect	sync_eret, \to, IRET
	.endm

	.macro unmap_nowhere
	str	xzr, [x25]
	dsb	ish
	tlbi	vmalle1
	dsb	ish
	isb
	.endm

	/* Sends this CPU an interrupt, which is taken when it lets it. */
	.macro ipi
	mov	x0, #1
	msr	S3_0_C12_C11_5, x0	/* ICC_SGI1R_EL1: number 0, to CPU 0 */
	isb
	.endm

	/* The instruction at `place` is executed and traps behind itself; the branch to it is label `eret`'s. */
	.macro step place, label
	mov	x0, #0x1c5		/* EL1, debug exceptions let through */
	movk	x0, #0x20, lsl #16	/* one step */
	msr	spsr_el1, x0
	adr	x0, \place
	msr	elr_el1, x0
	tst	xzr, xzr
\label:	eret
	expect	\label, \place, IRET
	.endm

	/* Not mapped, but in some tests. */
	.set TEXT, 0x40200000		/* where `start` is linked */
	.set NOWHERE, 0x42000000
	.set NORMAL, 0x701		/* of a table's entry: a block, accessed, shared, in ordinary memory */
	.set EL0, 0x40
	.set READ_ONLY, 0x80
	.set GUARDED, 1 << 50
	.set PXN, 1 << 53
	.set UXN, 1 << 54
	.set UART, 0x09000000
	.set GICD, 0x08000000
	.set GICR, 0x080a0000
	.set AT_EL1, 0x3c5		/* all masked */
	.set AT_EL0, 0x3c0

	.text
	.globl start
start:	/* RAM and the devices mapped as they are; user space may run .user and use .data. */
	la	x0, stack_top
	mov	sp, x0
	la	x0, level1
	ldr	x1, =0x405 | UXN | PXN	/* devices */
	str	x1, [x0]
	la	x2, level2
	orr	x1, x2, #3
	str	x1, [x0, #8]
	ldr	x1, =0x40200000 | NORMAL | UXN | GUARDED
	str	x1, [x2, #8]
	ldr	x1, =0x40400000 | NORMAL | EL0 | READ_ONLY | PXN | GUARDED
	str	x1, [x2, #16]
	ldr	x1, =0x40600000 | NORMAL | EL0 | UXN | PXN
	str	x1, [x2, #24]
	add	x25, x2, #8 * ((NOWHERE >> 21) & 511)
	ldr	x1, =(NOWHERE - 0x200000) | NORMAL | EL0 | UXN | PXN
	str	x1, [x25, #-8]
	msr	ttbr0_el1, x0
	mov	x0, #0xff
	msr	mair_el1, x0
	ldr	x0, =0x803519		/* 39 bits, in pages of 4 KiB; nothing above */
	msr	tcr_el1, x0
	isb
	tlbi	vmalle1
	dsb	ish
	mrs	x0, sctlr_el1
	ldr	x1, =0xc0051205		/* the MMU, caches, both keys, WFI and DAIF in user space */
	orr	x0, x0, x1
	msr	sctlr_el1, x0
	isb
	adrp	x0, vectors
	msr	vbar_el1, x0
	mov	x0, #0x330000		/* floating point and SVE */
	msr	cpacr_el1, x0
	isb
	/* Keys: any will do. */
	ldr	x0, =0x0123456789abcdef
	msr	S3_0_C2_C1_0, x0	/* APIAKeyLo_EL1 */
	msr	S3_0_C2_C1_3, x0	/* APIBKeyHi_EL1 */
	msr	oslar_el1, xzr		/* single steps may be asked for */
	/* Interrupts: this CPU's first 32 and the first of a device. */
	ldr	x0, =GICD
	mov	w1, #0x13
	str	w1, [x0]
	mov	w1, #-1
	str	w1, [x0, #0x84]		/* GICD_IGROUPR1 */
	mov	w1, #1
	str	w1, [x0, #0x104]	/* GICD_ISENABLER1 */
	mov	w1, #2
	str	w1, [x0, #0xc08]	/* GICD_ICFGR2: by edge */
	ldr	x0, =GICR
	str	wzr, [x0, #0x14]	/* GICR_WAKER */
	add	x0, x0, #0x10000
	mov	w1, #-1
	str	w1, [x0, #0x80]		/* GICR_IGROUPR0 */
	str	w1, [x0, #0x100]	/* GICR_ISENABLER0 */
	mov	x0, #7
	msr	S3_0_C12_C12_5, x0	/* ICC_SRE_EL1 */
	isb
	mov	x0, #0xff
	msr	S3_0_C4_C6_0, x0	/* ICC_PMR_EL1 */
	mov	x0, #1
	msr	S3_0_C12_C12_7, x0	/* ICC_IGRPEN1_EL1 */
	isb
	/* For the handlers: where they go on to, and what they map at NOWHERE; whether the timer goes off again, and when. */
	mov	x22, #AT_EL1
	mov	x28, #0
	mov	x23, #0
	mov	x21, #0
	/* Windows: the whole list is run twice, into two traces. */
	mov	x27, #2
again:
	magic	2			/* not armed: nothing happens */
	la	x0, setup
	magic	ARM
arming:	isb				/* ends the block that arms, however long blocks are */
armed:
	magic	ARM			/* armed already: nothing happens */
	cbz	x27, storm

	/* Conditional, by flags. */
	cmp	xzr, xzr
	b.ne	wrong_near
b_eq:	b.eq	1f
	expect	b_eq, 1f, COND
wrong_near: b	wrong
1:	bc.ne	wrong_near
b_bc:	bc.eq	1f
	expect	b_bc, 1f, COND
	b	wrong
1:	/* By a register. */
	mov	x1, #1 << 32
	cbz	x1, wrong_near
b_cbz:	cbz	w1, 1f
	expect	b_cbz, 1f, COND
	b	wrong
1:	cbnz	w1, wrong_near
b_cbnz:	cbnz	x1, 1f
	expect	b_cbnz, 1f, COND
	b	wrong
1:	/* By a bit. */
	tbnz	w1, #0, wrong_near
b_tbz:	tbz	w1, #31, 1f
	expect	b_tbz, 1f, COND
	b	wrong
1:	tbz	x1, #32, wrong_near
b_tbnz:	tbnz	x1, #32, 1f
	expect	b_tbnz, 1f, COND
	b	wrong
1:	/* Long ones, forwards and backwards. */
b_fwd:	b.eq	far_place
	expect	b_fwd, far_place, COND
	expect	far_tbz, far_second, COND
	expect	far_back, back_place, COND
	b	wrong
back_place:
	/* More than fits in a block. */
	.rept	600
	nop
	.endr
	/* Direct and indirect jumps. */
b_jmp:	b	1f
	expect	b_jmp, 1f, JUMP
	b	wrong
1:
b_next:	b	1f
	expect	b_next, 1f, JUMP
1:	adr	x9, 1f
b_br:	br	x9
	expect	b_br, 1f, IND_JUMP
	b	wrong
1:	bti	j
	adr	x16, 1f
b_br16:	br	x16
	expect	b_br16, 1f, IND_JUMP
	b	wrong
1:	bti	c
	mov	x10, #77
	adr	x9, 1f
	pacia	x9, x10
b_braa:	braa	x9, x10
	expect	b_braa, 1f, IND_JUMP
	b	wrong
1:	bti	j
	adr	x9, 1f
	pacizb	x9
b_brabz: brabz	x9
	expect	b_brabz, 1f, IND_JUMP
	b	wrong
1:	bti	jc
	/* Calls and returns. */
b_bl:	bl	leaf
	expect	b_bl, leaf, CALL
	expect	leaf_ret, 1f, RET
1:	adr	x9, leaf
b_blr:	blr	x9
	expect	b_blr, leaf, IND_CALL
	expect	leaf_ret, 1f, RET
1:	adr	x9, leaf
	pacib	x9, x10
b_blrab: blrab	x9, x10
	expect	b_blrab, leaf, IND_CALL
	expect	leaf_ret, 1f, RET
1:	adr	x9, leaf
	paciza	x9
b_blraaz: blraaz x9
	expect	b_blraaz, leaf, IND_CALL
	expect	leaf_ret, 1f, RET
1:
b_signs: bl	signs
	expect	b_signs, signs, CALL
	expect	signs_ret, 1f, RET
1:
b_signsb: bl	signs_b
	expect	b_signsb, signs_b, CALL
	expect	signs_b_ret, 1f, RET
1:	/* A call of the next instruction, and a return to it. */
b_call0: bl	1f
	expect	b_call0, 1f, CALL
1:	adr	x9, 1f
b_ret9:	ret	x9
	expect	b_ret9, 1f, RET
1:	/* The function that switches threads, when a profile is made. */
	la	x0, first_task
	la	x1, second_task
b_switch: bl	switch_threads
	expect	b_switch, switch_threads, CALL
	expect	switch_ret, 1f, RET
1:	/* Loops. */
	mov	x1, #3
own:	subs	x1, x1, #1
b_own:	b.ne	own
	expect	b_own, own, COND
	expect	b_own, own, COND
b_self:	cbnz	x1, b_self
	/* Instructions that copy and set memory are no branches. */
	la	x1, buffer
	la	x2, buffer + 5000
	mov	x3, #4500
	cpyfp	[x1]!, [x2]!, x3!
	cpyfm	[x1]!, [x2]!, x3!
	cpyfe	[x1]!, [x2]!, x3!
	la	x1, buffer
	mov	x3, #4800
	setp	[x1]!, x3!, xzr
	setm	[x1]!, x3!, xzr
	sete	[x1]!, x3!, xzr
	/* Instructions that leave the block's code for other reasons. */
	la	x1, buffer
	add	x2, x1, #4
	mov	x3, #1
	ldadd	x3, x4, [x2]		/* not aligned: all CPUs are stopped for it */
	mov	x4, #0
	mov	x5, #0
	casp	x4, x5, x4, x5, [x1]
	ldxr	x4, [x1]
	stxr	w5, x4, [x1]
	dc	zva, x1
	dsb	sy
	isb
	yield
	wfe
	mrs	x0, cntvct_el0
	mov	w0, #0x84000000		/* PSCI_VERSION */
	hvc	#0
	/* Code that is changed. */
	adr	x1, b_smc
	ldr	w2, 2f
	str	w2, [x1]
	dc	cvau, x1
	dsb	ish
	ic	ivau, x1
	dsb	ish
	isb
b_smc:	b	wrong
	b	wrong
2:	b	. + (1f - b_smc)	/* as it is at b_smc */
1:	ldr	w2, 2f
	expect	b_smc, 1b, JUMP
	str	w2, [x1]
	dc	cvau, x1
	dsb	ish
	ic	ivau, x1
	dsb	ish
	isb
	b	3f
	expect	3f - 8, 3f, JUMP
2:	b	. + (wrong - b_smc)
3:	/* Data accesses. */
	la	x1, buffer
	stretch	a_none, 0, 0
	ldr	x0, [x1]
	str	w0, [x1]
	ldrb	w0, [x1, #1]
	ldr	x0, 1f
	b	2f
1:	.quad	0
2:
	expect	1b - 4, 2b, JUMP
	accesses 1b - 4, 3, 1
	sub	x0, x1, #4
	ldr	x0, [x0]		/* from one page to the next */
	prfm	pldl1keep, [x1]
	stretch	a_one, 1, 0
	ldp	x2, x3, [x1]
	stp	x2, x3, [x1]
	ldp	w2, w3, [x1]
	stp	w2, w3, [x1]
	stretch	a_pair, 2, 2
	ldr	q0, [x1]
	str	q0, [x1]
	stretch	a_vector, 1, 1
	ldp	q0, q1, [x1]
	stp	q0, q1, [x1]
	stretch	a_vectors, 2, 2
	mov	x3, #1
	ldadd	x3, x4, [x1]
	swp	x3, x4, [x1]
	cas	x3, x4, [x1]
	casp	x4, x5, x4, x5, [x1]
	stretch	a_atomic, 4, 4
	ldxr	x4, [x1]
	stxr	w5, x4, [x1]		/* a compare-and-exchange */
	stretch	a_exclusive, 2, 1
	clrex
	stxr	w5, x4, [x1]		/* not done */
	stretch	a_failed, 0, 0
	dc	zva, x1			/* QEMU reports none, nor for copies */
	stretch	a_zva, 0, 0
	la	x2, buffer + 5000
	mov	x3, #45
	cpyfp	[x1]!, [x2]!, x3!
	cpyfm	[x1]!, [x2]!, x3!
	cpyfe	[x1]!, [x2]!, x3!
	stretch	a_copy, 0, 0
	/* From one page to the next. */
b_page:	b	before_page_end
	expect	b_page, before_page_end, JUMP
	expect	b_cross, after_page, JUMP
after_page:
	/* An access to a device in mid-block, and a branch behind it. */
	ldr	x1, =UART
	nop
	ldr	w0, [x1, #0x18]
	nop
	tst	w0, w0
	ldr	w0, [x1, #0x18]
b_mmio:	b	1f
	expect	b_mmio, 1f, JUMP
1:	bl	reads_device
	expect	1b, reads_device, CALL
	expect	device_ret, 2f, RET
2:	/* Exceptions: at a block's end, and in its middle. */
	resume	1f
	nop
b_udf:	udf	#7
	expect_exception b_udf, 1f
	b	wrong
1:	resume	1f
b_brk:	brk	#7
	expect	b_brk, v_sync, INT
	expect	sync_eret, 1f, IRET
	b	wrong
1:	resume	1f
b_hlt:	hlt	#7
	expect_exception b_hlt, 1f
	b	wrong
1:	resume	1f
b_smc3:	smc	#0
	expect_exception b_smc3, 1f
	b	wrong
1:	mov	x1, #1 << 38		/* nothing is there */
	resume	1f
	nop
b_ldr:	ldr	x0, [x1]
	expect_exception b_ldr, 1f
	nop
	b	wrong
1:	resume	1f
	nop
b_stp:	stp	x0, x2, [x1, #-16]!
	expect_exception b_stp, 1f
	nop
	b	wrong
1:	resume	1f
b_zva:	dc	zva, x1
	expect_exception b_zva, 1f
	b	wrong
1:	resume	1f
	nop
b_ldadd: ldadd	x0, x2, [x1]
	expect_exception b_ldadd, 1f
	nop
	b	wrong
1:	resume	1f
	ptrue	p0.b
b_sve:	ld1b	{ z0.b }, p0/z, [x1]
	expect_exception b_sve, 1f
	nop
	b	wrong
1:	resume	1f
	la	x2, buffer + 12
b_align: ldadd	x0, x3, [x2]		/* from one 16 bytes to the next */
	expect_exception b_align, 1f
	nop
	b	wrong
1:	/* In mid-block, then done again: the first time in the midst of what it does. */
	ldr	x28, =NOWHERE | NORMAL | EL0 | UXN | PXN
	resume	b_setm
	unmap_nowhere
	ldr	x1, =NOWHERE - 1000
	mov	x3, #6000
	setp	[x1]!, x3!, xzr
	nop
b_setm:	setm	[x1]!, x3!, xzr
	expect_exception b_setm, b_setm
	sete	[x1]!, x3!, xzr
	unmap_nowhere
	resume	b_again
	ldr	x1, =NOWHERE
	nop
b_again: ldr	w0, [x1]
	expect_exception b_again, b_again
	accesses b_again, 1, 1		/* its address is read */
	nop
b_after: b	1f
	expect	b_after, 1f, JUMP
	accesses b_after, 1, 0
	b	wrong
1:	/* A call to where nothing is. */
	unmap_nowhere
	mov	x28, #0
	resume	1f
b_void:	bl	start + (NOWHERE - TEXT)
	expect	b_void, NOWHERE, CALL
	expect_exception NOWHERE, 1f
	b	wrong
1:	/* A return whose address is not authentic. */
	resume	1f
	adr	x30, wrong
	movk	x30, #0x1234, lsl #48
b_retaa: retaa
	expect_told b_retaa, v_sync, INTERRUPT
	expect_inferred b_retaa, v_sync, RET
	expect	sync_eret, 1f, IRET
	b	wrong
1:	/* A jump to where none may lead; the handler lets it. */
	adr	x9, 1f
	resume	1f
b_nopad: br	x9
	expect	b_nopad, 1f, IND_JUMP
	expect_exception 1f, 1f
	b	wrong
1:	nop
	/* Single steps, over branches. */
	mov	x0, #0x2001
	msr	mdscr_el1, x0
	isb
	resume	2f
	step	1f, e_b
1:	b	2f
	expect	1b, 2f, JUMP
	expect_exception 2f, 2f
	b	wrong
2:	resume	2f
	cmp	xzr, xzr
	step	1f, e_taken
1:	cbz	xzr, 2f
	expect	1b, 2f, COND
	expect_exception 2f, 2f
	b	wrong
2:	resume	2f
	step	1f, e_not
1:	cbnz	xzr, wrong_far
2:	nop
	expect_exception 2b, 2b
	resume	2f
	la	x1, buffer
	step	1f, e_ldr
1:	ldr	x0, [x1]
2:	nop
	expect_exception 2b, 2b
	resume	leaf
	step	1f, e_bl
1:	bl	leaf
	expect	1b, leaf, CALL
	expect_exception leaf, leaf
	expect	leaf_ret, 2f, RET
2:	adr	x30, 2f
	resume	2f
	step	1f, e_ret
1:	ret
	expect_told 1b, 2f, RET
	expect_told 2f, v_sync, INTERRUPT
	expect_inferred 1b, v_sync, RET
	expect	sync_eret, 2f, IRET
	b	wrong
2:	msr	mdscr_el1, xzr
	isb
	/* System calls: from here, and from user space, which faults as well. */
	resume	1f
b_svc:	svc	#1
	expect	b_svc, v_sync, SYSCALL
	expect	sync_eret, 1f, IRET
	b	wrong
1:	mov	x0, #AT_EL0
	msr	spsr_el1, x0
	la	x0, user
	mov	x1, sp
	pacia	x0, x1
	msr	elr_el1, x0
	mov	x22, #AT_EL0
	mov	x1, #1 << 38
	la	x26, user_faulted
	ipi				/* for later */
b_eret:	eretaa
	expect	b_eret, user, IRET
	.pushsection .user, "ax"
user:	nop
b_uldr:	ldr	x0, [x1]
	expect	b_uldr, v_user_sync, INTERRUPT
	expect	user_sync_eret, user_faulted, IRET
	b	user
user_faulted:
	adr	x26, 1f
	nop
b_uudf:	udf	#0
	expect	b_uudf, v_user_sync, INTERRUPT
	expect	user_sync_eret, 1f, IRET
	b	user
1:	adr	x26, 1f
b_usvc:	svc	#0
	expect	b_usvc, v_user_sync, SYSCALL
	expect	user_sync_eret, 1f, IRET
	b	user
1:	msr	daifclr, #2
b_uirq:	nop
	expect	b_uirq, v_user_irq, INTERRUPT
	expect	user_irq_eret, b_uirq, IRET
	adrp	x26, from_user
	add	x26, x26, :lo12:from_user
	mov	x22, #AT_EL1
	nop
b_usvc2: svc	#0
	expect	b_usvc2, v_user_sync, SYSCALL
	expect	user_sync_eret, from_user, IRET
	b	user
	.popsection
from_user:
	/* A uprobe: user space meets a breakpoint, and a copy of the instruction is stepped elsewhere. */
	la	x0, probe_vectors
	msr	vbar_el1, x0
	mov	x0, #AT_EL0
	msr	spsr_el1, x0
	la	x0, b_probe
	msr	elr_el1, x0
	la	x24, probe_list
	isb
b_enters: eret
	expect	b_enters, b_probe, IRET
	.pushsection .user, "ax"
b_probe: brk	#7
	expect	b_probe, v_probe, INT
	expect	probe_eret, copy, IRET
	expect	copied, v_probe, INTERRUPT
	expect	probe_eret, probed, IRET
probed:	nop
b_psvc:	svc	#0
	expect	b_psvc, v_probe, SYSCALL
	expect	probe_eret, behind_probe, IRET
	b	user
copy:	mov	w0, #1
copied:	b	user
	.popsection
behind_probe:
	la	x0, vectors
	msr	vbar_el1, x0
	isb
	/* Interrupts: sent by the CPU to itself. */
	ipi
	nop
	msr	daifclr, #2
b_irq:	nop
	expect	b_irq, v_irq, INTERRUPT
	expect	irq_eret, b_irq, IRET
	msr	daifset, #2
	/* One right behind the end of another exception. */
	ipi
	mov	x0, #0x345
	msr	spsr_el1, x0
	adr	x0, 1f
	msr	elr_el1, x0
b_eirq:	eret
	expect_told b_eirq, 1f, IRET
	expect_told 1f, v_irq, INTERRUPT
	expect_inferred b_eirq, v_irq, IRET
	expect	irq_eret, 1f, IRET
	b	wrong
1:	msr	daifset, #2
	/* One of a device, by an access to it. */
	msr	daifclr, #2
	ldr	x0, =GICD
	mov	w1, #1
	nop
b_spi:	str	w1, [x0, #0x204]	/* GICD_ISPENDR1 */
1:	nop
	expect	1b, v_irq, INTERRUPT
	expect	irq_eret, 1b, IRET
	msr	daifset, #2
	/* One that ends a `wfi`. */
	mov	x0, #10000
	msr	cntv_tval_el0, x0
	mov	x0, #1
	msr	cntv_ctl_el0, x0
	isb
	wfi
	msr	daifclr, #2
b_wfi:	nop
	expect	b_wfi, v_irq, INTERRUPT
	expect	irq_eret, b_wfi, IRET
	msr	daifset, #2
disarm:	magic	2
	b	disarmed		/* in the block that disarms: not recorded */
disarmed:
	subs	x27, x27, #1
	b.gt	again

	/* A third window, of two CPUs, where there are two: PSCI's CPU_ON knows. Else it is the storm. */
	tbnz	x27, #63, done
	ldr	x0, =0xc4000003
	mov	x1, #1
	la	x2, second
	mov	x3, #0
	hvc	#0
	cbnz	x0, again
	la	x4, second_ready
1:	yield
	ldrb	w0, [x4]
	cbz	w0, 1b
	la	x0, setup
	magic	ARM
	isb
	la	x4, go
	mov	w0, #1
	strb	w0, [x4]
	la	x4, second_done
first_waits:
	yield
	ldrb	w0, [x4]
b_first_waits: cbz w0, first_waits
	magic	2
	b	done
done:	mov	x2, #1
	b	exit
wrong_far:
wrong:	mov	x2, #3
exit:	/* Semihosting's SYS_EXIT_EXTENDED: QEMU ends with this. */
	la	x1, reason
	str	x2, [x1, #8]
	mov	x0, #0x20
	hlt	#0xf000

	/*
	 * A timer's interrupts, wherever they come: what is to be recorded is not known here.
	 */
storm:	mov	x19, #600
	mov	x20, #1 << 38		/* nothing is there */
	mov	x23, #1
	mov	x0, #1000
	msr	cntv_tval_el0, x0
	msr	cntv_ctl_el0, x23
	mov	x22, #0x345
	msr	daifclr, #2
	la	x0, first_task
	la	x1, second_task
	bl	switch_threads
stormy:	bl	leaf
	bl	signs
	adr	x9, leaf
	blr	x9
	adr	x9, 1f
	br	x9
	b	wrong
1:	bti	j
	tbz	x19, #0, 1f
	tbnz	x19, #1, 1f
	nop
1:	cbz	x20, wrong
	cbnz	x20, 1f
	b	wrong
1:	mov	x1, #3
1:	subs	x1, x1, #1
	b.ne	1b
	la	x1, buffer
	mov	x3, #300
	setp	[x1]!, x3!, xzr
	setm	[x1]!, x3!, xzr
	sete	[x1]!, x3!, xzr
	ldr	x0, [x1]
	b	1f
1:	ldr	x0, [x1]
	ldr	x2, =UART
	ldr	w0, [x2, #0x18]
	nop
	bl	reads_uart
	/* Exceptions. */
	resume	1f
	nop
	ldr	x0, [x20]
	nop
	b	wrong
1:	resume	1f
	brk	#1
	b	wrong
1:	resume	1f
	svc	#1
	b	wrong
1:	/* User space. */
	msr	daifset, #2
	mov	x0, #0x340
	msr	spsr_el1, x0
	la	x0, stormy_user
	msr	elr_el1, x0
	resume	1f
	eret
	.pushsection .user
stormy_user:
	mov	x1, #3
2:	subs	x1, x1, #1
	b.ne	2b
	bl	2f
	b	3f
2:	ret
3:	svc	#2
	b	stormy_user
	.popsection
1:	subs	x19, x19, #1
	b.ne	stormy
	msr	daifset, #2
	msr	cntv_ctl_el0, xzr
	b	disarm

second:	/* As it was started: without the MMU. */
	la	x4, second_ready
	mov	w0, #1
	strb	w0, [x4]
	la	x4, go
second_waits:
	yield
	ldrb	w0, [x4]
b_second_waits: cbz w0, second_waits
s_jmp:	b	1f
	expect_second s_jmp, 1f, JUMP
	nop
1:	bl	leaf
	expect_second 1b, leaf, CALL
	expect_second leaf_ret, s_ret, RET
s_ret:	adr	x9, 1f
s_br:	br	x9
	expect_second s_br, 1f, IND_JUMP
	nop
1:	mov	x0, #0
s_cbz:	cbz	x0, 1f
	expect_second s_cbz, 1f, COND
	b	wrong
1:	la	x4, second_done
	mov	w0, #1
	strb	w0, [x4]
2:	wfi
	b	2b

leaf:	bti	c
	nop
leaf_ret: ret
switch_threads:
	nop
switch_ret: ret
signs:	paciasp
	nop
signs_ret: retaa
signs_b: pacibsp
	nop
signs_b_ret: retab
reads_uart:
	ldr	w0, [x2, #0x18]
	nop
	ret
reads_device:
	ldr	w0, [x1, #0x18]
	nop
device_ret: ret
	.ltorg
	.skip	20000
far_second:
	nop
far_back: cbz	xzr, back_place
	b	wrong
	.skip	30000
far_place:
	nop
far_tbz: tbz	xzr, #63, far_second
	b	wrong

	.balign	4096
	.skip	4096 - 8 - 4 * 4
	.rept	4
	nop
	.endr
before_page_end:
	.rept	5
	nop
	.endr
b_cross: b	after_page

	/* Each handler fits in its slot, and has no branch but its last instruction. */
	.macro goes_on label		/* at x26, in the mode of x22, with x28 as what is mapped at NOWHERE */
	str	x28, [x25]
	dsb	ish
	tlbi	vmalle1
	dsb	ish
	msr	elr_el1, x26
	msr	spsr_el1, x22
	isb
\label:	eret
	.endm
	.macro acknowledges label
	msr	tpidr_el1, x16
	add	x21, x21, x21, lsl #5	/* the timer goes off when nobody would expect it */
	add	x21, x21, #77
	ubfx	x16, x21, #20, #1
	and	x24, x21, #0x1ff
	lsl	x24, x24, x16
	mrs	x16, S3_0_C12_C12_0	/* ICC_IAR1_EL1 */
	msr	cntv_tval_el0, x24
	msr	cntv_ctl_el0, x23
	msr	S3_0_C12_C12_1, x16	/* ICC_EOIR1_EL1 */
	mrs	x16, tpidr_el1
	isb
\label:	eret
	.endm
	.balign	4096
vectors: .skip	0x200
v_sync:	goes_on	sync_eret
	.org	vectors + 0x280
v_irq:	acknowledges irq_eret
	.org	vectors + 0x400
v_user_sync: goes_on user_sync_eret
	.org	vectors + 0x480
v_user_irq: acknowledges user_irq_eret
	.org	vectors + 0x800
probe_vectors: .skip 0x400
v_probe: ldp	x0, x1, [x24], #16	/* goes on as the list says */
	ldr	x2, [x24], #16
	msr	elr_el1, x0
	msr	spsr_el1, x1
	msr	mdscr_el1, x2
	isb
probe_eret: eret
	.org	probe_vectors + 0x800

	.data
	.balign	16
probe_list:				/* address, mode, single steps */
	.quad	copy, AT_EL0 | 1 << 21, 1, 0
	.quad	probed, AT_EL0, 0, 0
	.quad	behind_probe, AT_EL1, 0, 0
reason:	.quad	0x20026, 0		/* ADP_Stopped_ApplicationExit */
setup:	.quad	switch_threads, 0, 0
	.long	8, 4
first_task: .long 0, 11
	.asciz	"first"
	.balign	32
second_task: .long 0, 12
	.asciz	"second"
	.balign	32
second_ready: .byte 0
go:	.byte	0
second_done: .byte 0

	.bss
	.balign	4096
level1:	.skip	4096
level2:	.skip	4096
buffer:	.skip	12000
	.balign	16
stack:	.skip	16384
stack_top:
