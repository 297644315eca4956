// SPDX-License-Identifier: GPL-2.0-or-later
//! Instruments translated blocks with the callbacks of the current mode.

use crate::{
    Mode, Plugin, accessed, accesses, api,
    decode::Guest,
    flow::{Block, Tail},
    locked, magic_executed, magic_of_kernel, plugin, profiled, recorded, stand_in_entered,
    stand_in_left, switched,
};
use std::sync::atomic::Ordering;
use tramplab_protocol::{estimate::Event, magic::Magic};

/// Bytes of the longest instruction of any guest.
const LONGEST: usize = 16;
/// Data for the callback of a magic instruction.
static ARM: Magic = Magic::Arm;
static DISARM: Magic = Magic::Disarm;
static PROFILE: Magic = Magic::Profile;
static DELIVER: Magic = Magic::Deliver;
static ARM_ACCESSES: Magic = Magic::ArmAccesses;
static ESTIMATE: Magic = Magic::Estimate;
static ESTIMATE_COLD: Magic = Magic::EstimateCold;

/// Called for each translated block. Looks for magic instructions when idle; instruments everything
/// when armed.
pub fn translated(tb: *mut api::Tb) {
    let plugin = plugin();
    // SAFETY: `tb` and its instructions are valid during this callback.
    unsafe {
        let count = api::qemu_plugin_tb_n_insns(tb);
        let (armed, emulates) = (plugin.armed.load(Ordering::Relaxed), plugin.is_emulating());
        let observed = (armed || emulates) && plugin.takes(count as u64);
        let whole = observed && note_what_is_begun(plugin, tb, count);
        if let Some(emulated) = &plugin.emulated {
            emulated.instrument(tb, count);
        }
        for index in 0..count {
            let insn = api::qemu_plugin_tb_get_insn(tb, index);
            if plugin.guest.may_be_magic(api::qemu_plugin_insn_size(insn)) {
                watch_for_magic(plugin.guest, insn);
            }
        }
        if observed && count > 0 {
            let mut mode = locked(&plugin.mode);
            if let Mode::Record { delivery: Some(delivery), .. } = &mut *mode {
                delivery.look_up();
            }
            let mode = *mode;
            let block = describe(plugin.guest, tb, count);
            let block = if whole { block.surely_whole() } else { block };
            let block = match mode {
                Mode::Profile { estimates: Some(_), .. } => {
                    watch_accesses(tb, count);
                    block.with_costly(costly(plugin.guest, tb, count))
                }
                _ => block,
            };
            let (start, last, tail) = (block.start, block.last, block.tail());
            let data = std::ptr::from_mut(locked(&plugin.blocks).alloc(block)).cast();
            let started: Option<api::ExecCallback> = match mode {
                Mode::Idle => None,
                Mode::Record { .. } => Some(recorded),
                Mode::Profile { .. } => Some(profiled),
            };
            if let Some(started) = started {
                api::qemu_plugin_register_vcpu_tb_exec_cb(tb, started, api::NO_REGISTERS, data);
            }
            if let Some(emulated) = plugin.emulated.as_ref().filter(|_| emulates) {
                emulated.follow(tb, data);
            }
            let call_at = |index, callback, registers| {
                let insn = api::qemu_plugin_tb_get_insn(tb, index);
                api::qemu_plugin_register_vcpu_insn_exec_cb(
                    insn,
                    callback,
                    registers,
                    std::ptr::null_mut(),
                );
            };
            if start == plugin.switch_to.load(Ordering::Relaxed) && start != 0 {
                call_at(0, switched, api::READS_REGISTERS);
            }
            if let Mode::Record { accesses: true, .. } = mode {
                count_accesses(plugin, tb, count);
            }
            if let Mode::Record { delivery: Some(delivery), .. } = mode {
                if delivery.stand_in == Some(start) {
                    call_at(0, stand_in_entered, api::READS_REGISTERS);
                }
                if delivery.is_left_at(last) && !matches!(tail, Tail::Next { .. }) {
                    call_at(count - 1, stand_in_left, api::WRITES_REGISTERS);
                }
            }
        }
    }
}

/// Stores the address of the last instruction that began, after each instruction of the block that
/// may not complete. After the last of them only the block's end can follow, which is stored at
/// once. Returns true for a block without such instructions, which stores nothing.
///
/// # Safety
/// `tb` is valid and has `count` instructions.
unsafe fn note_what_is_begun(plugin: &Plugin, tb: *mut api::Tb, count: usize) -> bool {
    let mut buffer = [0; LONGEST];
    // SAFETY: the caller's promise.
    unsafe {
        let store = |at, address| {
            let insn = api::qemu_plugin_tb_get_insn(tb, at);
            api::qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(
                insn,
                api::INLINE_STORE,
                plugin.begun,
                address,
            );
        };
        let mut behind = 0;
        for index in 0..count {
            let insn = api::qemu_plugin_tb_get_insn(tb, index);
            let address = api::qemu_plugin_insn_vaddr(insn);
            if !plugin.guest.surely_completes(bytes(insn, &mut buffer), address, index == 0) {
                store(index, address);
                behind = index + 1;
            }
        }
        if (1..count).contains(&behind) {
            store(behind, api::qemu_plugin_insn_vaddr(api::qemu_plugin_tb_get_insn(tb, count - 1)));
        }
        behind == 0
    }
}

