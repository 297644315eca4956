// SPDX-License-Identifier: MIT OR Apache-2.0
//! Probes of user-space code: the way of a hit, and attaching to many functions.

use super::{
    LIMIT, attach, recorded,
    trigger::{ask, of_any_boot, request},
};
use crate::machine::spec;
use std::{fs, path::Path};
use tramplab_analysis::branch;
use tramplab_model::run::{Arch, TriggerCost};
use tramplab_protocol::{
    Functions, Mechanism, Point,
    binary::Binary,
    message::{AttachRequest, GuestError},
    trace::Kind,
};
use tramplab_suite::binary;
use tramplab_vm::Vm;

/// Hits of a function of the agent's binary.
fn hit(
    vm: &mut Vm,
    dir: &Path,
    number: u64,
    mechanism: Mechanism,
    function: Option<&str>,
) -> Result<TriggerCost, GuestError> {
    let reply = ask(vm, request(mechanism, function))?;
    assert_eq!(reply.function.name, function.unwrap_or(&reply.function.name));
    assert_eq!(reply.trigger.is_some(), function.is_some());
    let (trace, symbols) = recorded(vm, dir, number);
    Ok(branch::trigger_cost(&trace, &symbols.into_iter().collect(), &reply, None)
        .unwrap_or_else(|error| panic!("{mechanism} on {function:?}: {error}")))
}

/// How often a part goes from user space to the kernel: by exceptions, and by system calls.
fn kernel_entries(cost: &TriggerCost, point: Point) -> (usize, usize) {
    let records = cost.part(point).map_or(&[][..], |part| &part.records);
    let entries = records
        .iter()
        .filter(|record| record.from.address >> 63 == 0 && record.to.address >> 63 == 1);
    let (calls, exceptions): (Vec<_>, Vec<_>) =
        entries.partition(|record| record.kind == Kind::Syscall);
    (exceptions.len(), calls.len())
}

fn enters(cost: &TriggerCost, point: Point, name: &str) -> bool {
    let mut records = cost.part(point).into_iter().flat_map(|part| &part.records);
    records.any(|record| {
        let symbol = record.to.symbol.as_deref().map(branch::stable_name);
        record.to.offset == 0 && symbol.as_deref() == Some(name)
    })
}

on_each_arch!(user_space_hits_go_through_the_kernel);

on_each_arch!(
    user_space_hits_are_the_same_at_every_boot,
    ignore = "full: several boots; a boot runs in every change"
);

/// Every boot puts the agent's mappings elsewhere.
fn user_space_hits_are_the_same_at_every_boot(arch: Arch) {
    let costs = (0..4).map(|_| {
        let dir = tempfile::tempdir().unwrap();
        let mut vm = Vm::boot(&spec(arch, dir.path())).unwrap();
        let cost = hit(&mut vm, dir.path(), 0, Mechanism::Uprobe, None).unwrap();
        vm.power_off(LIMIT).unwrap();
        of_any_boot(arch, &cost)
    });
    let costs: Vec<_> = costs.collect();
    assert!(costs.iter().all(|cost| *cost == costs[0]), "{costs:?}");
}

