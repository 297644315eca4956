// SPDX-License-Identifier: GPL-2.0-or-later
//! The instructions of arm64 that are played: accesses of BRBE's registers, `BRB`, and reads of the
//! register that says that there is BRBE.
//!
//! QEMU translates an unknown register as an undefined instruction. The callback comes before it,
//! and skips the instruction. The program counter that QEMU shows in a callback is as old as the
//! block: the callback gets the instruction's address, and reads the instruction there.

pub mod brbe;
#[cfg(test)]
mod tests;

use super::{Emulated, of, ring::Ring};
use crate::{
    api,
    guest_state::{memory, register, word},
};
use brbe::Came;
use std::{
    array,
    ffi::{CStr, c_uint, c_void},
};

/// Version 1 of BRBE in `ID_AA64DFR0_EL1`.
const FEATURE: u64 = 1 << 52;
const FEATURE_MASK: u64 = 0xf << 52;
/// `HCR_EL2.E2H`: a kernel at EL2 accesses its own registers by the names of EL1's.
const REDIRECTS: u64 = 1 << 34;
/// The bits of `PMOVSCLR_EL0` without the counter of cycles, which freezes no records.
const EVENT_COUNTERS: u64 = 0x7fff_ffff;
/// The number of the zero register.
const ZERO: usize = 31;

/// The parts of a vCPU that its instructions need.
pub struct Cpu {
    general: [Handle; ZERO],
    state: Handle,
    features: Handle,
    /// The counters that have overflowed.
    overflows: Handle,
    /// The syndromes of EL1 and of EL2, which a CPU may lack.
    syndromes: [Option<Handle>; 2],
    hypervisor: Option<Handle>,
    /// `SCTLR_EL1` and `SCTLR_EL2`, whose bit 0 is the MMU.
    controls: [Option<Handle>; 2],
}

/// QEMU's first handle is null.
type Handle = *mut api::RegisterHandle;

/// An access of a system register, or a system instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Access {
    /// As in [`brbe::encoded`].
    number: u32,
    general: usize,
    reads: bool,
}

impl Access {
    /// None if the instruction is not played.
    fn decode(word: u32) -> Option<Access> {
        if word & 0xffc0_0000 != 0xd500_0000 {
            return None;
        }
        let number = word >> 5 & 0xffff;
        let reads = word >> 21 & 1 == 1;
        let access = Access { number, general: (word & 31) as usize, reads };
        let register = match number {
            brbe::ID_AA64DFR0_EL1 => return reads.then_some(access),
            brbe::BRBCR_EL12 => brbe::BRBCR_EL1,
            other => other,
        };
        let register = brbe::register(register, super::family::MOST_DEPTH)?;
        let is_allowed = match reads {
            true => brbe::is_readable(register),
            false => brbe::is_writable(register),
        };
        is_allowed.then_some(access)
    }

    /// The register that is accessed at a level. None if it is undefined there.
    fn at(self, level: u32, redirects: bool) -> Option<u32> {
        match (self.number, level) {
            (_, 0) | (brbe::BRBCR_EL2 | brbe::BRBCR_EL12, 1) => None,
            (brbe::BRBCR_EL1, _) if redirects => Some(brbe::BRBCR_EL2),
            (brbe::BRBCR_EL12, _) => redirects.then_some(brbe::BRBCR_EL1),
            (number, _) => Some(number),
        }
    }
}

/// Registers the callbacks of the instructions.
///
/// # Safety
/// `tb` is valid and has `count` instructions.
pub unsafe fn instrument(tb: *mut api::Tb, count: usize) {
    // SAFETY: the caller's promise. The data is an address, no pointer.
    unsafe {
        for index in 0..count {
            let insn = api::qemu_plugin_tb_get_insn(tb, index);
            let mut bytes = [0; 4];
            api::qemu_plugin_insn_data(insn, bytes.as_mut_ptr().cast(), bytes.len());
            if Access::decode(u32::from_le_bytes(bytes)).is_none() {
                continue;
            }
            let address = api::qemu_plugin_insn_vaddr(insn) as *mut c_void;
            api::qemu_plugin_register_vcpu_insn_exec_cb(insn, accesses, api::SETS_PC, address);
        }
    }
}

impl Cpu {
    /// # Safety
    /// Call on the vCPU's thread, in a callback of QEMU.
    pub unsafe fn find() -> Option<Cpu> {
        // SAFETY: the caller's promise. Names are C strings.
        let all = unsafe { api::registers() };
        let find = |name: &str| {
            let is_named = |one: &&api::RegisterDescriptor| unsafe {
                CStr::from_ptr(one.name).to_bytes() == name.as_bytes()
            };
            all.iter().find(is_named).map(|one| one.handle)
        };
        let general: [Option<Handle>; ZERO] = array::from_fn(|at| find(&format!("x{at}")));
        if general.contains(&None) {
            return None;
        }
        Some(Cpu {
            general: general.map(Option::unwrap_or_default),
            state: find("cpsr")?,
            features: find("ID_AA64DFR0_EL1")?,
            // They have the same value.
            overflows: find("PMOVSCLR_EL0").or_else(|| find("PMOVSSET_EL0"))?,
            syndromes: [find("ESR_EL1"), find("ESR_EL2")],
            hypervisor: find("HCR_EL2"),
            controls: ["SCTLR_EL1", "SCTLR_EL2"].map(find),
        })
    }

