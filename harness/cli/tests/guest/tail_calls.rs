// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs of users that call others through prog arrays (`bpf/tail_calls.bpf.c`).

use super::{
    LIMIT,
    programs::{Guest, Objects},
};
use tramplab_model::run::Arch;
use tramplab_protocol::{
    Mechanism::{Fentry, Kprobe},
    message::GuestError,
};
use tramplab_suite::program::Program;

on_each_arch!(
    measures_tail_calls,
    ignore = "full: one mechanism; the cost of a hit runs in every change"
);

fn measures_tail_calls(arch: Arch) {
    let objects = Objects::compile();
    let program = |name: &str| objects.read(&format!("tail_calls.bpf.o:{name}"));
    let mut guest = Guest::boot(arch);
    costs_of_hits(arch, &mut guest, &program);
    waste(&mut guest, &program);
    attached(&mut guest, &objects);
    let error = guest.cost(Fentry, Some(&program("calls_other_type"))).unwrap_err();
    let words = "calls_other_type of SEC(\"fentry\") cannot tail-call short_kprobe of \
                 SEC(\"kprobe\"), which is in slot 0 of kprobes";
    assert!(error.to_string().contains(words), "{error}");
    sleepable(arch, guest.cost(Fentry, Some(&program("calls_sleepable"))));
    guest.vm.power_off(LIMIT).unwrap();
}

/// Tells if the counts of two hits differ by so many instructions, and by no branch. On arm64 the
/// code that loads a map's address may be shorter by one instruction: it leaves out a 16-bit part
/// that is zero (`emit_a64_mov_i64`, `arch/arm64/net/bpf_jit_comp.c`). Each hit has its own maps,
/// and uses three at most.
fn differ_by(arch: Arch, more: u32, short: (u32, u32), long: (u32, u32)) -> bool {
    let spread = match arch {
        Arch::X86_64 => 0,
        Arch::Arm64 => 3,
    };
    long.1 == short.1 && (short.0 + more).abs_diff(long.0) <= spread
}

fn costs_of_hits(arch: Arch, guest: &mut Guest, program: &dyn Fn(&str) -> Program) {
    let mut counts = |name: &str| guest.counts(Fentry, Some(&program(name)));
    // The same path, through seven instructions more.
    for (short, long) in [
        ("calls,slot=0", "calls,slot=1"),
        ("calls,slot=3,then=0", "calls,slot=3,then=1"),
        ("calls_in_function,slot=0", "calls_in_function,slot=1"),
        // A slot without a program: the caller goes on.
        ("calls,slot=2", "calls_or_runs_more,slot=2"),
        // A slot that the array has not.
        ("calls,slot=9", "calls_or_runs_more,slot=9"),
    ] {
        let (fewer, more) = (counts(short), counts(long));
        assert!(differ_by(arch, 7, fewer, more), "{short}: {fewer:?} {more:?}");
    }
    // The caller's code behind the call does not run.
    let (all, part) = (counts("calls,slot=0"), counts("calls_or_runs_more,slot=0"));
    assert!(differ_by(arch, 0, all, part), "{all:?} {part:?}");
    // The kernel ends such a chain after 33 calls.
    let (once, often) = (counts("calls_itself,slot=1"), counts("calls_itself,slot=0"));
    assert!(often.1 >= once.1 + 33, "{once:?} {often:?}");
    // libbpf puts maps into maps.
    let (none, found) = (counts("finds_a_map,slot=1"), counts("finds_a_map,slot=0"));
    assert!(found.0 >= none.0 + 7, "{none:?} {found:?}");

    let mut kprobe =
        |slot| guest.counts(Kprobe, Some(&program(&format!("calls_kprobes,slot={slot}"))));
    let (short, long) = (kprobe(0), kprobe(1));
    assert!(differ_by(arch, 7, short, long), "{short:?} {long:?}");
}

fn waste(guest: &mut Guest, program: &dyn Fn(&str) -> Program) {
    let mut any = |name: &str| {
        let waste = guest.waste(Fentry, Some(program(name).sent)).unwrap();
        super::functions::any(&waste)
    };
    let (direct, called) = (any("snapshot"), any("calls_snapshot,slot=0"));
    assert!(direct < called, "{direct:?} {called:?}");
    // A call and its return.
    let expected: Vec<_> = called.iter().map(|wasted| wasted.map(|wasted| wasted + 2)).collect();
    assert_eq!(any("calls_snapshot,slot=1"), expected);
}

/// The kernel binds an array to the prototype of one function.
fn attached(guest: &mut Guest, objects: &Objects) {
    let empty = guest.attach(&objects.read("programs.bpf.o:empty_fentry"), 10).unwrap();
    let reply = guest.attach(&objects.read("tail_calls.bpf.o:calls"), 10).unwrap();
    assert_eq!(reply.functions, empty.functions);
    assert_eq!((reply.programs, reply.links), (10, 10));
}

/// Kernels that let the two call each other measure them.
fn sleepable<T: std::fmt::Debug>(arch: Arch, cost: Result<T, GuestError>) {
    match (arch, cost) {
        (Arch::X86_64, Ok(_)) => {}
        (Arch::Arm64, Err(GuestError::Failed(error))) => {
            let words = "failed to put short_sleepable into slot 0 of sleepables: EINVAL";
            assert!(error.contains(words), "{error}");
        }
        other => panic!("{other:?}"),
    }
}
