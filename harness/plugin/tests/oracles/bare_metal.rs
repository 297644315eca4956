// SPDX-License-Identifier: GPL-2.0-or-later
//! Tests the recorder on a machine whose branches are known.

use crate::machine::{self, Guest, Machine, Transfer, labels, on_each_machine, transfers};
use std::fs;
use tramplab_protocol::{
    magic::Magic,
    trace::{Accesses, Trace, file_name},
};
use tramplab_testdata::compare::difference;

on_each_machine! {
    records_the_branches_that_the_source_lists
    records_each_cpu_by_itself
    counts_the_accesses_that_the_source_lists
    rejects_wrong_arguments
    rejects_vcpus_that_cannot_be_told_apart
    keeps_the_newest_in_a_small_ring
}

/// Places of a hostile kernel for delivered records harm neither QEMU nor the plugin: they are the
/// guest's own, or none.
#[test]
fn delivers_to_no_place_outside_the_guest() {
    let machine = Machine::assemble_with(Guest::X86_64Newer, Magic::Deliver);
    for (accel, arguments) in WAYS {
        assert_eq!(machine.record(accel, arguments).len(), 3, "{accel} {arguments:?}");
    }
}

/// All these ways of running the same machine must give the same list.
const WAYS: &[(&str, &[&str])] = &[
    ("tcg", &[]),
    ("tcg,thread=single", &["-icount", "shift=0"]),
    ("tcg,one-insn-per-tb=on", &[]),
    ("tcg,thread=multi", &["-smp", "2"]),
];

fn records_the_branches_that_the_source_lists(guest: Guest) {
    let machine = Machine::assemble(guest);
    for (accel, arguments) in WAYS {
        let traces = machine.record(accel, arguments);
        assert!(traces.len() >= 2, "two windows, two traces");
        for (window, trace) in traces.iter().take(2).enumerate() {
            let expected = machine.expected(".expected", trace.discontinuities);
            let vcpu = trace.vcpus.iter().find(|vcpu| vcpu.index == 0).unwrap();
            if let Some(difference) = difference(&expected, &transfers(&vcpu.records)) {
                panic!("{accel} {arguments:?}, window {window}: {difference}");
            }
            assert_eq!(vcpu.total, expected.len() as u64);
        }
    }
}

fn records_each_cpu_by_itself(guest: Guest) {
    let machine = Machine::assemble(guest);
    let labels = labels(&machine.image);
    for accel in ["tcg,thread=multi", "tcg,thread=multi,one-insn-per-tb=on"] {
        let traces = machine.record(accel, &["-smp", "2"]);
        let [_, _, trace] = &traces[..] else { panic!("{} traces of three windows", traces.len()) };
        // The number of waiting loops is unknown.
        let of = |index, wait: &str| -> Vec<Transfer> {
            let vcpu = trace.vcpus.iter().find(|vcpu| vcpu.index == index).unwrap();
            transfers(vcpu.records.iter().filter(|record| record.from != labels[wait]))
        };
        let second = machine.expected(".expected_second", trace.discontinuities);
        assert_eq!(difference(&second, &of(1, "b_second_waits")), None, "{accel}");
        assert_eq!(difference(&[], &of(0, "b_first_waits")), None, "{accel}");
    }
}

fn counts_the_accesses_that_the_source_lists(guest: Guest) {
    let machine = Machine::assemble_with(guest, Magic::ArmAccesses);
    let expected = machine.accesses();
    assert!(expected.len() > 10, "{expected:?}");
    for (accel, arguments) in WAYS {
        let traces = machine.record(accel, arguments);
        for (window, trace) in traces.iter().take(2).enumerate() {
            let vcpu = trace.vcpus.iter().find(|vcpu| vcpu.index == 0).unwrap();
            let found = |&(from, _): &(u64, Accesses)| {
                let of_one = vcpu.records.iter().find(|record| record.from == from);
                (from, of_one.and_then(|record| record.accesses).expect("counted"))
            };
            let found: Vec<(u64, Accesses)> = expected.iter().map(found).collect();
            if let Some(difference) = difference(&expected, &found) {
                panic!("{accel} {arguments:?}, window {window}: {difference}");
            }
        }
    }
    // Only a window that asks for accesses has them.
    for trace in Machine::assemble(guest).record("tcg", &[]) {
        let mut records = trace.vcpus.iter().flat_map(|vcpu| &vcpu.records);
        assert!(records.all(|record| record.accesses.is_none()));
    }
}

fn rejects_wrong_arguments(guest: Guest) {
    let machine = Machine::assemble(guest);
    let plugin = machine::from_env("TRAMPLAB_PLUGIN");
    let dir = machine.path().display();
    for (arguments, words) in [
        (String::new(), "dir=DIR is missing"),
        (",dir=/no/such/folder".to_owned(), "no such folder"),
        (format!(",dir={dir},ring=none"), "a number of records"),
        (format!(",dir={}", machine.image.display()), "no such folder"),
        (format!(",dir={dir},ring=0"), "a number of records"),
        (format!(",dir={dir},depth=32"), "unknown argument `depth=32`"),
    ] {
        let option = format!("{}{arguments}", plugin.display());
        let output = machine.qemu("tcg", &["-plugin", &option]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(words), "{arguments}: {output:?}");
    }
}

fn rejects_vcpus_that_cannot_be_told_apart(guest: Guest) {
    let machine = Machine::assemble(guest);
    let option = format!(
        "{},dir={}",
        machine::from_env("TRAMPLAB_PLUGIN").display(),
        machine.path().display()
    );
    let shared = "several vCPUs share a thread";
    for (accel, arguments, words) in [
        ("tcg,thread=single", &["-smp", "2"][..], shared),
        ("tcg", &["-smp", "2", "-icount", "shift=0"], shared),
        ("tcg", &["-smp", "1,maxcpus=2"], "hot-plugged vCPUs"),
        ("tcg", &["-smp", "257"], "at most 256 can be recorded"),
    ] {
        let output = machine.qemu(accel, &[&["-plugin", &option], arguments].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains(words), "{output:?}");
    }
}

fn keeps_the_newest_in_a_small_ring(guest: Guest) {
    let machine = Machine::assemble(guest);
    let dir = machine.path().join("small");
    fs::create_dir(&dir).unwrap();
    let option =
        format!("{},dir={},ring=5", machine::from_env("TRAMPLAB_PLUGIN").display(), dir.display());
    assert_eq!(machine.qemu("tcg", &["-plugin", &option]).status.code(), Some(1));
    let bytes = fs::read(file_name(&dir, 0)).unwrap();
    let trace = Trace::decode(&bytes).unwrap();
    let expected = machine.expected(".expected", trace.discontinuities);
    assert_eq!(trace.vcpus[0].total, expected.len() as u64);
    assert_eq!(transfers(&trace.vcpus[0].records), expected[expected.len() - 5..]);
}
