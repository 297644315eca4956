// SPDX-License-Identifier: GPL-2.0-or-later
//! A QEMU TCG plugin that observes the guest between two magic instructions. It records every taken
//! branch, a virtual LBR of unlimited depth, or counts instructions by call path.
//!
//!     -plugin libtramplab_plugin.so,dir=DIR[,ring=RECORDS][,lbr=FAMILY:DEPTH][,cpu=PARTS]
//!
//! While idle, the plugin instruments only blocks with a magic instruction, which it finds at
//! translation. Arming discards all translated code. From the next block on, every block of every
//! vCPU is instrumented, and every instruction that may not complete. Disarming stops that and
//! writes `DIR/trace-NNNN.bin` or `DIR/counts-NNNN.bin` while all vCPUs stand still: the file is
//! complete when the block after the magic instruction starts. A guest can do so as often as it
//! likes. On request, and if QEMU lets a plugin write to the guest, the plugin also hands recorded
//! branches to the guest's own programs.
//!
//! With `cpu=` it can also count what costs a CPU cycles ([`estimate`]).
//!
//! With `lbr=` the plugin also plays a CPU's branch records for the guest's kernel ([`emulated`]).

mod accesses;
mod api;
mod decode;
mod delivery;
mod emulated;
mod estimate;
mod events;
mod flow;
mod guest_state;
mod instrument;
mod output;
mod profiler;
mod recorder;

use api::Writer;
use decode::Guest;
use delivery::{Asked, Delivery};
use emulated::{Emulated, Lbr, Player};
use estimate::Model;
use flow::Block;
use guest_state::Registers;
use profiler::{Parking, Profiler};
use recorder::{Noted, Recorder};
use std::{
    cell::UnsafeCell,
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    mem::offset_of,
    path::PathBuf,
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, ThreadId},
};
use tramplab_protocol::{
    counts::{self, Counts, Setup},
    emulated::registers,
    estimate::Parts,
    magic::{self, Magic},
    trace::{self, Trace},
};
use typed_arena::Arena;

/// Records kept per vCPU by default: 32 MiB.
const RING: usize = 1 << 20;
/// Instructions in all blocks that may be translated while armed, 256 MiB, half as much again while
/// the events of a CPU are counted. A guest that makes code
/// without end, or never disarms, must not fill its host's memory. Attaching to every function of a
/// kernel takes a tenth.
const MOST_INSTRUCTIONS: u64 = 1 << 25;
/// Memory of a block besides its instructions, counted in instructions.
const BLOCK: u64 = 16;

struct Plugin {
    guest: Guest,
    dir: PathBuf,
    ring: usize,
    /// The fields of [`Noted`], per vCPU.
    begun: api::ScoreboardField,
    accesses: api::ScoreboardField,
    discontinuities: bool,
    /// How newly translated blocks are instrumented. Changes only while all vCPUs stand still.
    mode: Mutex<Mode>,
    /// True unless the mode is idle. The vCPUs read it at every block.
    armed: AtomicBool,
    /// The requested mode, which takes effect when all vCPUs stand still.
    changing: Mutex<Option<Mode>>,
    /// Address of the function that switches threads; 0 while nothing watches it.
    switch_to: AtomicU64,
    /// Call stacks of the threads that do not run, while profiling.
    parked: Mutex<Parking>,
    lost_switches: AtomicU64,
    /// Instructions of blocks translated since arming. Beyond [`MOST_INSTRUCTIONS`] the plugin
    /// stops observing and writes nothing.
    translated: AtomicU64,
    /// None if QEMU cannot write to the guest.
    writer: Option<Writer>,
    /// The branch records that the plugin plays, if asked to.
    emulated: Option<Emulated>,
    /// The modelled parts of a CPU.
    parts: Option<Parts>,
    traces: AtomicU64,
    counts: AtomicU64,
    /// Blocks that instrumented code points to. They stay until that code is discarded. Blocks that
    /// run together are mostly translated together and share pages here; in allocations of their
    /// own the host's CPU waits for them.
    blocks: Mutex<Arena<Block>>,
}

