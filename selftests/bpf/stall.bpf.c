// SPDX-License-Identifier: GPL-2.0-only
/*
 * Loops to hold the RCU read lock: a program's run is one read-side critical section. It is an
 * fentry program because its trampoline leaves preemption on. The kernel's own threads keep
 * running, so the grace period begins and the kernel notices the stall even on one CPU.
 */
#include "tramplab.bpf.h"

/* Well above the kernel's shortest timeout (3 s) plus the period of its checks. */
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
