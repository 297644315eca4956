/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What tramplab's programs need of the kernel's types. The programs read nothing of the kernel's structures,
 * so no dump of a vmlinux is needed and one object fits every kernel.
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

/* GPL-compatible licences only: the tracing helpers are for GPL programs. */
char LICENSE[] SEC("license") = "GPL";
