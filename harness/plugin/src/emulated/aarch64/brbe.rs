// SPDX-License-Identifier: GPL-2.0-or-later
//! The registers of FEAT_BRBE. Pure tables, from the Arm Architecture Reference Manual (DDI 0487),
//! chapter "Branch Record Buffer Extension", and the kernel's `arch/arm64/tools/sysreg`.
//!
//! A branch has two ends, each at an exception level. An end whose level is not recorded is zero in
//! the record. The levels are told by the address: the kernel has the upper half.

use super::super::family::{MOST_DEPTH, Part, Register, Shown, place};
use crate::recorder::Selected;
use std::{cell::Cell, ops::Range};
use tramplab_protocol::trace::Kind;

/// The encoding of a system register or instruction: op0, op1, CRn, CRm, op2.
pub const fn encoded(op0: u32, op1: u32, crn: u32, crm: u32, op2: u32) -> u32 {
    op0 << 14 | op1 << 11 | crn << 7 | crm << 3 | op2
}

pub const ID_AA64DFR0_EL1: u32 = encoded(3, 0, 0, 5, 0);
pub const BRBCR_EL1: u32 = encoded(2, 1, 9, 0, 0);
pub const BRBFCR_EL1: u32 = encoded(2, 1, 9, 0, 1);
const BRBTS_EL1: u32 = encoded(2, 1, 9, 0, 2);
pub const BRBINFINJ_EL1: u32 = encoded(2, 1, 9, 1, 0);
pub const BRBSRCINJ_EL1: u32 = encoded(2, 1, 9, 1, 1);
pub const BRBTGTINJ_EL1: u32 = encoded(2, 1, 9, 1, 2);
pub const BRBIDR0_EL1: u32 = encoded(2, 1, 9, 2, 0);
pub const BRBCR_EL2: u32 = encoded(2, 4, 9, 0, 0);
pub const BRBCR_EL12: u32 = encoded(2, 5, 9, 0, 0);
pub const BRB_IALL: u32 = encoded(1, 1, 7, 2, 4);
pub const BRB_INJ: u32 = encoded(1, 1, 7, 2, 5);

/// Registers that keep what was written. Cycles, time stamps and mispredictions have no effect.
const KEPT: &[Range<u32>] =
    &[BRBCR_EL1..BRBTS_EL1 + 1, BRBINFINJ_EL1..BRBTGTINJ_EL1 + 1, BRBCR_EL2..BRBCR_EL2 + 1];

/// Records of a bank.
const BANK: usize = 32;

/// Fields of `BRBFCR_EL1`.
pub const PAUSED: u64 = 1 << 7;
const EXCLUDES: u64 = 1 << 16;
/// Fields of `BRBCR_EL1` and `BRBCR_EL2`.
const EL0: u64 = 1;
const KERNEL: u64 = 1 << 1;
const FREEZES: u64 = 1 << 8;
const RETURNS: u64 = 1 << 22;
const EXCEPTIONS: u64 = 1 << 23;
/// Fields of `BRBINF<n>_EL1`.
const HAS_TARGET: u64 = 1;
const HAS_SOURCE: u64 = 1 << 1;
const CYCLES_UNKNOWN: u64 = 1 << 46;

/// The bit of each kind of branch in `BRBFCR_EL1`, in the order of [`Kind`]. The others are
/// exceptions and their returns.
const BITS: [u32; 6] = [22, 17, 18, 21, 20, 19];
/// The type of each kind in `BRBINF<n>_EL1`, in the same order. `Int` is `brk`. The last one is
/// that of a trap.
const TYPES: [u64; 11] = [8, 0, 1, 2, 3, 5, CALL, 7, 7, INSN_DEBUG, TRAP];
const CALL: u64 = 0x22;
const TRAP: u64 = 0x23;
const SERROR: u64 = 0x24;
const INSN_DEBUG: u64 = 0x26;
const DATA_DEBUG: u64 = 0x27;
const ALIGNMENT: u64 = 0x2a;
const INSN_FAULT: u64 = 0x2b;
const DATA_FAULT: u64 = 0x2c;
const IRQ: u64 = 0x2e;
const FIQ: u64 = 0x2f;

