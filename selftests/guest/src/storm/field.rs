// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions that a storm attaches to, and the ways to attach to them and to hit them.

use super::{counters, counters::Counters, iterator::Iterator, module::Module};
use crate::bpf::{self, BpfError, Link};
use crate::functions;
use crate::hooks;
use crate::known::Known;
use crate::method::Method;
use crate::target::{List, Target};
use crate::trigger::{self, Traced};
use crate::workload;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;
use tramplab_protocol::mechanism::{Site, Way};
use tramplab_protocol::message::GuestError;
use tramplab_protocol::storm::Storm;
use tramplab_protocol::{Mechanism, Point};

/// Functions that one run of a tracing program calls once each (net/bpf/test_run.c). Nothing else
/// calls them.
const TEST_FUNCTIONS: [&str; 10] = [
    "bpf_fentry_test1",
    "bpf_fentry_test2",
    "bpf_fentry_test3",
    "bpf_fentry_test4",
    "bpf_fentry_test5",
    "bpf_fentry_test6",
    "bpf_fentry_test7",
    "bpf_fentry_test8",
    "bpf_fentry_test9",
    "bpf_fentry_test10",
];
/// Functions that every process passes all the time.
const BUSY: [&str; 12] = [
    "vfs_read",
    "vfs_write",
    "do_nanosleep",
    "hrtimer_nanosleep",
    "security_file_permission",
    "security_task_prctl",
    "alloc_empty_file",
    "create_pipe_files",
    "unix_stream_sendmsg",
    "schedule",
    "try_to_wake_up",
    "exit_signals",
];
/// One mechanism of each site but functions.
const OWN: [Mechanism; 7] = [
    Mechanism::FmodRet,
    Mechanism::TpBtf,
    Mechanism::Tp,
    Mechanism::TpBtfSleepable,
    Mechanism::TpSleepable,
    Mechanism::Ksyscall,
    Mechanism::Lsm,
];
/// All functions of a storm, at most; and those of its module.
const FUNCTIONS: usize = 64;
const OF_MODULE: usize = 3;
/// How long a process lives that is killed.
const LIFE: Duration = Duration::from_micros(500);

struct Place {
    target: Target,
    /// Nothing but [`Field::hit_known`] hits it, once.
    is_known: bool,
    of_module: bool,
}

/// A link of a thread.
pub struct Live {
    pub link: Link,
    pub mechanism: Mechanism,
    pub functions: Vec<String>,
    /// Runs for one hit of everything.
    pub runs: u64,
    pub at_least: bool,
}

pub struct Field {
    places: Vec<Place>,
    methods: BTreeMap<Mechanism, Result<Method, String>>,
    /// The places of mechanisms that attach to few functions, and the tracepoint.
    own: BTreeMap<Site, Place>,
    runners: Vec<OwnedFd>,
    pub counters: Counters,
    iterator: Option<Iterator>,
    module: Option<Module>,
}

impl Field {
    pub fn prepare(
        storm: &Storm,
        module: Option<&str>,
        known: &Known,
    ) -> Result<Field, GuestError> {
        let module = module.map(|name| {
            known.modules.require(name)?;
            Module::find(name)
        });
        let module = module.transpose()?;
        let mut methods = BTreeMap::new();
        for mechanism in storm.mechanisms() {
            methods.insert(mechanism, usable(mechanism, known)?);
        }
        if methods.values().all(Result::is_err) && !methods.is_empty() {
            return Err(GuestError::Unsupported(
                "it has none of the storm's mechanisms".to_owned(),
            ));
        }
        let mut field = Field {
            places: places(storm.seed, module.as_ref(), known)?,
            methods,
            own: BTreeMap::new(),
            runners: trigger::runner(known).into_iter().collect(),
            counters: Counters::new()?,
            iterator: Iterator::find(known.btf()?),
            module,
        };
        for mechanism in OWN {
            let Ok(Traced { target, trigger }) = Traced::of(mechanism, known) else { continue };
            let is_known = match trigger {
                trigger::Trigger::TestRun(runner) => {
                    field.runners.push(runner);
                    true
                }
                _ => false,
            };
            field.own.insert(mechanism.site(), Place { target, is_known, of_module: false });
        }
        Ok(field)
    }

    /// Why the kernel does not have a mechanism of the storm.
    pub fn lacking(&self, mechanism: Mechanism) -> Option<String> {
        self.methods.get(&mechanism)?.as_ref().err().cloned()
    }

