/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The kernel types that tramplab's programs use. The programs read none of the kernel's structures
 * by a fixed layout, so they need no dump of a vmlinux and one object fits every kernel.
 */
#pragma once

typedef signed char __s8;
typedef unsigned char __u8;
typedef short __s16;
typedef unsigned short __u16;
typedef int __s32;
typedef unsigned int __u32;
typedef long long __s64;
typedef unsigned long long __u64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;

#include <bpf/bpf_helpers.h>

/* The tracing helpers require a GPL-compatible licence. */
char LICENSE[] SEC("license") = "GPL";