/// Counts the data accesses of each instruction.
///
/// # Safety
/// `tb` is valid and has `count` instructions.
unsafe fn count_accesses(plugin: &Plugin, tb: *mut api::Tb, count: usize) {
    for index in 0..count {
        for (accesses, one) in [(api::READ, accesses::READ), (api::WRITE, accesses::WRITE)] {
            // SAFETY: the caller's promise.
            unsafe {
                let insn = api::qemu_plugin_tb_get_insn(tb, index);
                api::qemu_plugin_register_vcpu_mem_inline_per_vcpu(
                    insn,
                    accesses,
                    api::INLINE_ADD,
                    plugin.accesses,
                    one,
                );
            }
        }
    }
}

/// Shows each data access to the modelled CPU.
///
/// # Safety
/// `tb` is valid and has `count` instructions.
unsafe fn watch_accesses(tb: *mut api::Tb, count: usize) {
    for index in 0..count {
        // SAFETY: the caller's promise.
        unsafe {
            api::qemu_plugin_register_vcpu_mem_cb(
                api::qemu_plugin_tb_get_insn(tb, index),
                accessed,
                api::NO_REGISTERS,
                api::READ_WRITE,
                std::ptr::null_mut(),
            );
        }
    }
}

/// The instructions that cost by themselves, by their number.
///
/// # Safety
/// `tb` is valid and has `count` instructions.
unsafe fn costly(guest: Guest, tb: *mut api::Tb, count: usize) -> Box<[(u32, Event)]> {
    let mut buffer = [0; LONGEST];
    let mut one = |index| {
        // SAFETY: the caller's promise.
        let instruction = unsafe { bytes(api::qemu_plugin_tb_get_insn(tb, index), &mut buffer) };
        Some((index as u32, guest.costly(instruction)?))
    };
    (0..count).filter_map(&mut one).collect()
}

/// # Safety
/// `insn` is valid.
unsafe fn bytes(insn: *const api::Insn, buffer: &mut [u8; LONGEST]) -> &[u8] {
    // SAFETY: QEMU writes at most the given length.
    let length = unsafe { api::qemu_plugin_insn_data(insn, buffer.as_mut_ptr().cast(), LONGEST) };
    &buffer[..length.min(LONGEST)]
}

/// True for the upper half of the address space. The agent is a program, so its code is below.
fn is_kernel(address: u64) -> bool {
    address >> 63 == 1
}

/// # Safety
/// `insn` is valid.
unsafe fn watch_for_magic(guest: Guest, insn: *mut api::Insn) {
    let mut buffer = [0; LONGEST];
    // SAFETY: the caller's promise; the data are statics.
    unsafe {
        let magic = match guest.magic(bytes(insn, &mut buffer)) {
            Some(Magic::Arm) => &ARM,
            Some(Magic::Disarm) => &DISARM,
            Some(Magic::Profile) => &PROFILE,
            Some(Magic::Deliver) => &DELIVER,
            Some(Magic::ArmAccesses) => &ARM_ACCESSES,
            Some(Magic::Estimate) => &ESTIMATE,
            Some(Magic::EstimateCold) => &ESTIMATE_COLD,
            None => return,
        };
        let data = std::ptr::from_ref(magic).cast_mut().cast();
        let executed = match is_kernel(api::qemu_plugin_insn_vaddr(insn)) {
            false => magic_executed,
            true => magic_of_kernel,
        };
        api::qemu_plugin_register_vcpu_insn_exec_cb(insn, executed, api::READS_REGISTERS, data);
    }
}

/// # Safety
/// `tb` is valid and has `count` instructions, at least one.
unsafe fn describe(guest: Guest, tb: *mut api::Tb, count: usize) -> Block {
    let mut buffer = [0; LONGEST];
    // SAFETY: the caller's promise.
    unsafe {
        let address = |index| api::qemu_plugin_insn_vaddr(api::qemu_plugin_tb_get_insn(tb, index));
        let instructions: Box<[u64]> = (0..count).map(address).collect();
        let insn = api::qemu_plugin_tb_get_insn(tb, count - 1);
        let last = instructions[count - 1];
        let end = last.wrapping_add(api::qemu_plugin_insn_size(insn) as u64);
        Block::new(instructions, end, guest.tail(bytes(insn, &mut buffer), last))
    }
}
