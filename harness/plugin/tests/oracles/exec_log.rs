// SPDX-License-Identifier: GPL-2.0-or-later
//! The plugin's records of the bare-metal image against QEMU's own log of the same run.

use crate::{
    compare::difference,
    machine::{Machine, labels},
    qemu_log,
};
use std::{fs::File, io::BufReader};
use tramplab_protocol::trace::{Record, Trace};

/// Compares, and says how many records were compared.
pub fn compare(name: &str, log: &[qemu_log::Transfer], trace: &Trace) -> usize {
    let mut expected: Vec<Record> = if trace.discontinuities {
        log.iter().map(|transfer| transfer.record).collect()
    } else {
        qemu_log::without_being_told(log)
    };
    // A window begins with a block, and so where that does; the log's begins at `armed`.
    expected[0].instructions = trace.vcpus[0].records[0].instructions;
    if let Some(difference) = difference(&expected, &trace.vcpus[0].records) {
        panic!("{name}: {difference}");
    }
    expected.len()
}

#[test]
fn of_the_bare_metal_image() {
    let machine = Machine::assemble();
    let labels = labels(&machine.image);
    let log = machine.path().join("log");
    for (accel, arguments) in
        [("tcg", &[][..]), ("tcg,one-insn-per-tb=on", &[]), ("tcg", &["-icount", "shift=0"])]
    {
        // Only the image, not the firmware before it.
        let logging = ["-d", qemu_log::ITEMS, "-dfilter", "0x100000..0x3fffff", "-D", log.to_str().unwrap()];
        let traces = machine.record(accel, &[&logging, arguments].concat());
        let events = qemu_log::parse(BufReader::new(File::open(&log).unwrap()));
        let windows = qemu_log::windows(&events, labels["armed"], labels["disarm"]);
        assert_eq!(windows.len(), traces.len());
        for (window, trace) in windows.into_iter().zip(&traces) {
            compare(&format!("{accel} {arguments:?}"), &qemu_log::transfers(window), trace);
        }
    }
}
