/* SPDX-License-Identifier: GPL-2.0-only */
/* The parts of libbpf's header that the programs of these tests use: they read no argument. */
#pragma once

#define BPF_PROG(name) name(void *ctx)
#define BPF_KPROBE(name) name(void *ctx)
