// SPDX-License-Identifier: GPL-2.0-or-later

use super::{
    super::{
        family::{Family, MOST_DEPTH, MOST_KEPT, Part, Register},
        ring::{Registers, Ring},
        tests,
    },
    Access,
    brbe::{self, Came},
};
use crate::{
    flow::{Block, Tail},
    recorder::{Noted, Recorder},
};
use proptest::prelude::*;
use tramplab_protocol::trace::Kind;

const KERNEL: u64 = 0xffff_8000_8001_0000;
/// A table of vectors. An IRQ's is 0x280 behind its start, that of an exception 0x200.
const VECTORS: u64 = 0xffff_8000_8080_0800;
const PROGRAM: u64 = 0x40_0000;

/// As the driver writes them (K `drivers/perf/arm_brbe.c`).
const ANY: u64 = 0x7e_0000;
const PAUSED: u64 = 0x80;
/// Exceptions, their returns, and the levels of kernel and programs.
const EXCEPTION: u64 = 0x80_0000;
const ERTN: u64 = 0x40_0000;
const FZP: u64 = 0x100;
const EXBRE: u64 = 2;
const E0BRE: u64 = 1;

fn registers() -> Registers {
    // SAFETY: as from a new file; any bytes are valid.
    unsafe { std::mem::zeroed() }
}

/// As `brbe_enable` does without VHE.
fn turn_on(ring: &mut Ring, control: u64, filter: u64) {
    ring.write(brbe::BRBCR_EL1, control);
    ring.write(brbe::BRBFCR_EL1, filter);
}

/// As `brbe_disable` does.
fn turn_off(ring: &mut Ring) {
    ring.write(brbe::BRBFCR_EL1, PAUSED);
    ring.write(brbe::BRBCR_EL1, 0);
    assert!(!ring.is_on());
}

/// Source, target and information of each valid record, newest first, as the driver reads them.
fn read(ring: &mut Ring, depth: usize) -> Vec<(u64, u64, u64)> {
    let mut records = Vec::new();
    for slot in 0..depth as u32 {
        if slot % 32 == 0 {
            let control = ring.read(brbe::BRBFCR_EL1).unwrap();
            let bank = u64::from(slot / 32) << 28;
            ring.write(brbe::BRBFCR_EL1, control & !(3 << 28) | bank);
        }
        let number = |part| brbe::encoded(2, 1, 8, slot % 16, (slot & 16) >> 2 | part);
        let [info, from, to] = [0, 1, 2].map(|part| ring.read(number(part)).unwrap());
        if info & 3 == 0 {
            break;
        }
        records.push((from, to, info));
    }
    let control = ring.read(brbe::BRBFCR_EL1).unwrap();
    ring.write(brbe::BRBFCR_EL1, control & !(3 << 28));
    records
}

/// A block at each start, which ends in a branch to the next one's.
fn blocks(run: &[(u64, Kind)]) -> Vec<Block> {
    let next = run.iter().skip(1).map(|&(start, _)| start).chain([KERNEL]);
    let block = |(&(start, kind), target)| {
        let tail = match kind {
            Kind::Cond => Tail::Cond { target },
            Kind::Jump | Kind::Call => Tail::Direct { kind, target },
            Kind::Interrupt => Tail::Trap,
            _ => Tail::Indirect { kind },
        };
        Block::new(Box::new([start]), start + 4, tail).surely_whole()
    };
    run.iter().zip(next).map(block).collect()
}