    /// The exception level.
    ///
    /// # Safety
    /// Call in a callback that reads registers.
    unsafe fn level(&self) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { word(self.state) }.unwrap_or_default() >> 2 & 3
    }

    /// True if a counter that freezes the records has overflowed.
    ///
    /// # Safety
    /// Call in a callback that reads registers.
    unsafe fn has_overflowed(&self) -> bool {
        // SAFETY: the caller's promise.
        unsafe { register(self.overflows) }.unwrap_or_default() & EVENT_COUNTERS != 0
    }

    /// True for an instruction of a 32-bit program, of which QEMU shows the kernel's level. The
    /// kernel runs at such low addresses only before it has turned on the MMU.
    ///
    /// # Safety
    /// Call in a callback that reads registers.
    unsafe fn is_of_32_bits(&self, address: u64) -> bool {
        // SAFETY: the caller's promise.
        let control = |handle| unsafe { register(handle) }.unwrap_or_default();
        let has_mmu = || self.controls.iter().flatten().any(|handle| control(*handle) & 1 == 1);
        address >> 32 == 0 && has_mmu()
    }

    /// Looks at the state that a block starts with, while the ring is on. Returns true if an
    /// overflow has frozen the records.
    ///
    /// # Safety
    /// Call in a callback that reads registers.
    pub unsafe fn look(&self, ring: &Ring, start: u64) -> bool {
        let Some((filter, was_interrupted)) = ring.brbe() else { return false };
        let mut came = Came::default();
        // SAFETY, of both: the caller's promise.
        if was_interrupted && !brbe::is_asynchronous(start) {
            let level = unsafe { self.level() };
            let syndrome = self.syndromes[usize::from(level > 1)];
            came.syndrome = syndrome.and_then(|handle| unsafe { register(handle) });
        }
        if filter.freezes(start, was_interrupted) {
            came.overflowed = unsafe { self.has_overflowed() };
        }
        filter.set_came(came);
        came.overflowed
    }
}

/// An overflow freezes the records.
pub fn freeze(ring: &mut Ring) {
    let control = ring.read(brbe::BRBFCR_EL1).unwrap_or_default();
    ring.write(brbe::BRBFCR_EL1, control | brbe::PAUSED);
}

extern "C" fn accesses(index: c_uint, address: *mut c_void) {
    // SAFETY: this vCPU's thread, in a callback that sets the program counter. No value that must
    // be dropped lives at its end.
    unsafe {
        let Some((player, emulated)) = of(index) else { return };
        let super::Cpu::Aarch64(cpu) = &player.cpu else { return };
        let address = address as u64;
        let Some(access) = memory(address).map(u32::from_le_bytes).and_then(Access::decode) else {
            return;
        };
        if cpu.is_of_32_bits(address) {
            return;
        }
        let hypervisor = || cpu.hypervisor.and_then(|handle| register(handle)).unwrap_or_default();
        let level = cpu.level();
        let redirects = level == 2 && hypervisor() & REDIRECTS != 0;
        // QEMU raises the exception.
        let Some(number) = access.at(level, redirects) else { return };
        if number == brbe::ID_AA64DFR0_EL1 {
            let Some(features) = register(cpu.features) else { return };
            return cpu.skip(emulated, access, address, features & !FEATURE_MASK | FEATURE);
        }
        // Where no interrupt is taken, an overflow may not have been seen.
        let freezes = player.ring.brbe().is_some_and(|(filter, _)| filter.freezes(address, true));
        if freezes && cpu.has_overflowed() {
            freeze(&mut player.ring);
        }
        let mut value = 0;
        if access.reads {
            value = player.ring.read(number).unwrap_or_default();
        } else {
            if let Some(&handle) = cpu.general.get(access.general) {
                value = register(handle).unwrap_or_default();
            }
            player.ring.write(number, value);
        }
        player.attend(emulated);
        if player.ring.is_on() {
            emulated.watch();
        }
        let super::Cpu::Aarch64(cpu) = &player.cpu else { return };
        cpu.skip(emulated, access, address, value);
    }
}

impl Cpu {
    /// Leaves out an access, once a read has its value. Does not return: no value that must be
    /// dropped may live here or in a caller.
    ///
    /// # Safety
    /// Call in a callback that sets the program counter.
    unsafe fn skip(&self, emulated: &Emulated, access: Access, address: u64, value: u64) {
        // SAFETY: the caller's promise. The register has eight bytes.
        unsafe {
            if let Some(&handle) = self.general.get(access.general).filter(|_| access.reads) {
                emulated.writer.register(handle, &value.to_le_bytes());
            }
            emulated.setter.set(address.wrapping_add(4));
        }
    }
}
