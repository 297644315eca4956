// SPDX-License-Identifier: GPL-2.0-or-later
//! QEMU's events for instrumented code. Since interface 7 (QEMU 11.1) callbacks receive a pointer
//! of the plugin as their last argument; before, the plugin's id as their first.

use crate::api::{self, PluginId, Tb};
use std::{
    ffi::{c_int, c_uint, c_void},
    mem::transmute,
    ptr::null_mut,
};

unsafe extern "C" {
    // Declared as in interface 7. Earlier QEMUs have no last argument and ignore it.
    fn qemu_plugin_register_vcpu_tb_trans_cb(
        id: PluginId,
        callback: *const c_void,
        data: *mut c_void,
    );
    fn qemu_plugin_register_vcpu_init_cb(id: PluginId, callback: *const c_void, data: *mut c_void);
    fn qemu_plugin_register_flush_cb(id: PluginId, callback: *const c_void, data: *mut c_void);
    fn qemu_plugin_reset(id: PluginId, callback: *const c_void, data: *mut c_void);
}

/// Picks the callback with the shape that QEMU expects.
macro_rules! either {
    ($before:expr, $since:expr) => {
        if api::other_callbacks() { $since as *const c_void } else { $before as *const c_void }
    };
}

/// Registers the callback for each vCPU, on its thread.
///
/// # Safety
/// Pass the id QEMU gave, while the plugin is being installed.
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

/// Registers the callback for each translated block.
///
/// # Safety
/// Pass the id QEMU gave, while the plugin is being installed or was just reset.
pub unsafe fn register_translation(id: PluginId) {
    extern "C" fn before(_: PluginId, tb: *mut Tb) {
        crate::instrument::translated(tb);
    }
    extern "C" fn since(tb: *mut Tb, _: *mut c_void) {
        crate::instrument::translated(tb);
    }
    // SAFETY: the caller's promise.
    unsafe { qemu_plugin_register_vcpu_tb_trans_cb(id, either!(before, since), null_mut()) };
}

/// Registers the callback for discarded code. All vCPUs stand still then.
///
/// # Safety
/// As for [`register_translation`].
pub unsafe fn register_flush(id: PluginId) {
    // The argument is the id, or the pointer registered.
    extern "C" fn flushed(_: u64) {
        crate::flushed();
    }
    // SAFETY: the caller's promise.
    unsafe { qemu_plugin_register_flush_cb(id, flushed as *const c_void, null_mut()) };
}

/// Returns true if QEMU reports interrupts and exceptions (10.2 and newer).
pub fn tells_of_discontinuities() -> bool {
    api::find(DISCONTINUITY).is_some()
}

const DISCONTINUITY: &std::ffi::CStr = c"qemu_plugin_register_vcpu_discon_cb";

/// Registers the callback for interrupts and exceptions of these kinds, if QEMU reports them.
///
/// # Safety
/// As for [`register_translation`].
pub unsafe fn register_discontinuities(id: PluginId, kinds: c_int) {
    type Register = unsafe extern "C" fn(PluginId, c_int, *const c_void, *mut c_void);
    extern "C" fn before(_: PluginId, vcpu: c_uint, _: c_int, from: u64, to: u64) {
        crate::discontinuity(vcpu, from, to);
    }
    extern "C" fn since(vcpu: c_uint, _: c_int, from: u64, to: u64, _: *mut c_void) {
        crate::discontinuity(vcpu, from, to);
    }
    let Some(symbol) = api::find(DISCONTINUITY) else { return };
    // SAFETY: the symbol of this name has this type, as above. The rest is the caller's promise.
    unsafe {
        transmute::<*mut c_void, Register>(symbol)(id, kinds, either!(before, since), null_mut());
    }
}

/// Discards all translated code and all callbacks, then calls `done` while all vCPUs stand still.
///
/// # Safety
/// Pass the id QEMU gave, on a vCPU's thread.
pub unsafe fn reset(id: PluginId) {
    // The argument is the id, or the pointer registered with it, which holds the id.
    extern "C" fn done(id: PluginId) {
        crate::discarded(id);
    }
    // SAFETY: the caller's promise.
    unsafe { qemu_plugin_reset(id, done as *const c_void, id as *mut c_void) };
}