/// The purpose of the instrumentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Idle,
    Record {
        /// Count data accesses. They cost time, so only measurements that report them ask.
        accesses: bool,
        /// Deliver branches to programs that ask for them.
        delivery: Option<Delivery>,
    },
    /// Count instructions by call path. The measured thread is the one that asked, on this vCPU.
    Profile {
        /// None if it could not be read; the counts say so.
        setup: Option<Setup>,
        vcpu: u32,
        /// Count the events of the modelled CPU too.
        estimates: Option<Before>,
    },
}

/// The caches and predictors with which an estimate begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    /// They hold what the estimate before left.
    Kept,
    Empty,
}

/// Aligned, so that a shift finds its place.
#[repr(align(256))]
struct Vcpu {
    /// Touched only by its own vCPU's thread, or while all stand still. Its pointers are valid
    /// until then.
    watched: UnsafeCell<Option<Watched>>,
    player: UnsafeCell<Option<Box<Player>>>,
    /// While nothing is estimated: what caches and predictors hold from before.
    model: UnsafeCell<Option<Box<Model>>>,
    registers: OnceLock<Registers>,
}

/// A vCPU's place in the scoreboard.
#[repr(C)]
struct Board {
    noted: Noted,
    /// Not zero while [`emulated`] looks at each block.
    attention: u64,
}

const MOST_VCPUS: usize = 256;

/// A static of the largest size: the host looks up a vCPU at every block.
static VCPUS: [Vcpu; MOST_VCPUS] = [const {
    Vcpu {
        watched: UnsafeCell::new(None),
        player: UnsafeCell::new(None),
        model: UnsafeCell::new(None),
        registers: OnceLock::new(),
    }
}; MOST_VCPUS];

fn vcpu(index: c_uint) -> &'static Vcpu {
    &VCPUS[index as usize % MOST_VCPUS]
}

/// The state of an observed vCPU.
struct Watched {
    /// Its place in the scoreboard, which moves only when vCPUs are added. Looking it up would cost
    /// a quarter of a block's time.
    noted: *const Noted,
    watch: Watch,
}

/// The observer of a vCPU.
enum Watch {
    Recorder {
        recorder: Recorder<'static>,
        /// The arguments of a program's call of the stand-in that has not returned.
        asked: Option<Asked>,
    },
    Profiler(Box<Profiler<'static>>),
}

// SAFETY: see `watched`.
unsafe impl Sync for Vcpu {}
// SAFETY: the scoreboard's pointer is QEMU's and lives as long as the plugin.
unsafe impl Sync for Plugin {}
// SAFETY: as above.
unsafe impl Send for Plugin {}

static PLUGIN: OnceLock<Plugin> = OnceLock::new();
fn plugin() -> &'static Plugin {
    PLUGIN.get().expect("installed before any callback")
}

