// SPDX-License-Identifier: GPL-2.0-only
/* Programs as users bring them, each for one property that a test checks. */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

/* The same as tramplab's own: they must cost the same. */
#define EMPTY(section, name) \
	SEC(section) int name(void *ctx) \
	{ \
		return 0; \
	}

EMPTY("fentry", empty_fentry)
EMPTY("fexit", empty_fexit)
EMPTY("kprobe", empty_kprobe)
EMPTY("kretprobe", empty_kretprobe)
EMPTY("kprobe.multi", empty_kprobe_multi)
EMPTY("kretprobe.multi", empty_kretprobe_multi)
EMPTY("kprobe.session", empty_kprobe_session)
EMPTY("fentry.s", empty_sleepable)
EMPTY("tp_btf/sched_switch", empty_sched_switch)

/* Seven instructions more, which each JIT translates to one. */
SEC("fentry")
int seven_more(void *ctx)
{
	asm volatile("r1 = 1\nr1 += 2\nr1 += 3\nr1 ^= 4\nr1 += 5\nr1 += 6\nr1 += 7\n" ::: "r1");
	return 0;
}

/* Loads and stores, and the same with two loads and three stores more. */
#define STORE_AND_LOAD(slot) \
	"*(u64 *)(r10 - " slot ") = r1\n" \
	"r2 = *(u64 *)(r10 - " slot ")\n"

SEC("fentry")
int stores_and_loads(void *ctx)
{
	asm volatile("r1 = 1\n" STORE_AND_LOAD("8") STORE_AND_LOAD("16") ::: "r1", "r2", "memory");
	return 0;
}

SEC("fentry")
int more_stores_and_loads(void *ctx)
{
	asm volatile("r1 = 1\n" STORE_AND_LOAD("8") STORE_AND_LOAD("16") STORE_AND_LOAD("8")
		     STORE_AND_LOAD("16") "*(u32 *)(r10 - 8) = r1\n" ::: "r1", "r2", "memory");
	return 0;
}

/* A map, a global variable, a function of its own and a callback. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} hits SEC(".maps");

const volatile __u32 loops = 5;
__u64 total;

__noinline int add(__u32 what)
{
	total += what;
	return total;
}

static long step(__u32 index, void *context)
{
	return add(index) < 0;
}

SEC("kprobe")
int with_functions(void *ctx)
{
	__u32 first = 0;
	__u64 *hit = bpf_map_lookup_elem(&hits, &first);

	if (hit)
		*hit += 1;
	bpf_loop(loops, step, 0, 0);
	return 0;
}

/* A map that another program would fill. Behind the look-up is most of the code. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8);
	__type(key, __u32);
	__type(value, __u64);
} started SEC(".maps");

SEC("fentry")
int finds_nothing(void *ctx)
{
	__u32 thread = 1;
	__u64 *start = bpf_map_lookup_elem(&started, &thread);

	if (!start)
		return 0;
	total += *start * 3 + (*start ^ loops) / 7;
	*start = add(total) + bpf_get_smp_processor_id();
	bpf_loop(loops, step, 0, 0);
	add(*start);
	return 0;
}

/* Variables of each type that can be given a value. */
enum mode { MODE_OFF, MODE_ON };

const volatile _Bool verbose;
const volatile enum mode mode;
const volatile char prefix[4] = "a";
volatile short scale = 1;
volatile __u64 *pointer;

SEC("fentry")
int by_values(void *ctx)
{
	if (!verbose || mode != MODE_ON || prefix[1] != 'y')
		return 0;
	if (scale == -3)
		asm volatile("r1 = 1\nr1 += 2\nr1 += 3\nr1 ^= 4\n" ::: "r1");
	return 0;
}

/* The verifier rejects it. */
SEC("fentry")
int writes_nowhere(void *ctx)
{
	*(volatile int *)0x10 = 1;
	return 0;
}

/* Takes no snapshot at the entry. */
__u64 records[3 * 32];
__u64 runs;

/* Asks for no exit. */
SEC("kprobe.session")
int skips_exit(void *ctx)
{
	bpf_get_branch_snapshot(records, sizeof(records), 0);
	return 1;
}

SEC("kprobe.session")
int snapshot_at_exit(void *ctx)
{
	if (runs++ % 2)
		bpf_get_branch_snapshot(records, sizeof(records), 0);
	return 0;
}
