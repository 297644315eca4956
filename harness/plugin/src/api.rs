// SPDX-License-Identifier: GPL-2.0-or-later
//! The used part of QEMU's plugin interface (`include/qemu/qemu-plugin.h`), declared by hand.
//!
//! One binary serves QEMU 9.2 to 11.1: functions of 9.2 are linked, later ones are looked up at run
//! time. Interface 7 (QEMU 11.1) changed the arguments of the callbacks in [`super::events`].

use std::ffi::{c_char, c_int, c_uint, c_void};

pub type PluginId = u64;
pub type ExecCallback = extern "C" fn(c_uint, *mut c_void);
/// `qemu_plugin_meminfo_t`: an access's size and direction.
pub type Access = u32;
pub type AccessCallback = extern "C" fn(c_uint, Access, u64, *mut c_void);

#[repr(C)]
pub struct Tb([u8; 0]);
#[repr(C)]
pub struct Insn([u8; 0]);
#[repr(C)]
pub struct Scoreboard([u8; 0]);
/// `struct qemu_plugin_hwaddr`.
#[repr(C)]
pub struct PhysicalAddress([u8; 0]);

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

/// The head of `qemu_plugin_reg_descriptor`. Newer QEMUs append fields.
#[repr(C)]
pub struct RegisterDescriptor {
    pub handle: *mut RegisterHandle,
    pub name: *const c_char,
    pub feature: *const c_char,
}

/// GLib's `GArray` and `GByteArray`, which share one layout.
#[repr(C)]
pub struct GArray {
    pub data: *mut u8,
    pub length: c_uint,
}

/// `QEMU_PLUGIN_CB_NO_REGS`.
pub const NO_REGISTERS: c_int = 0;
/// `QEMU_PLUGIN_CB_R_REGS`: the callback reads registers.
pub const READS_REGISTERS: c_int = 1;
/// `QEMU_PLUGIN_CB_RW_REGS`: the callback also writes registers.
pub const WRITES_REGISTERS: c_int = 2;
/// `QEMU_PLUGIN_CB_RW_REGS_PC`: the callback also sets the program counter.
pub const SETS_PC: c_int = 3;
/// `QEMU_PLUGIN_COND_NE`.
pub const NOT_EQUAL: c_int = 3;
/// `QEMU_PLUGIN_INLINE_ADD_U64`.
pub const INLINE_ADD: c_int = 0;
/// `QEMU_PLUGIN_INLINE_STORE_U64`.
pub const INLINE_STORE: c_int = 1;
/// `QEMU_PLUGIN_MEM_R`.
pub const READ: c_int = 1;
/// `QEMU_PLUGIN_MEM_W`.
pub const WRITE: c_int = 2;
/// `QEMU_PLUGIN_MEM_RW`.
pub const READ_WRITE: c_int = 3;
/// `QEMU_PLUGIN_DISCON_INTERRUPT`.
pub const DISCONTINUITY_INTERRUPT: c_int = 1;
/// `QEMU_PLUGIN_DISCON_EXCEPTION`.
pub const DISCONTINUITY_EXCEPTION: c_int = 2;

