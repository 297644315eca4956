// SPDX-License-Identifier: GPL-2.0-or-later
//! The families of branch records on x86-64: their CPUID bits and model-specific registers (MSRs).
//! Pure tables, from AMD's APM volume 2 (Last Branch Stack), Intel's SDM volume 3B (Last Branch,
//! Architectural LBRs) and the kernel's `arch/x86/include/asm/msr-index.h`.

use super::super::family::{Part, Register, place};
use crate::recorder::Selected;
use std::ops::Range;
use tramplab_protocol::trace::Kind;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// LbrExtV2: Zen 4 and later.
    AmdLbrV2,
    /// Haswell to Ice Lake, format 5.
    IntelLbr,
    /// Architectural LBRs: Alder Lake, Sapphire Rapids and later.
    ArchLbr,
}

/// The bits of a counter.
pub const COUNTER: u64 = (1 << 48) - 1;
const DEBUGCTL: u32 = 0x1d9;
const PERF_CAPABILITIES: u32 = 0x345;
/// Format of the legacy LBR whose third register holds flags (`LBR_FORMAT_INFO`).
const FORMAT_INFO: u64 = 5;
/// Format of a CPU whose LBRs are architectural.
const FORMAT_ARCH: u64 = 0x3f;

const DBG_EXTN_CFG: u32 = 0xc000_010f;
const AMD_LBR_SELECT: u32 = 0xc000_010e;
const AMD_FROM_TO: u32 = 0xc001_0300;
const AMD_COUNTERS: u32 = 6;
const AMD_COUNTER: u32 = 0xc001_0201;

const LBR_SELECT: u32 = 0x1c8;
const LBR_TOS: u32 = 0x1c9;
const LBR_FROM: u32 = 0x680;
const LBR_TO: u32 = 0x6c0;
const LBR_INFO: u32 = 0xdc0;

const ARCH_LBR_CTL: u32 = 0x14ce;
const ARCH_LBR_DEPTH: u32 = 0x14cf;
const ARCH_LBR_INFO: u32 = 0x1200;
const ARCH_LBR_FROM: u32 = 0x1500;
const ARCH_LBR_TO: u32 = 0x1600;

const PMC: u32 = 0xc1;
const FIXED: u32 = 0x309;

/// Registers that only keep what was written: counters, their controls, and the ring's.
const AMD_KEPT: &[Range<u32>] = &[
    DEBUGCTL..DEBUGCTL + 1,
    AMD_LBR_SELECT..DBG_EXTN_CFG + 1,
    // PerfMonV2's global control and status.
    0xc000_0300..0xc000_0304,
    // The counters of older CPUs, and those of `PERFCTR_CORE`.
    0xc001_0000..0xc001_0008,
    0xc001_0200..0xc001_0200 + 2 * AMD_COUNTERS,
];
const INTEL_KEPT: &[Range<u32>] = &[
    PMC..PMC + 8,
    // PERFEVTSEL, and the extra registers of off-core events.
    0x186..0x18e,
    0x1a6..0x1a8,
    LBR_SELECT..LBR_SELECT + 1,
    DEBUGCTL..DEBUGCTL + 1,
    FIXED..FIXED + 4,
    // Control of the fixed counters; global status, control and reset.
    0x38d..0x392,
    // Latency of loads, and of the front end.
    0x3f6..0x3f8,
    ARCH_LBR_CTL..ARCH_LBR_DEPTH + 1,
];

