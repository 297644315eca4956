// SPDX-License-Identifier: MIT OR Apache-2.0
//! Instructions that do nothing on a CPU and give an order to the TCG plugin.
//!
//! x86-64: `nop dword ptr [rax + imm32]` (`0f 1f 80 imm32`); arm64: `movz xzr, #imm16`. Both are
//! architectural no-ops at every privilege level, so the same agent runs under KVM and on hardware.

use std::{
    arch::asm,
    path::{Path, PathBuf},
};
use strum::VariantArray;

/// The order that a magic instruction gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantArray)]
#[repr(u8)]
pub enum Magic {
    /// Start recording branches of all vCPUs into empty buffers.
    Arm = 1,
    /// Stop recording and write the trace file. The file is complete when the next instruction
    /// runs.
    Disarm = 2,
    /// Start counting instructions by call path. A register points at a [`crate::counts::Setup`].
    /// `Disarm` stops it and writes the counts file.
    Profile = 3,
    /// Like `Arm`, and hand programs the branch records they ask for. A register points at a
    /// [`crate::delivery::Setup`].
    Deliver = 4,
    /// Like `Arm`, and count data accesses.
    ArmAccesses = 5,
    /// Like `Profile`, and count the events of the modelled CPU.
    Estimate = 6,
    /// Like `Estimate`, while caches and predictors are empty.
    EstimateCold = 7,
}

/// The file that tells that the guest's kernel executed a magic instruction, which the plugin did
/// not obey. The VM's plugin has `dir=DIR`.
pub fn of_kernel(dir: &Path) -> PathBuf {
    dir.join("kernel-magic.txt")
}

/// Upper 24 bits of the x86-64 displacement: "TrB".
const X86_TAG: u32 = 0x5472_4200;
const X86_OPCODE: [u8; 3] = [0x0f, 0x1f, 0x80];
/// Upper 12 bits of the arm64 immediate.
const ARM64_TAG: u16 = 0x7b40;

impl Magic {
    pub const fn x86_64(self) -> [u8; 7] {
        let imm = (X86_TAG | self as u32).to_le_bytes();
        let [a, b, c] = X86_OPCODE;
        [a, b, c, imm[0], imm[1], imm[2], imm[3]]
    }

    pub const fn aarch64(self) -> [u8; 4] {
        (0xd280_001f | ((ARM64_TAG | self as u16) as u32) << 5).to_le_bytes()
    }

    /// Decodes one x86-64 instruction.
    pub fn from_x86_64(insn: &[u8]) -> Option<Magic> {
        Magic::VARIANTS.iter().copied().find(|m| insn == m.x86_64())
    }

    /// Decodes one arm64 instruction.
    pub fn from_aarch64(insn: &[u8]) -> Option<Magic> {
        Magic::VARIANTS.iter().copied().find(|m| insn == m.aarch64())
    }

    /// Executes the instruction.
    #[inline(always)]
    pub fn execute(self) {
        self.execute_with(std::ptr::null());
    }

    /// Executes the instruction while a register points at its argument (x86-64: `rax`, arm64:
    /// `x0`).
    #[inline(always)]
    pub fn execute_with(self, argument: *const u8) {
        // SAFETY: architectural no-ops. The plugin may read the memory behind the pointer, like a
        // debugger.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            match self {
                Magic::Arm => {
                    asm!(".byte 0x0f, 0x1f, 0x80, 0x01, 0x42, 0x72, 0x54", in("rax") argument)
                }
                Magic::Disarm => {
                    asm!(".byte 0x0f, 0x1f, 0x80, 0x02, 0x42, 0x72, 0x54", in("rax") argument)
                }
                Magic::Profile => {
                    asm!(".byte 0x0f, 0x1f, 0x80, 0x03, 0x42, 0x72, 0x54", in("rax") argument)
                }
                Magic::Deliver => {
                    asm!(".byte 0x0f, 0x1f, 0x80, 0x04, 0x42, 0x72, 0x54", in("rax") argument)
                }
                Magic::ArmAccesses => {
                    asm!(".byte 0x0f, 0x1f, 0x80, 0x05, 0x42, 0x72, 0x54", in("rax") argument)
                }
                Magic::Estimate => {
                    asm!(".byte 0x0f, 0x1f, 0x80, 0x06, 0x42, 0x72, 0x54", in("rax") argument)
                }
                Magic::EstimateCold => {
                    asm!(".byte 0x0f, 0x1f, 0x80, 0x07, 0x42, 0x72, 0x54", in("rax") argument)
                }
            }
        }
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            match self {
                Magic::Arm => asm!("movz xzr, #0x7b41", in("x0") argument),
                Magic::Disarm => asm!("movz xzr, #0x7b42", in("x0") argument),
                Magic::Profile => asm!("movz xzr, #0x7b43", in("x0") argument),
                Magic::Deliver => asm!("movz xzr, #0x7b44", in("x0") argument),
                Magic::ArmAccesses => asm!("movz xzr, #0x7b45", in("x0") argument),
                Magic::Estimate => asm!("movz xzr, #0x7b46", in("x0") argument),
                Magic::EstimateCold => asm!("movz xzr, #0x7b47", in("x0") argument),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_the_documented_instructions() {
        assert_eq!(Magic::Arm.x86_64(), [0x0f, 0x1f, 0x80, 0x01, 0x42, 0x72, 0x54]);
        assert_eq!(Magic::Disarm.x86_64(), [0x0f, 0x1f, 0x80, 0x02, 0x42, 0x72, 0x54]);
        // movz xzr, #0x7b41
        assert_eq!(u32::from_le_bytes(Magic::Arm.aarch64()), 0xd280_001f | 0x7b41 << 5);
        for &m in Magic::VARIANTS {
            assert_eq!(Magic::from_x86_64(&m.x86_64()), Some(m));
            assert_eq!(Magic::from_aarch64(&m.aarch64()), Some(m));
        }
        assert_eq!(Magic::from_x86_64(&[0x0f, 0x1f, 0x80, 0, 0, 0, 0]), None);
    }
}
