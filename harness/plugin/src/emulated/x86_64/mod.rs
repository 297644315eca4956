// SPDX-License-Identifier: GPL-2.0-or-later
//! The instructions of x86-64 that are played.
//!
//! The plugin changes the answers of `cpuid`, skips `rdmsr` and `rdpmc`, and watches `wrmsr`, which
//! ends its block.

pub mod family;
#[cfg(test)]
mod tests;

use super::{Emulated, of};
use crate::{
    api::{self, Writer},
    guest_state::{self, handle},
};
use family::Family;
use std::ffi::{c_uint, c_void};

/// The parts of a vCPU that its instructions need.
pub struct Cpu {
    family: Family,
    operands: Operands,
    /// A `cpuid` that has not been completed.
    asked: Option<Asked>,
}

struct Asked {
    leaf: u32,
    subleaf: u32,
    /// The address behind the instruction. An interrupt may come before.
    after: u64,
}

/// The registers that the instructions use, in the order EAX, EBX, ECX, EDX.
struct Operands([*mut api::RegisterHandle; 4]);

/// Registers the callbacks of the instructions.
///
/// # Safety
/// `tb` is valid and has `count` instructions.
pub unsafe fn instrument(tb: *mut api::Tb, count: usize) {
    // SAFETY: the caller's promise. `after` is an address, no pointer.
    unsafe {
        for index in 0..count {
            let insn = api::qemu_plugin_tb_get_insn(tb, index);
            let Some(played) = Played::of(insn) else { continue };
            let address = api::qemu_plugin_insn_vaddr(insn);
            let size = api::qemu_plugin_insn_size(insn) as u64;
            let after = address.wrapping_add(size) as *mut c_void;
            let on = |insn, callback, registers| {
                api::qemu_plugin_register_vcpu_insn_exec_cb(insn, callback, registers, after);
            };
            match played {
                Played::Cpuid if index + 1 < count => {
                    on(insn, asks, api::READS_REGISTERS);
                    let next = api::qemu_plugin_tb_get_insn(tb, index + 1);
                    on(next, answers, api::WRITES_REGISTERS);
                }
                // The block behind it completes it.
                Played::Cpuid => on(insn, asks_at_end, api::READS_REGISTERS),
                // The kernel lets programs read counters.
                Played::Rdpmc => on(insn, reads_counter, api::SETS_PC),
                // Only the kernel may access them.
                _ if address >> 63 == 0 => {}
                Played::Rdmsr => on(insn, reads, api::SETS_PC),
                Played::Wrmsr => on(insn, writes, api::READS_REGISTERS),
            }
        }
    }
}

/// An instruction that is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Played {
    Cpuid,
    Rdmsr,
    Wrmsr,
    Rdpmc,
}

impl Played {
    /// The kernel pads an instruction with a segment prefix where it patches in a longer one.
    const PADDING: u8 = 0x3e;
    const LONGEST: usize = 3;

    /// # Safety
    /// `insn` is valid.
    unsafe fn of(insn: *const api::Insn) -> Option<Played> {
        let mut bytes = [0; Played::LONGEST];
        // SAFETY: the caller's promise. QEMU writes at most the given length.
        let size = unsafe {
            let size = api::qemu_plugin_insn_size(insn);
            if size > Played::LONGEST {
                return None;
            }
            api::qemu_plugin_insn_data(insn, bytes.as_mut_ptr().cast(), size);
            size
        };
        Played::decode(&bytes[..size])
    }

    fn decode(bytes: &[u8]) -> Option<Played> {
        match bytes {
            [Played::PADDING, rest @ ..] => Played::decode(rest),
            [0x0f, 0xa2] => Some(Played::Cpuid),
            [0x0f, 0x32] => Some(Played::Rdmsr),
            [0x0f, 0x30] => Some(Played::Wrmsr),
            [0x0f, 0x33] => Some(Played::Rdpmc),
            _ => None,
        }
    }
}

impl Cpu {
    /// # Safety
    /// Call on the vCPU's thread, in a callback of QEMU.
    pub unsafe fn find(family: Family) -> Option<Cpu> {
        // SAFETY: the caller's promise.
        let handles = ["rax", "rbx", "rcx", "rdx"].map(|name| unsafe { handle(name) });
        let [Some(a), Some(b), Some(c), Some(d)] = handles else { return None };
        Some(Cpu { family, operands: Operands([a, b, c, d]), asked: None })
    }

    pub fn is_asked(&self) -> bool {
        self.asked.is_some()
    }

