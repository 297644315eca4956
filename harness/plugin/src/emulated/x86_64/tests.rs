// SPDX-License-Identifier: GPL-2.0-or-later

use super::{
    super::{
        family::{Family::X86, MOST_DEPTH, MOST_KEPT, Register},
        ring::{Registers, Ring},
        tests,
    },
    Family, Played,
};
use crate::{
    flow::{Block, Tail},
    recorder::{Noted, Recorder},
};
use proptest::prelude::*;
use tramplab_protocol::trace::Kind;

const KERNEL: u64 = 0xffff_ffff_8100_0000;
const PROGRAM: u64 = 0x40_0000;

const FAMILIES: [Family; 3] = [Family::AmdLbrV2, Family::IntelLbr, Family::ArchLbr];

/// The branches that a driver selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Select {
    /// All into the kernel.
    Kernel,
    /// Conditional ones, anywhere.
    Cond,
    /// Calls into the kernel that have not returned.
    Stack,
}

/// Turns the ring on as a driver does, by the kernel's headers.
fn turn_on(ring: &mut Ring, family: Family, select: Select) {
    match (family, select) {
        (Family::AmdLbrV2, Select::Kernel | Select::Stack) => ring.write(0xc000_010e, 1 << 1),
        (Family::AmdLbrV2, Select::Cond) => ring.write(0xc000_010e, 0x1f8),
        (Family::IntelLbr, Select::Kernel) => ring.write(0x1c8, 1 << 1),
        (Family::IntelLbr, Select::Cond) => ring.write(0x1c8, 0x1f8),
        (Family::IntelLbr, Select::Stack) => ring.write(0x1c8, 0x3c6),
        (Family::ArchLbr, Select::Kernel) => return ring.write(0x14ce, 0x7f_0003),
        (Family::ArchLbr, Select::Cond) => return ring.write(0x14ce, 0x1_0007),
        (Family::ArchLbr, Select::Stack) => return ring.write(0x14ce, 0x38_000b),
    }
    match family {
        Family::AmdLbrV2 => ring.write(0xc000_010f, 1 << 6),
        _ => ring.write(0x1d9, 1),
    }
}

fn turn_off(ring: &mut Ring, family: Family) {
    let control = match family {
        Family::AmdLbrV2 => 0xc000_010f,
        Family::IntelLbr => 0x1d9,
        Family::ArchLbr => 0x14ce,
    };
    ring.write(control, 0);
    assert!(!ring.is_on());
}

/// The valid entries, newest first, as the kernel's drivers read them.
fn read(ring: &mut Ring, family: Family, depth: u32) -> Vec<(u64, u64)> {
    let top = ring.read(0x1c9).map_or(0, |top| top as u32);
    let (from, to, step) = match family {
        Family::AmdLbrV2 => (0xc001_0300, 0xc001_0301, 2),
        Family::IntelLbr => (0x680, 0x6c0, 1),
        Family::ArchLbr => (0x1500, 0x1600, 1),
    };
    let slot = |age| if family == Family::IntelLbr { (top + depth - age) % depth } else { age };
    let address = |value: u64| match family {
        Family::AmdLbrV2 => ((value << 6) as i64 >> 6) as u64,
        _ => value,
    };
    let entries = (0..depth).map(|age| [from, to].map(|start| start + step * slot(age)));
    let entries = entries.map(|msrs| msrs.map(|msr| address(ring.read(msr).unwrap())));
    entries.map(|[from, to]| (from, to)).take_while(|entry| *entry != (0, 0)).collect()
}

fn registers() -> Registers {
    // SAFETY: as from a new file; any bytes are valid.
    unsafe { std::mem::zeroed() }
}

#[derive(Clone, Debug)]
enum Op {
    On(Select),
    Off,
    /// A block that ends in such a branch.
    Run(Kind, bool),
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
        Kind::Sysret,
        Kind::Int,
    ];
    let run = (proptest::sample::select(kinds.to_vec()), any::<bool>());
    let select = proptest::sample::select(vec![Select::Kernel, Select::Cond, Select::Stack]);
    let op = prop_oneof![
        1 => select.prop_map(Op::On),
        1 => Just(Op::Off),
        20 => run.prop_map(|(kind, kernel)| Op::Run(kind, kernel)),
        1 => Just(Op::Interrupt),
    ];
    proptest::collection::vec(op, 0..300)
}