/// QEMU's entry point. QEMU refuses to start if it returns anything but 0.
///
/// # Safety
/// Called by QEMU with its documented arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: api::PluginId,
    info: *const api::Info,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    // SAFETY: QEMU's promise.
    let (info, arguments) = unsafe {
        let arguments: Vec<String> = (0..argc as usize)
            .map(|i| CStr::from_ptr(*argv.add(i)).to_string_lossy().into_owned())
            .collect();
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
    // SAFETY: a C string that lives as long as QEMU runs.
    let target = unsafe { CStr::from_ptr(info.target_name) }.to_string_lossy();
    let guest = Guest::from_target(&target)
        .ok_or_else(|| format!("guests of type {target} are not supported"))?;
    if info.max_vcpus > info.smp_vcpus {
        return Err("hot-plugged vCPUs cannot be recorded; use -smp without maxcpus".to_owned());
    }
    if !(0..=MOST_VCPUS as c_int).contains(&info.max_vcpus) {
        return Err(format!("{} vCPUs: at most {MOST_VCPUS} can be recorded", info.max_vcpus));
    }
    let (mut dir, mut ring, mut lbr, mut parts) = (None, RING, None, None);
    for argument in arguments {
        match argument.split_once('=') {
            Some(("dir", value)) => dir = Some(PathBuf::from(value)),
            Some(("ring", value)) => {
                ring =
                    value.parse().ok().filter(|&n| n > 0).ok_or_else(|| {
                        format!("ring={value}: expected a number of records above 0")
                    })?;
            }
            Some(("lbr", value)) => {
                let parsed = value.parse::<Lbr>();
                lbr = Some(parsed.map_err(|error| format!("lbr={value}: {error}"))?);
            }
            Some(("cpu", value)) => {
                let parsed = value.parse::<Parts>();
                parts = Some(parsed.map_err(|error| format!("cpu={value}: {error}"))?);
            }
            _ => {
                return Err(format!(
                    "unknown argument `{argument}`, expected dir=DIR, ring=RECORDS, \
                     lbr=FAMILY:DEPTH or cpu=PARTS"
                ));
            }
        }
    }
    let dir = dir.ok_or("the argument dir=DIR is missing: where traces are written")?;
    if !dir.is_dir() {
        return Err(format!("dir={}: no such folder", dir.display()));
    }
    // SAFETY: may be called while the plugin is installed.
    let scoreboard = unsafe { api::qemu_plugin_scoreboard_new(size_of::<Board>()) };
    let field = |offset| api::ScoreboardField { scoreboard, offset };
    let noted = offset_of!(Board, noted);
    let emulated = match lbr {
        Some(lbr) if guest != lbr.guest() => {
            return Err(format!("lbr={lbr}: guests of type {target} have no such branch records"));
        }
        Some(lbr) => {
            let attention = field(offset_of!(Board, attention));
            let vcpus = info.max_vcpus.max(1) as usize;
            Some(Emulated::new(lbr, &registers(&dir), vcpus, attention)?)
        }
        None => None,
    };
    let plugin = Plugin {
        guest,
        dir,
        ring,
        begun: field(noted + offset_of!(Noted, begun)),
        accesses: field(noted + offset_of!(Noted, accesses)),
        discontinuities: events::tells_of_discontinuities(),
        mode: Mutex::new(Mode::Idle),
        armed: AtomicBool::new(false),
        changing: Mutex::new(None),
        switch_to: AtomicU64::new(0),
        parked: Mutex::default(),
        lost_switches: AtomicU64::new(0),
        translated: AtomicU64::new(0),
        writer: Writer::find(),
        emulated,
        parts,
        traces: AtomicU64::new(0),
        counts: AtomicU64::new(0),
        blocks: Mutex::new(Arena::new()),
    };
    PLUGIN.set(plugin).map_err(|_| "loaded twice")?;
    let plugin = self::plugin();
    // SAFETY: the id QEMU gave.
    unsafe {
        events::register_vcpus(id);
        plugin.register(id);
    }
    ID.store(id, Ordering::Relaxed);
    Ok(())
}

static ID: AtomicU64 = AtomicU64::new(0);

/// The plugin's id: callbacks of instructions do not receive it.
fn id() -> api::PluginId {
    ID.load(Ordering::Relaxed)
}

/// Called on the thread that runs the vCPU.
///
/// If several vCPUs share a thread (`thread=single`, `-icount`), at least QEMU 9.2 to 10.0
/// translate as if there were only one. Callbacks receive the translating vCPU instead of the
/// running one, and inline stores of all instructions but a block's first miss the scoreboard. The
/// records would be wrong, so the plugin ends QEMU.
fn vcpu_started(index: c_uint) {
    static THREADS: Mutex<Vec<ThreadId>> = Mutex::new(Vec::new());
    let mut threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
    let this = thread::current().id();
    if threads.contains(&this) {
        eprintln!(
            "tramplab-plugin: several vCPUs share a thread, which QEMU instruments wrongly; use \
             thread=multi, without -icount, or -smp 1"
        );
        // SAFETY: ends the process. No handler runs during QEMU's start.
        unsafe { libc::_exit(1) };
    }
    threads.push(this);
    // SAFETY: this vCPU's thread, in a callback.
    if let Some(found) = unsafe { Registers::find(plugin().guest) } {
        let _ = vcpu(index).registers.set(found);
    }
    if let Some(emulated) = &plugin().emulated {
        // SAFETY: as above. Nothing else touches the player yet.
        let player = unsafe { emulated.player(index) }.unwrap_or_else(|| {
            eprintln!("tramplab-plugin: QEMU does not describe the registers of vCPU {index}");
            // SAFETY: as above.
            unsafe { libc::_exit(1) }
        });
        // SAFETY: as above.
        unsafe { *vcpu(index).player.get() = Some(Box::new(player)) };
    }
}

