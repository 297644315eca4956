/* SPDX-License-Identifier: GPL-2.0-only */
/* The kernel types of the programs here, instead of a dump of a vmlinux. */
#pragma once

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;
typedef long long __s64;
