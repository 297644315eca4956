// SPDX-License-Identifier: MIT OR Apache-2.0
// Takes a snapshot of branch records under each filter, by a BPF program. Prints a line for each
// event that it opens, with errno or 0, and for each snapshot its size in bytes and its records.
#include <errno.h>
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define RECORDS 32
#define BYTES (RECORDS * sizeof(struct perf_branch_entry))

struct value {
	struct perf_branch_entry records[RECORDS];
	int64_t result;
};

static long bpf(int command, union bpf_attr *attr)
{
	long result = syscall(SYS_bpf, command, attr, sizeof(*attr));
	if (result < 0) {
		perror("bpf");
		exit(1);
	}
	return result;
}

static void opens(const char *name, uint64_t branches, uint64_t period)
{
	struct perf_event_attr attr = {
		.size = sizeof(attr),
		.type = PERF_TYPE_HARDWARE,
		.config = PERF_COUNT_HW_CPU_CYCLES,
		.sample_period = period,
		.sample_type = PERF_SAMPLE_BRANCH_STACK,
		.branch_sample_type = branches,
	};
	int event = syscall(SYS_perf_event_open, &attr, -1, 0, -1, PERF_FLAG_FD_CLOEXEC);
	printf("event %s %d\n", name, event < 0 ? errno : 0);
	if (event >= 0)
		close(event);
}

#define INSN(c, d, s, o, i) \
	((struct bpf_insn){ .code = (c), .dst_reg = (d), .src_reg = (s), .off = (o), .imm = (i) })

static void snapshot(const char *name)
{
	union bpf_attr create = {
		.map_type = BPF_MAP_TYPE_ARRAY,
		.key_size = 4,
		.value_size = sizeof(struct value),
		.max_entries = 1,
	};
	int map = bpf(BPF_MAP_CREATE, &create);
	struct bpf_insn insns[] = {
		INSN(BPF_LD | BPF_DW | BPF_IMM, 6, BPF_PSEUDO_MAP_VALUE, 0, map),
		INSN(0, 0, 0, 0, 0),
		INSN(BPF_ALU64 | BPF_MOV | BPF_X, 1, 6, 0, 0),
		INSN(BPF_ALU64 | BPF_MOV | BPF_K, 2, 0, 0, BYTES),
		INSN(BPF_ALU64 | BPF_MOV | BPF_K, 3, 0, 0, 0),
		INSN(BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_get_branch_snapshot),
		INSN(BPF_STX | BPF_MEM | BPF_DW, 6, 0, BYTES, 0),
		INSN(BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, 0),
		INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
	};
	union bpf_attr load = {
		.prog_type = BPF_PROG_TYPE_RAW_TRACEPOINT,
		.insns = (uintptr_t)insns,
		.insn_cnt = sizeof(insns) / sizeof(*insns),
		.license = (uintptr_t)"GPL",
	};
	union bpf_attr run = { .test.prog_fd = bpf(BPF_PROG_LOAD, &load) };
	bpf(BPF_PROG_TEST_RUN, &run);
	uint32_t key = 0;
	struct value value;
	union bpf_attr look = {
		.map_fd = map,
		.key = (uintptr_t)&key,
		.value = (uintptr_t)&value,
	};
	bpf(BPF_MAP_LOOKUP_ELEM, &look);
	printf("snapshot %s %lld\n", name, (long long)value.result);
	for (int i = 0; i < RECORDS && value.result > 0; i++)
		printf("%llx %llx\n", value.records[i].from, value.records[i].to);
}

int main(void)
{
	const uint64_t kernel = PERF_SAMPLE_BRANCH_KERNEL;

	snapshot("any");
	opens("sampling", kernel | PERF_SAMPLE_BRANCH_ANY_RETURN, 1000);
	opens("call_stack", kernel | PERF_SAMPLE_BRANCH_CALL_STACK, 0);
	opens("user", PERF_SAMPLE_BRANCH_USER | PERF_SAMPLE_BRANCH_ANY, 0);
	// None of these has changed the filter.
	snapshot("any");
	opens("any_return", kernel | PERF_SAMPLE_BRANCH_ANY_RETURN, 0);
	snapshot("any_return");
	opens("cond|call", kernel | PERF_SAMPLE_BRANCH_COND | PERF_SAMPLE_BRANCH_CALL, 0);
	snapshot("cond|call");
	return 0;
}
