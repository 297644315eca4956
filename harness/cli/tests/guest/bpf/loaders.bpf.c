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

SEC("tracepoint/syscalls/sys_enter_getppid")
int entered(void *ctx)
{
	return 0;
}

SEC("tp/syscalls/sys_exit_getppid")
int left(void *ctx)
{
	return 0;
}

SEC("tp_btf/sys_enter")
int any_entered(void *ctx)
{
	return 0;
}

SEC("raw_tp/task_newtask")
int forked(void *ctx)
{
	return 0;
}

SEC("tp/oom/mark_victim")
int killed(void *ctx)
{
	return 0;
}

SEC("tp/task/task_renamed")
int mistyped(void *ctx)
{
	return 0;
}

SEC("tp_btf/sys_entry")
int mistyped_too(void *ctx)
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

/* Sized by user space, as the tables of addresses of packet filters are. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(key_size, 8);
	__uint(value_size, 4);
} trie SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_BLOOM_FILTER);
	__uint(value_size, 4);
} bloom SEC(".maps");

/* Not on the stack: 7.2 takes a filter's value there for one that nothing reads. */
__u32 sought = 1;

SEC("fentry/bpf_fentry_test1")
int looks_up(void *ctx)
{
	__u32 key[2] = { 32, 1 };

	bpf_map_lookup_elem(&trie, key);
	bpf_map_peek_elem(&bloom, &sought);
	return 0;
}

/* A record of 1000 bytes: the small buffers have room for few of them. */
struct record {
	char bytes[1000];
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 12);
} small SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 22);
} large SEC(".maps");

/* Room for less than two records. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 12);
} tiny SEC(".maps");

/* More slots than the guest has CPUs. */
struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, 4);
	__uint(value_size, 4);
	__uint(max_entries, 128);
} perf SEC(".maps");

/* Longer if there is room. */
static __always_inline int keep(void *buffer, unsigned long bytes)
{
	char *record = bpf_ringbuf_reserve(buffer, bytes, 0);

	if (!record)
		return 0;
	record[0] = 1;
	record[1] = 2;
	bpf_ringbuf_submit(record, 0);
	return 0;
}

SEC("fentry/bpf_fentry_test1")
int keeps_small(void *ctx)
{
	return keep(&small, sizeof(struct record));
}

SEC("fentry/bpf_fentry_test1")
int keeps_large(void *ctx)
{
	return keep(&large, sizeof(struct record));
}

SEC("fentry/bpf_fentry_test1")
int keeps_one(void *ctx)
{
	return keep(&tiny, 3000);
}

/* The second call tells that the first one succeeded. */
SEC("fentry/bpf_fentry_test1")
int outputs(void *ctx)
{
	char record[400] = {};

	if (!bpf_perf_event_output(ctx, &perf, BPF_F_CURRENT_CPU, record, sizeof(record)))
		bpf_get_stackid(ctx, &stacks, 0);
	return 0;
}

SEC("lsm")
int any_hook(void *ctx)
{
	return 0;
}

SEC("lsm/file_open")
int opened(void *ctx)
{
	return 0;
}

SEC("lsm.s/bpf")
int asked(void *ctx)
{
	return 0;
}

SEC("lsm/bprm_check_security")
int executed(void *ctx)
{
	return 0;
}

SEC("lsm/task_free")
int freed(void *ctx)
{
	return 0;
}

SEC("lsm/file_opened")
int no_hook(void *ctx)
{
	return 0;
}
