// SPDX-License-Identifier: GPL-2.0-only
/* Programs whose own loaders do more than libbpf: they set sizes of maps, and choose functions. */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

/* As libbpf-tools' capable: user space sets the value's size and the entries. */
struct {
	__uint(type, BPF_MAP_TYPE_STACK_TRACE);
	__uint(key_size, 4);
} stacks SEC(".maps");

/* As bpf2go's examples: the value's type is for generated code. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 16);
	__type(value, long);
} events SEC(".maps");

/* The section's word only groups programs. */
SEC("kprobe/skb-1")
int keeps_stack(void *ctx)
{
	long one = 1;

	bpf_get_stackid(ctx, &stacks, 0);
	bpf_ringbuf_output(&events, &one, sizeof(one), 0);
	return 0;
}

SEC("tp/task/task_rename")
int classic(void *ctx)
{
	return 0;
}

SEC("tracepoint/sched/sched_switch")
int other(void *ctx)
{
	return 0;
}

SEC("ksyscall/getppid")
int call(void *ctx)
{
	return 0;
}

SEC("kretsyscall/getppid")
int call_exit(void *ctx)
{
	return 0;
}
