// SPDX-License-Identifier: GPL-2.0-only
// small.bpf.o: clang -target bpf -O2 -g -c small.bpf.c && llvm-strip -g small.bpf.o
#define SEC(name) __attribute__((section(name), used))
enum mode { QUIET, LOUD };
const volatile enum mode mode;
const volatile int limit = 5;
const volatile char prefix[4] = "a";
char own_license[] SEC("license") = "GPL";
SEC("freplace/own") int replaced(void *at) { return 1; }
__attribute__((noinline)) int own(void *at) { return limit; }
SEC("fexit/f") int next(void *at) { return 0; }
struct {
	int (*type)[3];
	int (*key_size)[4];
	int (*max_entries)[2];
	int (*values[])(void *);
} programs SEC(".maps") = { .values = { [1] = next } };
SEC("fentry/f") int first(void *at) { return own(at) + mode + prefix[0]; }
