// SPDX-License-Identifier: GPL-2.0-or-later
//! Plays the branch records of a CPU: the guest's kernel finds them, and its own driver reads and
//! writes their registers.
//!
//! QEMU knows none of these registers. On x86-64 it reads them as 0 and ignores what is written; on
//! arm64 an access is undefined. The plugin changes what identifies the CPU, and skips an access
//! once it has written its result. Until a driver first turns the ring on, only these instructions
//! are instrumented.

mod aarch64;
mod family;
mod ring;
mod state;
#[cfg(test)]
mod tests;
mod x86_64;

use crate::{
    api::{self, Setter, Writer},
    decode::Guest,
    events,
    flow::Block,
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

impl Lbr {
    /// The guests that have such records.
    pub fn guest(self) -> Guest {
        self.family.guest()
    }
}

impl fmt::Display for Lbr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.family, self.depth)
    }
}

impl FromStr for Lbr {
    type Err = String;

    fn from_str(text: &str) -> Result<Lbr, String> {
        let (family, depth) = text.split_once(':').ok_or("expected FAMILY:DEPTH")?;
        let family: Family = family.parse()?;
        let depths = family.depths();
        let depth = depth.parse().ok().filter(|depth| depths.contains(depth));
        let depth = depth.ok_or_else(|| format!("expected a depth of {depths:?}"))?;
        Ok(Lbr { family, depth })
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
    cpu: Cpu,
    /// This vCPU's place in the scoreboard, which moves while vCPUs are added; null until a block
    /// is followed.
    noted: *const Noted,
}

/// The state of a vCPU that the instructions of its architecture need.
enum Cpu {
    X86_64(x86_64::Cpu),
    Aarch64(Box<aarch64::Cpu>),
}

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
        let cpu = unsafe {
            match self.lbr.family {
                Family::X86(family) => Cpu::X86_64(x86_64::Cpu::find(family)?),
                Family::Brbe => Cpu::Aarch64(Box::new(aarch64::Cpu::find()?)),
            }
        };
        let ring = Ring::new(self.lbr.family, self.lbr.depth, registers);
        let mut player = Player { index, ring, cpu, noted: ptr::null() };
        player.attend(self);
        Some(player)
    }

    /// Registers the callbacks of the instructions that it plays.
    ///
    /// # Safety
    /// `tb` is valid and has `count` instructions.
    pub unsafe fn instrument(&self, tb: *mut api::Tb, count: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.lbr.guest() {
                Guest::X86_64 => x86_64::instrument(tb, count),
                Guest::Aarch64 => aarch64::instrument(tb, count),
            }
        }
    }

    /// Registers the callback of a block.
    ///
    /// # Safety
    /// `tb` is valid; `block` describes it and outlives its code.
    pub unsafe fn follow(&self, tb: *mut api::Tb, block: *mut c_void) {
        let registers = match self.lbr.guest() {
            // It may complete an instruction.
            Guest::X86_64 => api::WRITES_REGISTERS,
            Guest::Aarch64 => api::READS_REGISTERS,
        };
        // SAFETY: the caller's promise.
        unsafe {
            api::qemu_plugin_register_vcpu_tb_exec_cond_cb(
                tb,
                started,
                registers,
                api::NOT_EQUAL,
                self.attention,
                0,
                block,
            );
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
        let asked = match &self.cpu {
            Cpu::X86_64(cpu) if cpu.is_asked() => ASKED,
            _ => 0,
        };
        // SAFETY: the field is this vCPU's, and it is on its thread.
        unsafe { api::field(emulated.attention, self.index).write(on | asked) };
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

extern "C" fn started(index: c_uint, block: *mut c_void) {
    // SAFETY: this vCPU's thread, in a callback that reads registers, and writes them on x86-64.
    // `block` outlives its code.
    unsafe {
        let Some((player, emulated)) = of(index) else { return };
        let block = &*block.cast::<Block>();
        let is_frozen = match &mut player.cpu {
            Cpu::X86_64(cpu) => {
                if cpu.answer(emulated, block.start) {
                    player.attend(emulated);
                }
                false
            }
            Cpu::Aarch64(cpu) => cpu.look(&player.ring, block.start),
        };
        if player.noted.is_null() {
            player.noted = plugin().noted_by(index);
        }
        let noted = player.noted;
        player.ring.block(block, || *noted);
        if is_frozen {
            aarch64::freeze(&mut player.ring);
            player.attend(emulated);
        }
        plugin().renew();
    }
}
