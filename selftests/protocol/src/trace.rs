// SPDX-License-Identifier: MIT OR Apache-2.0
//! The trace file: the branches recorded between arm and disarm.

use crate::file::{self, FileError};
use serde::{Deserialize, Serialize};
use std::{
    fmt,
    ops::Add,
    path::{Path, PathBuf},
};
use strum::{EnumCount, VariantArray};

const MAGIC: &[u8; 8] = b"TLBRTRC3";

/// Kinds of a taken control transfer, after the kernel's `enum perf_branch_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[derive(EnumCount, VariantArray)]
#[repr(u8)]
pub enum Kind {
    /// Conditional, taken (x86 `loop`/`jrcxz` included).
    Cond = 0,
    /// Unconditional, direct.
    Jump = 1,
    IndJump = 2,
    /// Direct.
    Call = 3,
    IndCall = 4,
    Ret = 5,
    Syscall = 6,
    Sysret = 7,
    /// `iret` on x86, `eret` on arm64.
    Iret = 8,
    /// A software interrupt instruction (x86 `int`, `int3`).
    Int = 9,
    /// An interrupt or exception taken by the CPU.
    Interrupt = 10,
}

impl Kind {
    pub fn is_call(self) -> bool {
        matches!(self, Kind::Call | Kind::IndCall)
    }

    pub const ALL: [Kind; Kind::COUNT] = *Kind::VARIANTS.first_chunk().unwrap();

    pub fn from_byte(byte: u8) -> Option<Kind> {
        Kind::ALL.get(usize::from(byte)).copied()
    }
}

/// Writes the serialised name.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// One taken control transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Record {
    /// Address of the branch instruction. For [`Kind::Interrupt`], of the interrupted one.
    pub from: u64,
    pub to: u64,
    pub kind: Kind,
    /// Instructions begun since the record before (for the first: since arming), the branch
    /// included. All iterations of a `rep` count as one. An instruction that faults and an
    /// interrupted `rep` begin again after the handler returns, and count again.
    pub instructions: u32,
    /// The data accesses of the same instructions. A trace has them in all records or in none.
    pub accesses: Option<Accesses>,
}

/// Data accesses of instructions, as QEMU reports them. `docs/definitions.md` has the rules.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Accesses {
    pub reads: u32,
    pub writes: u32,
}

impl Add for Accesses {
    type Output = Accesses;

    fn add(self, other: Accesses) -> Accesses {
        Accesses {
            reads: self.reads.saturating_add(other.reads),
            writes: self.writes.saturating_add(other.writes),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// True if QEMU reported interrupts and exceptions (10.2 and newer). Otherwise they were
    /// inferred.
    pub discontinuities: bool,
    pub vcpus: Vec<VcpuTrace>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VcpuTrace {
    pub index: u32,
    /// Records seen while armed.
    pub total: u64,
    /// Oldest first.
    pub records: Vec<Record>,
}

impl VcpuTrace {
    /// True if the recorder's ring was too small and lost the oldest records.
    pub fn has_dropped(&self) -> bool {
        self.total > self.records.len() as u64
    }
}

/// The file of the `n`th disarm (from 0) of a VM whose plugin has `dir=DIR`.
pub fn file_name(dir: &Path, n: u64) -> PathBuf {
    dir.join(format!("trace-{n:04}.bin"))
}

impl Trace {
    /// All source and target addresses of branches, once each, ascending.
    pub fn addresses(&self) -> Vec<u64> {
        let records = self.vcpus.iter().flat_map(|vcpu| &vcpu.records);
        let mut addresses: Vec<u64> = records.flat_map(|record| [record.from, record.to]).collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }

    pub fn encode(&self) -> Result<Vec<u8>, FileError> {
        file::encode(MAGIC, self)
    }

    pub fn decode(bytes: &[u8]) -> Result<Trace, FileError> {
        file::decode(MAGIC, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(accesses: bool) -> Trace {
        let records = Kind::ALL.map(|kind| Record {
            from: 1 << 63 | kind as u64,
            to: 7,
            kind,
            instructions: 1 << 31 | kind as u32,
            accesses: accesses.then_some(Accesses { reads: 3 << 30, writes: kind as u32 }),
        });
        Trace {
            discontinuities: true,
            vcpus: vec![
                VcpuTrace { index: 0, total: 99, records: records.to_vec() },
                VcpuTrace { index: 1, total: 0, records: vec![] },
            ],
        }
    }

    #[test]
    fn decodes_its_own_encoding() {
        for accesses in [false, true] {
            let sample = sample(accesses);
            assert_eq!(Trace::decode(&sample.encode().unwrap()).unwrap(), sample);
        }
    }

    #[test]
    fn rejects_every_cut_and_every_flipped_bit() {
        let good = sample(true).encode().unwrap();
        for cut in 0..good.len() {
            assert!(Trace::decode(&good[..cut]).is_err(), "cut at {cut}");
        }
        for position in 0..good.len() {
            let mut bad = good.clone();
            bad[position] ^= 0x40;
            assert!(Trace::decode(&bad).is_err(), "flip at {position}");
        }
    }

    #[test]
    fn rejects_a_huge_length_without_allocating() {
        // One vCPU, with as many records as its last number says.
        let file = file::encode(MAGIC, &(false, 1_u8, 0_u32, 0_u64, u64::MAX)).unwrap();
        assert!(matches!(Trace::decode(&file), Err(FileError::Format(_))));
        let file = file::encode(MAGIC, &(false, 1_u8, 0_u32, 0_u64, 0_u64, 7_u8)).unwrap();
        assert_eq!(Trace::decode(&file), Err(FileError::Trailing(1)));
    }
}
