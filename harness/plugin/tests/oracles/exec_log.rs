// SPDX-License-Identifier: GPL-2.0-or-later
//! Compares the plugin's records of the bare-metal image with QEMU's own log of the same run.

use crate::machine::{Guest, Machine, labels, on_each_machine};
use std::{fs::File, io::BufReader};
use tramplab_protocol::{
    magic::Magic,
    trace::{Record, Trace},
};
use tramplab_testdata::{compare::difference, qemu_log};

on_each_machine! {
    records_agree_with_the_log
    counts_agree_with_the_log
}

/// Compares the records of one window. Returns their number.
pub fn compare(name: &str, log: &[qemu_log::Transfer], trace: &Trace) -> usize {
    let mut expected: Vec<Record> = if trace.discontinuities {
        log.iter().map(|transfer| transfer.record).collect()
    } else {
        qemu_log::without_being_told(log)
    };
    // The plugin's window begins with a block; the log's begins at `armed`.
    expected[0].instructions = trace.vcpus[0].records[0].instructions;
    if let Some(difference) = difference(&expected, &trace.vcpus[0].records) {
        panic!("{name}: {difference}");
    }
    expected.len()
}

const WAYS: [(&str, &[&str]); 3] =
    [("tcg", &[]), ("tcg,one-insn-per-tb=on", &[]), ("tcg", &["-icount", "shift=0"])];

/// The window of the arm64 image in which a timer fires at any place.
const STORM: usize = 2;

/// Runs the image and parses QEMU's log of it.
fn logged<T>(
    machine: &Machine,
    arguments: &[&str],
    run: impl FnOnce(&[&str]) -> T,
) -> (T, Vec<qemu_log::Event>) {
    let log = machine.path().join("log");
    let logging = ["-d", qemu_log::ITEMS, "-dfilter", machine.code(), "-D", log.to_str().unwrap()];
    let result = run(&[&logging, arguments].concat());
    (result, qemu_log::parse(machine.guest.arch(), BufReader::new(File::open(&log).unwrap())))
}

fn records_agree_with_the_log(guest: Guest) {
    let machine = Machine::assemble(guest);
    let labels = labels(&machine.image);
    for (accel, arguments) in WAYS {
        let (traces, events) =
            logged(&machine, arguments, |arguments| machine.record(accel, arguments));
        let windows = qemu_log::windows(&events, labels["armed"], labels["disarm"]);
        assert_eq!(windows.len(), traces.len());
        for (window, trace) in windows.iter().zip(&traces) {
            compare(&format!("{accel} {arguments:?}"), &qemu_log::transfers(window), trace);
        }
        // The host's clock makes the number of timer interrupts unpredictable.
        if guest == Guest::Arm64 && arguments.contains(&"-icount") {
            let interrupts = qemu_log::interrupts_of_devices(windows[STORM]);
            assert!(interrupts > 100, "{interrupts} interrupts");
        }
    }
}

fn counts_agree_with_the_log(guest: Guest) {
    let machine = Machine::assemble_with(guest, Magic::Profile);
    let labels = labels(&machine.image);
    for (accel, arguments) in WAYS {
        let (profiles, events) =
            logged(&machine, arguments, |arguments| machine.profile(accel, arguments));
        // A window begins with the block after the one that arms.
        let first = if accel.contains("one-insn") { "arming" } else { "armed" };
        let windows = qemu_log::windows(&events, labels[first], labels["disarm"]);
        assert_eq!(windows.len(), profiles.len(), "{accel} {arguments:?}");
        for (window, counts) in windows.into_iter().zip(&profiles) {
            let [vcpu] = &counts.vcpus[..] else { panic!("{} vCPUs", counts.vcpus.len()) };
            let counted: u64 = vcpu.blocks.iter().map(|block| block.instructions).sum();
            assert_eq!(counted, qemu_log::instructions(window), "{accel} {arguments:?}");
            assert!(counted > 1000 && vcpu.cut == 0, "{vcpu:?}");
            // The image's names: they show that registers and memory were read.
            let threads: Vec<_> =
                vcpu.threads.iter().map(|t| (&*t.command, t.pid, t.measured)).collect();
            assert_eq!(
                threads,
                [("first", 11, true), ("second", 12, false)],
                "{accel} {arguments:?}"
            );
            assert_eq!(counts.lost_switches, 0);
        }
    }
}