#[test]
fn decodes_instructions() {
    let reads = |number, general| Some(Access { number, general, reads: true });
    let writes = |number, general| Some(Access { number, general, reads: false });
    let of_entry = |crm, op2| brbe::encoded(2, 1, 8, crm, op2);
    // Words of GNU as.
    for (word, expected) in [
        (0xd538_0500, reads(brbe::ID_AA64DFR0_EL1, 0)),
        (0xd531_9207, reads(brbe::BRBIDR0_EL1, 7)),
        (0xd511_9003, writes(brbe::BRBCR_EL1, 3)),
        (0xd531_903e, reads(brbe::BRBFCR_EL1, 30)),
        // It writes the zero register.
        (0xd511_903f, writes(brbe::BRBFCR_EL1, 31)),
        (0xd531_8001, reads(of_entry(0, 0), 1)),
        (0xd531_8fa2, reads(of_entry(15, 5), 2)),
        (0xd531_8345, reads(of_entry(3, 2), 5)),
        (0xd514_9004, writes(brbe::BRBCR_EL2, 4)),
        (0xd515_9004, writes(brbe::BRBCR_EL12, 4)),
        (0xd511_9129, writes(brbe::BRBSRCINJ_EL1, 9)),
        (0xd509_729f, writes(brbe::BRB_IALL, 31)),
        (0xd509_72bf, writes(brbe::BRB_INJ, 31)),
        // Read-only registers are not written, instructions not read.
        (0xd511_9201, None),
        (0xd511_8001, None),
        (0xd518_0500, None),
        (0xd529_7280, None),
        // No part of an entry; another ID register; msr daifset; nop; ret.
        (0xd531_8060, None),
        (0xd538_0520, None),
        (0xd503_42df, None),
        (0xd503_201f, None),
        (0xd65f_03c0, None),
    ] {
        assert_eq!(Access::decode(word), expected, "{word:#x}");
    }
}

/// A kernel at EL2 (VHE) uses the names of EL1's registers.
#[test]
fn finds_the_register_of_a_level() {
    use brbe::{BRBCR_EL1, BRBCR_EL2, BRBCR_EL12, BRBFCR_EL1};
    for (number, level, redirects, expected) in [
        (BRBCR_EL1, 1, false, Some(BRBCR_EL1)),
        (BRBCR_EL1, 2, true, Some(BRBCR_EL2)),
        (BRBCR_EL1, 2, false, Some(BRBCR_EL1)),
        (BRBCR_EL12, 2, true, Some(BRBCR_EL1)),
        (BRBCR_EL12, 2, false, None),
        (BRBCR_EL12, 1, false, None),
        (BRBCR_EL2, 2, true, Some(BRBCR_EL2)),
        (BRBCR_EL2, 1, false, None),
        (BRBFCR_EL1, 2, true, Some(BRBFCR_EL1)),
        (BRBFCR_EL1, 0, false, None),
    ] {
        let access = Access { number, general: 0, reads: true };
        assert_eq!(access.at(level, redirects), expected, "{number:#x} at EL{level}");
    }
}

#[test]
fn has_a_place_for_each_register() {
    let all: Vec<Register> =
        (0..1 << 16).filter_map(|number| brbe::register(number, MOST_DEPTH)).collect();
    let kept = all.iter().filter_map(|register| match register {
        Register::Kept(place) => Some(*place),
        _ => None,
    });
    let mut kept: Vec<usize> = kept.collect();
    kept.sort_unstable();
    assert_eq!(kept, Vec::from_iter(0..7));
    assert!(kept.len() <= MOST_KEPT);
    for part in [Part::From, Part::To, Part::Info] {
        for slot in 0..32 {
            let wanted = Register::Entry { slot, part };
            assert_eq!(all.iter().filter(|&&it| it == wanted).count(), 1, "{wanted:?}");
        }
    }
}

/// `brbe_probe` expects format 0 and 20 bits of cycles.
#[test]
fn tells_the_kernel_of_its_records() {
    for depth in [8, 16, 32, 64] {
        let mut registers = registers();
        let mut ring = Ring::new(Family::Brbe, depth, &mut registers);
        assert_eq!(ring.read(brbe::BRBIDR0_EL1), Some(depth as u64 | 5 << 12));
        ring.write(brbe::BRBIDR0_EL1, 0);
        assert_eq!(ring.read(brbe::BRBIDR0_EL1), Some(depth as u64 | 5 << 12));
    }
}