impl Family {
    fn kept(self) -> &'static [Range<u32>] {
        match self {
            Family::AmdLbrV2 => AMD_KEPT,
            Family::IntelLbr | Family::ArchLbr => INTEL_KEPT,
        }
    }

    /// The place of a kept register.
    fn place(self, msr: u32) -> Option<usize> {
        place(self.kept(), msr)
    }

    /// The register behind an MSR's number, if the plugin plays it. QEMU reads others of the kind
    /// as 0 and ignores what is written.
    pub fn register(self, msr: u32, depth: usize) -> Option<Register> {
        let part = |start: u32, part: Part| {
            let slot = msr.checked_sub(start)? as usize;
            (slot < depth).then_some(Register::Entry { slot, part })
        };
        let own = match self {
            Family::AmdLbrV2 => {
                let at = msr.checked_sub(AMD_FROM_TO).map(|at| at as usize);
                let part = if msr.is_multiple_of(2) { Part::From } else { Part::To };
                at.filter(|&at| at < 2 * depth).map(|at| Register::Entry { slot: at / 2, part })
            }
            Family::IntelLbr => match msr {
                LBR_TOS => Some(Register::Top),
                PERF_CAPABILITIES => Some(Register::Fixed(FORMAT_INFO)),
                _ => part(LBR_FROM, Part::From)
                    .or_else(|| part(LBR_TO, Part::To))
                    .or_else(|| part(LBR_INFO, Part::Info)),
            },
            Family::ArchLbr => match msr {
                PERF_CAPABILITIES => Some(Register::Fixed(FORMAT_ARCH)),
                _ => part(ARCH_LBR_FROM, Part::From)
                    .or_else(|| part(ARCH_LBR_TO, Part::To))
                    .or_else(|| part(ARCH_LBR_INFO, Part::Info)),
            },
        };
        own.or_else(|| self.place(msr).map(Register::Kept))
    }

    /// True if a write of the MSR empties the ring.
    pub fn resets(self, msr: u32) -> bool {
        self == Family::ArchLbr && msr == ARCH_LBR_DEPTH
    }

    /// True if slots keep their places and [`Register::Top`] moves; otherwise slot 0 is the newest.
    pub fn has_top(self) -> bool {
        self == Family::IntelLbr
    }

    /// True while the ring records. `kept` has the kept registers.
    pub fn is_on(self, kept: &[u64]) -> bool {
        let (msr, bit) = match self {
            Family::AmdLbrV2 => (DBG_EXTN_CFG, 6),
            Family::IntelLbr => (DEBUGCTL, 0),
            Family::ArchLbr => (ARCH_LBR_CTL, 0),
        };
        self.value(msr, kept) >> bit & 1 == 1
    }

    fn value(self, msr: u32, kept: &[u64]) -> u64 {
        self.place(msr).and_then(|place| kept.get(place)).copied().unwrap_or_default()
    }

    /// The selection that the registers ask for.
    pub fn filter(self, kept: &[u64]) -> Filter {
        let (bits, stack) = match self {
            // A set bit suppresses. Bit 9 of Intel's is call-stack mode.
            Family::AmdLbrV2 => (!self.value(AMD_LBR_SELECT, kept), false),
            Family::IntelLbr => {
                let select = self.value(LBR_SELECT, kept);
                (!select, select >> 9 & 1 == 1)
            }
            Family::ArchLbr => {
                let control = self.value(ARCH_LBR_CTL, kept);
                (control, control >> 3 & 1 == 1)
            }
        };
        match self {
            Family::ArchLbr => Filter { bits, kernel: 1, kinds: &ARCH_BITS, stack },
            _ => Filter { bits, kernel: 0, kinds: &LEGACY_BITS, stack },
        }
    }

    /// The value that a register shows of an entry.
    pub fn shown(self, part: Part, from: u64, to: u64, kind: Option<Kind>) -> u64 {
        // An entry that was never written.
        let Some(kind) = kind else { return 0 };
        match (self, part) {
            // Bits 58 to 63 are flags: valid, speculative, mispredicted.
            (Family::AmdLbrV2, Part::From) => from & ((1 << 58) - 1),
            (Family::AmdLbrV2, Part::To) => to & ((1 << 58) - 1) | 1 << 63,
            (_, Part::From) => from,
            (_, Part::To) => to,
            (Family::ArchLbr, Part::Info) => u64::from(ARCH_TYPES[kind as usize]) << 56,
            (Family::AmdLbrV2 | Family::IntelLbr, Part::Info) => 0,
        }
    }

    /// The kind that a driver restores with a part of an entry.
    pub fn written(self, part: Part, value: u64) -> Option<Kind> {
        let wanted = (value >> 56 & 0xf) as u8;
        let number = ARCH_TYPES.iter().position(|&number| number == wanted.min(8))?;
        let is_info = (self, part) == (Family::ArchLbr, Part::Info);
        Kind::from_byte(number as u8).filter(|_| is_info)
    }

    /// QEMU's answer to `cpuid`, in the order EAX, EBX, ECX, EDX, with what the kernel looks for
    /// added.
    pub fn cpuid(self, leaf: u32, subleaf: u32, answer: [u32; 4], depth: usize) -> [u32; 4] {
        let [a, b, c, d] = answer;
        let depth = depth as u32;
        match (self, leaf, subleaf) {
            // PERFCTR_CORE.
            (Family::AmdLbrV2, 0x8000_0001, _) => [a, b, c | 1 << 23, d],
            // PerfMonV2, the stack, and its freeze; numbers of counters and of entries.
            (Family::AmdLbrV2, 0x8000_0022, _) => [0b111, AMD_COUNTERS | depth << 4, 0, 0],
            // PDCM: there is PERF_CAPABILITIES.
            (Family::IntelLbr | Family::ArchLbr, 1, _) => [a, b, c | 1 << 15, d],
            // Version, counters, their width; all events; fixed counters and their width.
            (Family::IntelLbr, 0xa, _) => [4 | 4 << 8 | 48 << 16 | 7 << 24, 0, 0, 3 | 48 << 5],
            (Family::ArchLbr, 0xa, _) => {
                [5 | 8 << 8 | 48 << 16 | 7 << 24, 0, 0b111, 3 | 48 << 5 | 1 << 15]
            }
            (Family::ArchLbr, 7, 0) => [a, b, c, d | 1 << 19],
            // The one depth; filters by privilege and kind, call-stack mode; types of branches.
            (Family::ArchLbr, 0x1c, _) => [1 << (depth / 8 - 1) | 1 << 31, 0b111, 0b100, 0],
            _ => answer,
        }
    }

    /// The MSR that `rdpmc` reads.
    pub fn counter(self, index: u32) -> u32 {
        let at = index & 0xff;
        match self {
            Family::AmdLbrV2 => AMD_COUNTER.wrapping_add(2 * at),
            _ if index >> 30 & 1 == 1 => FIXED + at,
            _ => PMC + at,
        }
    }
}

