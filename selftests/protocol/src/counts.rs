// SPDX-License-Identifier: MIT OR Apache-2.0
//! The counts file: instructions by call path, which the plugin counts between the `Profile` or the
//! `Estimate` magic and disarm.
//!
//! The plugin knows no symbols. A path consists of calls `(from, to)`; its instructions are counted
//! by the address of their block.

use crate::{
    estimate::Events,
    file::{self, FileError},
};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use zerocopy::{FromBytes, IntoBytes};

const MAGIC: &[u8; 8] = b"TLBRCNT2";

/// The plugin's knowledge of the kernel. The guest passes a pointer to it in a register at the
/// `Profile` and `Estimate` magic (x86-64: `rax`, arm64: `x0`). Little endian, in this order.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct Setup {
    /// Address of the function that switches threads (`__switch_to_asm`, `cpu_switch_to`). It is
    /// called with the `task_struct`s of the previous and the next thread. 0 if unknown: then all
    /// instructions belong to one thread.
    pub switch_to: u64,
    /// The text with the entries of interrupts and exceptions. Empty if unknown.
    pub entry_start: u64,
    pub entry_end: u64,
    /// Offsets in `task_struct`.
    pub comm: u32,
    pub pid: u32,
}

/// Bytes of `task_struct.comm` (`TASK_COMM_LEN`).
pub const COMM_BYTES: usize = 16;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// True if QEMU reported interrupts and exceptions (10.2 and newer). Otherwise they were
    /// inferred.
    pub discontinuities: bool,
    /// True if the plugin could read the setup. Otherwise all instructions belong to one thread.
    pub setup: bool,
    /// Thread switches that could not be read. Instructions after one are counted for the wrong
    /// thread.
    pub lost_switches: u64,
    pub vcpus: Vec<VcpuCounts>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VcpuCounts {
    pub index: u32,
    pub threads: Vec<Thread>,
    /// Parents before their children.
    pub paths: Vec<CallPath>,
    pub blocks: Vec<BlockCount>,
    /// The events of each block, in the same order. Empty unless a CPU is modelled.
    pub events: Vec<Events>,
    /// Calls that were not followed because there were too many paths. Their instructions are
    /// counted at their callers.
    pub cut: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    /// `task_struct.comm`. Empty if unknown.
    pub command: String,
    pub pid: u32,
    /// True for the thread that executed the magic instruction.
    pub measured: bool,
}