/// The blocks that run one after the other, each led to by the one before.
fn blocks(ops: &[Op]) -> Vec<Block> {
    let start = |at: usize| match ops.get(at) {
        Some(Op::Run(_, false)) => PROGRAM + 64 * at as u64,
        _ => KERNEL + 64 * at as u64,
    };
    let run: Vec<usize> = (0..ops.len()).filter(|&at| matches!(ops[at], Op::Run(..))).collect();
    let next = run.iter().skip(1).copied().chain([ops.len()]);
    let block = |(&at, next): (&usize, usize)| {
        let Op::Run(kind, _) = ops[at] else { unreachable!() };
        let target = start(next);
        let tail = match kind {
            Kind::Cond => Tail::Cond { target },
            Kind::Jump | Kind::Call => Tail::Direct { kind, target },
            _ => Tail::Indirect { kind },
        };
        Block::new(Box::new([start(at)]), start(at) + 2, tail).surely_whole()
    };
    run.iter().zip(next).map(block).collect()
}

/// Puts the branches that a recorder of everything saw into a ring of so many entries.
fn kept(
    ring: &mut Vec<(u64, u64)>,
    depth: usize,
    select: Select,
    family: Family,
    recorder: Recorder<'_>,
) {
    for record in recorder.finish(0, false).records {
        let into_kernel = record.to >> 63 == 1;
        let is_call = matches!(record.kind, Kind::Call | Kind::IndCall);
        let has_stack = family != Family::AmdLbrV2;
        match select {
            Select::Stack if has_stack && !into_kernel => {}
            Select::Stack if has_stack && record.kind == Kind::Ret => drop(ring.pop()),
            Select::Stack if has_stack && !is_call => {}
            Select::Kernel | Select::Stack if !into_kernel => {}
            Select::Cond if record.kind != Kind::Cond => {}
            _ => ring.push((record.from, record.to)),
        }
        if ring.len() > depth {
            ring.remove(0);
        }
    }
}

proptest! {
    /// The registers show what a recorder of all branches saw while the ring was on.
    #[test]
    fn keeps_the_selected_branches(
        ops in ops(),
        at in 0..FAMILIES.len(),
        depth in proptest::sample::select(vec![8u32, 16, 32]),
    ) {
        let family = FAMILIES[at];
        let blocks = blocks(&ops);
        let mut run = blocks.iter();
        let mut registers = registers();
        let mut ring = Ring::new(X86(family), depth as usize, &mut registers);
        let mut expected = Vec::new();
        let mut watching: Option<(Select, Recorder)> = None;
        for op in &ops {
            match *op {
                Op::On(select) => {
                    // A driver turns it off before it selects anew.
                    if let Some((select, recorder)) = watching.take() {
                        turn_off(&mut ring, family);
                        kept(&mut expected, depth as usize, select, family, recorder);
                    }
                    turn_on(&mut ring, family, select);
                    watching = Some((select, Recorder::new(1 << 10, 0)));
                }
                Op::Off => {
                    turn_off(&mut ring, family);
                    if let Some((select, recorder)) = watching.take() {
                        kept(&mut expected, depth as usize, select, family, recorder);
                    }
                }
                Op::Run(..) => {
                    let recorder = watching.as_mut().map(|(_, recorder)| recorder);
                    tests::run(&mut ring, recorder, run.next().unwrap());
                }
                Op::Interrupt => {
                    // It comes after the block before, and its handler is the next block.
                    let Some(next) = run.as_slice().first() else { continue };
                    let recorder = watching.as_mut().map(|(_, recorder)| recorder);
                    tests::interrupt(&mut ring, recorder, KERNEL - 64, next.start);
                }
            }
            prop_assert_eq!(ring.is_on(), watching.is_some());
            if watching.is_none() {
                let newest_first: Vec<_> = expected.iter().rev().copied().collect();
                prop_assert_eq!(read(&mut ring, family, depth), newest_first);
            }
        }
    }

    /// A ring that is read while it records shows the same as one that is stopped first.
    #[test]
    fn shows_the_same_before_it_stops(ops in ops(), at in 0..FAMILIES.len()) {
        let family = FAMILIES[at];
        let blocks = blocks(&ops);
        let mut registers = registers();
        let mut ring = Ring::new(X86(family), 16, &mut registers);
        turn_on(&mut ring, family, Select::Kernel);
        for block in &blocks {
            ring.block(block, Noted::default);
        }
        let running = read(&mut ring, family, 16);
        turn_off(&mut ring, family);
        prop_assert_eq!(read(&mut ring, family, 16), running);
    }
}

