// SPDX-License-Identifier: GPL-2.0-or-later
//! A QEMU TCG plugin that records every taken branch of the guest between two magic instructions: a virtual LBR of
//! unlimited depth.
//!
//!     -plugin libtramplab_plugin.so,dir=DIR[,ring=RECORDS]
//!
//! While idle nothing is instrumented but the blocks that hold a magic instruction, which are found when they are
//! translated. Arming throws all translated code away, and from the next block on every block and instruction of
//! every vCPU is instrumented. Disarming stops that, and writes `DIR/trace-NNNN.bin` while all vCPUs stand still:
//! the file is complete when the block after the magic instruction starts. A guest can do so as often as it likes.

mod api;
mod decode;
mod output;
mod recorder;

use decode::Guest;
use recorder::{Block, Recorder};
use std::{
    cell::UnsafeCell,
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    path::PathBuf,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, ThreadId},
};
use tramplab_protocol::{magic::Magic, trace::Trace};

/// Records kept per vCPU unless told otherwise: 24 MiB.
const RING: usize = 1 << 20;
/// The longest instruction of any guest.
const LONGEST: usize = 16;

struct Plugin {
    guest: Guest,
    dir: PathBuf,
    ring: usize,
    /// Per vCPU: the address of the last instruction that was begun.
    begun: api::ScoreboardField,
    vcpus: Vec<Vcpu>,
    discontinuities: bool,
    /// Whether newly translated blocks are instrumented. Changes only while all vCPUs stand still.
    armed: AtomicBool,
    /// A change is asked for, and takes place when all vCPUs stand still.
    changing: AtomicBool,
    traces: AtomicU64,
    /// What instrumented code points at; freed when that code is thrown away.
    #[expect(clippy::vec_box, reason = "translated code holds the addresses")]
    blocks: Mutex<Vec<Box<Block>>>,
}

/// Touched by its own vCPU's thread, or while all stand still.
///
/// The recorder refers to blocks of `Plugin::blocks`, which are freed after it only.
struct Vcpu(UnsafeCell<Option<Recorder<'static>>>);

// SAFETY: see `Vcpu`; the scoreboard's pointer is QEMU's and lives as long as the plugin.
unsafe impl Sync for Plugin {}
// SAFETY: as above.
unsafe impl Send for Plugin {}

static PLUGIN: OnceLock<Plugin> = OnceLock::new();
/// What a magic instruction's callback is given.
static ARM: Magic = Magic::Arm;
static DISARM: Magic = Magic::Disarm;

fn plugin() -> &'static Plugin {
    PLUGIN.get().expect("installed before any callback")
}

/// QEMU's entry point; anything but 0 makes QEMU refuse to start.
///
/// # Safety
/// Called by QEMU, with its documented arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: api::PluginId,
    info: *const api::Info,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    // SAFETY: QEMU's promise.
    let (info, arguments) = unsafe {
        let arguments: Vec<String> =
            (0..argc as usize).map(|i| CStr::from_ptr(*argv.add(i)).to_string_lossy().into_owned()).collect();
        (&*info, arguments)
    };
    match install(id, info, &arguments) {
        Ok(()) => 0,
        Err(message) => {
            eprintln!("tramplab-plugin: {message}");
            1
        }
    }
}