/// A call on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallPath {
    /// Index of the calling path. None for the path of a thread itself, which holds the
    /// instructions without a known caller.
    pub parent: Option<u32>,
    /// Index into `threads`.
    pub thread: u32,
    /// Addresses of the call and of its target. 0 for the path of a thread itself.
    pub from: u64,
    pub to: u64,
    pub kind: Entered,
    pub calls: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Entered {
    Call,
    Syscall,
    /// Interrupt or exception. The name of the handler tells which.
    Interrupt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockCount {
    /// Index into `paths`.
    pub path: u32,
    /// Address of the block. 0 for all of user space.
    pub start: u64,
    /// How often the block was entered.
    pub times: u64,
    pub instructions: u64,
}

/// The file of the `n`th profile (from 0) of a VM whose plugin has `dir=DIR`.
pub fn file_name(dir: &Path, n: u64) -> PathBuf {
    dir.join(format!("counts-{n:04}.bin"))
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CountsError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{what} {index} of vCPU {vcpu} names {named}, which does not come before it")]
    Index { vcpu: u32, what: &'static str, index: usize, named: u32 },
    #[error("vCPU {vcpu} has {blocks} blocks, and the events of {events}")]
    Events { vcpu: u32, blocks: usize, events: usize },
}

impl Counts {
    /// Returns the defect of the counts, if they have one.
    pub fn fault(&self) -> Option<String> {
        let cut: u64 = self.vcpus.iter().map(|vcpu| vcpu.cut).fold(0, u64::saturating_add);
        if !self.setup {
            Some("the plugin could not read its setup: threads are not separated".to_owned())
        } else if self.lost_switches > 0 {
            Some(format!("the plugin could not read {} thread switches", self.lost_switches))
        } else if cut > 0 {
            Some(format!("{cut} calls were not followed: there are too many or too deep paths"))
        } else {
            None
        }
    }

    pub fn encode(&self) -> Result<Vec<u8>, FileError> {
        file::encode(MAGIC, self)
    }

    /// Decodes a file. The result's indices are valid.
    pub fn decode(bytes: &[u8]) -> Result<Counts, CountsError> {
        let counts: Counts = file::decode(MAGIC, bytes)?;
        counts.vcpus.iter().try_for_each(check)?;
        Ok(counts)
    }
}

fn check(vcpu: &VcpuCounts) -> Result<(), CountsError> {
    let bad = |what, index, named| CountsError::Index { vcpu: vcpu.index, what, index, named };
    for (index, path) in vcpu.paths.iter().enumerate() {
        if let Some(parent) = path.parent.filter(|&parent| parent as usize >= index) {
            return Err(bad("path", index, parent));
        }
        if path.thread as usize >= vcpu.threads.len() {
            return Err(bad("the thread of path", index, path.thread));
        }
    }
    let (blocks, events) = (vcpu.blocks.len(), vcpu.events.len());
    if events > 0 && events != blocks {
        return Err(CountsError::Events { vcpu: vcpu.index, blocks, events });
    }
    let lost = |block: &BlockCount| block.path as usize >= vcpu.paths.len();
    match vcpu.blocks.iter().position(lost) {
        Some(index) => Err(bad("block", index, vcpu.blocks[index].path)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::Event;

    fn counts() -> Counts {
        let path =
            |parent, to| CallPath { parent, thread: 0, from: 8, to, kind: Entered::Call, calls: 3 };
        Counts {
            discontinuities: true,
            setup: true,
            lost_switches: 0,
            vcpus: vec![VcpuCounts {
                index: 1,
                threads: vec![Thread { command: "swapper/1".to_owned(), pid: 0, measured: false }],
                paths: vec![path(None, 0), path(Some(0), u64::MAX)],
                blocks: vec![BlockCount {
                    path: 1,
                    start: u64::MAX,
                    times: 1 << 40,
                    instructions: 1 << 41,
                }],
                events: vec![Events::from([(Event::DataL2, 7)])],
                cut: 0,
            }],
        }
    }

    #[test]
    fn decodes_its_own_encoding() {
        let bytes = counts().encode().unwrap();
        assert_eq!(Counts::decode(&bytes).unwrap(), counts());
    }

    #[test]
    fn rejects_a_damaged_file() {
        let bytes = counts().encode().unwrap();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert!(Counts::decode(&damaged).is_err(), "byte {at}");
            assert!(Counts::decode(&bytes[..at]).is_err(), "{at} bytes");
        }
        let damages: [fn(&mut VcpuCounts); 3] =
            [|v| v.paths[1].parent = Some(1), |v| v.paths[1].thread = 1, |v| v.blocks[0].path = 2];
        for damage in damages {
            let mut counts = counts();
            damage(&mut counts.vcpus[0]);
            let decoded = Counts::decode(&counts.encode().unwrap());
            assert!(matches!(decoded, Err(CountsError::Index { .. })), "{decoded:?}");
        }
        let mut counts = counts();
        counts.vcpus[0].events.push(Events::new());
        let decoded = Counts::decode(&counts.encode().unwrap());
        assert_eq!(decoded, Err(CountsError::Events { vcpu: 1, blocks: 1, events: 2 }));
    }

    #[test]
    fn reports_lost_counts() {
        assert_eq!(counts().fault(), None);
        type Damage = fn(&mut Counts);
        let faults: [(Damage, &str); 3] = [
            (|counts| counts.setup = false, "threads are not separated"),
            (|counts| counts.lost_switches = 2, "2 thread switches"),
            (|counts| counts.vcpus[0].cut = 7, "7 calls"),
        ];
        for (damage, words) in faults {
            let mut counts = counts();
            damage(&mut counts);
            assert!(counts.fault().is_some_and(|fault| fault.contains(words)), "{words}");
        }
    }
}
