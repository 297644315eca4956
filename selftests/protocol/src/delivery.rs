// SPDX-License-Identifier: MIT OR Apache-2.0
//! The data the plugin needs to hand the guest's programs branch records, as a CPU's driver would.

use crate::trace::Kind;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A set of branch kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
#[derive(FromBytes, Immutable, IntoBytes)]
#[repr(transparent)]
pub struct Kinds(u16);

impl Kinds {
    pub const fn of(kinds: &[Kind]) -> Kinds {
        let mut set = 0;
        let mut i = 0;
        while i < kinds.len() {
            set |= 1 << kinds[i] as u16;
            i += 1;
        }
        Kinds(set)
    }

    pub const fn and(self, other: Kinds) -> Kinds {
        Kinds(self.0 | other.0)
    }

    pub const fn contains(self, kind: Kind) -> bool {
        self.0 & (1 << kind as u16) != 0
    }
}

/// The CPU that the guest sees, and the settings of its branch record. The layout is that of
/// `struct cpu` in `selftests/bpf/posing.bpf.c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(C)]
#[derive(FromBytes, Immutable, IntoBytes)]
pub struct Cpu {
    /// Records in the ring.
    pub depth: u32,
    /// Kinds of branches that take a slot in the ring.
    pub ring: Kinds,
    /// Kinds among them that the driver hands over.
    pub kept: Kinds,
}

/// A CPU whose settings follow the perf events that programs open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filters {
    /// Until a program opens an event of branches.
    pub initial: Cpu,
    /// The settings behind each bit of perf's `branch_sample_type` that selects branches. Several
    /// bits select what any of them selects.
    pub bits: Vec<(u8, Cpu)>,
}

/// The short form for command lines, in hexadecimal: `DEPTH,RING/KEPT,BIT=RING/KEPT,…`. All have
/// one depth.
impl fmt::Display for Filters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cpu { depth, ring, kept } = self.initial;
        write!(f, "{depth:x},{:x}/{:x}", ring.0, kept.0)?;
        self.bits.iter().try_for_each(|(bit, Cpu { ring, kept, .. })| {
            write!(f, ",{bit:x}={:x}/{:x}", ring.0, kept.0)
        })
    }
}

/// A text that is no [`Filters`].
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected DEPTH,RING/KEPT,BIT=RING/KEPT,… in hexadecimal")]
pub struct NoFilters;

impl FromStr for Filters {
    type Err = NoFilters;

    fn from_str(text: &str) -> Result<Filters, NoFilters> {
        let no = |_| NoFilters;
        let kinds = |text: &str| u16::from_str_radix(text, 16).map(Kinds).map_err(no);
        let mut fields = text.split(',');
        let depth = fields.next().ok_or(NoFilters)?;
        let depth = u32::from_str_radix(depth, 16).map_err(no)?;
        let cpu = |text: &str| {
            let (ring, kept) = text.split_once('/').ok_or(NoFilters)?;
            Ok(Cpu { depth, ring: kinds(ring)?, kept: kinds(kept)? })
        };
        let initial = cpu(fields.next().ok_or(NoFilters)?)?;
        let bit = |field: &str| {
            let (bit, of) = field.split_once('=').ok_or(NoFilters)?;
            Ok((u8::from_str_radix(bit, 16).map_err(no)?, cpu(of)?))
        };
        Ok(Filters { initial, bits: fields.map(bit).collect::<Result<_, NoFilters>>()? })
    }
}

/// The argument of the [`crate::magic::Magic::Deliver`] instruction, in memory. Addresses are the
/// guest's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
#[repr(C)]
pub struct Setup {
    /// Address of the pointer to the stand-in, the function that a program calls for a snapshot
    /// while no driver is loaded.
    pub stand_in_at: u64,
    /// The kernel's text. A caller of the stand-in inside it is no BPF program.
    pub text_start: u64,
    pub text_end: u64,
    /// Address of a [`Cpu`] in the kernel's memory that replaces `cpu`, read at each snapshot. 0:
    /// there is none.
    pub cpu_at: u64,
    pub cpu: Cpu,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_read_as_written() {
        let cpu = |ring, kept| Cpu { depth: 32, ring: Kinds(ring), kept: Kinds(kept) };
        let filters = Filters { initial: cpu(0x7ff, 0x5ff), bits: vec![(3, cpu(0x7ff, 0x20))] };
        assert_eq!(filters.to_string(), "20,7ff/5ff,3=7ff/20");
        assert_eq!(filters.to_string().parse(), Ok(filters));
        for wrong in ["", "20", "20,7ff", "x,7ff/5ff", "20,7ff/5ff,3", "20,7ff/5ff,3=7ff"] {
            assert_eq!(wrong.parse::<Filters>(), Err(NoFilters), "{wrong}");
        }
    }

    /// posing.bpf.c reads the same bytes, and both sides of the protocol are little endian.
    #[test]
    fn settings_have_the_order_of_the_guest() {
        let cpu = Cpu { depth: 32, ring: Kinds(1), kept: Kinds(2) };
        assert_eq!(cpu.as_bytes(), [32, 0, 0, 0, 1, 0, 2, 0]);
        let setup = Setup { stand_in_at: 1, text_start: 2, text_end: 3, cpu_at: 4, cpu };
        let words: Vec<u8> = setup.as_bytes().iter().copied().step_by(8).collect();
        assert_eq!((words, size_of_val(&setup)), (vec![1, 2, 3, 4, 32], 40));
    }

    #[test]
    fn kinds_contain_what_they_were_made_of() {
        let kinds = Kinds::of(&[Kind::Ret, Kind::Interrupt]);
        assert!(kinds.contains(Kind::Ret) && kinds.contains(Kind::Interrupt));
        assert!(!kinds.contains(Kind::Iret), "{kinds:?}");
    }
}
