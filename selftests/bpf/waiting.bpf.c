// SPDX-License-Identifier: GPL-2.0-only
/*
 * Times how long one thread is off the CPU, by the stack with which it left: from each switch away
 * from it to the next switch to it. Time spent ready to run behind another thread is included.
 */
#include "tramplab.bpf.h"

/*
 * A preemptible kernel has hundreds of stacks. A stack whose place in the map is taken is lost;
 * this has room for those of two phases.
 */
#define STACKS 8192
#define DEPTH 127
#define WAITS (2 * STACKS + 2)

/* The kernel's ABI (enum bpf_map_type and the flags of bpf_map_update_elem). */
#define BPF_MAP_TYPE_HASH 1
#define BPF_MAP_TYPE_STACK_TRACE 7
#define BPF_ANY 0

/* The used member. CO-RE adjusts its offset to the kernel. */
struct task_struct {
	int pid;
} __attribute__((preserve_access_index));

/* The agent reads and writes these layouts. Keep them equal to guest/src/waiting.rs. */
struct {
	/* 0 means that nothing is timed. */
	__u32 phase;
	__u32 thread;
	/* The time when the thread left, and its stack's id, which is negative if unknown. */
	__u64 since;
	__s64 stack;
} state;

struct key {
	__u32 phase;
	__s32 stack;
};

struct wait {
	__u64 ns;
	__u64 count;
};

struct {
	__uint(type, BPF_MAP_TYPE_STACK_TRACE);
	__uint(max_entries, STACKS);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, DEPTH * sizeof(__u64));
} stacks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, WAITS);
	__type(key, struct key);
	__type(value, struct wait);
} waits SEC(".maps");

static __always_inline void count(void)
{
	/* All failures are equal: the stack is unknown. */
	struct key key = { .phase = state.phase, .stack = state.stack < 0 ? -1 : state.stack };
	__u64 ns = bpf_ktime_get_ns() - state.since;
	struct wait *wait = bpf_map_lookup_elem(&waits, &key);

	if (wait) {
		wait->ns += ns;
		wait->count++;
	} else {
		struct wait first = { .ns = ns, .count = 1 };

		bpf_map_update_elem(&waits, &key, &first, BPF_ANY);
	}
}

/* Arguments: preempt, prev, next. Newer kernels have a fourth. */
SEC("tp_btf/sched_switch")
int switched(__u64 *arguments)
{
	struct task_struct *previous = (void *)arguments[1];
	struct task_struct *next = (void *)arguments[2];

	if (!state.phase)
		return 0;
	if (previous->pid == state.thread) {
		state.since = bpf_ktime_get_ns();
		state.stack = bpf_get_stackid(arguments, &stacks, 0);
	} else if (next->pid == state.thread && state.since) {
		count();
		state.since = 0;
	}
	return 0;
}
