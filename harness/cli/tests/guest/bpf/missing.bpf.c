// SPDX-License-Identifier: GPL-2.0-only
/* A program that calls a function which no kernel has. */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

extern int tramplab_no_such_function(void) __ksym;

SEC("fentry/bpf_fentry_test1")
int calls_nothing(void *ctx)
{
	return tramplab_no_such_function();
}
