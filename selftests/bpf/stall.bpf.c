// SPDX-License-Identifier: GPL-2.0-only
/*
 * Holds the RCU read lock for a while, by looping: a program's run is one read-side critical section. An fentry
 * program, because its trampoline leaves preemption on: the kernel's own threads go on, so that the grace period
 * begins and the stall is noticed on one CPU too.
 */
#include "tramplab.bpf.h"

/* Well beyond the shortest time-out the kernel takes (3 s), checks of the scheduler's tick included. */
#define STALL_NS 8000000000ULL
#define MOST_LOOPS (1 << 23)
#define BETWEEN_CLOCK_READS (1 << 12)

static long nothing(__u32 index, void *ctx)
{
	return 0;
}

static long until(__u32 index, void *end)
{
	bpf_loop(BETWEEN_CLOCK_READS, nothing, 0, 0);
	return bpf_ktime_get_ns() > *(__u64 *)end;
}

SEC("fentry/bpf_fentry_test1")
int stall(void *ctx)
{
	__u64 end = bpf_ktime_get_ns() + STALL_NS;

	bpf_loop(MOST_LOOPS, until, &end, 0);
	return 0;
}
