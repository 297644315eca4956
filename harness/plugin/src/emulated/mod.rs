// SPDX-License-Identifier: GPL-2.0-or-later
//! Plays the branch records of a CPU on x86-64: the guest's kernel finds them with `cpuid`, and its
//! own driver reads and writes their MSRs.
//!
//! QEMU returns 0 for these MSRs and ignores what is written. The plugin changes the answers of
//! `cpuid`, skips `rdmsr` and `rdpmc` once it has written their results, and watches `wrmsr`, which
//! ends its block. Until a driver first turns the ring on, only these instructions are
//! instrumented.

mod family;
mod ring;
mod state;
#[cfg(test)]
mod tests;

use crate::{
    api::{self, Setter, Writer},
    events,
    flow::Block,
    guest_state::handle,
    plugin,
    recorder::Noted,
    vcpu,
};
use family::Family;
use ring::{Registers, Ring};
use std::{
    cell::UnsafeCell,
    ffi::{c_uint, c_void},
    fmt,
    path::Path,
    ptr,
    str::FromStr,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

/// The branch records to play: `amd-lbrv2:16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lbr {
    family: Family,
    depth: usize,
}

impl fmt::Display for Lbr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.family.name(), self.depth)
    }
}

impl FromStr for Lbr {
    type Err = String;

    fn from_str(text: &str) -> Result<Lbr, String> {
        let (family, depth) = text.split_once(':').ok_or("expected FAMILY:DEPTH")?;
        let depth = depth.parse().ok().filter(|depth| [8, 16, 32].contains(depth));
        Ok(Lbr { family: family.parse()?, depth: depth.ok_or("expected a depth of 8, 16 or 32")? })
    }
}

/// Bits of a vCPU's field in the scoreboard. A block's callback runs only if one is set.
const ON: u64 = 1;
const ASKED: u64 = 2;

/// The branch records of all vCPUs.
pub struct Emulated {
    lbr: Lbr,
    writer: Writer,
    setter: Setter,
    attention: api::ScoreboardField,
    /// True once a ring was turned on: all blocks are instrumented from then on.
    watching: AtomicBool,
    /// The registers of vCPUs that have not started.
    registers: Mutex<Vec<Option<&'static mut Registers>>>,
}

/// The branch records of one vCPU. Touched only on its thread, or while all stand still.
pub struct Player {
    index: c_uint,
    ring: Ring<'static>,
    operands: Operands,
    /// A `cpuid` that has not been completed.
    asked: Option<Asked>,
    /// This vCPU's place in the scoreboard, which moves while vCPUs are added; null until a block
    /// is followed.
    noted: *const Noted,
}

struct Asked {
    leaf: u32,
    subleaf: u32,
    /// The address behind the instruction. An interrupt may come before.
    after: u64,
}

/// The registers that the instructions use, in the order EAX, EBX, ECX, EDX.
struct Operands([*mut api::RegisterHandle; 4]);

