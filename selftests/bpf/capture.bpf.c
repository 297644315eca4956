// SPDX-License-Identifier: GPL-2.0-only
/*
 * One capturing program per attach mechanism. All have one body, which begins like retsnoop's: it
 * reads the CPU's number, then takes the snapshot of the branch records. Branches before the
 * snapshot are waste of the mechanism; those after it do not matter.
 */
#include "tramplab.bpf.h"

/* A session runs at entry and at exit of a hit. */
#define RUNS 2
#define RECORDS 64

/* Same layout as struct perf_branch_entry. */
struct record {
	__u64 from;
	__u64 to;
	__u64 flags;
};

/* The agent reads this layout. Keep it equal to `State` in guest/src/capture.rs. */
struct {
	__u64 runs;
	__u32 cpu;
	__u32 reserved;
	__s64 results[RUNS];
	struct record records[RUNS][RECORDS];
} state;

static __always_inline int capture(void)
{
	__u32 cpu = bpf_get_smp_processor_id();
	/* Compiles to no branch, so it wastes no record. */
	__u32 run = state.runs % RUNS;
	long result = bpf_get_branch_snapshot(state.records[run], sizeof(state.records[run]), 0);

	state.results[run] = result;
	state.cpu = cpu;
	__sync_fetch_and_add(&state.runs, 1);
	/* In a session, 0 at the entry requests the exit as well. */
	return 0;
}

#define CAPTURE(section, name) \
	SEC(section) int name(void *ctx) \
	{ \
		return capture(); \
	}

CAPTURE("fentry/bpf_fentry_test1", capture_fentry)
CAPTURE("fexit/bpf_fentry_test1", capture_fexit)
CAPTURE("fmod_ret/bpf_modify_return_test", capture_fmod_ret)
CAPTURE("fsession/bpf_fentry_test1", capture_fsession)
/*
 * libbpf 1.7 does not know the sections of tracing multi. The agent sets type and attach type when
 * it loads the programs.
 */
CAPTURE("fentry.multi", capture_fentry_multi)
CAPTURE("fexit.multi", capture_fexit_multi)
CAPTURE("fsession.multi", capture_fsession_multi)
CAPTURE("kprobe", capture_kprobe)
CAPTURE("kretprobe", capture_kretprobe)
CAPTURE("kprobe.multi", capture_kprobe_multi)
CAPTURE("kretprobe.multi", capture_kretprobe_multi)
CAPTURE("kprobe.session", capture_kprobe_session)
CAPTURE("tp_btf/task_rename", capture_tp_btf)
CAPTURE("raw_tp/task_rename", capture_raw_tp)
CAPTURE("tp/task/task_rename", capture_tp)
CAPTURE("ksyscall/getpgid", capture_ksyscall)
CAPTURE("kretsyscall/getpgid", capture_kretsyscall)
CAPTURE("lsm/task_prctl", capture_lsm)
CAPTURE("fentry.s/bpf_fentry_test1", capture_fentry_s)
CAPTURE("fexit.s/bpf_fentry_test1", capture_fexit_s)
CAPTURE("lsm.s/task_prctl", capture_lsm_s)
CAPTURE("tp_btf.s/sys_enter", capture_tp_btf_s)
CAPTURE("raw_tp.s/sys_enter", capture_raw_tp_s)
CAPTURE("tp.s/syscalls/sys_enter_getpgid", capture_tp_s)