/// Locks a mutex. Data that a panic left behind is as good as before.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Callback at the start of a block while branches are recorded.
extern "C" fn recorded(index: c_uint, data: *mut c_void) {
    // SAFETY: this vCPU's own thread. `data` is a block that outlives its observer.
    unsafe {
        let block = &*data.cast::<Block>();
        match &mut *vcpu(index).watched.get() {
            Some(Watched { noted, watch: Watch::Recorder { recorder, .. } }) => {
                recorder.block(block, || **noted);
            }
            first => plugin().watch(index, first, block),
        }
    }
}

/// Callback at the start of a block while instructions are counted.
extern "C" fn profiled(index: c_uint, data: *mut c_void) {
    // SAFETY: as above.
    unsafe {
        let block = &*data.cast::<Block>();
        match &mut *vcpu(index).watched.get() {
            Some(Watched { noted, watch: Watch::Profiler(profiler) }) => {
                profiler.block(block, (**noted).begun);
            }
            first => plugin().watch(index, first, block),
        }
    }
}

/// Callback of a data access while events are counted.
extern "C" fn accessed(index: c_uint, access: api::Access, address: u64, _: *mut c_void) {
    // SAFETY: this vCPU's own thread, in the callback of the access.
    unsafe {
        let Some(Watched { watch: Watch::Profiler(profiler), .. }) =
            &mut *vcpu(index).watched.get()
        else {
            return;
        };
        let Some(model) = profiler.model() else { return };
        let physical = || {
            let found = api::qemu_plugin_get_hwaddr(access, address);
            let is_memory = !found.is_null() && !api::qemu_plugin_hwaddr_is_io(found);
            is_memory.then(|| api::qemu_plugin_hwaddr_phys_addr(found))
        };
        model.data(address, 1 << api::qemu_plugin_mem_size_shift(access), physical);
    }
}

impl Plugin {
    /// Returns true if there is room for another block.
    fn takes(&self, instructions: u64) -> bool {
        let more = instructions + BLOCK;
        self.translated.fetch_add(more, Ordering::Relaxed).saturating_add(more) <= MOST_INSTRUCTIONS
    }

    fn is_delivering(&self) -> bool {
        matches!(*locked(&self.mode), Mode::Record { delivery: Some(_), .. })
    }

    /// Returns true once all blocks are looked at for a guest's branch records.
    fn is_emulating(&self) -> bool {
        self.emulated.as_ref().is_some_and(Emulated::is_watching)
    }

    fn is_overrun(&self) -> bool {
        self.translated.load(Ordering::Relaxed) > MOST_INSTRUCTIONS
    }

    /// Creates the observer of a vCPU at its first instrumented block.
    ///
    /// # Safety
    /// Call on the vCPU's own thread.
    #[cold]
    #[inline(never)]
    unsafe fn watch(&self, index: c_uint, watched: &mut Option<Watched>, first: &'static Block) {
        let noted = self.noted_by(index);
        // SAFETY: this vCPU's place in the scoreboard.
        let last = unsafe { *noted };
        let watch = match *locked(&self.mode) {
            Mode::Profile { setup, vcpu: asked, estimates } => {
                let parts = self.parts.as_ref().filter(|_| estimates.is_some());
                // SAFETY: this vCPU's own thread.
                let kept = unsafe { &mut *vcpu(index).model.get() };
                kept.take_if(|_| estimates == Some(Before::Empty));
                let fresh = |parts| Box::new(Model::new(parts, self.guest.pages()));
                let model = parts.map(|parts| kept.take().unwrap_or_else(|| fresh(parts)));
                let setup = setup.unwrap_or_default();
                let profiler = Profiler::new(setup, index == asked).with_model(model);
                let mut profiler = Box::new(profiler);
                profiler.block(first, last.begun);
                Watch::Profiler(profiler)
            }
            Mode::Record { .. } | Mode::Idle => {
                let mut recorder = Recorder::new(self.ring, last.accesses);
                recorder.block(first, || last);
                Watch::Recorder { recorder, asked: None }
            }
        };
        *watched = Some(Watched { noted, watch });
    }

