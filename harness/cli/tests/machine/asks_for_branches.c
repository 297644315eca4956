// SPDX-License-Identifier: MIT OR Apache-2.0
// Asks as the kernel tree's test of branch records does: for a CPU without the flag of guests, for
// an event of branches, and for a snapshot in a BPF program.
#include "branches.h"
#include <stdio.h>
#include <string.h>

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
	int program = load(insns, sizeof(insns) / sizeof(*insns));
	if (program < 0)
		return -errno * 1000L;
	union bpf_attr run;
	if (runs(program, &run))
		return -errno * 1000000L;
	close(program);
	return (int)run.test.retval;
}

static int asks(uint64_t sample_type)
{
	return opens(sample_type,
		     PERF_SAMPLE_BRANCH_KERNEL | PERF_SAMPLE_BRANCH_USER | PERF_SAMPLE_BRANCH_ANY, 0);
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
	       asks(PERF_SAMPLE_BRANCH_STACK), asks(PERF_SAMPLE_IP));
	printf("snapshot %ld newest %s\n", snapshot(0), snapshot(1) ? "is there" : "is not");
	return 0;
}