fn install(id: api::PluginId, info: &api::Info, arguments: &[String]) -> Result<(), String> {
    if !info.system_emulation {
        return Err("only whole-system emulation can be recorded".to_owned());
    }
    // SAFETY: a C string for as long as QEMU runs.
    let target = unsafe { CStr::from_ptr(info.target_name) }.to_string_lossy();
    let guest =
        Guest::from_target(&target).ok_or_else(|| format!("guests of type {target} are not supported"))?;
    let (mut dir, mut ring) = (None, RING);
    for argument in arguments {
        match argument.split_once('=') {
            Some(("dir", value)) => dir = Some(PathBuf::from(value)),
            Some(("ring", value)) => {
                ring = value
                    .parse()
                    .ok()
                    .filter(|&n| n > 0)
                    .ok_or_else(|| format!("ring={value}: expected a number of records above 0"))?;
            }
            _ => return Err(format!("unknown argument `{argument}`, expected dir=DIR or ring=RECORDS")),
        }
    }
    let dir = dir.ok_or("the argument dir=DIR is missing: where traces are written")?;
    if !dir.is_dir() {
        return Err(format!("dir={}: no such folder", dir.display()));
    }
    // SAFETY: may be called while the plugin is installed.
    let scoreboard = unsafe { api::qemu_plugin_scoreboard_new(size_of::<u64>()) };
    let plugin = Plugin {
        guest,
        dir,
        ring,
        begun: api::ScoreboardField { scoreboard, offset: 0 },
        vcpus: (0..info.max_vcpus.max(1)).map(|_| Vcpu(UnsafeCell::new(None))).collect(),
        discontinuities: api::register_discontinuity().is_some(),
        armed: AtomicBool::new(false),
        changing: AtomicBool::new(false),
        traces: AtomicU64::new(0),
        blocks: Mutex::new(Vec::new()),
    };
    PLUGIN.set(plugin).map_err(|_| "loaded twice")?;
    // SAFETY: the id QEMU gave.
    unsafe {
        api::qemu_plugin_register_vcpu_init_cb(id, vcpu_started);
        api::qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    }
    ID.store(id, Ordering::Relaxed);
    Ok(())
}

/// Callbacks of instructions are not given it.
static ID: AtomicU64 = AtomicU64::new(0);

/// A block was translated: a look for magic when idle, all of it instrumented when armed.
extern "C" fn translated(_: api::PluginId, tb: *mut api::Tb) {
    let plugin = plugin();
    let armed = plugin.armed.load(Ordering::Relaxed);
    // SAFETY: `tb` and its instructions are valid during this callback.
    unsafe {
        let count = api::qemu_plugin_tb_n_insns(tb);
        for index in 0..count {
            let insn = api::qemu_plugin_tb_get_insn(tb, index);
            if armed {
                let address = api::qemu_plugin_insn_vaddr(insn);
                api::qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(
                    insn,
                    api::INLINE_STORE,
                    plugin.begun,
                    address,
                );
            }
            if plugin.guest.may_be_magic(api::qemu_plugin_insn_size(insn)) {
                watch_for_magic(plugin.guest, insn);
            }
        }
        if armed && count > 0 {
            let block = Box::new(describe(plugin.guest, tb, count));
            let data = std::ptr::from_ref(&*block).cast_mut().cast();
            plugin.blocks.lock().unwrap_or_else(PoisonError::into_inner).push(block);
            api::qemu_plugin_register_vcpu_tb_exec_cb(tb, block_started, api::NO_REGISTERS, data);
        }
    }
}

/// Called on the thread that runs the vCPU.
///
/// Where several vCPUs share a thread (`thread=single`, `-icount`), QEMU 9.2 to 10.0 at least translates as if there
/// were only one: callbacks are told the vCPU that translated, not the one that runs, and the inline stores of all
/// instructions but a block's first go beside the scoreboard. Nothing true could be recorded.
extern "C" fn vcpu_started(_: api::PluginId, _: c_uint) {
    static THREADS: Mutex<Vec<ThreadId>> = Mutex::new(Vec::new());
    let mut threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
    let this = thread::current().id();
    if threads.contains(&this) {
        eprintln!(
            "tramplab-plugin: several vCPUs share a thread, which QEMU does not instrument rightly: use \
             thread=multi, without -icount, or -smp 1"
        );
        // SAFETY: ends the process; no handler runs in the midst of QEMU's start.
        unsafe { libc::_exit(1) };
    }
    threads.push(this);
}