pub fn register(number: u32, depth: usize) -> Option<Register> {
    let of_entry = encoded(2, 1, 8, 0, 0)..encoded(2, 1, 9, 0, 0);
    match number {
        // Format 0, with 20 bits for cycles.
        BRBIDR0_EL1 => Some(Register::Fixed(depth as u64 | 5 << 12)),
        BRB_IALL => Some(Register::Empties),
        BRB_INJ => Some(Register::Injects),
        _ if of_entry.contains(&number) => {
            let part = match number & 3 {
                0 => Part::Info,
                1 => Part::From,
                2 => Part::To,
                _ => return None,
            };
            let slot = number >> 3 & 0xf | (number & 4) << 2;
            Some(Register::Entry { slot: slot as usize, part })
        }
        _ => place(KEPT, number).map(Register::Kept),
    }
}

/// True for a register that software may write. The parts of an entry are not.
pub fn is_writable(register: Register) -> bool {
    matches!(register, Register::Kept(_) | Register::Empties | Register::Injects)
}

/// True for a register that software may read.
pub fn is_readable(register: Register) -> bool {
    !matches!(register, Register::Empties | Register::Injects)
}

fn value(number: u32, kept: &[u64]) -> u64 {
    place(KEPT, number).and_then(|place| kept.get(place)).copied().unwrap_or_default()
}

pub fn bank(kept: &[u64]) -> usize {
    BANK * (value(BRBFCR_EL1, kept) >> 28 & 3) as usize
}

/// The register that controls what is recorded, and the level of the kernel. Linux sets no level in
/// the register of the level at which it does not run.
fn control(kept: &[u64]) -> (u64, u64) {
    match value(BRBCR_EL2, kept) {
        control if control & (EL0 | KERNEL) != 0 => (control, 2),
        _ => (value(BRBCR_EL1, kept), 1),
    }
}

pub fn is_on(kept: &[u64]) -> bool {
    value(BRBFCR_EL1, kept) & PAUSED == 0 && control(kept).0 & (EL0 | KERNEL) != 0
}

pub fn injected(kept: &[u64]) -> Shown {
    let [info, from, to] =
        [BRBINFINJ_EL1, BRBSRCINJ_EL1, BRBTGTINJ_EL1].map(|number| value(number, kept));
    // The information says the kind.
    Shown { from, to, info, kind: Some(Kind::Jump) }
}

/// All fields of the information fit: bits 32 to 45 move down to 18, and bit 46 to a bit without a
/// field.
pub fn packed(info: u64) -> u32 {
    (info & 0x3_ffe3 | (info >> 32 & 0x3fff) << 18 | (info >> 46 & 1) << 2) as u32
}

pub fn unpacked(packed: u32) -> u64 {
    let packed = u64::from(packed);
    packed & 0x3_ffe3 | (packed >> 18) << 32 | (packed >> 2 & 1) << 46
}

/// The state of the vCPU that is read when a block starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Came {
    /// `ESR_EL1`, or that of the kernel's level, if an exception led to the block.
    pub syndrome: Option<u64>,
    /// True if a counter has overflowed, and the overflow freezes the records.
    pub overflowed: bool,
}

#[derive(Clone, Debug)]
pub struct Filter {
    /// `BRBFCR_EL1`, of which a set bit selects.
    branches: u64,
    /// `BRBCR_EL1` or `_EL2`.
    control: u64,
    /// The level of the kernel.
    level: u64,
    /// True if an overflow freezes the records. At both levels of the kernel it is the field of
    /// `BRBCR_EL1` (K `drivers/perf/arm_brbe.c`, `brbe_enable`).
    freezes: bool,
    came: Cell<Came>,
}

