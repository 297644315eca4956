// SPDX-License-Identifier: GPL-2.0-only
/*
 * Lets a process open an event of branch records on a CPU without any: it turns the request into
 * one for a software clock before the kernel reads it. The event samples nothing, which suffices
 * for programs that only need it to exist.
 */
#include "tramplab.bpf.h"

/* Offset of the first argument in the system call's registers, as the kernel saves them. */
#define DI 112
#define X0 0

#define PERF_TYPE_HARDWARE 0
#define PERF_TYPE_SOFTWARE 1
#define PERF_COUNT_SW_CPU_CLOCK 0
#define PERF_SAMPLE_BRANCH_STACK (1U << 11)

/* The head of struct perf_event_attr, which is ABI. */
struct attr {
	__u32 type;
	__u32 size;
	__u64 config;
	__u64 period;
	__u64 sample_type;
};

static int pose(void *attr_at)
{
	struct attr attr;
	void *user;

	if (bpf_probe_read_kernel(&user, sizeof(user), attr_at))
		return 0;
	if (bpf_probe_read_user(&attr, sizeof(attr), user))
		return 0;
	if (attr.type != PERF_TYPE_HARDWARE || !(attr.sample_type & PERF_SAMPLE_BRANCH_STACK))
		return 0;
	attr.type = PERF_TYPE_SOFTWARE;
	attr.config = PERF_COUNT_SW_CPU_CLOCK;
	attr.sample_type &= ~(__u64)PERF_SAMPLE_BRANCH_STACK;
	bpf_probe_write_user(user, &attr, sizeof(attr));
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
