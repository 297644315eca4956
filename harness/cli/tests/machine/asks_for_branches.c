// SPDX-License-Identifier: MIT OR Apache-2.0
// Asks as the kernel tree's test of branch records does: for a CPU without the flag of guests, for
// an event of branches, and for a snapshot in a BPF program.
#include <errno.h>
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int opens(unsigned long long sample_type)
{
	struct perf_event_attr attr = {
		.size = sizeof(attr),
		.type = PERF_TYPE_HARDWARE,
		.config = PERF_COUNT_HW_CPU_CYCLES,
		.sample_type = sample_type,
		.branch_sample_type = PERF_SAMPLE_BRANCH_KERNEL | PERF_SAMPLE_BRANCH_USER |
				      PERF_SAMPLE_BRANCH_ANY,
	};
	int event = syscall(SYS_perf_event_open, &attr, -1, 0, -1, PERF_FLAG_FD_CLOEXEC);
	if (event < 0)
		return errno;
	return close(event);
}

#define INSN(c, d, s, o, i) \
	((struct bpf_insn){ .code = (c), .dst_reg = (d), .src_reg = (s), .off = (o), .imm = (i) })

// Runs a program that asks for two records. Returns the helper's result, or the newest record's
// target.
static long snapshot(int target)
{
	struct bpf_insn insns[] = {
		INSN(BPF_ST | BPF_MEM | BPF_DW, 10, 0, -40, 0),
		INSN(BPF_ALU64 | BPF_MOV | BPF_X, 1, 10, 0, 0),
		INSN(BPF_ALU64 | BPF_ADD | BPF_K, 1, 0, 0, -2 * (int)sizeof(struct perf_branch_entry)),
		INSN(BPF_ALU64 | BPF_MOV | BPF_K, 2, 0, 0, 2 * sizeof(struct perf_branch_entry)),
		INSN(BPF_ALU64 | BPF_MOV | BPF_K, 3, 0, 0, 0),
		INSN(BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_get_branch_snapshot),
		target ? INSN(BPF_LDX | BPF_MEM | BPF_DW, 0, 10, -40, 0) :
			 INSN(BPF_ALU64 | BPF_ADD | BPF_K, 0, 0, 0, 0),
		INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
	};
	union bpf_attr load = {
		.prog_type = BPF_PROG_TYPE_RAW_TRACEPOINT,
		.insns = (uintptr_t)insns,
		.insn_cnt = sizeof(insns) / sizeof(*insns),
		.license = (uintptr_t)"GPL",
	};
	int program = syscall(SYS_bpf, BPF_PROG_LOAD, &load, sizeof(load));
	if (program < 0)
		return -errno * 1000L;
	union bpf_attr run = { .test.prog_fd = program };
	if (syscall(SYS_bpf, BPF_PROG_TEST_RUN, &run, sizeof(run)))
		return -errno * 1000000L;
	close(program);
	return (int)run.test.retval;
}

int main(void)
{
	static char line[1 << 16];
	FILE *file = fopen("/proc/cpuinfo", "r");
	int flags = 0, guest = 0;
	while (file && fgets(line, sizeof(line), file)) {
		if (strncmp(line, "flags", 5))
			continue;
		flags++;
		guest += strstr(line, "hypervisor") != NULL;
	}
	printf("cpus %d guests %d branches %d cycles %d\n", flags, guest,
	       opens(PERF_SAMPLE_BRANCH_STACK), opens(PERF_SAMPLE_IP));
	printf("snapshot %ld newest %s\n", snapshot(0), snapshot(1) ? "is there" : "is not");
	return 0;
}
