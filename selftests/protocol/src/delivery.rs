// SPDX-License-Identifier: MIT OR Apache-2.0
//! The data the plugin needs to hand the guest's programs branch records, as a CPU's driver would.

use crate::trace::Kind;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// A set of branch kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
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

/// The CPU that the guest sees, and the settings of its branch record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    /// Records in the ring.
    pub depth: u32,
    /// Kinds of branches that take a slot in the ring.
    pub ring: Kinds,
    /// Kinds among them that the driver hands over.
    pub kept: Kinds,
}

/// Bytes of an encoded [`Cpu`].
pub const CPU_BYTES: usize = 8;

impl Cpu {
    /// The layout of `struct cpu` in `selftests/bpf/posing.bpf.c`.
    pub fn encode(&self) -> [u8; CPU_BYTES] {
        let Cpu { depth, ring, kept } = *self;
        let mut bytes = [0; CPU_BYTES];
        bytes[..4].copy_from_slice(&depth.to_le_bytes());
        bytes[4..6].copy_from_slice(&ring.0.to_le_bytes());
        bytes[6..].copy_from_slice(&kept.0.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8; CPU_BYTES]) -> Cpu {
        let [a, b, c, d, ring @ .., e, f] = *bytes;
        let depth = u32::from_le_bytes([a, b, c, d]);
        let (ring, kept) = (u16::from_le_bytes(ring), u16::from_le_bytes([e, f]));
        Cpu { depth, ring: Kinds(ring), kept: Kinds(kept) }
    }
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

/// The argument of the [`crate::magic::Magic::Deliver`] instruction. Addresses are the guest's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Address of the pointer to the stand-in, the function that a program calls for a snapshot
    /// while no driver is loaded.
    pub stand_in_at: u64,
    /// The kernel's text. A caller of the stand-in inside it is no BPF program.
    pub text_start: u64,
    pub text_end: u64,
    pub cpu: Cpu,
    /// Address of an encoded [`Cpu`] in the kernel's memory that replaces `cpu`. It is read at each
    /// snapshot. 0: there is none.
    pub cpu_at: u64,
}

/// Bytes of an encoded [`Setup`].
pub const SETUP_BYTES: usize = 40;

impl Setup {
    pub fn encode(&self) -> [u8; SETUP_BYTES] {
        let mut bytes = [0; SETUP_BYTES];
        let Setup { stand_in_at, text_start, text_end, cpu, cpu_at } = *self;
        let words = [stand_in_at, text_start, text_end, cpu_at].map(u64::to_le_bytes);
        let fields = words.into_iter().chain([cpu.encode()]);
        bytes
            .chunks_exact_mut(8)
            .zip(fields)
            .for_each(|(slot, field)| slot.copy_from_slice(&field));
        bytes
    }

    pub fn decode(bytes: &[u8; SETUP_BYTES]) -> Setup {
        let field = |at: usize| bytes[at..at + 8].try_into().expect("eight bytes");
        let u64_at = |at: usize| u64::from_le_bytes(field(at));
        Setup {
            stand_in_at: u64_at(0),
            text_start: u64_at(8),
            text_end: u64_at(16),
            cpu_at: u64_at(24),
            cpu: Cpu::decode(&field(32)),
        }
    }
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

    #[test]
    fn keeps_the_layout_of_the_setup() {
        let cpu = Cpu {
            depth: 32,
            ring: Kinds::of(&[Kind::Ret, Kind::Interrupt]),
            kept: Kinds::of(&[Kind::Ret]),
        };
        let setup = Setup { stand_in_at: 1, text_start: 2, text_end: u64::MAX, cpu, cpu_at: 3 };
        assert_eq!(Setup::decode(&setup.encode()), setup);
        assert_eq!(cpu.encode()[..4], 32_u32.to_le_bytes());
        assert!(cpu.ring.contains(Kind::Interrupt) && !cpu.kept.contains(Kind::Interrupt));
        assert!(!cpu.ring.contains(Kind::Iret), "{cpu:?}");
    }
}
