// SPDX-License-Identifier: GPL-2.0-only
/* Programs that reach others through prog arrays, and a map through a map. */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

/* Seven instructions, which each JIT translates to one. */
#define SEVEN_MORE() \
	asm volatile("r1 = 1\nr1 += 2\nr1 += 3\nr1 ^= 4\nr1 += 5\nr1 += 6\nr1 += 7\n" ::: "r1")

#define PROG_ARRAY(name, ...) \
	struct { \
		__uint(type, BPF_MAP_TYPE_PROG_ARRAY); \
		__uint(max_entries, 8); \
		__type(key, __u32); \
		__array(values, int (void *)); \
	} name SEC(".maps") = { .values = { __VA_ARGS__ } }

int short_one(void *ctx);
int long_one(void *ctx);
int calls_again(void *ctx);
int calls_itself(void *ctx);
int snapshot(void *ctx);
int calls_and_snapshot(void *ctx);
int short_kprobe(void *ctx);
int long_kprobe(void *ctx);
int short_sleepable(void *ctx);

/* Slot 2 has no program. */
PROG_ARRAY(called, [0] = (void *)&short_one, [1] = (void *)&long_one, [3] = (void *)&calls_again);
PROG_ARRAY(again, [0] = (void *)&short_one, [1] = (void *)&long_one);
PROG_ARRAY(itself, [0] = (void *)&calls_itself);
PROG_ARRAY(snapshots, [0] = (void *)&snapshot, [1] = (void *)&calls_and_snapshot);
PROG_ARRAY(kprobes, [0] = (void *)&short_kprobe, [1] = (void *)&long_kprobe);
PROG_ARRAY(sleepables, [0] = (void *)&short_sleepable);

const volatile __u32 slot;
const volatile __u32 then;

SEC("fentry")
int short_one(void *ctx)
{
	return 0;
}

SEC("fentry")
int long_one(void *ctx)
{
	SEVEN_MORE();
	return 0;
}

SEC("fentry")
int calls_again(void *ctx)
{
	bpf_tail_call(ctx, &again, then);
	return 0;
}

SEC("fentry")
int calls(void *ctx)
{
	bpf_tail_call(ctx, &called, slot);
	return 0;
}

/* Runs the seven instructions if the call finds no program. */
SEC("fentry")
int calls_or_runs_more(void *ctx)
{
	bpf_tail_call(ctx, &called, slot);
	SEVEN_MORE();
	return 0;
}

static __noinline int in_function(void *ctx)
{
	bpf_tail_call(ctx, &called, slot);
	return 0;
}

SEC("fentry")
int calls_in_function(void *ctx)
{
	in_function(ctx);
	return 0;
}

SEC("fentry")
int calls_itself(void *ctx)
{
	bpf_tail_call(ctx, &itself, slot);
	return 0;
}

__u64 records[3 * 32];

static __noinline int function(void)
{
	asm volatile("r1 = 1" ::: "r1");
	return 0;
}

SEC("fentry")
int snapshot(void *ctx)
{
	bpf_get_branch_snapshot(records, sizeof(records), 0);
	return 0;
}

SEC("fentry")
int calls_and_snapshot(void *ctx)
{
	function();
	bpf_get_branch_snapshot(records, sizeof(records), 0);
	return 0;
}

SEC("fentry")
int calls_snapshot(void *ctx)
{
	bpf_tail_call(ctx, &snapshots, slot);
	return 0;
}

SEC("kprobe")
int short_kprobe(void *ctx)
{
	return 0;
}

SEC("kretprobe")
int long_kprobe(void *ctx)
{
	SEVEN_MORE();
	return 0;
}

SEC("kprobe")
int calls_kprobes(void *ctx)
{
	bpf_tail_call(ctx, &kprobes, slot);
	return 0;
}

/* The types do not match. */
SEC("fentry")
int calls_other_type(void *ctx)
{
	bpf_tail_call(ctx, &kprobes, slot);
	return 0;
}

SEC("fentry.s")
int short_sleepable(void *ctx)
{
	return 0;
}

SEC("fentry")
int calls_sleepable(void *ctx)
{
	bpf_tail_call(ctx, &sleepables, slot);
	return 0;
}

struct inner {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} inner SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 2);
	__type(key, __u32);
	__array(values, struct inner);
} outer SEC(".maps") = { .values = { [0] = &inner } };

SEC("fentry")
int finds_a_map(void *ctx)
{
	__u32 key = slot, first = 0;
	void *map = bpf_map_lookup_elem(&outer, &key);

	if (map && bpf_map_lookup_elem(map, &first))
		SEVEN_MORE();
	return 0;
}