    fn noted_by(&self, index: c_uint) -> *const Noted {
        // SAFETY: the scoreboard has a place for each vCPU; this field is the first of `Noted`.
        unsafe { api::field(self.begun, index).cast() }
    }
}

/// Callback at the entry of the function that switches threads.
extern "C" fn switched(index: c_uint, _: *mut c_void) {
    let plugin = plugin();
    let Vcpu { watched, registers, .. } = vcpu(index);
    let Mode::Profile { setup: Some(setup), .. } = *locked(&plugin.mode) else { return };
    // SAFETY: this vCPU's own thread, in a callback that reads registers.
    unsafe {
        let Some(Watched { watch: Watch::Profiler(profiler), .. }) = &mut *watched.get() else {
            return;
        };
        let Some((previous, next)) = registers.get().and_then(|r| r.switched(&setup)) else {
            plugin.lost_switches.fetch_add(1, Ordering::Relaxed);
            return;
        };
        profiler.switch(&previous, &next, &mut locked(&plugin.parked));
    }
}

/// Callback at the entry of the stand-in. Notes the arguments if a program called it.
extern "C" fn stand_in_entered(index: c_uint, _: *mut c_void) {
    let plugin = plugin();
    let Vcpu { watched, registers, .. } = vcpu(index);
    let Mode::Record { delivery: Some(delivery), .. } = *locked(&plugin.mode) else { return };
    // SAFETY: this vCPU's own thread, in a callback that reads registers.
    unsafe {
        let Some(Watched { watch: Watch::Recorder { recorder, asked }, .. }) = &mut *watched.get()
        else {
            return;
        };
        *asked = if delivery.is_asked(recorder.newest_first()) {
            registers.get().and_then(|r| r.asked())
        } else {
            None
        };
    }
}

/// Callback before the stand-in's return. Writes the entries, and their number as the return value.
extern "C" fn stand_in_left(index: c_uint, _: *mut c_void) {
    let plugin = plugin();
    let Vcpu { watched, registers, .. } = vcpu(index);
    let Mode::Record { delivery: Some(delivery), .. } = *locked(&plugin.mode) else { return };
    // SAFETY: this vCPU's own thread, in a callback that writes registers.
    unsafe {
        let Some(Watched { watch: Watch::Recorder { recorder, asked }, .. }) = &mut *watched.get()
        else {
            return;
        };
        let (Some(asked), Some(registers), Some(writer)) =
            (asked.take(), registers.get(), plugin.writer)
        else {
            return;
        };
        // Blocks were not instrumented: records are missing.
        if plugin.is_overrun() {
            return;
        }
        let entries = delivery.now().entries(plugin.guest, asked.count, recorder.newest_first());
        // If the memory could not be written, the program sees a kernel without a driver.
        if writer.memory(asked.entries, entries.as_flattened()) {
            registers.set_returned(writer, entries.len() as u64);
        }
    }
}

/// QEMU reported an interrupt or exception.
fn discontinuity(index: c_uint, from: u64, to: u64) {
    let Vcpu { watched, player, .. } = vcpu(index);
    // SAFETY: this vCPU's own thread.
    if let Some(player) = unsafe { &mut *player.get() } {
        player.discontinuity(from, to);
    }
    // SAFETY: as above.
    match unsafe { &mut *watched.get() } {
        Some(Watched { watch: Watch::Recorder { recorder, .. }, .. }) => {
            recorder.discontinuity(from, to)
        }
        Some(Watched { watch: Watch::Profiler(profiler), .. }) => profiler.discontinuity(from, to),
        None => {}
    }
}