#[derive(Clone, Debug)]
enum Op {
    On {
        control: u64,
        filter: u64,
    },
    Off,
    Pause,
    Run(Kind, bool),
    /// An IRQ or another exception, before the next block, which is its handler.
    Interrupt,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let kinds = [
        Kind::Cond,
        Kind::Jump,
        Kind::IndJump,
        Kind::Call,
        Kind::IndCall,
        Kind::Ret,
        Kind::Syscall,
        Kind::Iret,
        Kind::Int,
    ];
    let run = (proptest::sample::select(kinds.to_vec()), any::<bool>());
    let controls =
        (any::<[bool; 4]>(), 0u64..64, any::<bool>()).prop_map(|(bits, kinds, inverts)| {
            let [user, kernel, exceptions, returns] = bits.map(u64::from);
            let control = user | kernel << 1 | exceptions << 23 | returns << 22;
            Op::On { control, filter: kinds << 17 | u64::from(inverts) << 16 }
        });
    let op = prop_oneof![
        1 => controls,
        1 => Just(Op::Off),
        1 => Just(Op::Pause),
        20 => run.prop_map(|(kind, kernel)| Op::Run(kind, kernel)),
        1 => Just(Op::Interrupt),
    ];
    proptest::collection::vec(op, 0..400)
}

/// The record of a branch in BRBE: source, target, and the fields VALID, TYPE and EL. By the
/// manual's tables, without the plugin's own.
fn expected(control: u64, filter: u64, record: (u64, u64, Kind)) -> Option<(u64, u64, u64)> {
    let (from, to, kind) = record;
    let inverts = filter & 1 << 16 != 0;
    let chosen = |bit: u32| (filter >> bit & 1 == 1) != inverts;
    let (selected, type_of) = match kind {
        Kind::Cond => (chosen(22), 0b001000),
        Kind::Jump => (chosen(17), 0b000000),
        Kind::IndJump => (chosen(18), 0b000001),
        Kind::Call => (chosen(21), 0b000010),
        Kind::IndCall => (chosen(20), 0b000011),
        Kind::Ret => (chosen(19), 0b000101),
        Kind::Syscall => (control & EXCEPTION != 0, 0b100010),
        Kind::Int => (control & EXCEPTION != 0, 0b100110),
        Kind::Interrupt => (control & EXCEPTION != 0, 0b101110),
        Kind::Iret | Kind::Sysret => (control & ERTN != 0, 0b000111),
    };
    let is_open = |address: u64| match address >> 63 {
        1 => control & EXBRE != 0,
        _ => control & E0BRE != 0,
    };
    let (source, target) = (is_open(from), is_open(to));
    if !selected || !source && !target {
        return None;
    }
    let level = if target && to >> 63 == 1 { 1 } else { 0 };
    let valid = u64::from(source) << 1 | u64::from(target);
    let info = 1 << 46 | type_of << 8 | level << 6 | valid;
    Some((if source { from } else { 0 }, if target { to } else { 0 }, info))
}

/// The blocks that run one after the other, each led to by the one before. A handler is a vector.
fn program(ops: &[Op]) -> Vec<Block> {
    let run: Vec<usize> = (0..ops.len()).filter(|&at| matches!(ops[at], Op::Run(..))).collect();
    let interrupted = |at: usize| {
        let between = ops[..at].iter().rev().take_while(|op| !matches!(op, Op::Run(..)));
        between.into_iter().any(|op| matches!(op, Op::Interrupt))
    };
    let starts: Vec<(u64, Kind)> = run
        .iter()
        .map(|&at| match ops[at] {
            Op::Run(kind, _) if interrupted(at) => (VECTORS + 0x280 + 0x800 * at as u64, kind),
            Op::Run(kind, true) => (KERNEL + 64 * at as u64, kind),
            Op::Run(kind, false) => (PROGRAM + 64 * at as u64, kind),
            _ => unreachable!(),
        })
        .collect();
    blocks(&starts)
}

