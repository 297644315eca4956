// SPDX-License-Identifier: GPL-2.0-or-later
//! The recorder against a machine whose branches are known, and against QEMU's own log of what it executed.

mod machine;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};
use machine::{Machine, difference};
use object::{Object, ObjectSection, ObjectSymbol};
use std::{collections::HashMap, fs};
use tramplab_protocol::trace::{Kind, Record};

/// Every way of running the same machine must give the same list.
const WAYS: &[(&str, &[&str])] = &[
    ("tcg", &[]),
    ("tcg,thread=single", &["-icount", "shift=0"]),
    ("tcg,one-insn-per-tb=on", &[]),
    ("tcg,thread=multi", &["-smp", "2"]),
];

#[test]
fn what_stands_beside_the_branches_is_what_is_recorded() {
    let machine = Machine::assemble();
    let expected = machine.expected();
    assert_eq!(expected.len(), 40, "as many as there are in image.S");
    for (accel, arguments) in WAYS {
        for (window, trace) in machine.record(accel, arguments).iter().enumerate() {
            let vcpu = trace.vcpus.iter().find(|vcpu| vcpu.index == 0).unwrap();
            if let Some(difference) = difference(&expected, &vcpu.records) {
                panic!("{accel} {arguments:?}, window {window}: {difference}");
            }
            assert_eq!(vcpu.total, expected.len() as u64);
        }
    }
}

/// Every instruction executed, in order, from `-d exec` with one instruction per block.
fn executed(machine: &Machine) -> Vec<u64> {
    let log = machine.path().join("exec.log");
    let arguments = ["-d", "exec,nochain", "-D", log.to_str().unwrap()];
    let output = machine.qemu("tcg,one-insn-per-tb=on", &arguments);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    // `Trace 0: 0x7f… [00000000/0000000000100123/…/…]`
    let text = fs::read_to_string(log).unwrap();
    text.lines()
        .filter(|line| line.starts_with("Trace "))
        .map(|line| u64::from_str_radix(line.split('/').nth(1).unwrap(), 16).unwrap())
        .collect()
}

/// The image's instructions, decoded where they are executed.
struct Code(Vec<(u64, Vec<u8>)>);

impl Code {
    fn of(machine: &Machine) -> Code {
        let bytes = fs::read(&machine.image).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        Code(file.sections().map(|s| (s.address(), s.data().unwrap_or_default().to_vec())).collect())
    }

    fn at(&self, address: u64) -> Instruction {
        let (start, bytes) = self
            .0
            .iter()
            .find(|(start, bytes)| (*start..start + bytes.len() as u64).contains(&address))
            .unwrap_or_else(|| panic!("{address:#x} lies in no section"));
        Decoder::with_ip(64, &bytes[(address - start) as usize..], address, DecoderOptions::NONE).decode()
    }
}

/// The transfers in a list of executed instructions, by nothing but their addresses and lengths.
fn transfers(executed: &[u64], code: &Code) -> Vec<(u64, u64)> {
    let transfer = |pair: &[u64]| {
        let (here, next) = (pair[0], pair[1]);
        let instruction = code.at(here);
        let unconditional =
            !matches!(instruction.flow_control(), FlowControl::Next | FlowControl::ConditionalBranch);
        let repeats = next == here
            && (instruction.has_rep_prefix() || instruction.has_repne_prefix())
            && instruction.flow_control() == FlowControl::Next;
        let leaves = next != instruction.next_ip() && !repeats;
        (leaves || unconditional).then_some((here, next))
    };
    executed.windows(2).filter_map(transfer).collect()
}

#[test]
fn the_records_are_the_transfers_of_qemus_own_log() {
    let machine = Machine::assemble();
    let executed = executed(&machine);
    let bytes = fs::read(&machine.image).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let labels: HashMap<&str, u64> = file.symbols().map(|s| (s.name().unwrap(), s.address())).collect();
    // The window begins with the block behind the one that arms, and ends where the disarming block begins.
    let begin = executed.iter().position(|&pc| pc == labels["armed"]).unwrap();
    let end = begin + executed[begin..].iter().position(|&pc| pc == labels["disarmed"]).unwrap();
    // The last transfer lies in the disarming block, and is not recorded.
    let mut logged = transfers(&executed[begin..=end], &Code::of(&machine));
    assert_eq!(logged.pop().map(|(_, to)| to), Some(labels["disarmed"]));

    let [trace, _] = machine.record("tcg", &[]);
    let code = Code::of(&machine);
    let recorded: Vec<(u64, u64)> = trace.vcpus[0]
        .records
        .iter()
        .zip(&logged)
        .map(|(&Record { from, to, kind }, &(before, _))| {
            // The log knows the instruction before an interrupt, the record the one after it.
            let after = kind == Kind::Interrupt && code.at(before).next_ip() == from;
            (if after { before } else { from }, to)
        })
        .collect();
    assert_eq!(trace.vcpus[0].records.len(), logged.len());
    if let Some(difference) = difference(&logged, &recorded) {
        panic!("{difference}");
    }
}

#[test]
fn wrong_arguments_keep_qemu_from_starting() {
    let machine = Machine::assemble();
    let plugin = machine::from_env("TRAMPLAB_PLUGIN");
    let dir = machine.path().display();
    for (arguments, words) in [
        (String::new(), "dir=DIR is missing"),
        (",dir=/no/such/folder".to_owned(), "no such folder"),
        (format!(",dir={dir},ring=none"), "a number of records"),
        (format!(",dir={dir},depth=32"), "unknown argument `depth=32`"),
    ] {
        let option = format!("{}{arguments}", plugin.display());
        let output = machine.qemu("tcg", &["-plugin", &option]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(words), "{arguments}: {output:?}");
    }
}

#[test]
fn a_small_ring_keeps_the_newest() {
    let machine = Machine::assemble();
    let expected = machine.expected();
    let dir = machine.path().join("small");
    fs::create_dir(&dir).unwrap();
    let option = format!("{},dir={},ring=5", machine::from_env("TRAMPLAB_PLUGIN").display(), dir.display());
    assert_eq!(machine.qemu("tcg", &["-plugin", &option]).status.code(), Some(1));
    let bytes = fs::read(tramplab_protocol::trace::file_name(&dir, 0)).unwrap();
    let trace = tramplab_protocol::trace::Trace::decode(&bytes).unwrap();
    assert_eq!(trace.vcpus[0].total, expected.len() as u64);
    assert_eq!(trace.vcpus[0].records, expected[expected.len() - 5..]);
}
