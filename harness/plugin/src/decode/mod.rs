// SPDX-License-Identifier: GPL-2.0-or-later
//! What an instruction at a block's end does to the flow, per architecture.

mod aarch64;
mod x86_64;

use crate::{api, flow::Tail};
use std::ffi::c_int;
use tramplab_protocol::magic::Magic;

/// The guest's architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guest {
    X86_64,
    Aarch64,
}

impl Guest {
    /// By QEMU's target name.
    pub fn from_target(name: &str) -> Option<Guest> {
        match name {
            "x86_64" => Some(Guest::X86_64),
            "aarch64" => Some(Guest::Aarch64),
            _ => None,
        }
    }

    pub fn tail(self, instruction: &[u8], address: u64) -> Tail {
        match self {
            Guest::X86_64 => x86_64::tail(instruction, address),
            Guest::Aarch64 => aarch64::tail(instruction, address),
        }
    }

    /// Whether an instruction always completes: no fault, no exit from the emulator's block in its middle.
    pub fn surely_completes(self, instruction: &[u8], address: u64, is_first: bool) -> bool {
        // The kernel has the upper half of the addresses, and a stack: what faults at it is its overflow, from which nothing goes on.
        let has_stack = address >> 63 == 1;
        match self {
            Guest::X86_64 => x86_64::surely_completes(instruction, has_stack),
            // Where an indirect branch led may be no place for one to lead (BTI), whatever is there.
            Guest::Aarch64 => !is_first && aarch64::surely_completes(instruction, has_stack),
        }
    }

    pub fn magic(self, instruction: &[u8]) -> Option<Magic> {
        match self {
            Guest::X86_64 => Magic::from_x86_64(instruction),
            Guest::Aarch64 => Magic::from_aarch64(instruction),
        }
    }

    /// Names, in QEMU's description, of the register that points at a magic instruction's argument and of those that hold a
    /// function's first two arguments.
    pub fn registers(self) -> [&'static str; 3] {
        match self {
            Guest::X86_64 => ["rax", "rdi", "rsi"],
            Guest::Aarch64 => ["x0", "x0", "x1"],
        }
    }

    /// What QEMU (10.2 and newer) is asked to tell of.
    pub fn discontinuities(self) -> c_int {
        match self {
            // The one of the two kinds that carries the right addresses.
            Guest::X86_64 => api::DISCONTINUITY_INTERRUPT,
            // Calls of the firmware are a third kind: they come back.
            Guest::Aarch64 => api::DISCONTINUITY_INTERRUPT | api::DISCONTINUITY_EXCEPTION,
        }
    }

    /// Cheaply rules out nearly all instructions.
    pub fn may_be_magic(self, size: usize) -> bool {
        match self {
            Guest::X86_64 => size == 7,
            // All are of one size; comparing them is as cheap.
            Guest::Aarch64 => size == 4,
        }
    }
}