    /// Attaches a counting program. None if the kernel does not have the mechanism.
    pub fn attach(
        &self,
        mechanism: Mechanism,
        first: u32,
        functions: u32,
        counter: u32,
    ) -> Option<Result<Live, BpfError>> {
        let method = *self.methods.get(&mechanism)?.as_ref().ok()?;
        let chosen = self.choose(method, first, functions)?;
        let known = chosen.iter().filter(|place| place.is_known).count() as u64;
        // They are hit by `hit_known`, and by others.
        let is_passed =
            mechanism.is_tracepoint() || matches!(mechanism.site(), Site::Hook | Site::Syscall);
        let passed = u64::from(is_passed);
        let at_least = chosen.iter().any(|place| !place.is_known);
        let counted = if at_least && may_miss(mechanism) { 0 } else { known + passed };
        let attached = self.link(method, &chosen, counter).map(|link| Live {
            link,
            mechanism,
            functions: chosen.iter().map(|place| place.target.name.clone()).collect(),
            runs: counted * mechanism.points().len() as u64,
            at_least,
        });
        Some(attached)
    }

    fn choose(&self, method: Method, first: u32, functions: u32) -> Option<Vec<&Place>> {
        let mechanism = method.mechanism;
        if mechanism.site() != Site::Function {
            return self.own.get(&mechanism.site()).map(|place| vec![place]);
        }
        if mechanism.sleeps() {
            // Few functions may sleep. The first one is a test function that does.
            return self.places.first().map(|place| vec![place]);
        }
        let count = self.places.len();
        let at = |step: usize| &self.places[(first as usize + step) % count];
        let mut chosen: Vec<&Place> = (0..count.min(functions as usize)).map(at).collect();
        // The ids in a list are of one BTF.
        if method.attaches_by_btf() {
            let of_module = chosen.first()?.of_module;
            chosen.retain(|place| place.of_module == of_module);
        }
        Some(chosen)
    }

    fn link(&self, method: Method, chosen: &[&Place], counter: u32) -> Result<Link, BpfError> {
        let of_module = chosen.iter().any(|place| place.of_module);
        // A module has another BTF object each time that it is loaded.
        let object = match &self.module {
            Some(module) if of_module && method.attaches_by_btf() => {
                Some(bpf::btf_object(&module.name)?)
            }
            _ => None,
        };
        let target = |place: &&Place| {
            let mut target = place.target.clone();
            if let (Some(object), true) = (&object, place.of_module) {
                target.btf = object.as_raw_fd();
            }
            target
        };
        let targets: Vec<Target> = chosen.iter().map(target).collect();
        let instructions = self.counters.program(counter);
        let program = method.load(&targets[0], counters::program(&instructions))?;
        if of_module && Method::attaches_by_address(method.mechanism) {
            // Its functions have other addresses each time.
            return method.link_names(program.as_fd(), &targets);
        }
        match method.mechanism.is_multi() {
            true => method.link_list(program.as_fd(), &List::of(&targets)),
            false => method.link(program.as_fd(), &targets[0]),
        }
    }

    /// Hits the functions whose hits are known, once each.
    pub fn hit_known(&self) -> Result<(), GuestError> {
        workload::rename();
        workload::getpgid();
        Ok(self.runners.iter().try_for_each(|runner| bpf::test_run(runner.as_fd()))?)
    }

    /// Hits all functions.
    pub fn hit_all(&self) {
        // Ignore errors: programs come and go during a storm.
        let _ = self.hit_known();
        workload::call_all();
        if let Some(module) = &self.module {
            workload::open_fs(module.c_name());
        }
    }

    /// Has the kernel replace programs. Returns how many it did.
    pub fn update(&self, link: Option<&Link>) -> u64 {
        let Some(iterator) = self.iterator else { return 0 };
        let of_link = link.is_some_and(|link| iterator.update_other(link).is_ok());
        u64::from(of_link) + u64::from(iterator.update().is_ok())
    }

    /// Hands a link to a process that hits functions, and kills the process.
    pub fn kill(&self, live: Option<Live>) -> bool {
        // SAFETY: the child makes only system calls, and allocates nothing.
        match unsafe { fork() } {
            Ok(ForkResult::Child) => loop {
                for runner in &self.runners {
                    let _ = bpf::test_run(runner.as_fd());
                }
                workload::call_all();
            },
            Ok(ForkResult::Parent { child }) => {
                drop(live);
                std::thread::sleep(LIFE);
                let killed = kill(child, Signal::SIGKILL).is_ok();
                // The agent ignores the end of children, so an error says that the child has ended.
                killed && matches!(waitpid(child, None), Ok(_) | Err(Errno::ECHILD))
            }
            Err(_) => false,
        }
    }