fn user_space_hits_go_through_the_kernel(arch: Arch) {
    const PROGRAM: &str = "bpf_prog_*_tramplab_empty";
    let dir = tempfile::tempdir().unwrap();
    let mut vm = Vm::boot(&spec(arch, dir.path())).unwrap();
    let mut number = 0;
    let mut cost = |mechanism, function: Option<&str>| {
        let cost = hit(&mut vm, dir.path(), number, mechanism, function);
        number += u64::from(cost.is_ok());
        cost
    };
    for mechanism in Mechanism::USER {
        let found = match cost(mechanism, None) {
            Ok(found) => found,
            // 6.12 has no sessions.
            Err(GuestError::Unsupported(reason)) => {
                let is_session = mechanism == Mechanism::UprobeSession && arch == Arch::X86_64;
                assert!(is_session && reason.contains("BPF_TRACE_UPROBE_SESSION"), "{reason}");
                continue;
            }
            Err(error) => panic!("{mechanism}: {error}"),
        };
        for point in [Point::Entry, Point::Exit] {
            let runs = mechanism.points().contains(&point);
            assert_eq!(enters(&found, point, PROGRAM), runs, "{mechanism} at {point}");
        }
        // The breakpoint leads to the program by this function; a return that was hijacked goes by
        // a system call, or by a breakpoint of its own.
        assert!(enters(&found, Point::Entry, "uprobe_notify_resume"), "{mechanism}: {found:#?}");
        let returns = mechanism.points().contains(&Point::Exit);
        let (exceptions, calls) = kernel_entries(&found, Point::Exit);
        assert_eq!(exceptions + calls, usize::from(returns), "{mechanism}: {found:#?}");
        assert_eq!(found.part(Point::Exit).is_some(), returns, "{mechanism}");
    }
    // The kernel emulates a no-op, and executes another instruction elsewhere, which takes a second
    // exception.
    let nop = cost(Mechanism::Uprobe, Some("user_nop")).unwrap();
    let step = cost(Mechanism::Uprobe, Some("user_step")).unwrap();
    assert_eq!(kernel_entries(&nop, Point::Entry), (1, 0), "{nop:#?}");
    assert_eq!(kernel_entries(&step, Point::Entry), (2, 0), "{step:#?}");
    assert!(nop.instructions() < step.instructions());
    // A return is stepped, or computed.
    let traps = if arch == Arch::X86_64 { 2 } else { 1 };
    let ret = cost(Mechanism::Uprobe, Some("user_ret")).unwrap();
    assert_eq!(kernel_entries(&ret, Point::Entry), (traps, 0), "{ret:#?}");
    let ret = cost(Mechanism::Uretprobe, Some("user_ret")).unwrap();
    assert!(enters(&ret, Point::Exit, PROGRAM) && !enters(&ret, Point::Entry, PROGRAM), "{ret:#?}");
    let again = cost(Mechanism::Uprobe, Some("user_step")).unwrap();
    assert_eq!(of_any_boot(arch, &again), of_any_boot(arch, &step));
    for (function, words) in [
        ("vfs_read", "the agent has no function vfs_read"),
        match arch {
            // It begins with a prefix that 6.12 does not let pass.
            Arch::X86_64 => ("user_nop10", "it refuses uprobe on user_nop10"),
            Arch::Arm64 => ("user_nop5", "no such instruction"),
        },
    ] {
        let error = cost(Mechanism::Uprobe, Some(function)).unwrap_err();
        let GuestError::Unsupported(reason) = error else { panic!("{error}") };
        assert!(reason.contains(words), "{reason}");
    }
    vm.power_off(LIMIT).unwrap();
}

/// The architecture's C library: the host's, or that of its cross compiler.
fn library(arch: Arch) -> Vec<u8> {
    let folders = match arch {
        Arch::X86_64 => ["/lib/x86_64-linux-gnu", "/usr/x86_64-linux-gnu/lib"],
        Arch::Arm64 => ["/usr/aarch64-linux-gnu/lib", "/lib/aarch64-linux-gnu"],
    };
    let found = folders.iter().find_map(|folder| fs::read(format!("{folder}/libc.so.6")).ok());
    found.expect("a C library, which `test --setup` installs")
}