/// Callback of a magic instruction. The change waits until all vCPUs stand still; this one does at
/// the end of the block.
extern "C" fn magic_executed(index: c_uint, data: *mut c_void) {
    let plugin = plugin();
    // SAFETY: `data` is one of the statics.
    let magic = unsafe { &*data.cast::<Magic>() };
    let registers = || vcpu(index).registers.get();
    // SAFETY, of both: this vCPU's thread, in a callback that reads registers.
    let wanted = match magic {
        Magic::Arm => Mode::Record { accesses: false, delivery: None },
        Magic::ArmAccesses => Mode::Record { accesses: true, delivery: None },
        Magic::Deliver => Mode::Record {
            accesses: false,
            delivery: registers().and_then(|r| unsafe { r.delivery() }),
        },
        Magic::Disarm => Mode::Idle,
        Magic::Profile | Magic::Estimate | Magic::EstimateCold => Mode::Profile {
            setup: registers().and_then(|r| unsafe { r.setup() }),
            vcpu: index,
            estimates: match magic {
                Magic::Estimate => Some(Before::Kept),
                Magic::EstimateCold => Some(Before::Empty),
                _ => None,
            },
        },
    };
    let armed = plugin.armed.load(Ordering::Relaxed);
    let mut changing = locked(&plugin.changing);
    // One mode at a time: an armed mode must end before another begins.
    if (wanted == Mode::Idle) != armed || changing.is_some() {
        return;
    }
    *changing = Some(wanted);
    drop(changing);
    // SAFETY: called from a vCPU's thread.
    unsafe { events::reset(id()) };
}

/// Callback of a magic instruction in the kernel. Only the agent says what is recorded: a patch
/// that disarms on its own path, or records other hits, would choose the numbers. The host finds
/// the file.
extern "C" fn magic_of_kernel(_: c_uint, data: *mut c_void) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if TOLD.swap(true, Ordering::Relaxed) {
        return;
    }
    // SAFETY: `data` is one of the statics.
    let magic = unsafe { &*data.cast::<Magic>() };
    output::write(&magic::of_kernel(&plugin().dir), format!("{magic:?}\n").as_bytes());
}

/// QEMU's memory for translated code was full: all code is gone. All vCPUs stand still, or the only
/// one is in QEMU, below no callback. While records are delivered or emulated, which may take
/// hours, the blocks of that code go too.
fn flushed() {
    let plugin = plugin();
    let may_move = match *locked(&plugin.mode) {
        Mode::Idle => true,
        // Blocks were not instrumented: nothing is written, whatever follows.
        Mode::Record { .. } => !plugin.is_overrun(),
        Mode::Profile { .. } => false,
    };
    if may_move {
        // SAFETY: nothing else touches the vCPUs now.
        unsafe { plugin.drop_blocks() };
        plugin.translated.store(0, Ordering::Relaxed);
    }
}

/// QEMU discarded all translated code and all callbacks. All vCPUs stand still.
fn discarded(id: api::PluginId) {
    let plugin = plugin();
    let wanted = locked(&plugin.changing).take();
    match wanted {
        Some(wanted) => plugin.change(wanted),
        None => flushed(),
    }
    // SAFETY: the id QEMU gave. A plugin registers again after a reset.
    unsafe { plugin.register(id) };
}

impl Plugin {
    /// Registers the callbacks of the present mode.
    ///
    /// # Safety
    /// Pass the id QEMU gave, while the plugin is being installed or was just reset.
    unsafe fn register(&self, id: api::PluginId) {
        let (armed, emulates) = (self.armed.load(Ordering::Relaxed), self.is_emulating());
        // SAFETY: the caller's promise.
        unsafe {
            events::register_translation(id);
            if armed || emulates {
                events::register_discontinuities(id, self.guest.discontinuities());
            }
            if self.is_delivering() || emulates {
                events::register_flush(id);
            }
        }
    }

    /// Discards all code if too much was translated for a guest's branch records, which would have
    /// gaps.
    ///
    /// # Safety
    /// Call on a vCPU's thread.
    unsafe fn renew(&self) {
        if self.is_overrun() && !self.armed.load(Ordering::Relaxed) {
            // SAFETY: the caller's promise. QEMU ignores it while one is pending.
            unsafe { events::reset(id()) };
        }
    }