proptest! {
    /// The registers show what a recorder of all branches saw while the ring was on.
    #[test]
    fn keeps_the_selected_branches(
        ops in ops(),
        depth in proptest::sample::select(vec![8usize, 16, 32, 64]),
    ) {
        let blocks = program(&ops);
        let mut run = blocks.iter();
        let mut registers = registers();
        let mut ring = Ring::new(Family::Brbe, depth, &mut registers);
        let mut model = Vec::new();
        let mut watching: Option<((u64, u64), Recorder)> = None;
        let settle = |model: &mut Vec<_>, watching: Option<((u64, u64), Recorder)>| {
            let Some(((control, filter), recorder)) = watching else { return };
            for record in recorder.finish(0, false).records {
                model.extend(expected(control, filter, (record.from, record.to, record.kind)));
            }
            let old = model.len().saturating_sub(depth);
            model.drain(..old);
        };
        for op in &ops {
            match *op {
                Op::On { control, filter } => {
                    settle(&mut model, watching.take());
                    turn_off(&mut ring);
                    turn_on(&mut ring, control, filter);
                    if control & 3 != 0 {
                        watching = Some(((control, filter), Recorder::new(1 << 10, 0)));
                    }
                }
                Op::Off => {
                    settle(&mut model, watching.take());
                    turn_off(&mut ring);
                }
                Op::Pause => {
                    settle(&mut model, watching.take());
                    super::freeze(&mut ring);
                }
                Op::Run(..) => {
                    let recorder = watching.as_mut().map(|(_, recorder)| recorder);
                    tests::run(&mut ring, recorder, run.next().unwrap());
                }
                Op::Interrupt => {
                    let Some(next) = run.as_slice().first() else { continue };
                    let recorder = watching.as_mut().map(|(_, recorder)| recorder);
                    tests::interrupt(&mut ring, recorder, KERNEL - 64, next.start);
                }
            }
            prop_assert_eq!(ring.is_on(), watching.is_some());
            if watching.is_none() {
                let newest_first: Vec<_> = model.iter().rev().copied().collect();
                prop_assert_eq!(read(&mut ring, depth), newest_first);
            }
        }
    }

    /// The recorder keeps all fields of a record.
    #[test]
    fn packs_all_fields(info in any::<u64>()) {
        let fields = info & 0x7fff_0003_3fe3;
        prop_assert_eq!(brbe::unpacked(brbe::packed(fields)), fields);
    }
}

/// A branch across levels of which one is not recorded has one end.
#[test]
fn hides_the_end_that_is_not_recorded() {
    let run = [(PROGRAM, Kind::Syscall), (VECTORS + 0x400, Kind::Iret), (PROGRAM + 4, Kind::Jump)];
    let blocks = blocks(&run);
    let both = EXCEPTION | ERTN;
    let syscall = |valid: u64| 1 << 46 | 0x22 << 8 | valid;
    let eret = |valid: u64| 1 << 46 | 7 << 8 | valid;
    let (at, to) = (PROGRAM, VECTORS + 0x400);
    for (control, expected) in [
        (both | E0BRE | EXBRE, vec![(to, at + 4, eret(3)), (at, to, syscall(3) | 1 << 6)]),
        (both | EXBRE, vec![(to, 0, eret(2)), (0, to, syscall(1) | 1 << 6)]),
        (both | E0BRE, vec![(0, at + 4, eret(1)), (at, 0, syscall(2))]),
        (EXCEPTION | EXBRE, vec![(0, to, syscall(1) | 1 << 6)]),
        (ERTN | EXBRE, vec![(to, 0, eret(2))]),
        (EXBRE | E0BRE, vec![]),
    ] {
        let mut registers = registers();
        let mut ring = Ring::new(Family::Brbe, 32, &mut registers);
        turn_on(&mut ring, control, ANY);
        blocks.iter().for_each(|block| ring.block(block, Noted::default));
        assert_eq!(read(&mut ring, 32), expected, "{control:#x}");
    }
}

/// A kernel at EL2 sets its levels there, and no level in EL1's register.
#[test]
fn records_a_kernel_at_el2() {
    let blocks = blocks(&[(KERNEL, Kind::Call), (KERNEL + 64, Kind::Ret)]);
    let mut registers = registers();
    let mut ring = Ring::new(Family::Brbe, 32, &mut registers);
    ring.write(brbe::BRBCR_EL1, FZP);
    ring.write(brbe::BRBCR_EL2, EXBRE | FZP);
    ring.write(brbe::BRBFCR_EL1, ANY);
    blocks.iter().for_each(|block| ring.block(block, Noted::default));
    assert_eq!(read(&mut ring, 32), [(KERNEL, KERNEL + 64, 1 << 46 | 2 << 8 | 2 << 6 | 3)]);
    assert!(ring.brbe().unwrap().0.freezes(KERNEL, false));
}