unsafe extern "C" {
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
    pub fn qemu_plugin_register_vcpu_tb_exec_cond_cb(
        tb: *mut Tb,
        callback: ExecCallback,
        registers: c_int,
        condition: c_int,
        field: ScoreboardField,
        value: u64,
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
    pub fn qemu_plugin_register_vcpu_mem_inline_per_vcpu(
        insn: *mut Insn,
        accesses: c_int,
        operation: c_int,
        field: ScoreboardField,
        value: u64,
    );
    pub fn qemu_plugin_register_vcpu_mem_cb(
        insn: *mut Insn,
        callback: AccessCallback,
        registers: c_int,
        accesses: c_int,
        data: *mut c_void,
    );
    pub fn qemu_plugin_mem_size_shift(access: Access) -> c_uint;
    pub fn qemu_plugin_get_hwaddr(access: Access, address: u64) -> *mut PhysicalAddress;
    pub fn qemu_plugin_hwaddr_is_io(address: *const PhysicalAddress) -> bool;
    pub fn qemu_plugin_hwaddr_phys_addr(address: *const PhysicalAddress) -> u64;
    pub fn qemu_plugin_get_registers() -> *mut GArray;
    /// Returns a length, or from interface 6 on success as a `bool`. Check the length of `to`
    /// instead.
    pub fn qemu_plugin_read_register(handle: *mut RegisterHandle, to: *mut GArray) -> c_int;
    pub fn qemu_plugin_read_memory_vaddr(address: u64, to: *mut GArray, length: usize) -> bool;
    // Provided by GLib, which QEMU links.
    fn g_byte_array_new() -> *mut GArray;
    fn g_byte_array_set_size(array: *mut GArray, length: c_uint) -> *mut GArray;
    fn g_byte_array_unref(array: *mut GArray);
    fn g_byte_array_append(array: *mut GArray, data: *const u8, length: c_uint) -> *mut GArray;
    fn g_array_get_element_size(array: *mut GArray) -> c_uint;
    fn g_array_free(array: *mut GArray, with_data: c_int) -> *mut c_char;
    pub fn qemu_plugin_scoreboard_new(size: usize) -> *mut Scoreboard;
    pub fn qemu_plugin_scoreboard_find(scoreboard: *mut Scoreboard, vcpu: c_uint) -> *mut c_void;
}

/// A vCPU's place of a field.
///
/// # Safety
/// The scoreboard has a field of 64 bits there.
pub unsafe fn field(field: ScoreboardField, vcpu: c_uint) -> *mut u64 {
    // SAFETY: the caller's promise.
    unsafe { qemu_plugin_scoreboard_find(field.scoreboard, vcpu).byte_add(field.offset).cast() }
}

/// Lets QEMU fill a byte array. Returns its bytes if it has the expected length.
pub fn with_bytes<const LENGTH: usize>(
    fill: impl FnOnce(*mut GArray) -> bool,
) -> Option<[u8; LENGTH]> {
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

/// The registers of the current vCPU.
///
/// # Safety
/// Call on the vCPU's thread, in a callback of QEMU.
pub unsafe fn registers() -> Vec<RegisterDescriptor> {
    // SAFETY: the array is QEMU's description, which the reader frees. Each element begins with the
    // declared fields.
    unsafe {
        let array = qemu_plugin_get_registers();
        let stride = g_array_get_element_size(array) as usize;
        let start = (*array).data;
        let count = if start.is_null() { 0 } else { (*array).length as usize };
        let read = |index| start.add(index * stride).cast::<RegisterDescriptor>().read();
        let descriptors = (0..count).map(read).collect();
        g_array_free(array, 1);
        descriptors
    }
}

type WriteMemory = unsafe extern "C" fn(u64, *mut GArray) -> bool;
/// Returns a length, or from interface 6 on success as a `bool`.
type WriteRegister = unsafe extern "C" fn(*mut RegisterHandle, *mut GArray) -> c_int;

/// QEMU's functions that write to the guest (10.1 and newer).
#[derive(Clone, Copy, Debug)]
pub struct Writer {
    memory: WriteMemory,
    register: WriteRegister,
}

impl Writer {
    pub fn find() -> Option<Writer> {
        let (memory, register) =
            (find(c"qemu_plugin_write_memory_vaddr")?, find(c"qemu_plugin_write_register")?);
        // SAFETY: the symbols of these names have these types. A `bool` is returned in the low byte
        // of a register.
        unsafe {
            Some(Writer {
                memory: std::mem::transmute::<*mut c_void, WriteMemory>(memory),
                register: std::mem::transmute::<*mut c_void, WriteRegister>(register),
            })
        }
    }

    /// Returns true if the guest has a page for each byte.
    ///
    /// # Safety
    /// Call on the vCPU's thread, in a callback of QEMU.
    pub unsafe fn memory(self, address: u64, bytes: &[u8]) -> bool {
        // SAFETY: the caller's promise.
        holding(bytes, |array| unsafe { (self.memory)(address, array) })
    }

    /// # Safety
    /// Call in a callback that writes registers. The register must have as many bytes.
    pub unsafe fn register(self, handle: *mut RegisterHandle, bytes: &[u8]) -> bool {
        // SAFETY: the caller's promise. Only the low byte of a `bool` is valid; a length is below
        // 256.
        holding(bytes, |array| unsafe { (self.register)(handle, array) & 0xff != 0 })
    }
}

/// QEMU's function that sets the program counter (11.0 and newer).
#[derive(Clone, Copy, Debug)]
pub struct Setter(unsafe extern "C" fn(u64));

impl Setter {
    pub fn find() -> Option<Setter> {
        let symbol = find(c"qemu_plugin_set_pc")?;
        // SAFETY: the symbol of this name has this type, but for its return value: it does not
        // return.
        Some(Setter(unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(u64)>(symbol)
        }))
    }

    /// Does not return: QEMU jumps over all frames of this thread to its main loop.
    ///
    /// # Safety
    /// Call in a callback that sets the program counter. No frame has a value to drop.
    pub unsafe fn set(self, address: u64) {
        // SAFETY: the caller's promise.
        unsafe { (self.0)(address) }
    }
}

/// Passes QEMU a byte array.
fn holding<T>(bytes: &[u8], give: impl FnOnce(*mut GArray) -> T) -> T {
    // SAFETY: the array is ours until it is given back.
    unsafe {
        let array = g_byte_array_new();
        g_byte_array_append(array, bytes.as_ptr(), bytes.len() as c_uint);
        let given = give(array);
        g_byte_array_unref(array);
        given
    }
}

pub fn find(name: &std::ffi::CStr) -> Option<*mut c_void> {
    // SAFETY: dlsym may be called at any time.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!symbol.is_null()).then_some(symbol)
}

/// QEMU reads it before it calls anything. `claim_version` sets it when the library is loaded.
#[unsafe(no_mangle)]
pub static mut qemu_plugin_version: c_int = 4;

/// The first interface with other arguments for callbacks.
const OTHER_CALLBACKS: c_int = 7;

/// Returns true if callbacks receive data of the plugin instead of its id.
pub fn other_callbacks() -> bool {
    // SAFETY: written once, before any other code of this library runs.
    unsafe { qemu_plugin_version >= OTHER_CALLBACKS }
}

/// Claims the newest interface that QEMU offers. A function that an interface added shows that QEMU
/// has it; the interface of QEMU 11.1 added none.
extern "C" fn claim_version() {
    let version = if release().is_some_and(|release| release >= (11, 1)) {
        OTHER_CALLBACKS
    } else if find(c"qemu_plugin_set_pc").is_some() {
        6
    } else if find(c"qemu_plugin_write_memory_vaddr").is_some() {
        5
    } else {
        4
    };
    // SAFETY: constructors run before any other code of this library.
    unsafe { qemu_plugin_version = version };
}

/// `VersionInfo` and `VersionTriple` of QEMU's monitor protocol.
#[repr(C)]
struct VersionInfo {
    qemu: *const VersionTriple,
    package: *const c_char,
}

#[repr(C)]
struct VersionTriple {
    major: i64,
    minor: i64,
    micro: i64,
}

/// QEMU's version, from the function behind its monitor's `query-version`. A QEMU that loads parts
/// of itself as modules exports the function, as distributions' builds do.
fn release() -> Option<(i64, i64)> {
    type Query = unsafe extern "C" fn(*mut *mut c_void) -> *const VersionInfo;
    let symbol = find(c"qmp_query_version")?;
    // SAFETY: the symbol of this name has this type and never fails. The few bytes stay allocated.
    unsafe {
        let query = std::mem::transmute::<*mut c_void, Query>(symbol);
        let info = query(std::ptr::null_mut()).as_ref()?;
        info.qemu.as_ref().map(|version| (version.major, version.minor))
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static CLAIM_VERSION: extern "C" fn() = claim_version;
