// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions that the user names: how they are hit, and the reasons for which they are not.

use super::{LIMIT, recorded, trigger};
use crate::machine::spec;
use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
};
use tempfile::TempDir;
use tramplab_analysis::branch::{self, CaptureError, Symbols, TriggerError};
use tramplab_model::{
    function::FunctionName,
    run::{Arch, LbrWaste, TriggerCost},
};
use tramplab_protocol::{
    BesideSet,
    Mechanism::{self, Fentry, Fexit, Kprobe, KprobeMulti, KretprobeMulti},
    message::{
        Command, GuestError, LbrWasteReply, LbrWasteRequest, Response, Symbol, TriggerReply,
        TriggerRequest, Triggered,
    },
    trace::{Kind, Trace},
};
use tramplab_vm::{Spec, Vm};

const TRIGGERS: u32 = 8;
/// Interrupts may fall into both hits of a command, as they may in a cell, which repeats it too.
const ATTEMPTS: u32 = 3;

pub struct Guest {
    arch: Arch,
    pub vm: Vm,
    dir: TempDir,
    traces: u64,
    /// The command that hits the functions.
    pub command: Option<String>,
}

/// Hits of a function, not looked at yet.
struct Recorded {
    reply: LbrWasteReply,
    trace: Trace,
    symbols: Symbols,
}

impl Recorded {
    /// How often each function of the kernel image was called.
    fn calls(&self) -> BTreeMap<String, u32> {
        let mut calls = BTreeMap::new();
        for record in self.trace.vcpus.iter().flat_map(|vcpu| &vcpu.records) {
            let is_call = matches!(record.kind, Kind::Call | Kind::IndCall);
            let called = self.symbols.find(record.to).filter(|symbol| symbol.start == record.to);
            if let Some(called) = called.filter(|symbol| is_call && symbol.module.is_none()) {
                *calls.entry(called.name.clone()).or_default() += 1;
            }
        }
        calls
    }
}

impl Guest {
    fn boot(arch: Arch) -> Guest {
        Guest::boot_with(arch, |_| ())
    }

    /// Boots the machine that `change` makes of the usual one.
    pub fn boot_with(arch: Arch, change: impl FnOnce(&mut Spec)) -> Guest {
        let dir = tempfile::tempdir().unwrap();
        let mut spec = spec(arch, dir.path());
        change(&mut spec);
        let vm = Vm::boot(&spec).unwrap();
        Guest { arch, vm, dir, traces: 0, command: None }
    }

    fn recorded(&mut self) -> (Trace, Symbols) {
        let (trace, symbols) = recorded(&mut self.vm, self.dir.path(), self.traces);
        self.traces += 1;
        (trace, symbols.into_iter().collect())
    }

    fn hit(&mut self, mechanism: Mechanism, function: &str) -> Result<Recorded, GuestError> {
        let request = LbrWasteRequest {
            mechanism,
            program: None,
            function: Some(function.to_owned()),
            command: self.command.clone(),
            hits: TRIGGERS,
            warmup: 3,
            deliver: None,
            events: Vec::new(),
        };
        let Response::LbrWaste(reply) =
            self.vm.request(Command::LbrWaste(request), LIMIT).unwrap()?
        else {
            panic!()
        };
        assert!(is_named(&reply.function, function), "{function}: {:?}", reply.function);
        let each = reply.trigger.as_ref().unwrap().hits;
        let runs = match &self.command {
            Some(_) => Triggered::runs(each, TRIGGERS),
            None => TRIGGERS,
        };
        assert_eq!(reply.hits, runs * each, "{function}");
        let (trace, symbols) = self.recorded();
        Ok(Recorded { reply: *reply, trace, symbols })
    }

    /// Measures again if interrupts fell into all hits.
    fn counted<T>(
        &mut self,
        once: impl Fn(&mut Guest) -> T,
        is_interrupted: impl Fn(&T) -> bool,
    ) -> T {
        let mut counted = once(self);
        for _ in 1..ATTEMPTS {
            if is_interrupted(&counted) {
                counted = once(self);
            }
        }
        counted
    }

