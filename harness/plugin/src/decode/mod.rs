// SPDX-License-Identifier: GPL-2.0-or-later
//! What an instruction at a block's end does to the flow, per architecture.

mod x86_64;

use crate::recorder::Tail;
use tramplab_protocol::magic::Magic;

/// The guest's architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guest {
    X86_64,
}

impl Guest {
    /// By QEMU's target name.
    pub fn from_target(name: &str) -> Option<Guest> {
        match name {
            "x86_64" => Some(Guest::X86_64),
            _ => None,
        }
    }

    pub fn tail(self, instruction: &[u8], address: u64) -> Tail {
        match self {
            Guest::X86_64 => x86_64::tail(instruction, address),
        }
    }

    pub fn magic(self, instruction: &[u8]) -> Option<Magic> {
        match self {
            Guest::X86_64 => Magic::from_x86_64(instruction),
        }
    }

    /// Cheaply rules out nearly all instructions.
    pub fn may_be_magic(self, size: usize) -> bool {
        match self {
            Guest::X86_64 => size == 7,
        }
    }
}