    /// Changes the mode. All vCPUs stand still; all translated code is gone.
    fn change(&self, wanted: Mode) {
        let was = std::mem::replace(&mut *locked(&self.mode), wanted);
        // SAFETY: nothing else touches them now.
        let watches = VCPUS.iter().map(|vcpu| unsafe { (*vcpu.watched.get()).take() });
        let watches: Vec<Option<Watched>> = watches.collect();
        let overrun = self.translated.swap(0, Ordering::Relaxed) > MOST_INSTRUCTIONS;
        match was {
            Mode::Idle => {}
            // The host misses the file and finds this line in QEMU's log.
            _ if overrun => output::say(
                "the guest ran more code than is looked at while armed: nothing is written",
            ),
            Mode::Record { accesses, .. } => self.write_trace(watches, accesses),
            Mode::Profile { setup, .. } => self.write_counts(watches, setup.is_some()),
        }
        // SAFETY: as above.
        unsafe { self.drop_blocks() };
        locked(&self.parked).clear();
        let switch_to = match wanted {
            Mode::Profile { setup, .. } => setup.map_or(0, |setup| setup.switch_to),
            Mode::Record { .. } | Mode::Idle => 0,
        };
        self.switch_to.store(switch_to, Ordering::Relaxed);
        self.armed.store(wanted != Mode::Idle, Ordering::Relaxed);
    }

    /// Drops all blocks but those that an observer still needs.
    ///
    /// # Safety
    /// All vCPUs stand still, no code points to a block, and nothing profiles.
    unsafe fn drop_blocks(&self) {
        let kept = Arena::new();
        let moved = |block: &Block| std::ptr::from_mut(kept.alloc(block.clone()));
        for vcpu in &VCPUS {
            // SAFETY: nothing else touches it now. An arena's elements stay where they are until
            // it is dropped, which is when all observers have new ones, or are gone.
            unsafe {
                if let Some(Watched { watch: Watch::Recorder { recorder, .. }, .. }) =
                    &mut *vcpu.watched.get()
                {
                    recorder.move_blocks(|block| &*moved(block));
                }
                if let Some(player) = &mut *vcpu.player.get() {
                    player.move_blocks(|block| &*moved(block));
                }
            }
        }
        *locked(&self.blocks) = kept;
    }

    fn write_trace(&self, watches: Vec<Option<Watched>>, accesses: bool) {
        let finish = |(index, watch)| match watch {
            Some(Watched { watch: Watch::Recorder { recorder, .. }, .. }) => {
                Some(recorder.finish(index as u32, accesses))
            }
            _ => None,
        };
        let vcpus = watches.into_iter().enumerate().filter_map(finish).collect();
        let number = self.traces.fetch_add(1, Ordering::Relaxed);
        let trace = Trace { discontinuities: self.discontinuities, vcpus };
        match trace.encode() {
            Ok(bytes) => output::write(&trace::file_name(&self.dir, number), &bytes),
            Err(error) => output::say(&format!("failed to encode trace {number}: {error}")),
        }
    }

    fn write_counts(&self, watches: Vec<Option<Watched>>, setup: bool) {
        let finish = |(index, watch): (usize, Option<Watched>)| match watch {
            Some(Watched { noted, watch: Watch::Profiler(mut profiler) }) => {
                // SAFETY, of both: all vCPUs stand still.
                let noted = unsafe { *noted };
                let counts = profiler.finish(index as u32, noted.begun);
                if let Some(model) = profiler.into_model() {
                    unsafe { *vcpu(index as c_uint).model.get() = Some(model) };
                }
                Some(counts)
            }
            _ => None,
        };
        let vcpus = watches.into_iter().enumerate().filter_map(finish).collect();
        let number = self.counts.fetch_add(1, Ordering::Relaxed);
        let lost_switches = self.lost_switches.swap(0, Ordering::Relaxed);
        let counts = Counts { discontinuities: self.discontinuities, setup, lost_switches, vcpus };
        match counts.encode() {
            Ok(bytes) => output::write(&counts::file_name(&self.dir, number), &bytes),
            Err(error) => output::say(&format!("failed to encode counts {number}: {error}")),
        }
    }
}
