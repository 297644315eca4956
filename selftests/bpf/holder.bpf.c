// SPDX-License-Identifier: GPL-2.0-only
/* Keeps the stack of the first hit of a tracepoint, to tell which function holds it. */
#include "tramplab.bpf.h"

#define DEPTH 32

/* The agent reads this layout. Keep it equal to `State` in guest/src/holder.rs. */
struct {
	__s64 bytes;
	__u64 addresses[DEPTH];
} state;

SEC("raw_tp")
int holder(void *ctx)
{
	if (!state.bytes)
		state.bytes = bpf_get_stack(ctx, state.addresses, sizeof(state.addresses), 0);
	return 0;
}