/// # Safety
/// `insn` is valid.
unsafe fn bytes(insn: *const api::Insn, buffer: &mut [u8; LONGEST]) -> &[u8] {
    // SAFETY: QEMU writes at most the given length.
    let length = unsafe { api::qemu_plugin_insn_data(insn, buffer.as_mut_ptr().cast(), LONGEST) };
    &buffer[..length.min(LONGEST)]
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
            None => return,
        };
        let data = std::ptr::from_ref(magic).cast_mut().cast();
        api::qemu_plugin_register_vcpu_insn_exec_cb(insn, magic_executed, api::NO_REGISTERS, data);
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
        Block {
            start: instructions[0],
            last,
            end: last.wrapping_add(api::qemu_plugin_insn_size(insn) as u64),
            tail: guest.tail(bytes(insn, &mut buffer), last),
            instructions,
        }
    }
}

extern "C" fn block_started(vcpu: c_uint, data: *mut c_void) {
    let plugin = plugin();
    let Some(slot) = plugin.vcpus.get(vcpu as usize) else { return };
    // SAFETY: this vCPU's own thread; `data` is a block that lives longer than the recorder.
    unsafe {
        let block: &'static Block = &*data.cast::<Block>();
        let begun = *api::qemu_plugin_scoreboard_find(plugin.begun.scoreboard, vcpu).cast::<u64>();
        (*slot.0.get()).get_or_insert_with(|| Recorder::new(plugin.ring)).block(block, begun);
    }
}

extern "C" fn discontinuity(_: api::PluginId, vcpu: c_uint, _: c_int, from: u64, to: u64) {
    let Some(slot) = plugin().vcpus.get(vcpu as usize) else { return };
    // SAFETY: this vCPU's own thread.
    if let Some(recorder) = unsafe { &mut *slot.0.get() } {
        recorder.discontinuity(from, to);
    }
}

/// The change itself waits until all vCPUs stand still; this one reaches that point at the end of the block.
extern "C" fn magic_executed(_: c_uint, data: *mut c_void) {
    let plugin = plugin();
    // SAFETY: `data` is one of the two statics.
    let arm = matches!(unsafe { &*data.cast::<Magic>() }, Magic::Arm);
    if plugin.armed.load(Ordering::Relaxed) == arm || plugin.changing.swap(true, Ordering::Relaxed) {
        return;
    }
    // SAFETY: called from a vCPU's thread.
    unsafe { api::qemu_plugin_reset(ID.load(Ordering::Relaxed), change) };
}

/// All vCPUs stand still, all translated code and all callbacks are gone.
extern "C" fn change(id: api::PluginId) {
    let plugin = plugin();
    let arm = !plugin.armed.load(Ordering::Relaxed);
    // SAFETY: nothing else touches the recorders now.
    let recorders = plugin.vcpus.iter().map(|vcpu| unsafe { (*vcpu.0.get()).take() });
    let vcpus: Vec<_> = recorders.enumerate().filter_map(|(i, r)| Some(r?.finish(i as u32))).collect();
    plugin.blocks.lock().unwrap_or_else(PoisonError::into_inner).clear();
    if !arm {
        let number = plugin.traces.fetch_add(1, Ordering::Relaxed);
        let trace = Trace { discontinuities: plugin.discontinuities, vcpus };
        if let Err(error) = output::write(&plugin.dir, number, &trace) {
            // The guest goes on; its host finds no trace, and this line in QEMU's log.
            eprintln!(
                "tramplab-plugin: failed to write trace {number} into {}: {error}",
                plugin.dir.display()
            );
        }
    }
    plugin.armed.store(arm, Ordering::Relaxed);
    plugin.changing.store(false, Ordering::Relaxed);
    // SAFETY: the id QEMU gave; a reset plugin registers anew.
    unsafe {
        api::qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
        if arm && let Some(register) = api::register_discontinuity() {
            register(id, api::DISCONTINUITY_INTERRUPT, discontinuity);
        }
    }
}
