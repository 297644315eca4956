// SPDX-License-Identifier: GPL-2.0-or-later
//! QEMU's plugin interface (`include/qemu/qemu-plugin.h`), as much of it as is used, declared by hand.
//!
//! One binary serves QEMU 9.2 to 11.0: what 9.2 has is linked, what came later is looked up at run time. QEMU 11.1
//! (interface 7) changed the callbacks' arguments and refuses this plugin by its version.

use std::ffi::{c_char, c_int, c_uint, c_void};

pub type PluginId = u64;
pub type SimpleCallback = extern "C" fn(PluginId);
pub type VcpuCallback = extern "C" fn(PluginId, c_uint);
pub type TranslateCallback = extern "C" fn(PluginId, *mut Tb);
pub type ExecCallback = extern "C" fn(c_uint, *mut c_void);
pub type DiscontinuityCallback = extern "C" fn(PluginId, c_uint, c_int, u64, u64);

#[repr(C)]
pub struct Tb([u8; 0]);
#[repr(C)]
pub struct Insn([u8; 0]);
#[repr(C)]
pub struct Scoreboard([u8; 0]);

/// `qemu_plugin_u64`: a field of a scoreboard.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ScoreboardField {
    pub scoreboard: *mut Scoreboard,
    pub offset: usize,
}

/// `qemu_info_t`.
#[repr(C)]
pub struct Info {
    pub target_name: *const c_char,
    pub minimum_version: c_int,
    pub current_version: c_int,
    pub system_emulation: bool,
    pub smp_vcpus: c_int,
    pub max_vcpus: c_int,
}

#[repr(C)]
pub struct RegisterHandle([u8; 0]);

/// `qemu_plugin_reg_descriptor`.
#[repr(C)]
pub struct RegisterDescriptor {
    pub handle: *mut RegisterHandle,
    pub name: *const c_char,
    pub feature: *const c_char,
}

/// GLib's `GArray` and `GByteArray`, which are laid out alike.
#[repr(C)]
pub struct GArray {
    pub data: *mut u8,
    pub length: c_uint,
}

/// `QEMU_PLUGIN_CB_NO_REGS`.
pub const NO_REGISTERS: c_int = 0;
/// `QEMU_PLUGIN_CB_R_REGS`: the callback reads registers.
pub const READS_REGISTERS: c_int = 1;
/// `QEMU_PLUGIN_INLINE_STORE_U64`.
pub const INLINE_STORE: c_int = 1;
/// `QEMU_PLUGIN_DISCON_INTERRUPT`.
pub const DISCONTINUITY_INTERRUPT: c_int = 1;
/// `QEMU_PLUGIN_DISCON_EXCEPTION`.
pub const DISCONTINUITY_EXCEPTION: c_int = 2;

unsafe extern "C" {
    pub fn qemu_plugin_register_vcpu_tb_trans_cb(id: PluginId, callback: TranslateCallback);
    pub fn qemu_plugin_register_vcpu_init_cb(id: PluginId, callback: VcpuCallback);
    pub fn qemu_plugin_reset(id: PluginId, callback: SimpleCallback);
    pub fn qemu_plugin_tb_n_insns(tb: *const Tb) -> usize;
    pub fn qemu_plugin_tb_get_insn(tb: *const Tb, index: usize) -> *mut Insn;
    pub fn qemu_plugin_insn_data(insn: *const Insn, to: *mut c_void, length: usize) -> usize;
    pub fn qemu_plugin_insn_size(insn: *const Insn) -> usize;
    pub fn qemu_plugin_insn_vaddr(insn: *const Insn) -> u64;
    pub fn qemu_plugin_register_vcpu_tb_exec_cb(
        tb: *mut Tb,
        callback: ExecCallback,
        registers: c_int,
        data: *mut c_void,
    );
    pub fn qemu_plugin_register_vcpu_insn_exec_cb(
        insn: *mut Insn,
        callback: ExecCallback,
        registers: c_int,
        data: *mut c_void,
    );
    pub fn qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(
        insn: *mut Insn,
        operation: c_int,
        field: ScoreboardField,
        value: u64,
    );
    pub fn qemu_plugin_get_registers() -> *mut GArray;
    /// A length, or from interface 6 on whether it worked: only what is in `to` afterwards counts.
    pub fn qemu_plugin_read_register(handle: *mut RegisterHandle, to: *mut GArray) -> c_int;
    pub fn qemu_plugin_read_memory_vaddr(address: u64, to: *mut GArray, length: usize) -> bool;
    // Of GLib, which QEMU brings along.
    fn g_byte_array_new() -> *mut GArray;
    fn g_byte_array_set_size(array: *mut GArray, length: c_uint) -> *mut GArray;
    fn g_byte_array_unref(array: *mut GArray);
    fn g_array_free(array: *mut GArray, with_data: c_int) -> *mut c_char;
    pub fn qemu_plugin_scoreboard_new(size: usize) -> *mut Scoreboard;
    pub fn qemu_plugin_scoreboard_find(scoreboard: *mut Scoreboard, vcpu: c_uint) -> *mut c_void;
}

/// Lets QEMU fill a byte array; what it holds then, if it is that long.
pub fn with_bytes<const LENGTH: usize>(fill: impl FnOnce(*mut GArray) -> bool) -> Option<[u8; LENGTH]> {
    // SAFETY: the array is ours until it is given back.
    unsafe {
        let array = g_byte_array_new();
        g_byte_array_set_size(array, 0);
        let filled = fill(array) && (*array).length as usize == LENGTH;
        let bytes = filled.then(|| {
            let mut bytes = [0; LENGTH];
            std::ptr::copy_nonoverlapping((*array).data, bytes.as_mut_ptr(), LENGTH);
            bytes
        });
        g_byte_array_unref(array);
        bytes
    }
}

/// # Safety
/// `array` came from `qemu_plugin_get_registers` and is not used again.
pub unsafe fn free_registers(array: *mut GArray) {
    // SAFETY: the caller's promise.
    unsafe { g_array_free(array, 1) };
}

type RegisterDiscontinuity = unsafe extern "C" fn(PluginId, c_int, DiscontinuityCallback);

/// `qemu_plugin_register_vcpu_discon_cb`, where QEMU has it (10.2).
pub fn register_discontinuity() -> Option<RegisterDiscontinuity> {
    let symbol = find(c"qemu_plugin_register_vcpu_discon_cb")?;
    // SAFETY: the symbol of this name has this type.
    Some(unsafe { std::mem::transmute::<*mut c_void, RegisterDiscontinuity>(symbol) })
}

fn find(name: &std::ffi::CStr) -> Option<*mut c_void> {
    // SAFETY: dlsym may be called at any time.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!symbol.is_null()).then_some(symbol)
}

/// Read by QEMU before anything is called; set when the library is loaded, by what QEMU offers.
#[unsafe(no_mangle)]
pub static mut qemu_plugin_version: c_int = 4;

/// Each interface that only adds is claimed by a function it added.
extern "C" fn claim_version() {
    let version = if find(c"qemu_plugin_set_pc").is_some() {
        6
    } else if find(c"qemu_plugin_write_memory_vaddr").is_some() {
        5
    } else {
        4
    };
    // SAFETY: constructors run before any other code of this library.
    unsafe { qemu_plugin_version = version };
}

#[used]
#[unsafe(link_section = ".init_array")]
static CLAIM_VERSION: extern "C" fn() = claim_version;
