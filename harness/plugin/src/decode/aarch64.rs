// SPDX-License-Identifier: GPL-2.0-or-later
//! arm64, AArch64 state. The encodings follow the Arm Architecture Reference Manual (DDI 0487),
//! section C4.1, "Branches, Exception Generating and System instructions", as far as QEMU executes
//! them.

use crate::flow::Tail;
use tramplab_protocol::{estimate::Event, trace::Kind};

pub fn tail(instruction: &[u8], address: u64) -> Tail {
    let Ok(bytes) = instruction.try_into() else { return Tail::Trap };
    let word = u32::from_le_bytes(bytes);
    let is = |mask: u32, value: u32| word & mask == value;
    let target = |low: u32, bits: u32| address.wrapping_add_signed(offset(word, low, bits));
    let indirect = |kind| Tail::Indirect { kind };
    match word {
        _ if is(0xfc00_0000, 0x1400_0000) => {
            Tail::Direct { kind: Kind::Jump, target: target(0, 26) }
        }
        _ if is(0xfc00_0000, 0x9400_0000) => {
            Tail::Direct { kind: Kind::Call, target: target(0, 26) }
        }
        // B.cond and BC.cond, CBZ and CBNZ, TBZ and TBNZ.
        _ if is(0xff00_0000, 0x5400_0000) || is(0x7e00_0000, 0x3400_0000) => {
            Tail::Cond { target: target(5, 19) }
        }
        _ if is(0x7e00_0000, 0x3600_0000) => Tail::Cond { target: target(5, 14) },
        // CB<cond>, CBB<cond> and CBH<cond>, which also compare (FEAT_CMPBR).
        _ if is(0x7e00_0000, 0x7400_0000) => Tail::Cond { target: target(5, 9) },
        // Branches to a register. The forms that authenticate it differ in bits 24 and 11.
        _ if is(0xfe00_0000, 0xd600_0000) => match (word >> 21) & 0b1111 {
            0b0000 | 0b1000 => indirect(Kind::IndJump),
            0b0001 | 0b1001 => indirect(Kind::IndCall),
            0b0010 => indirect(Kind::Ret),
            0b0100 => indirect(Kind::Iret),
            _ => Tail::Trap,
        },
        _ if is(0xffe0_001f, 0xd400_0001) => indirect(Kind::Syscall),
        // HVC and SMC return behind themselves: QEMU is the firmware.
        _ if is(0xffe0_001f, 0xd400_0002) || is(0xffe0_001f, 0xd400_0003) => {
            Tail::Next { may_fault: true }
        }
        // BRK, which kprobes use, like `int3` on x86.
        _ if is(0xffe0_001f, 0xd420_0000) => indirect(Kind::Int),
        // HLT and the like; UDF.
        _ if is(0xff00_0000, 0xd400_0000) || is(0xffff_0000, 0) => Tail::Trap,
        // Loads, stores, those of SVE and SME, and SYS: it maintains caches by address.
        _ => Tail::Next {
            may_fault: is(0x0a00_0000, 0x0800_0000)
                || is(0x9e00_0000, 0x8400_0000)
                || is(0xfe00_0000, 0xe000_0000)
                || is(0xfe80_0000, 0xa000_0000)
                || is(0xfff8_0000, 0xd508_0000),
        },
    }
}

/// The event of an instruction that costs by itself.
pub fn costly(instruction: &[u8]) -> Option<Event> {
    let word = u32::from_le_bytes(instruction.try_into().ok()?);
    let is = |mask: u32, value: u32| word & mask == value;
    let is_load_acquire = is(0x0000_fc00, 0x0000_c000);
    // Registers that control the MMU, translation tables and vectors take effect by a flush. Those
    // of flags, stacks, threads and priorities are written in passing.
    let is_context = is(0x0007_0000, 0)
        && matches!(((word >> 12) & 0xf, (word >> 8) & 0xf), (1 | 2, _) | (12, 0));
    match word {
        // Atomic memory operations; CAS and CASP (FEAT_LSE); STXR, STLXR, STXP and STLXP.
        _ if is(0x3f20_0c00, 0x3820_0000) && !is_load_acquire
            || is(0x3fa0_7c00, 0x08a0_7c00)
            || is(0xbfa0_7c00, 0x0820_7c00)
            || is(0x3fc0_0000, 0x0800_0000) =>
        {
            Some(Event::Atomic)
        }
        // ISB and SB; DSB and DMB.
        _ if is(0xffff_f0df, 0xd503_30df) => Some(Event::Serializing),
        _ if is(0xffff_f0df, 0xd503_309f) => Some(Event::Fence),
        // TLBI, a SYS instruction of CRn 8 or 9.
        _ if is(0xfff8_e000, 0xd508_8000) => Some(Event::Invalidation),
        // MSR of a register.
        _ if is(0xfff8_0000, 0xd518_0000) && is_context => Some(Event::SystemRegister),
        // ERET, with authentication or without.
        _ if is(0xffff_f000, 0xd69f_0000) => Some(Event::ExceptionReturn),
        _ if is(0xffe0_001f, 0xd400_0001) => Some(Event::SystemCall),
        _ => None,
    }
}

/// Returns true if an instruction completes for any contents of registers and memory. With
/// `has_stack` the stack pointer may be assumed to point at present memory. Returns false for
/// unknown instructions.
pub fn surely_completes(instruction: &[u8], has_stack: bool) -> bool {
    let Ok(bytes) = instruction.try_into() else { return false };
    let word = u32::from_le_bytes(bytes);
    let is = |mask: u32, value: u32| word & mask == value;
    let processes_data = is(0x1c00_0000, 0x1000_0000) || is(0x0e00_0000, 0x0a00_0000);
    // One-source instructions: those that authenticate a pointer may raise an exception
    // (FEAT_FPACCOMBINE).
    let authenticates = is(0xffff_0000, 0xdac1_0000);
    let branches =
        is(0x7c00_0000, 0x1400_0000) || matches!(tail(instruction, 0), Tail::Cond { .. });
    // LDP and STP of 32 and 64 bits; LDR and STR of any size with an immediate offset, except the
    // unprivileged. The base is register 31.
    let loads_or_stores = is(0x7e00_0000, 0x2800_0000)
        || is(0x3f80_0000, 0x3900_0000)
        || is(0x3fa0_0000, 0x3800_0000) && !is(0x0c00, 0x0800);
    let uses_stack = loads_or_stores && is(0x3e0, 0x3e0) || is(0xffff_fc1f, RET);
    processes_data && !authenticates || branches || word == NOP || has_stack && uses_stack
}

/// With register 0.
const RET: u32 = 0xd65f_0000;

const NOP: u32 = 0xd503_201f;

/// A signed number of instructions, converted to bytes.
fn offset(word: u32, low: u32, bits: u32) -> i64 {
    let high = 32 - bits;
    i64::from(((word >> low) << high).cast_signed() >> high) * 4
}

#[cfg(test)]
mod tests;
