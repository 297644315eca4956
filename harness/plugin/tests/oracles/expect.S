/* SPDX-License-Identifier: GPL-2.0-or-later */
/* How the images say what must be recorded of them, read by machine.rs. */
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

	/* What every QEMU makes the plugin record. */
	.macro expect from, to, kind
	.pushsection .expected, ""
	.quad \from, \to, \kind, 0
	.popsection
	.endm

	/* What is recorded where QEMU tells of interrupts (10.2 and newer), and where they are inferred. */
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

	/* The same of the second CPU, in the third window. */
	.macro expect_second from, to, kind
	.pushsection .expected_second, ""
	.quad \from, \to, \kind, 0
	.popsection
	.endm

	/* As in tramplab-protocol's magic.rs; assembled with another number here, the windows are profiles. */
	.ifndef ARM
	.set ARM, 1
	.endif