/// Functions of a file of the user's.
fn attaches_to_a_library(vm: &mut Vm, arch: Arch) {
    let library = binary::read("libc.so.6", &library(arch)).unwrap();
    for (mechanism, wanted) in [
        (Mechanism::UprobeMulti, Functions::All),
        (Mechanism::UretprobeMulti, Functions::All),
        (Mechanism::Uprobe, attach::count(20)),
        (Mechanism::Uretprobe, attach::count(20)),
    ] {
        let binary = Some(library.clone());
        let request = AttachRequest { binary, ..attach::rounds_of(mechanism, wanted, 1) };
        let reply = attach::attach(vm, request).unwrap_or_else(|why| panic!("{mechanism}: {why}"));
        let all = library.functions.len();
        let (attached, refused) = (reply.functions.len(), reply.refused.len());
        match wanted {
            Functions::All => assert_eq!(attached + refused, all, "{mechanism}"),
            _ => assert_eq!(attached, 20),
        }
        assert!(refused < all / 10, "{mechanism}: {:?}", reply.refused);
        let name = |name: &String| name.starts_with("libc.so.6:");
        assert!(reply.functions.iter().all(name), "{mechanism}: {:?}", reply.functions);
    }
    let binary = Some(Binary { machine: 1, ..library });
    let request = attach::rounds_of(Mechanism::Uprobe, Functions::All, 1);
    match attach::attach(vm, AttachRequest { binary, ..request }) {
        Err(GuestError::Unsupported(reason)) => {
            assert!(reason.contains("code for the machine 1 "), "{reason}")
        }
        other => panic!("{other:?}"),
    }
}

on_each_arch!(
    attaches_to_many_user_space_functions,
    ignore = "full: attaches to thousands of functions"
);

fn attaches_to_many_user_space_functions(arch: Arch) {
    let dir = tempfile::tempdir().unwrap();
    let mut vm = Vm::boot(&spec(arch, dir.path())).unwrap();
    for mechanism in Mechanism::USER {
        let wanted = if mechanism.is_multi() { Functions::All } else { attach::count(20) };
        let reply = match attach::attach(&mut vm, attach::rounds_of(mechanism, wanted, 2)) {
            Ok(reply) => reply,
            Err(GuestError::Unsupported(_)) if mechanism == Mechanism::UprobeSession => continue,
            Err(error) => panic!("{mechanism}: {error}"),
        };
        let (functions, links) = if mechanism.is_multi() { (1 << 14, 1) } else { (20, 20) };
        assert_eq!((reply.functions.len(), reply.links), (functions, links), "{mechanism}");
        assert_eq!((reply.rounds.len(), reply.programs), (2, 1), "{mechanism}");
        assert!(reply.refused.is_empty() && reply.stopped.is_none(), "{mechanism}: {reply:?}");
        // The kernel keeps a record of a hundred bytes and more for each probe.
        let grown = reply.rounds[0].memory_kib.unwrap();
        assert!(!mechanism.is_multi() || grown > 1_600, "{mechanism}: {grown} KiB");
    }
    let too_many = attach::rounds_of(Mechanism::UprobeMulti, attach::count(20_000), 1);
    let error = attach::attach(&mut vm, too_many).unwrap_err();
    let expected = "16384 targets are available, 20000 were asked for";
    assert_eq!(error, GuestError::Unsupported(expected.to_owned()));
    // No kernel function may be named.
    let among = vec!["tcp_*".parse().unwrap()];
    let request =
        AttachRequest { among, ..attach::rounds_of(Mechanism::Uprobe, Functions::All, 1) };
    assert!(matches!(attach::attach(&mut vm, request), Err(GuestError::Failed(_))));

    attaches_to_a_library(&mut vm, arch);

    // Every link that is closed waits for all programs that may still run.
    let reply =
        attach::explain(&mut vm, attach::rounds_of(Mechanism::Uprobe, attach::count(10), 2));
    let waited: Vec<(Vec<String>, u64)> = reply
        .detach
        .waits
        .iter()
        .map(|wait| (attach::names(&mut vm, &wait.stack), wait.count))
        .collect();
    let is_grace_period = |(stack, _): &&(Vec<String>, u64)| {
        stack.iter().any(|name| name.starts_with("synchronize_"))
    };
    let times: u64 = waited.iter().filter(is_grace_period).map(|(_, times)| times).sum();
    assert!(times >= 20, "{waited:#?}");
    vm.power_off(LIMIT).unwrap();
}