    /// Completes a `cpuid` where it left off. Returns true if there was one.
    ///
    /// # Safety
    /// Call in a callback that writes registers.
    pub unsafe fn answer(&mut self, emulated: &Emulated, at: u64) -> bool {
        let Some(Asked { leaf, subleaf, .. }) = self.asked.take_if(|asked| asked.after == at)
        else {
            return false;
        };
        // SAFETY: the caller's promise.
        let answer = unsafe { self.operands.read() };
        let depth = emulated.lbr.depth;
        let changed = self.family.cpuid(leaf, subleaf, answer, depth);
        for (at, value) in changed.into_iter().enumerate() {
            if value != answer[at] {
                // SAFETY: the caller's promise.
                unsafe { self.operands.write(emulated.writer, at, value) };
            }
        }
        true
    }

    /// Writes the result of an instruction into EDX:EAX and leaves it out. Does not return: no
    /// value that must be dropped may live here or in a caller.
    ///
    /// # Safety
    /// Call in a callback that sets the program counter.
    unsafe fn skip(&self, emulated: &Emulated, value: u64, after: *mut c_void) {
        // SAFETY: the caller's promise.
        unsafe {
            self.operands.write(emulated.writer, 0, value as u32);
            self.operands.write(emulated.writer, 3, (value >> 32) as u32);
            emulated.setter.set(after as u64);
        }
    }
}

impl Operands {
    /// # Safety
    /// Call in a callback that reads registers.
    unsafe fn read(&self) -> [u32; 4] {
        // SAFETY: the caller's promise.
        self.0.map(|handle| unsafe { guest_state::register(handle) }.unwrap_or_default() as u32)
    }

    /// # Safety
    /// Call in a callback that writes registers.
    unsafe fn write(&self, writer: Writer, at: usize, value: u32) {
        // SAFETY: the caller's promise. The register has eight bytes.
        unsafe { writer.register(self.0[at], &u64::from(value).to_le_bytes()) };
    }
}

extern "C" fn asks(index: c_uint, after: *mut c_void) {
    // SAFETY: this vCPU's thread, in a callback that reads registers.
    unsafe {
        let Some((player, emulated)) = of(index) else { return };
        let super::Cpu::X86_64(cpu) = &mut player.cpu else { return };
        let [leaf, _, subleaf, _] = cpu.operands.read();
        // Each leaf that is changed gets bits.
        let is_changed = cpu.family.cpuid(leaf, subleaf, [0; 4], emulated.lbr.depth) != [0; 4];
        cpu.asked = is_changed.then_some(Asked { leaf, subleaf, after: after as u64 });
        player.attend(emulated);
    }
}

extern "C" fn asks_at_end(index: c_uint, after: *mut c_void) {
    asks(index, after);
    // SAFETY: as above.
    unsafe {
        let Some((player, emulated)) = of(index) else { return };
        if matches!(&player.cpu, super::Cpu::X86_64(cpu) if cpu.is_asked()) {
            emulated.watch();
        }
    }
}

extern "C" fn answers(index: c_uint, at: *mut c_void) {
    // SAFETY: this vCPU's thread, in a callback that writes registers.
    unsafe {
        let Some((player, emulated)) = of(index) else { return };
        let super::Cpu::X86_64(cpu) = &mut player.cpu else { return };
        if cpu.answer(emulated, at as u64) {
            player.attend(emulated);
        }
    }
}

extern "C" fn writes(index: c_uint, _: *mut c_void) {
    // SAFETY: this vCPU's thread, in a callback that reads registers.
    unsafe {
        let Some((player, emulated)) = of(index) else { return };
        let super::Cpu::X86_64(cpu) = &player.cpu else { return };
        let [low, _, msr, high] = cpu.operands.read();
        player.ring.write(msr, u64::from(high) << 32 | u64::from(low));
        player.attend(emulated);
        if player.ring.is_on() {
            emulated.watch();
        }
    }
}

extern "C" fn reads(index: c_uint, after: *mut c_void) {
    // SAFETY: this vCPU's thread, in a callback that sets the program counter.
    unsafe {
        let Some((player, emulated)) = of(index) else { return };
        let super::Cpu::X86_64(cpu) = &player.cpu else { return };
        let [_, _, msr, _] = cpu.operands.read();
        if let Some(value) = player.ring.read(msr) {
            cpu.skip(emulated, value, after);
        }
    }
}

extern "C" fn reads_counter(index: c_uint, after: *mut c_void) {
    // SAFETY: as above.
    unsafe {
        let Some((player, emulated)) = of(index) else { return };
        let super::Cpu::X86_64(cpu) = &player.cpu else { return };
        let [_, _, counter, _] = cpu.operands.read();
        if let Some(value) = player.ring.read(cpu.family.counter(counter)) {
            cpu.skip(emulated, value & family::COUNTER, after);
        }
    }
}
