// SPDX-License-Identifier: GPL-2.0
/* Runs for hours under the RCU read lock, so that the kernel reports a stall. */
#include "tramplab.bpf.h"

#define MOST_LOOPS (1 << 23)

static long nothing(__u32 index, void *ctx)
{
	return 0;
}

static long inner(__u32 index, void *ctx)
{
	bpf_loop(MOST_LOOPS, nothing, 0, 0);
	return 0;
}

SEC("raw_tp")
int stall(void *ctx)
{
	bpf_loop(MOST_LOOPS, inner, 0, 0);
	return 0;
}
