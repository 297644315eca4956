// SPDX-License-Identifier: GPL-2.0-or-later
//! Counts instructions by call path, for one vCPU. Pure: independent of QEMU.
//!
//! A shadow of each thread's kernel stack follows calls and returns. A return that leads to no
//! caller on it is a jump: trampolines return into the code they run next; `fexit` and kretprobes
//! replace a function's return address. The instructions of such a flow stay on the path it came
//! from, until it returns to a known caller.

use crate::{
    estimate::{self, Model},
    flow::{self, Block, Plain, Step, Tail},
    recorder::MOST_TOLD,
};
use rustc_hash::FxHashMap;
use tramplab_protocol::{
    counts::{BlockCount, CallPath, Entered, Setup, Thread, VcpuCounts},
    estimate::Event,
    trace::Kind,
};

/// Limit of separate paths. A kernel that attaches has some ten thousand.
const MOST_PATHS: usize = 1 << 21;
/// Limit of separate blocks. The same kernel has some hundred thousand.
const MOST_BLOCKS: usize = 1 << 22;
/// The same while the events of each are counted, which take 200 bytes.
const MOST_WITH_EVENTS: usize = 1 << 20;
/// Threads with counts of their own. Where a thousand works wait at once, as when trampolines are
/// freed, the kernel has a thousand workers; all others count as one thread.
const NAMED_THREADS: usize = 1 << 6;
/// Limit of known threads, and of parked ones. A hostile guest has as many as it likes.
const MOST_THREADS: usize = 1 << 13;
/// Depth of a thread's calls. A kernel stack of 16 KiB cannot hold more.
const DEEPEST: usize = 1 << 10;
/// Blocks found without a search. A power of two.
const CACHED: usize = 1 << 13;

/// Stands for the threads without counts of their own.
const OTHERS: &str = "others";

/// A call that has not returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Frame {
    path: u32,
    from: u64,
    to: u64,
    kind: Entered,
    back: Back,
}

/// The address that a call or an interrupt returns to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Back {
    To(u64),
    /// One of these: it is unknown if a branch before the interrupt was taken.
    Either([u64; 3]),
    /// The interrupt came right after a return: the flow continues at the return's target, which
    /// may be a caller.
    Returned,
    /// The interrupt came right after an indirect call: the flow continues at the call's target.
    Called {
        from: u64,
        after: u64,
    },
    /// Unknown.
    Anywhere,
}

impl Back {
    fn leads_to(self, address: u64) -> bool {
        match self {
            Back::To(to) => to == address,
            Back::Either(places) => places.contains(&address),
            Back::Returned | Back::Called { .. } | Back::Anywhere => false,
        }
    }
}

/// The calls of a thread that does not run.
#[derive(Clone, Debug, Default)]
pub struct Parked(Vec<Frame>);

/// Parked threads by `task_struct` and process id, as the memory of an ended thread is used again.
pub type Parking = FxHashMap<(u64, u32), Parked>;

/// A thread, as the kernel's memory describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Address of its `task_struct`.
    pub address: u64,
    pub pid: u32,
    pub command: String,
}

#[derive(Clone, Copy)]
struct Cached {
    path: u32,
    block: *const Block,
    slot: u32,
}

pub struct Profiler<'a> {
    setup: Setup,
    threads: Vec<Thread>,
    /// Indices into `threads`, by the same key as [`Parking`].
    known: FxHashMap<(u64, u32), u32>,
    /// None until the first switch names the thread that ran from the start.
    task: Option<u64>,
    thread: u32,
    /// Indices into `paths`, by thread.
    roots: Vec<u32>,
    paths: Vec<CallPath>,
    children: FxHashMap<(u32, u64, u64), u32>,
    stack: Vec<Frame>,
    /// The path of the thread itself, below all calls.
    root: u32,
    path: u32,
    blocks: Vec<BlockCount>,
    slots: FxHashMap<(u32, u64), u32>,
    cache: Vec<Cached>,
    previous: Option<&'a Block>,
    previous_path: u32,
    told: Vec<(u64, u64)>,
    cut: u64,
    /// The modelled CPU, if its events are counted.
    model: Option<Box<Model>>,
    /// The events of each block.
    events: Vec<estimate::Counts>,
    /// Events that happen in the next block.
    ahead: Vec<Event>,
}

// SAFETY: the cache's pointers are only compared.
unsafe impl Send for Profiler<'_> {}

