// SPDX-License-Identifier: GPL-2.0-or-later
//! What QEMU tells of whatever the plugin has instrumented. Interface 7 (QEMU 11.1) gives callbacks a pointer of the plugin's, last,
//! where those before give the plugin's id, first.

use crate::api::{self, PluginId, Tb};
use std::{
    ffi::{c_int, c_uint, c_void},
    mem::transmute,
    ptr::null_mut,
};

unsafe extern "C" {
    // As interface 7 has them. Those before have no last argument, and leave what is passed there alone.
    fn qemu_plugin_register_vcpu_tb_trans_cb(id: PluginId, callback: *const c_void, data: *mut c_void);
    fn qemu_plugin_register_vcpu_init_cb(id: PluginId, callback: *const c_void, data: *mut c_void);
    fn qemu_plugin_reset(id: PluginId, callback: *const c_void, data: *mut c_void);
}

/// A function of either shape, of which QEMU's takes one.
macro_rules! either {
    ($before:expr, $since:expr) => {
        if api::other_callbacks() { $since as *const c_void } else { $before as *const c_void }
    };
}

/// Asks to be told of each vCPU, on its thread.
///
/// # Safety
/// The id QEMU gave, while the plugin is installed.
pub unsafe fn register_vcpus(id: PluginId) {
    extern "C" fn before(_: PluginId, vcpu: c_uint) {
        crate::vcpu_started(vcpu);
    }
    extern "C" fn since(vcpu: c_uint, _: *mut c_void) {
        crate::vcpu_started(vcpu);
    }
    // SAFETY: the caller's promise.
    unsafe { qemu_plugin_register_vcpu_init_cb(id, either!(before, since), null_mut()) };
}

/// Asks to be told of each block that is translated.
///
/// # Safety
/// The id QEMU gave, while the plugin is installed or after it was reset.
pub unsafe fn register_translation(id: PluginId) {
    extern "C" fn before(_: PluginId, tb: *mut Tb) {
        crate::translated(tb);
    }
    extern "C" fn since(tb: *mut Tb, _: *mut c_void) {
        crate::translated(tb);
    }
    // SAFETY: the caller's promise.
    unsafe { qemu_plugin_register_vcpu_tb_trans_cb(id, either!(before, since), null_mut()) };
}

/// Whether QEMU tells of interrupts and exceptions (10.2).
pub fn tells_of_discontinuities() -> bool {
    api::find(DISCONTINUITY).is_some()
}

const DISCONTINUITY: &std::ffi::CStr = c"qemu_plugin_register_vcpu_discon_cb";

/// Asks to be told of interrupts and exceptions of these kinds, where QEMU does.
///
/// # Safety
/// As of [`register_translation`].
pub unsafe fn register_discontinuities(id: PluginId, kinds: c_int) {
    type Register = unsafe extern "C" fn(PluginId, c_int, *const c_void, *mut c_void);
    extern "C" fn before(_: PluginId, vcpu: c_uint, _: c_int, from: u64, to: u64) {
        crate::discontinuity(vcpu, from, to);
    }
    extern "C" fn since(vcpu: c_uint, _: c_int, from: u64, to: u64, _: *mut c_void) {
        crate::discontinuity(vcpu, from, to);
    }
    let Some(symbol) = api::find(DISCONTINUITY) else { return };
    // SAFETY: the symbol of this name has this type, as above; the rest is the caller's promise.
    unsafe {
        transmute::<*mut c_void, Register>(symbol)(id, kinds, either!(before, since), null_mut());
    }
}

/// Throws all translated code and all callbacks away; the plugin changes while all vCPUs stand still.
///
/// # Safety
/// The id QEMU gave, on a vCPU's thread.
pub unsafe fn reset(id: PluginId) {
    // Of the id that it is given, or of the pointer that was registered with it, which is the same.
    extern "C" fn done(id: PluginId) {
        crate::change(id);
    }
    // SAFETY: the caller's promise.
    unsafe { qemu_plugin_reset(id, done as *const c_void, id as *mut c_void) };
}