/// The bit of each kind of branch, in the order of [`Kind`]. The last five are far branches.
const LEGACY_BITS: [u8; 11] = [2, 7, 6, 3, 4, 5, 8, 8, 8, 8, 8];
const ARCH_BITS: [u8; 11] = [16, 17, 18, 19, 20, 21, 22, 22, 22, 22, 22];
/// Types of branches in `IA32_LBR_x_INFO`, in the same order.
const ARCH_TYPES: [u8; 11] = [0, 2, 1, 4, 3, 5, 8, 8, 8, 8, 8];

/// The selected branches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    /// A set bit selects.
    bits: u64,
    /// The bit of branches into the kernel. The next one is of branches into programs.
    kernel: u32,
    kinds: &'static [u8; 11],
    /// Call-stack mode: a return removes the newest entry.
    stack: bool,
}

impl Filter {
    pub fn selects(self, kind: Kind, to: u64) -> Selected {
        let is = |bit: u32| self.bits >> bit & 1 == 1;
        let privilege = if to >> 63 == 1 { self.kernel } else { self.kernel + 1 };
        if !is(privilege) || !is(self.kinds[kind as usize].into()) {
            Selected::Dropped
        } else if self.stack && kind == Kind::Ret {
            Selected::Pops
        } else {
            Selected::Kept
        }
    }
}