/// A snapshot of the guest continues with the registers of its file, and a ring that was on goes on
/// with the entries that it had when it was turned on or read.
#[test]
fn continues_with_kept_registers() {
    for family in FAMILIES {
        let ops = [Op::Run(Kind::Call, true), Op::Run(Kind::Cond, true), Op::Run(Kind::Ret, true)];
        let blocks = blocks(&ops);
        let mut registers = registers();
        let mut ring = Ring::new(X86(family), 16, &mut registers);
        turn_on(&mut ring, family, Select::Kernel);
        blocks.iter().for_each(|block| ring.block(block, Noted::default));
        drop(ring);
        let mut copies = [registers.clone(), registers.clone()];
        let mut ring = Ring::new(X86(family), 16, &mut registers);
        turn_off(&mut ring, family);
        turn_on(&mut ring, family, Select::Kernel);
        blocks.iter().for_each(|block| ring.block(block, Noted::default));
        let before = read(&mut ring, family, 16);
        assert_eq!(before.len(), 2, "{family:?}");
        drop(ring);
        copies[1] = registers.clone();
        for (mut copy, expected) in copies.into_iter().zip([vec![], before]) {
            let mut restored = Ring::new(X86(family), 16, &mut copy);
            assert!(restored.is_on(), "{family:?}");
            assert_eq!(read(&mut restored, family, 16), expected, "{family:?}");
        }
    }
}

/// Drivers empty the ring when an event begins.
#[test]
fn forgets_what_a_driver_clears() {
    for family in FAMILIES {
        let ops = [Op::Run(Kind::Call, true), Op::Run(Kind::Cond, true)];
        let blocks = blocks(&ops);
        let mut registers = registers();
        let mut ring = Ring::new(X86(family), 16, &mut registers);
        turn_on(&mut ring, family, Select::Kernel);
        blocks.iter().for_each(|block| ring.block(block, Noted::default));
        turn_off(&mut ring, family);
        assert_eq!(read(&mut ring, family, 16).len(), 1, "{family:?}");
        match family {
            Family::AmdLbrV2 => (0..32).for_each(|at| ring.write(0xc001_0300 + at, 0)),
            Family::IntelLbr => (0..16).for_each(|at| {
                ring.write(0x680 + at, 0);
                ring.write(0x6c0 + at, 0);
                ring.write(0xdc0 + at, 0);
            }),
            Family::ArchLbr => ring.write(0x14cf, 16),
        }
        assert_eq!(read(&mut ring, family, 16), [], "{family:?}");
    }
}

/// As `intel_pmu_lbr_restore` writes a thread's call stack: slots first, then the newest one's
/// number.
#[test]
fn restores_a_threads_slots() {
    let mut registers = registers();
    let mut ring = Ring::new(X86(Family::IntelLbr), 16, &mut registers);
    let ops = [Op::Run(Kind::Call, true), Op::Run(Kind::Call, true), Op::Run(Kind::Call, true)];
    let blocks = blocks(&ops);
    turn_on(&mut ring, Family::IntelLbr, Select::Stack);
    blocks.iter().for_each(|block| ring.block(block, Noted::default));
    turn_off(&mut ring, Family::IntelLbr);
    assert_eq!((ring.read(0x1c9), ring.read(0x680 + 2)), (Some(2), Some(blocks[1].start)));
    for (slot, from) in [(5, KERNEL + 5), (4, KERNEL + 4), (3, KERNEL + 3)] {
        ring.write(0x680 + slot, from);
        ring.write(0x6c0 + slot, from + 0x100);
    }
    ring.write(0x1c9, 5);
    let restored = [5, 4, 3].map(|at| (KERNEL + at, KERNEL + at + 0x100));
    assert_eq!(read(&mut ring, Family::IntelLbr, 16)[..3], restored);
    // Recording goes on behind them.
    turn_on(&mut ring, Family::IntelLbr, Select::Stack);
    blocks.iter().for_each(|block| ring.block(block, Noted::default));
    assert_eq!(ring.read(0x1c9), Some(7));
    assert_eq!(read(&mut ring, Family::IntelLbr, 16)[2..5], restored);
}

