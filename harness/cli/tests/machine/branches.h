// SPDX-License-Identifier: MIT OR Apache-2.0
// The ways in which a program asks for branch records: by an event, and by a BPF program.
#include <errno.h>
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#define INSN(c, d, s, o, i) \
	((struct bpf_insn){ .code = (c), .dst_reg = (d), .src_reg = (s), .off = (o), .imm = (i) })

// Opens an event on CPU 0. Returns its descriptor, or -1.
static int opened(uint64_t sample_type, uint64_t branches, uint64_t period)
{
	struct perf_event_attr attr = {
		.size = sizeof(attr),
		.type = PERF_TYPE_HARDWARE,
		.config = PERF_COUNT_HW_CPU_CYCLES,
		.sample_period = period,
		.sample_type = sample_type,
		.branch_sample_type = branches,
	};
	return syscall(SYS_perf_event_open, &attr, -1, 0, -1, PERF_FLAG_FD_CLOEXEC);
}

// Opens such an event and closes it. Returns 0 or errno.
static int opens(uint64_t sample_type, uint64_t branches, uint64_t period)
{
	int event = opened(sample_type, branches, period);
	return event < 0 ? errno : close(event);
}

// Returns the program's descriptor, or -1.
static int load(const struct bpf_insn *insns, uint32_t count)
{
	union bpf_attr load = {
		.prog_type = BPF_PROG_TYPE_RAW_TRACEPOINT,
		.insns = (uintptr_t)insns,
		.insn_cnt = count,
		.license = (uintptr_t)"GPL",
	};
	return syscall(SYS_bpf, BPF_PROG_LOAD, &load, sizeof(load));
}

// Runs the program once. Returns -1 if the kernel refuses.
static int runs(int program, union bpf_attr *run)
{
	*run = (union bpf_attr){ .test.prog_fd = program };
	return syscall(SYS_bpf, BPF_PROG_TEST_RUN, run, sizeof(*run));
}
