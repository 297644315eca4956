// SPDX-License-Identifier: MIT OR Apache-2.0
//! The trace file: the branches recorded between arm and disarm.
//!
//! Little endian. Header: magic `TLBRTRC2`, `flags: u32`, `vcpus: u32`. Then per vCPU: `index:
//! u32`, `reserved: u32`, `total: u64` (records seen), `kept: u64` (records that follow, the newest
//! ones), and `kept` records of 24 bytes: `from: u64`, `to: u64`, `kind: u8`, 3 reserved bytes,
//! `instructions: u32`. If accesses were counted, `reads: u32` and `writes: u32` follow in each
//! record. Last, a CRC-32 of everything before it.

use serde::{Deserialize, Serialize};
use std::{
    fmt,
    ops::Add,
    path::{Path, PathBuf},
};

const MAGIC: &[u8; 8] = b"TLBRTRC2";
const RECORD_BYTES: usize = 24;
/// Further bytes of a record with accesses.
const ACCESSES_BYTES: usize = 8;

/// Bits of `flags`.
const DISCONTINUITIES: u32 = 1;
const ACCESSES: u32 = 2;

/// Kinds of a taken control transfer, after the kernel's `enum perf_branch_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
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

    const ALL: [Kind; 11] = [
        Kind::Cond,
        Kind::Jump,
        Kind::IndJump,
        Kind::Call,
        Kind::IndCall,
        Kind::Ret,
        Kind::Syscall,
        Kind::Sysret,
        Kind::Iret,
        Kind::Int,
        Kind::Interrupt,
    ];

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// True if QEMU reported interrupts and exceptions (10.2 and newer). Otherwise they were
    /// inferred.
    pub discontinuities: bool,
    pub vcpus: Vec<VcpuTrace>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
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

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    #[error("not a tramplab trace (wrong magic)")]
    Magic,
    #[error("the trace ends too early ({0} bytes)")]
    Truncated(usize),
    #[error("the trace's checksum is wrong")]
    Checksum,
    #[error("unknown branch kind {0}")]
    Kind(u8),
    #[error("{0} bytes follow the last record")]
    Trailing(usize),
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

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(MAGIC);
        let mut records = self.vcpus.iter().flat_map(|vcpu| &vcpu.records);
        let has_accesses = records.any(|record| record.accesses.is_some());
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let flags = flag(self.discontinuities, DISCONTINUITIES) | flag(has_accesses, ACCESSES);
        out.extend(flags.to_le_bytes());
        out.extend((self.vcpus.len() as u32).to_le_bytes());
        for vcpu in &self.vcpus {
            out.extend(vcpu.index.to_le_bytes());
            out.extend([0; 4]);
            out.extend(vcpu.total.to_le_bytes());
            out.extend((vcpu.records.len() as u64).to_le_bytes());
            for record in &vcpu.records {
                out.extend(record.from.to_le_bytes());
                out.extend(record.to.to_le_bytes());
                out.extend([record.kind as u8, 0, 0, 0]);
                out.extend(record.instructions.to_le_bytes());
                if has_accesses {
                    let Accesses { reads, writes } = record.accesses.unwrap_or_default();
                    out.extend(reads.to_le_bytes());
                    out.extend(writes.to_le_bytes());
                }
            }
        }
        out.extend(crc32fast::hash(&out).to_le_bytes());
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Trace, TraceError> {
        let truncated = || TraceError::Truncated(bytes.len());
        let (body, crc) = bytes.split_last_chunk::<4>().ok_or_else(truncated)?;
        if !body.starts_with(MAGIC) {
            return Err(TraceError::Magic);
        }
        if crc32fast::hash(body) != u32::from_le_bytes(*crc) {
            return Err(TraceError::Checksum);
        }
        let mut rest = &body[MAGIC.len()..];
        let mut take = |n: usize| -> Result<&[u8], TraceError> {
            let (head, tail) = rest.split_at_checked(n).ok_or_else(truncated)?;
            rest = tail;
            Ok(head)
        };
        let u32_at = |b: &[u8]| u32::from_le_bytes(b.try_into().expect("four bytes"));
        let u64_at = |b: &[u8]| u64::from_le_bytes(b.try_into().expect("eight bytes"));
        let flags = u32_at(take(4)?);
        let has_accesses = flags & ACCESSES != 0;
        let bytes_of_one = RECORD_BYTES + if has_accesses { ACCESSES_BYTES } else { 0 };
        let count = u32_at(take(4)?);
        let mut vcpus = Vec::new();
        for _ in 0..count {
            let index = u32_at(take(4)?);
            take(4)?;
            let total = u64_at(take(8)?);
            let kept = u64_at(take(8)?);
            let length = usize::try_from(kept)
                .ok()
                .and_then(|n| n.checked_mul(bytes_of_one))
                .ok_or_else(truncated)?;
            let records = take(length)?
                .chunks_exact(bytes_of_one)
                .map(|r| {
                    let kind = Kind::from_byte(r[16]).ok_or(TraceError::Kind(r[16]))?;
                    let accesses = has_accesses.then(|| Accesses {
                        reads: u32_at(&r[24..28]),
                        writes: u32_at(&r[28..32]),
                    });
                    Ok(Record {
                        from: u64_at(&r[..8]),
                        to: u64_at(&r[8..16]),
                        kind,
                        instructions: u32_at(&r[20..24]),
                        accesses,
                    })
                })
                .collect::<Result<_, _>>()?;
            vcpus.push(VcpuTrace { index, total, records });
        }
        if !rest.is_empty() {
            return Err(TraceError::Trailing(rest.len()));
        }
        Ok(Trace { discontinuities: flags & DISCONTINUITIES != 0, vcpus })
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
            assert_eq!(Trace::decode(&sample.encode()).unwrap(), sample);
        }
    }

    #[test]
    fn rejects_every_cut_and_every_flipped_bit() {
        let good = sample(true).encode();
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
        let mut body = Vec::from(*MAGIC);
        body.extend([0, 0, 0, 0, 1, 0, 0, 0]);
        body.extend([0; 16]);
        body.extend(u64::MAX.to_le_bytes());
        body.extend(crc32fast::hash(&body).to_le_bytes());
        assert!(matches!(Trace::decode(&body), Err(TraceError::Truncated(_))));
    }
}