/// As `intel_pmu_arch_lbr_restore` does: the driver reads a thread's calls by their types.
#[test]
fn restores_a_threads_types() {
    let mut registers = registers();
    let mut ring = Ring::new(X86(Family::ArchLbr), 16, &mut registers);
    for (slot, branch_type) in (0..).zip([4, 3, 5, 0, 1, 2, 8]) {
        ring.write(0x1500 + slot, KERNEL);
        ring.write(0x1600 + slot, KERNEL + 0x100);
        ring.write(0x1200 + slot, branch_type << 56);
        assert_eq!(ring.read(0x1200 + slot), Some(branch_type << 56), "{slot}");
    }
    assert_eq!(ring.read(0x1200 + 7), Some(0));
}

/// Bits that the kernel's drivers look for, by leaf and subleaf of `cpuid`.
#[test]
fn tells_the_kernel_of_its_registers() {
    let none = [0x10, 0, 0, 0];
    for (family, leaf, subleaf, depth, expected) in [
        (Family::AmdLbrV2, 0x8000_0001, 0, 16, [0x10, 0, 1 << 23, 0]),
        (Family::AmdLbrV2, 0x8000_0022, 0, 16, [7, 6 | 16 << 4, 0, 0]),
        (Family::IntelLbr, 1, 0, 32, [0x10, 0, 1 << 15, 0]),
        (Family::ArchLbr, 1, 0, 32, [0x10, 0, 1 << 15, 0]),
        (Family::ArchLbr, 7, 0, 32, [0x10, 0, 0, 1 << 19]),
        (Family::ArchLbr, 7, 1, 32, none),
        (Family::ArchLbr, 0x1c, 0, 32, [1 << 31 | 1 << 3, 7, 4, 0]),
        (Family::ArchLbr, 0x1c, 0, 8, [1 << 31 | 1, 7, 4, 0]),
        (Family::IntelLbr, 7, 0, 32, none),
        (Family::AmdLbrV2, 1, 0, 16, none),
    ] {
        let found = family.cpuid(leaf, subleaf, none, depth);
        assert_eq!(found, expected, "{family:?} {leaf:#x}.{subleaf}");
    }
}

/// The kernel tries counters by writing and reading them back.
#[test]
fn keeps_what_is_written_to_counters() {
    for (family, counter, other, msr) in [
        (Family::AmdLbrV2, 2, 3, 0xc001_0205),
        (Family::IntelLbr, 2, 3, 0xc3),
        (Family::ArchLbr, 1 << 30 | 1, 1, 0x30a),
    ] {
        let mut registers = registers();
        let mut ring = Ring::new(X86(family), 16, &mut registers);
        assert_eq!(family.counter(counter), msr);
        ring.write(msr, 0xabcd);
        assert_eq!(ring.read(msr), Some(0xabcd));
        assert_eq!(ring.read(family.counter(other)), Some(0));
        // The time-stamp counter is QEMU's.
        assert_eq!(ring.read(0x10), None);
    }
}

#[test]
fn has_a_place_for_each_kept_register() {
    for family in FAMILIES {
        let all = (0..0x2000).chain(0xc000_0000..0xc002_0000);
        let mut places: Vec<usize> = all
            .filter_map(|msr| match family.register(msr, MOST_DEPTH)? {
                Register::Kept(place) => Some(place),
                _ => None,
            })
            .collect();
        places.sort_unstable();
        let count = places.len();
        places.dedup();
        assert!(count == places.len() && count <= MOST_KEPT, "{family:?}: {count}");
    }
}

#[test]
fn finds_the_instructions() {
    for (bytes, expected) in [
        (&[0x0f, 0xa2][..], Some(Played::Cpuid)),
        (&[0x0f, 0x32], Some(Played::Rdmsr)),
        (&[0x0f, 0x30], Some(Played::Wrmsr)),
        (&[0x3e, 0x0f, 0x30], Some(Played::Wrmsr)),
        (&[0x0f, 0x33], Some(Played::Rdpmc)),
        (&[0x0f, 0x31], None),
        (&[0x90, 0xa2], None),
        (&[0x90], None),
    ] {
        assert_eq!(Played::decode(bytes), expected, "{bytes:x?}");
    }
}
