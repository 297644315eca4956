// SPDX-License-Identifier: GPL-2.0-only
/*
 * Lets processes open events of branch records on a CPU without any. It turns the request into one
 * for a software clock before the kernel reads it, and notes the filter, which the TCG plugin
 * applies to all snapshots. Events that sample are left alone: their samples would have no records.
 */
#include "tramplab.bpf.h"

/* Offset of the first argument in the system call's registers, as the kernel saves them. */
#define DI 112
#define X0 0

#define PERF_TYPE_HARDWARE 0
#define PERF_TYPE_SOFTWARE 1
#define PERF_COUNT_SW_CPU_CLOCK 0
#define PERF_SAMPLE_BRANCH_STACK (1U << 11)
#define PERF_SAMPLE_BRANCH_USER (1U << 0)
#define PERF_SAMPLE_BRANCH_KERNEL (1U << 1)
/* ABORT_TX, IN_TX, NO_TX, CALL_STACK: no model has them. */
#define UNKNOWN (1U << 7 | 1U << 8 | 1U << 9 | 1U << 11)

/* The head of struct perf_event_attr, which is ABI. */
struct attr {
	__u32 type;
	__u32 size;
	__u64 config;
	__u64 period;
	__u64 sample_type;
	__u64 others[5];
	__u64 branches;
};

/* As the agent encodes it. */
struct cpu {
	__u32 depth;
	__u16 ring;
	__u16 kept;
};

#define BITS 32

struct {
	/* Read by the plugin at each snapshot. */
	union {
		struct cpu cpu;
		__u64 cpu_word;
	};
	__u64 cpu_at;
	__s64 got;
	/* For each bit of a branch_sample_type. */
	struct cpu of_bit[BITS];
} state;

/* Returns 0 if no model has such a filter. */
static __u64 selected(__u64 branches)
{
	union {
		struct cpu cpu;
		__u64 word;
	} next = { .cpu.depth = state.cpu.depth };
	int bit;

	if (branches & UNKNOWN)
		return 0;
	if (branches & PERF_SAMPLE_BRANCH_USER && !(branches & PERF_SAMPLE_BRANCH_KERNEL))
		return 0;
	for (bit = 0; bit < BITS; bit++) {
		if (branches >> bit & 1) {
			next.cpu.ring |= state.of_bit[bit].ring;
			next.cpu.kept |= state.of_bit[bit].kept;
		}
	}
	return next.cpu.ring ? next.word : 0;
}

static int pose(void *attr_at)
{
	struct attr attr;
	__u64 next;
	void *user;

	if (bpf_probe_read_kernel(&user, sizeof(user), attr_at))
		return 0;
	if (bpf_probe_read_user(&attr, sizeof(attr), user))
		return 0;
	if (attr.type != PERF_TYPE_HARDWARE || !(attr.sample_type & PERF_SAMPLE_BRANCH_STACK))
		return 0;
	if (attr.period || attr.size < sizeof(attr))
		return 0;
	next = selected(attr.branches);
	if (!next)
		return 0;
	attr.type = PERF_TYPE_SOFTWARE;
	attr.config = PERF_COUNT_SW_CPU_CLOCK;
	attr.sample_type &= ~(__u64)PERF_SAMPLE_BRANCH_STACK;
	if (!bpf_probe_write_user(user, &attr, __builtin_offsetof(struct attr, others)))
		*(volatile __u64 *)&state.cpu_word = next;
	return 0;
}

SEC("?fentry/__x64_sys_perf_event_open")
int x86_64(__u64 *ctx)
{
	return pose((char *)ctx[0] + DI);
}

SEC("?fentry/__arm64_sys_perf_event_open")
int arm64(__u64 *ctx)
{
	return pose((char *)ctx[0] + X0);
}

/* Tells the address of the settings, and whether programs get records. */
SEC("?raw_tp/probe")
int probe(void *ctx)
{
	__u64 entry[3];

	state.cpu_at = (__u64)&state.cpu;
	state.got = bpf_get_branch_snapshot(entry, sizeof(entry), 0);
	return 0;
}
