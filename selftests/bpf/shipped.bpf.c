// SPDX-License-Identifier: GPL-2.0-only
/*
 * Small programs that a hit is measured with instead of the empty one. Their names are those of
 * `Shipped` in harness/suite/src/program/shipped.rs. The agent loads them for any mechanism: their
 * sections name none.
 */
#include "tramplab.bpf.h"

/* The kernel's ABI. */
#define BPF_ANY 0
#define BPF_RB_NO_WAKEUP 1
#define BPF_MAP_TYPE_PERCPU_HASH 5
#define BPF_MAP_TYPE_PERCPU_ARRAY 6
#define BPF_MAP_TYPE_STACK_TRACE 7
#define BPF_MAP_TYPE_RINGBUF 27

#define CPUS 256
/* Slots of two CPUs share no cache line, nor a pair of them. */
#define ALIGNED 128

struct {
	__u64 hits;
} __attribute__((aligned(ALIGNED))) counters[CPUS];

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} array SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} hash SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_STACK_TRACE);
	__uint(max_entries, 64);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, 127 * sizeof(__u64));
} stacks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 16);
} records SEC(".maps");

/* Counters as in the kernel's commits that inline per-CPU access. */
SEC("raw_tp") int arr_inc(void *ctx)
{
	__u32 key = 0;
	__u64 *hits = bpf_map_lookup_elem(&array, &key);

	if (hits)
		++*hits;
	return 0;
}

/* The first hit adds the entry, before any is counted. */
SEC("raw_tp") int hash_inc(void *ctx)
{
	__u32 key = 0;
	__u64 one = 1, *hits = bpf_map_lookup_elem(&hash, &key);

	if (hits)
		++*hits;
	else
		bpf_map_update_elem(&hash, &key, &one, BPF_ANY);
	return 0;
}

SEC("raw_tp") int glob_arr_inc(void *ctx)
{
	++counters[bpf_get_smp_processor_id() % CPUS].hits;
	return 0;
}

/* The cost depends on the depth of the stack. */
SEC("raw_tp") int get_stackid(void *ctx)
{
	bpf_get_stackid(ctx, &stacks, 0);
	return 0;
}

/* A record of 8 bytes, without waking its reader. */
SEC("raw_tp") int ringbuf(void *ctx)
{
	__u64 *record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);

	if (record) {
		*record = 0;
		bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
	}
	return 0;
}

SEC("raw_tp") int get_func_ip(void *ctx)
{
	bpf_get_func_ip(ctx);
	return 0;
}
