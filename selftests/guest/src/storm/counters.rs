// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that count their runs, each in its place of one map.

use crate::bpf::{self, BpfError, Instruction, Program};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use tramplab_protocol::storm::{MOST_THREADS, SLOTS};

const COUNTERS: usize = (MOST_THREADS * SLOTS) as usize;
const BYTES: usize = size_of::<u64>();
/// `BPF_PSEUDO_MAP_VALUE`, in the half of a byte where the source register is.
const MAP_VALUE: u8 = 2 << 4;

pub struct Counters(OwnedFd);

impl Counters {
    pub fn new() -> Result<Counters, BpfError> {
        let bytes = (COUNTERS * BYTES) as u32;
        // SAFETY: the name outlives the call; there are no options.
        let fd = unsafe {
            libbpf_sys::bpf_map_create(
                libbpf_sys::BPF_MAP_TYPE_ARRAY,
                c"tramplab_storm".as_ptr(),
                4,
                bytes,
                1,
                std::ptr::null(),
            )
        };
        Ok(Counters(bpf::owned(fd.into(), "create a map")?))
    }

    /// `*(map + counter) += 1; return 0`
    pub fn program(&self, counter: u32) -> [Instruction; 6] {
        let map = self.0.as_raw_fd().to_le_bytes();
        let at = (counter * BYTES as u32).to_le_bytes();
        [
            [0x18, MAP_VALUE | 1, 0, 0, map[0], map[1], map[2], map[3]],
            [0, 0, 0, 0, at[0], at[1], at[2], at[3]],
            [0xb7, 2, 0, 0, 1, 0, 0, 0],
            [0xdb, 2 << 4 | 1, 0, 0, 0, 0, 0, 0],
            [0xb7, 0, 0, 0, 0, 0, 0, 0],
            [0x95, 0, 0, 0, 0, 0, 0, 0],
        ]
    }

    pub fn read(&self) -> Result<Vec<u64>, BpfError> {
        let (key, mut values) = (0u32, vec![0u64; COUNTERS]);
        // SAFETY: key and values outlive the call and are as large as the map's.
        let result = unsafe {
            libbpf_sys::bpf_map_lookup_elem(
                self.0.as_fd().as_raw_fd(),
                (&raw const key).cast(),
                values.as_mut_ptr().cast(),
            )
        };
        if result < 0 { Err(BpfError::new("read the counters", -result, "")) } else { Ok(values) }
    }
}

/// A counting program, as the kernel takes it.
pub fn program(instructions: &[Instruction]) -> Program<'_> {
    Program { name: c"tramplab_storm", instructions, ..bpf::EMPTY }
}