    pub fn load_module(&self) -> bool {
        self.module.as_ref().is_some_and(|module| module.load() == Ok(true))
    }

    pub fn unload_module(&self) -> bool {
        self.module.as_ref().is_some_and(Module::unload)
    }

    /// Loads the module if the storm left it unloaded.
    pub fn restore_module(&self) -> Result<(), GuestError> {
        let Some(module) = &self.module else { return Ok(()) };
        module.load().map(drop).map_err(|errno| {
            GuestError::Failed(format!("it refuses to load {} again: {errno}", module.name))
        })
    }
}

/// Returns true for return probes whose link has few instances, one for each entered function
/// (`maxactive` in kernel/kprobes.c, `rethook_try_get` in 6.12's kernel/trace/fprobe.c). Tasks that
/// sleep in one function use them up, and hits of the others are missed.
fn may_miss(mechanism: Mechanism) -> bool {
    matches!(mechanism.way(), Way::Kprobe | Way::Fprobe)
        && mechanism.points().contains(&Point::Exit)
}

/// A mechanism that works, or the kernel's reason why it does not.
fn usable(mechanism: Mechanism, known: &Known) -> Result<Result<Method, String>, GuestError> {
    let tried = Method::new(mechanism, known.btf()?).and_then(|method| {
        let Traced { target, .. } = Traced::of(mechanism, known)?;
        hooks::check(mechanism, &target.name, known)?;
        method.probe(&target)?;
        Ok(method)
    });
    match tried {
        Ok(method) => Ok(Ok(method)),
        Err(GuestError::Unsupported(reason)) => Ok(Err(reason)),
        Err(error) => Err(error),
    }
}

/// The test functions, busy ones, those of the module, and some that nothing may hit.
fn places(seed: u32, module: Option<&Module>, known: &Known) -> Result<Vec<Place>, GuestError> {
    let mut plain = known.plain()?.to_vec();
    functions::order(&mut plain, u64::from(seed));
    let place = |target: Target, is_known| Place { target, is_known, of_module: false };
    let (busy, others): (Vec<Target>, Vec<Target>) =
        plain.into_iter().partition(|target| BUSY.contains(&&*target.name));
    let mut all: Vec<Place> = tests(known)?.into_iter().map(|target| place(target, true)).collect();
    if all.is_empty() {
        return Err(GuestError::Unsupported(format!("it has no function {}", TEST_FUNCTIONS[0])));
    }
    // Busy functions are between the test functions, so that one link has some of each. Those of
    // the module come later: a link to one keeps the module loaded.
    let busy = busy.into_iter().map(|target| place(target, false));
    for (step, place) in busy.chain(of_module(module, known)?).enumerate() {
        all.insert((2 * step + 1).min(all.len()), place);
    }
    let room = FUNCTIONS.saturating_sub(all.len());
    all.extend(others.into_iter().take(room).map(|target| place(target, false)));
    Ok(all)
}

fn tests(known: &Known) -> Result<Vec<Target>, GuestError> {
    let (symbols, btf) = (known.symbols()?.functions(&TEST_FUNCTIONS), known.btf()?);
    let target = |name: &&str| {
        let (symbol, btf_id) = (symbols.get(*name)?, btf.function(name)?);
        Some(Target { name: (*name).to_owned(), btf_id, btf: 0, address: symbol.start })
    };
    Ok(TEST_FUNCTIONS.iter().filter_map(target).collect())
}

fn of_module(module: Option<&Module>, known: &Known) -> Result<Vec<Place>, GuestError> {
    let Some(module) = module else { return Ok(Vec::new()) };
    let available = functions::available()?;
    let mut found = Vec::new();
    for line in available.lines() {
        let Some(name) = line.strip_suffix(&format!(" [{}]", module.name)) else { continue };
        if let Some((btf, btf_id)) = known.modules.one_of_many(&module.name, name)? {
            let name = format!("{}:{name}", module.name);
            let target = Target { name, btf_id, btf, address: 0 };
            found.push(Place { target, is_known: false, of_module: true });
        }
    }
    // The first ones are as good as any others.
    found.truncate(OF_MODULE);
    Ok(found)
}