impl<'a> Profiler<'a> {
    /// `measured`: this vCPU's thread executed the magic instruction.
    pub fn new(setup: Setup, measured: bool) -> Profiler<'a> {
        let mut profiler = Profiler {
            setup,
            threads: vec![Thread { command: String::new(), pid: 0, measured }],
            known: FxHashMap::default(),
            task: None,
            thread: 0,
            roots: Vec::new(),
            paths: Vec::new(),
            children: FxHashMap::default(),
            stack: Vec::new(),
            root: 0,
            path: 0,
            blocks: Vec::new(),
            slots: FxHashMap::default(),
            cache: vec![Cached { path: u32::MAX, block: std::ptr::null(), slot: 0 }; CACHED],
            previous: None,
            previous_path: 0,
            told: Vec::new(),
            cut: 0,
            model: None,
            events: Vec::new(),
            ahead: Vec::new(),
        };
        profiler.add_root(0);
        profiler
    }

    /// Counts the events of this CPU too.
    pub fn with_model(mut self, model: Option<Box<Model>>) -> Profiler<'a> {
        self.model = model;
        self
    }

    /// A block starts. `begun` is the address of the last instruction that began before it.
    pub fn block(&mut self, block: &'a Block, begun: u64) {
        if let Some(previous) = self.previous {
            match previous.plainly(|| begun, block.start) {
                // By far the most frequent case: neither a call nor a return.
                Some(Plain {
                    branch: branch @ (None | Some(Kind::Cond | Kind::Jump)),
                    instructions,
                }) if self.told.is_empty() => {
                    if self.model.is_some() {
                        self.predict(previous, branch, block.start);
                    }
                    self.count(previous, instructions);
                }
                _ => self.closely(previous, begun, block.start),
            }
        } else if self.is_entry(block.start) {
            // An interrupt came before the first block.
            self.enter(0, block.start, Entered::Interrupt, Back::Anywhere, true);
        }
        self.previous = Some(block);
        self.previous_path = self.path;
        if let Some(model) = &mut self.model {
            self.ahead.drain(..).for_each(|event| model.add(event));
            model.code(block.start, block.end());
        }
    }

    /// Follows the end of a block in the model.
    fn predict(&mut self, previous: &Block, branch: Option<Kind>, start: u64) {
        let Some(model) = &mut self.model else { return };
        let event = match branch {
            Some(kind) => model.branch(previous.last, start, kind, previous.end()),
            None if matches!(previous.tail(), Tail::Cond { .. }) => {
                model.conditional(previous.last, false)
            }
            None => None,
        };
        self.ahead.extend(event);
    }

    fn closely(&mut self, previous: &Block, begun: u64, start: u64) {
        let counted = previous.counted(previous.left(begun, start));
        let told = std::mem::take(&mut self.told);
        // Nothing tells of a conditional branch that was not taken.
        let mut is_undecided =
            matches!(previous.tail(), Tail::Cond { .. }) && previous.begun(begun) == previous.last;
        flow::between(previous, begun, &told, start, |step| {
            is_undecided &= !matches!(step, Step::Branch { kind: Kind::Cond, .. });
            self.follow(previous, step);
            self.step(step);
        });
        if let Some(model) = self.model.as_mut().filter(|_| is_undecided) {
            self.ahead.extend(model.conditional(previous.last, false));
        }
        self.told = told;
        self.told.clear();
        self.count(previous, counted);
    }

    /// Follows a step in the model.
    fn follow(&mut self, previous: &Block, step: Step) {
        let Some(model) = &mut self.model else { return };
        let event = match step {
            Step::Branch { from, to, kind, .. } => model.branch(from, to, kind, previous.end()),
            Step::Interrupt { .. } => Some(Event::Exception),
        };
        self.ahead.extend(event);
    }

    /// QEMU reported an interrupt or exception, before the block at `to` starts.
    pub fn discontinuity(&mut self, from: u64, to: u64) {
        if self.told.len() < MOST_TOLD {
            self.told.push((from, to));
        }
    }

    /// The function that switches threads was entered with the arguments `previous` and `next`.
    /// `parked` keeps the calls of threads that do not run, for the vCPU that runs them next.
    pub fn switch(&mut self, previous: &Task, next: &Task, parked: &mut Parking) {
        if self.task.is_none() {
            let thread = &mut self.threads[self.thread as usize];
            (thread.pid, thread.command) = (previous.pid, previous.command.clone());
            self.known.insert((previous.address, previous.pid), self.thread);
        }
        let stack = std::mem::take(&mut self.stack);
        if parked.len() < MOST_THREADS {
            parked.insert((previous.address, previous.pid), Parked(stack));
        } else {
            self.cut += 1;
        }
        self.task = Some(next.address);
        let thread = match self.known.get(&(next.address, next.pid)) {
            Some(&thread) => thread,
            None if self.known.len() >= MOST_THREADS => {
                self.cut += 1;
                self.thread
            }
            None => {
                let thread = self.threads.len().min(NAMED_THREADS);
                if thread == self.threads.len() {
                    let (command, pid) = match thread {
                        NAMED_THREADS => (OTHERS.to_owned(), 0),
                        _ => (next.command.clone(), next.pid),
                    };
                    self.threads.push(Thread { command, pid, measured: false });
                }
                self.known.insert((next.address, next.pid), thread as u32);
                thread as u32
            }
        };
        self.thread = thread;
        self.add_root(thread);
        // Its paths belong to this vCPU, whichever ran it last.
        let Parked(frames) = parked.remove(&(next.address, next.pid)).unwrap_or_default();
        for frame in frames {
            self.enter(frame.from, frame.to, frame.kind, frame.back, false);
        }
        self.previous_path = self.path;
    }

    fn add_root(&mut self, thread: u32) {
        // Threads are numbered in order, and each gets its root at once.
        if self.roots.len() == thread as usize {
            let root =
                CallPath { parent: None, thread, from: 0, to: 0, kind: Entered::Call, calls: 0 };
            self.roots.push(self.paths.len() as u32);
            self.paths.push(root);
        }
        self.root = self.roots[thread as usize];
        self.path = self.root;
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Interrupt { from, to, resume } => {
                self.enter(from, to, Entered::Interrupt, Back::Either(resume), true);
            }
            Step::Branch { from, to, kind, on_trial: _ } => match kind {
                Kind::Cond | Kind::Jump => {}
                Kind::Interrupt | Kind::Int => {
                    self.enter(from, to, Entered::Interrupt, Back::To(from), true);
                }
                Kind::Call => self.call(from, to, self.after()),
                Kind::IndCall => {
                    let after = self.after();
                    if !self.interrupted_at_once(to, Back::Called { from, after }) {
                        self.call(from, to, after);
                    }
                }
                Kind::Syscall => {
                    self.leave_all();
                    self.enter(from, to, Entered::Syscall, Back::Anywhere, true);
                }
                Kind::Sysret => {
                    self.leave_all();
                    self.interrupted_at_once(to, Back::Anywhere);
                }
                Kind::Ret | Kind::IndJump if is_user(to) => {}
                Kind::Ret => self.returned(to),
                Kind::IndJump => {
                    if !self.is_entry(from) {
                        self.interrupted_at_once(to, Back::Anywhere);
                    }
                }
                Kind::Iret => self.returned_from_interrupt(to),
            },
        }
    }

    /// An indirect transfer to the entry of interrupts is an interrupt right after one, see `flow`.
    /// Returns true if it was.
    fn interrupted_at_once(&mut self, to: u64, back: Back) -> bool {
        let interrupted = self.is_entry(to);
        if interrupted {
            self.enter(0, to, Entered::Interrupt, back, true);
        }
        interrupted
    }

    fn call(&mut self, from: u64, to: u64, after: u64) {
        self.enter(from, to, Entered::Call, Back::To(after), true);
    }

    /// The address after the ending block: the return address of its call.
    fn after(&self) -> u64 {
        self.previous.map_or(0, |block| block.end())
    }

    fn is_entry(&self, address: u64) -> bool {
        (self.setup.entry_start..self.setup.entry_end).contains(&address)
    }

    fn enter(&mut self, from: u64, to: u64, kind: Entered, back: Back, called: bool) {
        // Functions in user space are not told apart.
        if is_user(to) {
            return;
        }
        let from = if is_user(from) { 0 } else { from };
        if self.stack.len() >= DEEPEST {
            self.cut += 1;
            return;
        }
        let key = (self.path, from, to);
        let path = match self.children.get(&key) {
            Some(&path) => path,
            None if self.paths.len() >= MOST_PATHS => {
                self.cut += 1;
                self.path
            }
            None => {
                let path = self.paths.len() as u32;
                let (parent, thread) = (Some(self.path), self.thread);
                self.paths.push(CallPath { parent, thread, from, to, kind, calls: 0 });
                self.children.insert(key, path);
                path
            }
        };
        self.paths[path as usize].calls += u64::from(called);
        self.stack.push(Frame { path, from, to, kind, back });
        self.path = path;
    }

    fn leave_all(&mut self) {
        self.stack.clear();
        self.path = self.root;
    }

    /// Ends the calls from the `depth`th on.
    fn leave(&mut self, depth: usize) {
        self.stack.truncate(depth);
        self.path = self.stack.last().map_or(self.root, |frame| frame.path);
    }

    /// Finds the call that returns to `to`. The search stops at an interrupt: nothing returns past
    /// one.
    fn caller(&self, to: u64) -> Option<usize> {
        for (depth, frame) in self.stack.iter().enumerate().rev() {
            if frame.kind != Entered::Call {
                return None;
            }
            if frame.back.leads_to(to) {
                return Some(depth);
            }
        }
        None
    }

    fn returned(&mut self, to: u64) {
        match self.caller(to) {
            Some(depth) => self.leave(depth),
            None => {
                self.interrupted_at_once(to, Back::Returned);
            }
        }
    }

    fn returned_from_interrupt(&mut self, to: u64) {
        if is_user(to) {
            return self.leave_all();
        }
        // `sync_core()` returns to the address after itself, which ends nothing.
        let innermost = self.stack.iter().rposition(|frame| frame.kind == Entered::Interrupt);
        if to == self.after() && !innermost.is_some_and(|depth| self.stack[depth].back.leads_to(to))
        {
            return;
        }
        let Some(depth) = innermost else {
            // Such an end of a system call leads to user space, where a pending interrupt came.
            if self.is_entry(to)
                && self.stack.last().is_some_and(|frame| frame.kind == Entered::Syscall)
            {
                self.leave_all();
            }
            // A call from before the first block may return like this as well.
            return self.returned(to);
        };
        let back = self.stack[depth].back;
        self.leave(depth);
        match back {
            _ if back.leads_to(to) => {}
            // A pending interrupt came before any instruction completed.
            _ if self.interrupted_at_once(to, back) => {}
            Back::Returned => self.returned(to),
            Back::Called { from, after } => self.call(from, to, after),
            // A handler may continue elsewhere: after a probed instruction, at the fixup of an
            // access, or in the caller of a function whose return was replaced by a breakpoint, as
            // in arm64's kretprobes.
            Back::To(_) | Back::Either(_) | Back::Anywhere => {
                if let Some(depth) = self.caller(to) {
                    self.leave(depth);
                }
            }
        }
    }

    /// Counts instructions of a block on the path in which it started.
    fn count(&mut self, block: &Block, instructions: u32) {
        let path = self.previous_path;
        let pointer = std::ptr::from_ref(block);
        let hash = (block.start >> 1) ^ (u64::from(path).wrapping_mul(0x9e37_79b9));
        let at = hash as usize & (CACHED - 1);
        let cached = self.cache[at];
        let slot = if cached.path == path && std::ptr::eq(cached.block, pointer) {
            cached.slot
        } else {
            let (path, start) = match is_user(block.start) {
                true => (self.root_of(path), 0),
                false => (path, block.start),
            };
            let next = self.blocks.len() as u32;
            let most = if self.model.is_some() { MOST_WITH_EVENTS } else { MOST_BLOCKS };
            if self.blocks.len() >= most && !self.slots.contains_key(&(path, start)) {
                self.cut += 1;
                return;
            }
            let slot = *self.slots.entry((path, start)).or_insert(next);
            if slot == next {
                self.blocks.push(BlockCount { path, start, times: 0, instructions: 0 });
                if self.model.is_some() {
                    self.events.push([0; Event::ALL.len()]);
                }
            }
            self.cache[at] = Cached { path: self.previous_path, block: pointer, slot };
            slot
        };
        let count = &mut self.blocks[slot as usize];
        count.times += u64::from(instructions > 0);
        count.instructions += u64::from(instructions);
        if let Some(model) = &mut self.model {
            block.costly(instructions).for_each(|event| model.add(event));
            let happened = model.take();
            for (sum, count) in self.events[slot as usize].iter_mut().zip(happened) {
                *sum += count;
            }
        }
    }

    fn root_of(&self, mut path: u32) -> u32 {
        while let Some(parent) = self.paths[path as usize].parent {
            path = parent;
        }
        path
    }

    /// Returns the counts. `begun` is the last instruction that began.
    pub fn finish(&mut self, index: u32, begun: u64) -> VcpuCounts {
        if let Some(block) = self.previous {
            let counted = block.counted(flow::Left::After(block.begun(begun)));
            self.count(block, counted);
        }
        VcpuCounts {
            index,
            threads: std::mem::take(&mut self.threads),
            paths: std::mem::take(&mut self.paths),
            blocks: std::mem::take(&mut self.blocks),
            events: std::mem::take(&mut self.events).iter().map(estimate::happened).collect(),
            cut: self.cut,
        }
    }

    /// The modelled CPU for the next time, with what its caches and predictors hold.
    pub fn into_model(self) -> Option<Box<Model>> {
        self.model
    }

    /// The modelled CPU, for an access to data.
    pub fn model(&mut self) -> Option<&mut Model> {
        self.model.as_deref_mut()
    }
}

fn is_user(address: u64) -> bool {
    address >> 63 == 0
}

#[cfg(test)]
mod tests;
