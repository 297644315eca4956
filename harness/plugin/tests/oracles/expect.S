/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Macros by which the images list their expected records. machine.rs reads the lists. */
	.set COND, 0
	.set JUMP, 1
	.set IND_JUMP, 2
	.set CALL, 3
	.set IND_CALL, 4
	.set RET, 5
	.set SYSCALL, 6
	.set SYSRET, 7
	.set IRET, 8
	.set INT, 9
	.set INTERRUPT, 10

	/* A record under every QEMU. */
	.macro expect from, to, kind
	.pushsection .expected, ""
	.quad \from, \to, \kind, 0
	.popsection
	.endm

	/* A record under a QEMU that reports interrupts (10.2 and newer), and one where they are inferred. */
	.macro expect_told from, to, kind
	.pushsection .expected, ""
	.quad \from, \to, \kind, 1
	.popsection
	.endm
	.macro expect_inferred from, to, kind
	.pushsection .expected, ""
	.quad \from, \to, \kind, 2
	.popsection
	.endm

	/* The same for the second CPU, in the third window. */
	.macro expect_second from, to, kind
	.pushsection .expected_second, ""
	.quad \from, \to, \kind, 0
	.popsection
	.endm

	/* Data accesses since the record before, up to the branch at `from`, which is recorded once. */
	.macro accesses from, reads, writes
	.pushsection .accesses, ""
	.quad \from, \reads, \writes
	.popsection
	.endm

	/* See magic.rs in tramplab-protocol. Assembled with another number, the windows are profiles. */
	.ifndef ARM
	.set ARM, 1
	.endif