impl PartialEq for Filter {
    /// Two filters are one whatever came to their blocks.
    fn eq(&self, other: &Filter) -> bool {
        let of = |it: &Filter| (it.branches, it.control, it.level, it.freezes);
        of(self) == of(other)
    }
}

impl Eq for Filter {}

impl Filter {
    pub fn new(kept: &[u64]) -> Filter {
        let (control, level) = control(kept);
        let branches = value(BRBFCR_EL1, kept);
        let inverted = if branches & EXCLUDES == 0 { branches } else { !branches };
        Filter {
            // The other fields select nothing.
            branches: BITS.iter().fold(0, |all, bit| all | inverted & 1 << bit),
            control,
            level,
            freezes: value(BRBCR_EL1, kept) & FREEZES != 0,
            came: Cell::default(),
        }
    }

    /// True if an overflow must be looked for at a block: at each that may add a record, and where
    /// an interrupt led to.
    pub fn freezes(&self, start: u64, was_interrupted: bool) -> bool {
        self.freezes && is_kernel(start) && (was_interrupted || self.control & KERNEL != 0)
    }

    pub fn set_came(&self, came: Came) {
        self.came.set(came);
    }

    /// True if the level of an address is recorded.
    fn records(&self, address: u64) -> bool {
        self.control & if is_kernel(address) { KERNEL } else { EL0 } != 0
    }

    #[inline]
    pub fn selects(&self, kind: Kind, from: u64, to: u64) -> Selected {
        let is_selected = match kind {
            Kind::Iret | Kind::Sysret => self.control & RETURNS != 0,
            // The records are frozen before the overflow interrupts.
            Kind::Interrupt if is_asynchronous(to) && self.came.get().overflowed => false,
            Kind::Syscall | Kind::Int | Kind::Interrupt => self.control & EXCEPTIONS != 0,
            _ => self.branches >> BITS[kind as usize] & 1 == 1,
        };
        match is_selected && (self.records(from) || self.records(to)) {
            true => Selected::Kept,
            false => Selected::Dropped,
        }
    }

    /// The record of a selected branch: its source, target and information.
    #[inline]
    pub fn recorded(&self, kind: Kind, from: u64, to: u64) -> (u64, u64, u64) {
        let (has_source, has_target) = (self.records(from), self.records(to));
        let kind_of = match kind {
            Kind::Interrupt => exception(to, self.came.get().syndrome),
            _ => TYPES[kind as usize],
        };
        let mut info = CYCLES_UNKNOWN | kind_of << 8;
        if has_source {
            info |= HAS_SOURCE;
        }
        if has_target {
            info |= HAS_TARGET;
            info |= if is_kernel(to) { self.level << 6 } else { 0 };
        }
        (if has_source { from } else { 0 }, if has_target { to } else { 0 }, info)
    }
}

fn is_kernel(address: u64) -> bool {
    address >> 63 == 1
}

/// True if a vector is of an interrupt or SError.
pub fn is_asynchronous(vector: u64) -> bool {
    vector & 0x180 != 0
}

/// The type of an exception, by the place of its vector and by the class of its syndrome.
fn exception(vector: u64, syndrome: Option<u64>) -> u64 {
    match (vector & 0x180, syndrome.map(|syndrome| syndrome >> 26 & 0x3f)) {
        (0x080, _) => IRQ,
        (0x100, _) => FIQ,
        (0x180, _) | (_, Some(0x2f)) => SERROR,
        (_, Some(0x15..=0x17)) => CALL,
        (_, Some(0x20 | 0x21)) => INSN_FAULT,
        (_, Some(0x22 | 0x26)) => ALIGNMENT,
        (_, Some(0x24 | 0x25)) => DATA_FAULT,
        (_, Some(0x30..=0x33 | 0x3c)) => INSN_DEBUG,
        (_, Some(0x34 | 0x35)) => DATA_DEBUG,
        _ => TRAP,
    }
}

const _: () = assert!(MOST_DEPTH == 2 * BANK);
