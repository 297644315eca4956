// SPDX-License-Identifier: GPL-2.0-only
/* libbpf cannot make its map: no kernel has the type. */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

struct {
	__uint(type, 9999);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} unmade SEC(".maps");

SEC("fentry")
int uses_unmade(void *ctx)
{
	__u32 first = 0;

	bpf_map_lookup_elem(&unmade, &first);
	return 0;
}
