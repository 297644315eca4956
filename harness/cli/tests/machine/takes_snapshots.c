// SPDX-License-Identifier: MIT OR Apache-2.0
// Takes a snapshot of branch records under each filter, by a BPF program. Prints a line for each
// event that it opens, with errno or 0, and for each snapshot its size in bytes and its records.
// With an argument snapshots are taken while their event is open, several for each: an interrupt
// may fill the records of one.
#define _GNU_SOURCE
#include "branches.h"
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#define RECORDS 32
#define BYTES (RECORDS * sizeof(struct perf_branch_entry))

struct value {
	struct perf_branch_entry records[RECORDS];
	int64_t result;
};

static long must(const char *what, long result)
{
	if (result < 0) {
		perror(what);
		exit(1);
	}
	return result;
}

static void event(const char *name, uint64_t branches, uint64_t period)
{
	printf("event %s %d\n", name, opens(PERF_SAMPLE_BRANCH_STACK, branches, period));
}

static void snapshot(const char *name)
{
	union bpf_attr create = {
		.map_type = BPF_MAP_TYPE_ARRAY,
		.key_size = 4,
		.value_size = sizeof(struct value),
		.max_entries = 1,
	};
	int map = must("map", syscall(SYS_bpf, BPF_MAP_CREATE, &create, sizeof(create)));
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
	union bpf_attr run;
	must("run", runs(must("load", load(insns, sizeof(insns) / sizeof(*insns))), &run));
	uint32_t key = 0;
	struct value value;
	union bpf_attr look = {
		.map_fd = map,
		.key = (uintptr_t)&key,
		.value = (uintptr_t)&value,
	};
	must("look", syscall(SYS_bpf, BPF_MAP_LOOKUP_ELEM, &look, sizeof(look)));
	printf("snapshot %s %lld\n", name, (long long)value.result);
	for (int i = 0; i < RECORDS && value.result > 0; i++)
		printf("%llx %llx\n", value.records[i].from, value.records[i].to);
}

static void during(const char *name, uint64_t branches)
{
	uint64_t kernel = PERF_SAMPLE_BRANCH_KERNEL;
	int event = must("event", opened(PERF_SAMPLE_BRANCH_STACK, kernel | branches, 0));

	for (int i = 0; i < 5; i++) {
		// Other threads run: the driver stops the ring and empties it.
		usleep(20000);
		snapshot(name);
	}
	close(event);
}

int main(int argc, char **argv)
{
	const uint64_t kernel = PERF_SAMPLE_BRANCH_KERNEL;
	cpu_set_t first;

	// The events are of this CPU.
	CPU_ZERO(&first);
	CPU_SET(0, &first);
	must("affinity", sched_setaffinity(0, sizeof(first), &first));
	if (argc > 1) {
		during("any", PERF_SAMPLE_BRANCH_ANY);
		during("any_return", PERF_SAMPLE_BRANCH_ANY_RETURN);
		during("cond|call", PERF_SAMPLE_BRANCH_COND | PERF_SAMPLE_BRANCH_CALL);
		return 0;
	}
	snapshot("any");
	event("sampling", kernel | PERF_SAMPLE_BRANCH_ANY_RETURN, 1000);
	event("call_stack", kernel | PERF_SAMPLE_BRANCH_CALL_STACK, 0);
	event("user", PERF_SAMPLE_BRANCH_USER | PERF_SAMPLE_BRANCH_ANY, 0);
	// None of these has changed the filter.
	snapshot("any");
	event("any_return", kernel | PERF_SAMPLE_BRANCH_ANY_RETURN, 0);
	snapshot("any_return");
	event("cond|call", kernel | PERF_SAMPLE_BRANCH_COND | PERF_SAMPLE_BRANCH_CALL, 0);
	snapshot("cond|call");
	return 0;
}
