// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mechanisms that attach to events, system calls and hooks, and to code that may sleep.

use super::{
    LIMIT,
    trigger::{of_any_boot, set, try_hit},
    waste,
};
use crate::machine::spec;
use std::collections::BTreeSet;
use tramplab_analysis::branch;
use tramplab_model::run::{Arch, TriggerCost};
use tramplab_protocol::Mechanism::{
    self, Fentry, FentrySleepable, Fexit, FexitSleepable, Kprobe, Kretsyscall, Ksyscall, Lsm,
    LsmSleepable, RawTp, RawTpSleepable, Tp, TpBtfSleepable, TpSleepable,
};
use tramplab_protocol::message::GuestError;
use tramplab_vm::Vm;

on_each_arch!(hits_events_system_calls_and_hooks);

/// The functions that a hit enters, without the parts of their names that change.
fn entered(cost: &TriggerCost) -> BTreeSet<String> {
    let records = cost.parts.iter().flat_map(|part| &part.records);
    let starts = records.filter(|record| record.to.offset == 0);
    let names = starts.filter_map(|record| record.to.symbol.as_deref());
    names.map(|name| branch::stable_name(name).into_owned()).collect()
}

fn hits_events_system_calls_and_hooks(arch: Arch) {
    let dir = tempfile::tempdir().unwrap();
    let mut vm = Vm::boot(&spec(arch, dir.path())).unwrap();
    let mut number = 0;
    let mut hit = |mechanism: Mechanism| {
        let found = try_hit(&mut vm, dir.path(), number, mechanism, set(&[]));
        number += 1;
        found.unwrap_or_else(|error| panic!("{mechanism}: {error}")).0
    };
    // A classic tracepoint fills a record of perf's before it runs the program.
    let [raw, classic] = [RawTp, Tp].map(&mut hit);
    assert!(raw.instructions() * 2 < classic.instructions(), "{raw:#?} {classic:#?}");
    let functions = [&raw, &classic].map(entered);
    let fills = functions.each_ref().map(|all| all.contains("perf_trace_task_rename"));
    assert_eq!(fills, [false, true], "{functions:#?}");
    // The kernel attaches kprobes to system calls, which have no way of their own.
    let [kprobe, call, returns] = [Kprobe, Ksyscall, Kretsyscall].map(&mut hit);
    assert_eq!(kprobe.instructions(), call.instructions());
    assert!(returns.instructions() > call.instructions(), "{returns:#?}");
    // A hook's function returns its default, behind the program's trampoline.
    let hook = hit(Lsm);
    assert!(entered(&hook).contains("bpf_trampoline_*"), "{hook:#?}");
    let again = hit(Lsm);
    assert_eq!(of_any_boot(arch, &again), of_any_boot(arch, &hook));
    // Programs that may sleep have another protection than the others.
    for (plain, sleepable) in
        [(Fentry, FentrySleepable), (Fexit, FexitSleepable), (Lsm, LsmSleepable)]
    {
        let functions = [plain, sleepable].map(|mechanism| entered(&hit(mechanism)));
        let protected = |name: &String| name.starts_with("__bpf_prog_enter_sleepable");
        let protects = functions.each_ref().map(|all| all.iter().any(protected));
        assert_eq!(protects, [false, true], "{sleepable}: {functions:#?}");
    }
    // 6.12 lets no program sleep at the tracepoints of system calls; 7.2 does.
    let at_syscalls = match try_hit(&mut vm, dir.path(), number, RawTpSleepable, set(&[])) {
        Ok((raw, _)) => {
            assert!(!entered(&raw).contains("trace_call_bpf_faultable"), "{raw:#?}");
            let event = try_hit(&mut vm, dir.path(), number + 1, TpSleepable, set(&[])).unwrap().0;
            assert!(entered(&event).contains("trace_call_bpf_faultable"), "{event:#?}");
            let holder = match arch {
                Arch::X86_64 => "trace_syscall_enter",
                Arch::Arm64 => "syscall_trace_enter",
            };
            number += 2;
            vec![(TpBtfSleepable, holder), (TpSleepable, holder)]
        }
        Err(GuestError::Unsupported(reason)) => {
            assert!(reason.contains("programs sleep at the tracepoints"), "{reason}");
            Vec::new()
        }
        Err(error) => panic!("{error}"),
    };
    let others = [
        (Tp, "__set_task_comm"),
        (
            Ksyscall,
            match arch {
                Arch::X86_64 => "__x64_sys_getpgid",
                Arch::Arm64 => "__arm64_sys_getpgid",
            },
        ),
        (Lsm, "bpf_lsm_task_prctl"),
        (LsmSleepable, "bpf_lsm_task_prctl"),
        (FentrySleepable, "bpf_fentry_test1"),
        (FexitSleepable, "bpf_fentry_test1"),
    ];
    for (mechanism, function) in others.into_iter().chain(at_syscalls) {
        let found = waste(arch, &mut vm, dir.path(), number, mechanism);
        number += 1;
        assert_eq!(found.function.name, function);
    }
    vm.power_off(LIMIT).unwrap();
}