impl Emulated {
    /// The registers are kept in `file`.
    pub fn new(
        lbr: Lbr,
        file: &Path,
        vcpus: usize,
        attention: api::ScoreboardField,
    ) -> Result<Emulated, String> {
        let (Some(writer), Some(setter)) = (Writer::find(), Setter::find()) else {
            return Err("branch records can be emulated from QEMU 11.0 on".to_owned());
        };
        let mut registers = state::map(file, lbr, vcpus)?;
        // A restored guest may have a ring that is on.
        let is_on = |registers: &mut &'static mut Registers| {
            Ring::new(lbr.family, lbr.depth, registers).is_on()
        };
        let watching = AtomicBool::new(registers.iter_mut().any(is_on));
        let registers = Mutex::new(registers.into_iter().map(Some).collect());
        Ok(Emulated { lbr, writer, setter, attention, watching, registers })
    }

    pub fn is_watching(&self) -> bool {
        self.watching.load(Ordering::Relaxed)
    }

    /// Instruments all blocks from the next one on.
    ///
    /// # Safety
    /// Call on a vCPU's thread.
    unsafe fn watch(&self) {
        if !self.watching.swap(true, Ordering::Relaxed) {
            // SAFETY: the caller's promise.
            unsafe { events::reset(crate::id()) };
        }
    }

    /// The player of a vCPU that starts.
    ///
    /// # Safety
    /// Call on the vCPU's thread, in a callback of QEMU.
    pub unsafe fn player(&self, index: c_uint) -> Option<Player> {
        let registers = crate::locked(&self.registers).get_mut(index as usize)?.take()?;
        // SAFETY: the caller's promise.
        let handles = ["rax", "rbx", "rcx", "rdx"].map(|name| unsafe { handle(name) });
        let [Some(a), Some(b), Some(c), Some(d)] = handles else { return None };
        let ring = Ring::new(self.lbr.family, self.lbr.depth, registers);
        let operands = Operands([a, b, c, d]);
        let mut player = Player { index, ring, operands, asked: None, noted: ptr::null() };
        player.attend(self);
        Some(player)
    }

    /// Registers the callbacks of the instructions that it plays, and of the block.
    ///
    /// # Safety
    /// `tb` is valid and has `count` instructions.
    pub unsafe fn instrument(&self, tb: *mut api::Tb, count: usize) {
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

    /// Registers the callback of a block.
    ///
    /// # Safety
    /// `tb` is valid; `block` describes it and outlives its code.
    pub unsafe fn follow(&self, tb: *mut api::Tb, block: *mut c_void) {
        // SAFETY: the caller's promise.
        unsafe {
            api::qemu_plugin_register_vcpu_tb_exec_cond_cb(
                tb,
                started,
                api::WRITES_REGISTERS,
                api::NOT_EQUAL,
                self.attention,
                0,
                block,
            );
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

impl Player {
    pub fn discontinuity(&mut self, from: u64, to: u64) {
        self.ring.discontinuity(from, to);
    }

    pub fn move_blocks(&mut self, moved: impl Fn(&Block) -> &'static Block) {
        self.ring.move_blocks(moved);
    }

    fn attend(&mut self, emulated: &Emulated) {
        let on = if self.ring.is_on() { ON } else { 0 };
        let asked = if self.asked.is_some() { ASKED } else { 0 };
        // SAFETY: the field is this vCPU's, and it is on its thread.
        unsafe { api::field(emulated.attention, self.index).write(on | asked) };
    }

    /// Completes a `cpuid` where it left off.
    ///
    /// # Safety
    /// Call in a callback that writes registers.
    unsafe fn answer(&mut self, emulated: &Emulated, at: u64) {
        let Some(Asked { leaf, subleaf, .. }) = self.asked.take_if(|asked| asked.after == at)
        else {
            return;
        };
        // SAFETY: the caller's promise.
        let answer = unsafe { self.operands.read() };
        let Lbr { family, depth } = emulated.lbr;
        for (at, value) in family.cpuid(leaf, subleaf, answer, depth).into_iter().enumerate() {
            if value != answer[at] {
                // SAFETY: the caller's promise.
                unsafe { self.operands.write(emulated.writer, at, value) };
            }
        }
        self.attend(emulated);
    }
}

impl Operands {
    /// # Safety
    /// Call in a callback that reads registers.
    unsafe fn read(&self) -> [u32; 4] {
        // SAFETY: the caller's promise.
        self.0.map(|handle| {
            unsafe { crate::guest_state::register(handle) }.unwrap_or_default() as u32
        })
    }

    /// # Safety
    /// Call in a callback that writes registers.
    unsafe fn write(&self, writer: Writer, at: usize, value: u32) {
        // SAFETY: the caller's promise. The register has eight bytes.
        unsafe { writer.register(self.0[at], &u64::from(value).to_le_bytes()) };
    }
}

/// This vCPU's player, and what all share. None if nothing is emulated.
///
/// # Safety
/// Call on the vCPU's thread. The result lives until the callback ends.
unsafe fn of(index: c_uint) -> Option<(&'static mut Player, &'static Emulated)> {
    // SAFETY: the caller's promise.
    let player = unsafe { &mut *UnsafeCell::raw_get(&vcpu(index).player) };
    Some((player.as_deref_mut()?, plugin().emulated.as_ref()?))
}

extern "C" fn asks(index: c_uint, after: *mut c_void) {
    // SAFETY: this vCPU's thread, in a callback that reads registers.
    unsafe {
        let Some((player, emulated)) = of(index) else { return };
        let Lbr { family, depth } = emulated.lbr;
        let [leaf, _, subleaf, _] = player.operands.read();
        // Each leaf that is changed gets bits.
        let is_changed = family.cpuid(leaf, subleaf, [0; 4], depth) != [0; 4];
        player.asked = is_changed.then_some(Asked { leaf, subleaf, after: after as u64 });
        player.attend(emulated);
    }
}

extern "C" fn asks_at_end(index: c_uint, after: *mut c_void) {
    asks(index, after);
    // SAFETY: as above.
    unsafe {
        if let Some((Player { asked: Some(_), .. }, emulated)) = of(index) {
            emulated.watch();
        }
    }
}

extern "C" fn answers(index: c_uint, at: *mut c_void) {
    // SAFETY: this vCPU's thread, in a callback that writes registers.
    unsafe {
        if let Some((player, emulated)) = of(index) {
            player.answer(emulated, at as u64);
        }
    }
}

extern "C" fn writes(index: c_uint, _: *mut c_void) {
    // SAFETY: this vCPU's thread, in a callback that reads registers.
    unsafe {
        let Some((player, emulated)) = of(index) else { return };
        let [low, _, msr, high] = player.operands.read();
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
        let [_, _, msr, _] = player.operands.read();
        if let Some(value) = player.ring.read(msr) {
            player.skip(emulated, value, after);
        }
    }
}

extern "C" fn reads_counter(index: c_uint, after: *mut c_void) {
    // SAFETY: as above.
    unsafe {
        let Some((player, emulated)) = of(index) else { return };
        let [_, _, counter, _] = player.operands.read();
        if let Some(value) = player.ring.read(emulated.lbr.family.counter(counter)) {
            player.skip(emulated, value & family::COUNTER, after);
        }
    }
}

extern "C" fn started(index: c_uint, block: *mut c_void) {
    // SAFETY: this vCPU's thread, in a callback that writes registers. `block` outlives its code.
    unsafe {
        let Some((player, emulated)) = of(index) else { return };
        let block = &*block.cast::<Block>();
        player.answer(emulated, block.start);
        if player.noted.is_null() {
            player.noted = plugin().noted_by(index);
        }
        let noted = player.noted;
        player.ring.block(block, || *noted);
        plugin().renew();
    }
}

impl Player {
    /// Writes the result of an instruction into EDX:EAX and leaves it out. Does not return: no
    /// value that must be dropped may live here or in a caller.
    ///
    /// # Safety
    /// Call in a callback that sets the program counter.
    unsafe fn skip(&mut self, emulated: &Emulated, value: u64, after: *mut c_void) {
        // SAFETY: the caller's promise.
        unsafe {
            self.operands.write(emulated.writer, 0, value as u32);
            self.operands.write(emulated.writer, 3, (value >> 32) as u32);
            emulated.setter.set(after as u64);
        }
    }
}