/// A bank has 32 records. Those that the CPU lacks are zero.
#[test]
fn selects_a_bank() {
    let run: Vec<_> = (0..65).map(|at| (KERNEL + 64 * at, Kind::Jump)).collect();
    let blocks = blocks(&run);
    let source = |ring: &mut Ring, slot: u32, bank: u64| {
        ring.write(brbe::BRBFCR_EL1, ANY | bank << 28);
        ring.read(brbe::encoded(2, 1, 8, slot % 16, (slot & 16) >> 2 | 1)).unwrap()
    };
    for (depth, slot, bank, expected) in [
        (64, 0, 0, blocks[63].start),
        (64, 31, 0, blocks[32].start),
        (64, 0, 1, blocks[31].start),
        (64, 31, 1, blocks[0].start),
        (32, 31, 0, blocks[32].start),
        (32, 0, 1, 0),
        (8, 7, 0, blocks[56].start),
        (8, 8, 0, 0),
        (64, 0, 3, 0),
    ] {
        let mut registers = registers();
        let mut ring = Ring::new(Family::Brbe, depth, &mut registers);
        turn_on(&mut ring, EXBRE, ANY);
        blocks.iter().for_each(|block| ring.block(block, Noted::default));
        assert_eq!(source(&mut ring, slot, bank), expected, "{slot} of bank {bank}, {depth}");
        // A bank is no other filter: recording goes on.
        assert!(ring.is_on());
        ring.block(&blocks[0], Noted::default);
        assert_eq!(source(&mut ring, 0, 0), blocks[64].start);
    }
}

/// `BRB IALL` and `BRB INJ`.
#[test]
fn empties_and_injects() {
    let blocks = blocks(&[(KERNEL, Kind::Call), (KERNEL + 64, Kind::Ret), (KERNEL + 4, Kind::Ret)]);
    let mut registers = registers();
    let mut ring = Ring::new(Family::Brbe, 8, &mut registers);
    turn_on(&mut ring, EXBRE, ANY);
    blocks.iter().for_each(|block| ring.block(block, Noted::default));
    turn_off(&mut ring);
    assert_eq!(read(&mut ring, 8).len(), 2);
    ring.write(brbe::BRB_IALL, 0);
    assert_eq!(read(&mut ring, 8), []);
    // All fields, cycles included.
    let info = 0x2aa5_0003_0563;
    for number in 1..=9 {
        ring.write(brbe::BRBINFINJ_EL1, info);
        ring.write(brbe::BRBSRCINJ_EL1, KERNEL + number);
        ring.write(brbe::BRBTGTINJ_EL1, PROGRAM + number);
        ring.write(brbe::BRB_INJ, 0);
    }
    let injected: Vec<_> =
        (2..=9).rev().map(|number| (KERNEL + number, PROGRAM + number, info)).collect();
    assert_eq!(read(&mut ring, 8), injected);
    // New records come before them.
    turn_on(&mut ring, EXBRE, ANY);
    blocks.iter().for_each(|block| ring.block(block, Noted::default));
    assert_eq!(read(&mut ring, 8)[2..], injected[..6]);
    // None of them is read or written as a register.
    assert_eq!((ring.read(brbe::BRB_IALL), ring.read(brbe::BRB_INJ)), (None, None));
}

/// The branch before an overflow is recorded, its interrupt not.
#[test]
fn freezes_before_the_interrupt() {
    let run = [(PROGRAM, Kind::Call), (VECTORS + 0x480, Kind::Ret)];
    for (overflowed, expected) in [(true, 1), (false, 2)] {
        let blocks = blocks(&run);
        let mut registers = registers();
        let mut ring = Ring::new(Family::Brbe, 32, &mut registers);
        turn_on(&mut ring, FZP | EXCEPTION | EXBRE | E0BRE, ANY);
        ring.block(&blocks[0], Noted::default);
        // The call ran: the interrupt came at its target.
        ring.discontinuity(VECTORS + 0x480, VECTORS + 0x480);
        let (filter, was_interrupted) = ring.brbe().unwrap();
        assert!(was_interrupted && filter.freezes(blocks[1].start, was_interrupted));
        filter.set_came(Came { syndrome: None, overflowed });
        ring.block(&blocks[1], Noted::default);
        assert!(!ring.brbe().unwrap().1);
        let records = read(&mut ring, 32);
        assert_eq!(records.len(), expected);
        assert_eq!(records[expected - 1].0, PROGRAM);
        super::freeze(&mut ring);
        assert!(!ring.is_on());
        assert_eq!(ring.read(brbe::BRBFCR_EL1), Some(ANY | PAUSED));
    }
}

