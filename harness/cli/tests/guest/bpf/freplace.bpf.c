// SPDX-License-Identifier: GPL-2.0-only
/* Programs whose global function is replaced by an extension. */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

/* Seven instructions, which each JIT translates to one. */
#define SEVEN_MORE() \
	asm volatile("r2 = 1\nr2 += 2\nr2 += 3\nr2 ^= 4\nr2 += 5\nr2 += 6\nr2 += 7\n" ::: "r2")

#define BODY(name) \
	int name(int value) \
	{ \
		asm volatile("%0 += 1" : "+r"(value)); \
		return 0; \
	}

/* The extension `same` has its body. All return 0, as the kernel wants it of raw_tp's. */
__noinline BODY(policy)

SEC("freplace/policy") BODY(same)

SEC("freplace")
int longer(int value)
{
	SEVEN_MORE();
	asm volatile("%0 += 1" : "+r"(value));
	return 0;
}

/* Nobody calls it. */
__noinline BODY(unused)

SEC("freplace/policy")
int of_another_type(int value, int other)
{
	return 0;
}

static __noinline BODY(hidden)

#define ASKS(section, name) \
	SEC(section) int name(void *ctx) \
	{ \
		policy(hidden(1)); \
		return 0; \
	}

ASKS("kprobe", asks_kprobe)
ASKS("kprobe.multi", asks_kprobe_multi)
ASKS("raw_tp/task_rename", asks_raw_tp)
ASKS("tp_btf/task_rename", asks_tp_btf)
ASKS("fentry", asks_fentry)
ASKS("fexit", asks_fexit)
ASKS("fmod_ret", asks_fmod_ret)