    pub fn waste(&mut self, mechanism: Mechanism, function: &str) -> Result<LbrWaste, GuestError> {
        let once = |guest: &mut Guest| {
            let Recorded { reply, trace, symbols } = guest.hit(mechanism, function)?;
            Ok(branch::lbr_waste(guest.arch, &trace, &symbols, &reply))
        };
        let is_interrupted =
            |counted: &_| matches!(counted, Ok(Err(CaptureError::Interrupted { .. })));
        self.counted(once, is_interrupted)?.map_err(|error| {
            assert!(error.is_of_function(), "{mechanism} on {function}: {error}");
            GuestError::Unsupported(error.to_string())
        })
    }

    pub fn cost(
        &mut self,
        mechanism: Mechanism,
        function: &str,
    ) -> Result<TriggerCost, GuestError> {
        let once = |guest: &mut Guest| {
            let reply = guest.triggered(mechanism, function, BesideSet::default()).unwrap();
            assert!(is_named(&reply.function, function), "{function}: {:?}", reply.function);
            let (trace, symbols) = guest.recorded();
            branch::trigger_cost(&trace, &symbols, &reply, None)
        };
        let is_interrupted = |counted: &_| matches!(counted, Err(TriggerError::Interrupted { .. }));
        self.counted(once, is_interrupted).map_err(|error| {
            assert!(error.is_of_function(), "{mechanism} on {function}: {error}");
            GuestError::Unsupported(error.to_string())
        })
    }

    fn triggered(
        &mut self,
        mechanism: Mechanism,
        function: &str,
        beside: BesideSet,
    ) -> Result<TriggerReply, GuestError> {
        let request = TriggerRequest {
            command: self.command.clone(),
            beside,
            hits: TRIGGERS,
            timed: 1,
            rounds: 0,
            ..trigger::request(mechanism, Some(function))
        };
        trigger::ask(&mut self.vm, request)
    }
}

fn is_named(symbol: &Symbol, function: &str) -> bool {
    function.parse::<FunctionName>().unwrap().is(symbol)
}

/// The counts of `any`, by every model at every point.
pub fn any(waste: &LbrWaste) -> Vec<Option<u32>> {
    let of_models = waste.points.iter().flat_map(|point| point.wasted.values());
    of_models.map(|filters| filters[branch::Branch::Any.name()].wasted).collect()
}

/// The entries of bpf(2) and sched_yield(2), and a function that no tracer may attach to.
fn own(arch: Arch) -> [&'static str; 3] {
    match arch {
        Arch::X86_64 => ["__x64_sys_bpf", "__x64_sys_sched_yield", "do_syscall_64"],
        Arch::Arm64 => ["__arm64_sys_bpf", "__arm64_sys_sched_yield", "el0t_64_sync_handler"],
    }
}

on_each_arch!(hits_functions_that_the_user_names, ignored on arm64);