/// An overflow is looked for only where it can change the records.
#[test]
fn looks_for_an_overflow() {
    for (control, start, was_interrupted, expected) in [
        (FZP | EXBRE, KERNEL, false, true),
        (FZP | E0BRE, KERNEL, false, false),
        (FZP | E0BRE, VECTORS + 0x480, true, true),
        (FZP | E0BRE | EXBRE, PROGRAM, false, false),
        (EXBRE, KERNEL, true, false),
    ] {
        let mut registers = registers();
        let mut ring = Ring::new(Family::Brbe, 32, &mut registers);
        turn_on(&mut ring, control, ANY);
        let (filter, _) = ring.brbe().unwrap();
        assert_eq!(filter.freezes(start, was_interrupted), expected, "{control:#x} {start:#x}");
    }
}

/// By `BRBINF<n>_EL1.TYPE`, the vector, and the class in the syndrome.
#[test]
fn types_exceptions() {
    let class = |class: u64| Some(class << 26 | 1 << 25);
    for (vector, syndrome, expected) in [
        (0x280, None, 0x2e),
        (0x480, class(0x24), 0x2e),
        (0x300, None, 0x2f),
        (0x380, None, 0x24),
        (0x200, class(0x2f), 0x24),
        (0x400, class(0x16), 0x22),
        (0x400, class(0x00), 0x23),
        (0x400, class(0x18), 0x23),
        (0x400, class(0x20), 0x2b),
        (0x200, class(0x21), 0x2b),
        (0x400, class(0x22), 0x2a),
        (0x200, class(0x26), 0x2a),
        (0x400, class(0x24), 0x2c),
        (0x200, class(0x25), 0x2c),
        (0x400, class(0x32), 0x26),
        (0x400, class(0x34), 0x27),
        (0x200, None, 0x23),
    ] {
        let blocks = blocks(&[(KERNEL, Kind::Ret), (VECTORS + vector, Kind::Ret)]);
        let mut registers = registers();
        let mut ring = Ring::new(Family::Brbe, 32, &mut registers);
        turn_on(&mut ring, EXCEPTION | EXBRE, 0);
        ring.block(&blocks[0], Noted::default);
        ring.discontinuity(KERNEL, VECTORS + vector);
        ring.brbe().unwrap().0.set_came(Came { syndrome, overflowed: false });
        ring.block(&blocks[1], Noted::default);
        let types: Vec<u64> =
            read(&mut ring, 32).iter().map(|&(.., info)| info >> 8 & 0x3f).collect();
        assert_eq!(types, [expected], "{vector:#x} {syndrome:x?}");
    }
}

/// A snapshot of the guest continues with the registers of its file.
#[test]
fn continues_with_kept_registers() {
    let run = [(KERNEL, Kind::Call), (KERNEL + 64, Kind::Cond), (PROGRAM, Kind::Ret)];
    let blocks = blocks(&run);
    let mut registers = registers();
    let mut ring = Ring::new(Family::Brbe, 64, &mut registers);
    turn_on(&mut ring, EXBRE | ERTN, ANY);
    blocks.iter().for_each(|block| ring.block(block, Noted::default));
    let before = read(&mut ring, 64);
    assert_eq!(before.len(), 2);
    drop(ring);
    let mut copy = registers.clone();
    let mut restored = Ring::new(Family::Brbe, 64, &mut copy);
    assert!(restored.is_on());
    assert_eq!(read(&mut restored, 64), before);
    // Another filter shows older records as they were recorded.
    turn_off(&mut restored);
    turn_on(&mut restored, E0BRE, ANY);
    assert_eq!(read(&mut restored, 64), before);
}
