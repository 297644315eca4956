// SPDX-License-Identifier: GPL-2.0-or-later
//! Decodes the effect of an instruction at a block's end on the flow, per architecture.

mod aarch64;
mod x86_64;

use crate::{api, estimate::Pages, flow::Tail};
use std::ffi::c_int;
use tramplab_protocol::{estimate::Event, magic::Magic};

/// The guest's architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guest {
    X86_64,
    Aarch64,
}

impl Guest {
    /// Takes QEMU's name of the target.
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

    /// Returns true if an instruction always completes: without a fault, and without leaving the
    /// emulator's block in its middle.
    pub fn surely_completes(self, instruction: &[u8], address: u64, is_first: bool) -> bool {
        // The kernel lives in the upper half of the address space and has a stack. A fault on its
        // stack is an overflow, from which nothing continues.
        let has_stack = address >> 63 == 1;
        match self {
            Guest::X86_64 => x86_64::surely_completes(instruction, has_stack),
            // The target of an indirect branch may be no valid target (BTI), whatever the
            // instruction.
            Guest::Aarch64 => !is_first && aarch64::surely_completes(instruction, has_stack),
        }
    }

    /// The event of an instruction that costs by itself.
    pub fn costly(self, instruction: &[u8]) -> Option<Event> {
        match self {
            Guest::X86_64 => x86_64::costly(instruction),
            Guest::Aarch64 => aarch64::costly(instruction),
        }
    }

    /// Where its kernel has large pages.
    pub fn pages(self) -> Pages {
        match self {
            Guest::X86_64 => Pages::X86,
            // By default the kernel can protect each page of its memory (K `arch/arm64/mm/mmu.c`,
            // `can_set_direct_map`).
            Guest::Aarch64 => Pages::Small,
        }
    }

    pub fn magic(self, instruction: &[u8]) -> Option<Magic> {
        match self {
            Guest::X86_64 => Magic::from_x86_64(instruction),
            Guest::Aarch64 => Magic::from_aarch64(instruction),
        }
    }

    /// QEMU's names of the register that points at a magic instruction's argument, and of those
    /// with a function's first two arguments.
    pub fn registers(self) -> [&'static str; 3] {
        match self {
            Guest::X86_64 => ["rax", "rdi", "rsi"],
            Guest::Aarch64 => ["x0", "x0", "x1"],
        }
    }

    /// The kinds of events that QEMU (10.2 and newer) is asked to report.
    pub fn discontinuities(self) -> c_int {
        match self {
            // Only this kind has the right addresses.
            Guest::X86_64 => api::DISCONTINUITY_INTERRUPT,
            // Calls of the firmware are a third kind, and return.
            Guest::Aarch64 => api::DISCONTINUITY_INTERRUPT | api::DISCONTINUITY_EXCEPTION,
        }
    }

    /// Rules out nearly all instructions cheaply.
    pub fn may_be_magic(self, size: usize) -> bool {
        match self {
            Guest::X86_64 => size == 7,
            // All instructions have one size; comparing them is as cheap.
            Guest::Aarch64 => size == 4,
        }
    }
}