fn hits_functions_that_the_user_names(arch: Arch) {
    let mut guest = Guest::boot(arch);
    let [entry, settling, refused] = own(arch);
    let of_the_kernels_bench = entry.replace("bpf", "getpgid");
    for (mechanism, function, workload) in [
        // The harness' own calls of bpf(2) must not count as hits.
        (Fexit, "__sys_bpf", "bpf(2)"),
        (KretprobeMulti, "__sys_bpf", "bpf(2)"),
        (Fexit, entry, "bpf(2)"),
        (KprobeMulti, "vfs_read", "read of /dev/zero"),
        // Several hits of each trigger.
        (Kprobe, "release_sock", "a TCP socket"),
        // Also once when the recorder is armed. On x86-64 an alias, which BTF does not have.
        (Kprobe, settling, "sched_yield(2)"),
        (Kprobe, &of_the_kernels_bench, "getpgid(2)"),
        // Only larger work hits these.
        (Fentry, "tcp_connect", "a TCP connection over loopback"),
        (KprobeMulti, "tcp_write_xmit", "a byte over a TCP connection"),
        (Fentry, "vfs_rename", "a file that is made, written, read, renamed and removed"),
        (Fentry, "begin_new_exec", "a program that starts and ends"),
        (Kprobe, "do_exit", "a program that starts and ends"),
    ] {
        let what = format!("{mechanism} on {function}");
        let waste =
            guest.waste(mechanism, function).unwrap_or_else(|error| panic!("{what}: {error}"));
        let Some(Triggered { workload: found, hits }) = &waste.trigger else { panic!("{what}") };
        assert_eq!((found.as_str(), *hits > 1), (workload, function == "release_sock"), "{what}");
        assert!(any(&waste).iter().all(Option::is_some), "{what}");
    }
    let started = (Fentry, "begin_new_exec");
    for (mechanism, function) in [(Fexit, entry), (KretprobeMulti, "__sys_bpf"), started] {
        let cost = guest.cost(mechanism, function).unwrap();
        assert!(cost.instructions() > 0 && cost.agreeing_hits > 0, "{cost:?}");
    }
    for (mechanism, function, words) in [
        (Fentry, "do_sys_settimeofday64", "nothing hits do_sys_settimeofday64"),
        (Fentry, refused, "it refuses fentry on"),
        (Kprobe, refused, "it refuses kprobe on"),
        (KprobeMulti, refused, "it refuses kprobe.multi on"),
        (Fentry, "no_such_function", "the kernel has no function no_such_function"),
        (Fentry, "s_next", "functions have the name s_next"),
        (Kprobe, "start_kernel", "start_kernel is __init"),
        (Mechanism::TpBtf, "__sys_bpf", "attaches to tracepoints"),
    ] {
        match guest.waste(mechanism, function) {
            Err(GuestError::Unsupported(reason)) => assert!(reason.contains(words), "{reason}"),
            Err(error) => panic!("{mechanism} on {function}: {error}"),
            Ok(_) => panic!("{mechanism} on {function} was measured"),
        }
    }
    if arch == Arch::X86_64 {
        // kallsyms has this alias, ftrace's filter has not.
        match guest.triggered(Kprobe, settling, trigger::set(&["function_tracer"])) {
            Err(GuestError::Unsupported(reason)) => {
                let words = format!("ftrace's filter takes no function {settling}");
                assert!(reason.contains(&words), "{reason}");
            }
            other => panic!("{other:?}"),
        }
    }
    guest.vm.power_off(LIMIT).unwrap();
}

on_each_arch!(drawn_functions_repeat_across_boots, ignore = "full: two boots for ten functions");

const SEED: u64 = 24;
const DRAWN: usize = 10;

/// Draws from all functions that three of the workloads call equally often each time, and that a
/// task which only sleeps does not call: the scheduler and timers run when they like.
fn drawn_functions_repeat_across_boots(arch: Arch) {
    let mut guest = Guest::boot(arch);
    let mut steady = BTreeSet::new();
    for function in ["__sys_bpf", "vfs_read", "tcp_sendmsg"] {
        let [first, second] = [(); 2].map(|()| guest.hit(Fexit, function).unwrap().calls());
        let same = first.into_iter().filter(|(name, calls)| second.get(name) == Some(calls));
        steady.extend(same.filter(|(_, calls)| calls % TRIGGERS == 0).map(|(name, _)| name));
    }
    let asleep = guest.hit(Fexit, "do_nanosleep").unwrap().calls();
    let mut steady: Vec<String> = steady
        .into_iter()
        .filter(|name| name.parse::<FunctionName>().is_ok() && !asleep.contains_key(name))
        .collect();
    steady.sort_by_key(|name| {
        let mut hasher = DefaultHasher::new();
        (SEED, name).hash(&mut hasher);
        hasher.finish()
    });
    // By `any` at the entry: what functions do themselves may differ (`sock_close` frees memory by
    // one way or another), and other filters may find a call before the hit.
    let measure = |guest: &mut Guest, function: &str| {
        let waste = guest.waste(Fentry, function)?;
        Ok((any(&waste), trigger::of_any_boot(arch, &guest.cost(KprobeMulti, function)?)))
    };
    let mut drawn = Vec::new();
    for function in steady {
        match measure(&mut guest, &function) {
            Ok(numbers) => drawn.push((function, numbers)),
            // The kernel refuses to attach to it, or its hits cannot be told apart.
            Err(GuestError::Unsupported(_)) => {}
            Err(error) => panic!("{function}: {error}"),
        }
        if drawn.len() == DRAWN {
            break;
        }
    }
    assert_eq!(drawn.len(), DRAWN, "too few functions can be measured: {drawn:?}");
    guest.vm.power_off(LIMIT).unwrap();
    let mut another = Guest::boot(arch);
    for (function, numbers) in drawn {
        assert_eq!(measure(&mut another, &function), Ok(numbers), "{function}");
    }
    another.vm.power_off(LIMIT).unwrap();
}
