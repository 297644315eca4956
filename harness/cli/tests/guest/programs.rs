// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that the user brings, compiled here as users compile theirs.

use super::{
    LIMIT, commands, recorded,
    trigger::{ask, request},
};
use crate::{
    command::{said, stored, tramplab},
    machine::{from_env, spec},
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command as Process,
};
use tempfile::TempDir;
use tramplab_analysis::branch::{self, CaptureError, Share, Split};
use tramplab_host::runs::RunDir;
use tramplab_model::run::{Arch, ErrorKind, LbrWaste, Measurement, Outcome, Run, TriggerCost};
use tramplab_protocol::{
    BesideSet, Functions,
    Mechanism::{
        self, Fentry, Fexit, Kprobe, KprobeMulti, KprobeSession, Kretprobe, KretprobeMulti, Lsm,
        LsmSleepable, RawTp,
    },
    Point,
    message::{
        AttachReply, AttachRequest, By, Command, GuestError, LbrWasteRequest, MapAttribute,
        Missing, Remark, Response, TriggerReply, TriggerRequest,
    },
    program,
};
use tramplab_report::{View, terminal};
use tramplab_suite::program::{Program, Shipped};
use tramplab_vm::{Spec, Vm};

/// Mechanisms whose empty and capturing programs are compared with tramplab's own.
const OWN: [Mechanism; 7] =
    [Fentry, Fexit, Kprobe, Kretprobe, KprobeMulti, KretprobeMulti, KprobeSession];

/// The object files of this test.
pub struct Objects(TempDir);

impl Objects {
    pub fn compile() -> Objects {
        let objects = Objects(tempfile::tempdir().unwrap());
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guest/bpf");
        let capture = here.join("../../../../../selftests/bpf/capture.bpf.c");
        let own = ["freplace", "loaders", "missing", "programs", "tail_calls", "unmade", "vfsstat"]
            .map(|name| here.join(format!("{name}.bpf.c")));
        for source in own.into_iter().chain([capture]) {
            let status = Process::new(clang())
                .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Werror", "-I"])
                .arg(&here)
                .arg("-c")
                .arg(&source)
                .arg("-o")
                .arg(objects.0.path().join(source.file_name().unwrap()).with_extension("o"))
                .status();
            assert!(status.unwrap().success(), "{}", source.display());
        }
        objects
    }

    pub fn read(&self, given: &str) -> Program {
        Program::read(given, self.0.path(), &|_| None).unwrap_or_else(|e| panic!("{e}"))
    }
}

/// The compiler of the agent's programs (`selftests/guest/build.rs`).
fn clang() -> PathBuf {
    let answers = |name: &String| {
        Process::new(name).arg("--version").output().is_ok_and(|done| done.status.success())
    };
    let versions = (14..=30).rev().map(|version| format!("clang-{version}"));
    let names = std::env::var("CLANG").into_iter().chain(["clang".to_owned()]).chain(versions);
    names.into_iter().find(answers).expect("clang, which the agent's build needs as well").into()
}

pub struct Guest {
    arch: Arch,
    pub vm: Vm,
    dir: TempDir,
    traces: u64,
}

impl Guest {
    pub fn boot(arch: Arch) -> Guest {
        Guest::boot_with(arch, |_| ())
    }

    fn boot_with(arch: Arch, change: impl FnOnce(&mut Spec)) -> Guest {
        let dir = tempfile::tempdir().unwrap();
        let mut spec = spec(arch, dir.path());
        change(&mut spec);
        let vm = Vm::boot(&spec).unwrap();
        Guest { arch, vm, dir, traces: 0 }
    }

    /// The last measurement's trace.
    fn recorded(&mut self) -> (tramplab_protocol::trace::Trace, branch::Symbols) {
        let (trace, symbols) = recorded(&mut self.vm, self.dir.path(), self.traces - 1);
        (trace, symbols.into_iter().collect())
    }

    fn hit(
        &mut self,
        mechanism: Mechanism,
        program: Option<&Program>,
    ) -> Result<TriggerReply, GuestError> {
        self.hit_after(3, mechanism, program)
    }

    fn hit_after(
        &mut self,
        warmup: u32,
        mechanism: Mechanism,
        program: Option<&Program>,
    ) -> Result<TriggerReply, GuestError> {
        let function = program.and_then(|program| program.function).map(String::from);
        self.hit_sent(warmup, mechanism, program.map(|program| program.sent.clone()), function)
    }

    fn hit_sent(
        &mut self,
        warmup: u32,
        mechanism: Mechanism,
        program: Option<program::Program>,
        function: Option<String>,
    ) -> Result<TriggerReply, GuestError> {
        let request = request(mechanism, function.as_deref());
        let request = TriggerRequest { program, warmup, timed: 1, rounds: 0, ..request };
        let reply = ask(&mut self.vm, request)?;
        self.traces += 1;
        Ok(reply)
    }

    /// Hits a program by a command.
    fn hit_by(
        &mut self,
        mechanism: Mechanism,
        program: &Program,
        command: &str,
    ) -> Result<TriggerReply, GuestError> {
        let request = TriggerRequest {
            program: Some(program.sent.clone()),
            function: program.function.map(String::from),
            command: Some(command.to_owned()),
            hits: 2,
            warmup: 1,
            timed: 1,
            rounds: 0,
            ..request(mechanism, None)
        };
        let reply = ask(&mut self.vm, request)?;
        self.traces += 1;
        Ok(reply)
    }

    pub fn cost(
        &mut self,
        mechanism: Mechanism,
        program: Option<&Program>,
    ) -> Result<TriggerCost, GuestError> {
        self.cost_after(3, mechanism, program)
    }

    fn cost_after(
        &mut self,
        warmup: u32,
        mechanism: Mechanism,
        program: Option<&Program>,
    ) -> Result<TriggerCost, GuestError> {
        let reply = self.hit_after(warmup, mechanism, program)?;
        let (trace, symbols) = self.recorded();
        let cost = branch::trigger_cost(&trace, &symbols, &reply, None);
        Ok(cost.unwrap_or_else(|error| panic!("{mechanism} {program:?}: {error}")))
    }

    /// The parts of a hit, which add up to it.
    fn split(&mut self, mechanism: Mechanism, program: Option<&Program>) -> Split {
        let reply = self.hit(mechanism, program).unwrap_or_else(|error| panic!("{error}"));
        let (trace, symbols) = self.recorded();
        let cost = branch::trigger_cost(&trace, &symbols, &reply, None).unwrap();
        let split = branch::split(&cost, &reply.program);
        assert_eq!(sum(split), (cost.instructions(), cost.branches()), "{mechanism} {split:?}");
        split
    }

    pub fn counts(&mut self, mechanism: Mechanism, program: Option<&Program>) -> (u32, u32) {
        let cost = self.cost(mechanism, program).unwrap_or_else(|error| panic!("{error}"));
        (cost.instructions(), cost.branches())
    }

    pub fn waste(
        &mut self,
        mechanism: Mechanism,
        program: Option<program::Program>,
    ) -> Result<LbrWaste, CaptureError> {
        let request = Command::LbrWaste(LbrWasteRequest {
            mechanism,
            program,
            function: None,
            command: None,
            hits: 8,
            warmup: 3,
            deliver: None,
            events: Vec::new(),
        });
        let Response::LbrWaste(reply) = self.vm.request(request, LIMIT).unwrap().unwrap() else {
            panic!()
        };
        self.traces += 1;
        let (trace, symbols) = self.recorded();
        branch::lbr_waste(self.arch, &trace, &symbols, &reply)
    }

    pub fn attach(&mut self, program: &Program, functions: u32) -> Result<AttachReply, GuestError> {
        let request = Command::Attach(AttachRequest {
            mechanism: program.mechanism(),
            program: Some(program.sent.clone()),
            functions: Functions::Count(functions.try_into().unwrap()),
            among: Vec::new(),
            binary: None,
            beside: BesideSet::default(),
            rounds: 1,
            seed: 1,
            seconds: None,
        });
        match self.vm.request(request, LIMIT).unwrap()? {
            Response::Attach(reply) => Ok(reply),
            other => panic!("{other:?}"),
        }
    }
}

/// Instructions and branches.
fn sum(Split { mechanism, program, helpers }: Split) -> (u32, u32) {
    let all = [mechanism, program, helpers];
    let of = |count: fn(&Share) -> u32| all.iter().map(count).sum();
    (of(|share| share.instructions), of(|share| share.branches))
}

/// The name of a program in the objects, for a mechanism.
fn named(what: &str, mechanism: Mechanism) -> String {
    format!("{what}_{}", mechanism.name().replace('.', "_"))
}

on_each_arch!(
    measures_programs_of_users,
    ignore = "full: two minutes; a program of a user runs in every change"
);

fn measures_programs_of_users(arch: Arch) {
    let objects = Objects::compile();
    let mut guest = Guest::boot(arch);
    // The mechanisms that this architecture's kernel has (arm64 has fprobes from 7.x on).
    let own = OWN.into_iter().filter(|&mechanism| guest.cost(mechanism, None).is_ok());
    let own: Vec<Mechanism> = own.collect();
    assert!(own.len() >= 4, "{own:?}");
    costs_of_hits(&mut guest, &objects, &own);
    waste(&mut guest, &objects, &own);
    attached(&mut guest, &objects);
    refused(&mut guest, &objects);
    guest.vm.power_off(LIMIT).unwrap();
}

on_each_arch!(
    measures_hooks_tracepoints_and_buffers,
    ignore = "full: a minute; a program of a user runs in every change"
);

fn measures_hooks_tracepoints_and_buffers(arch: Arch) {
    let objects = Objects::compile();
    let mut guest = Guest::boot_with(arch, |spec| commands::add_shell(arch, spec));
    of_other_loaders(&mut guest, &objects);
    with_buffers(&mut guest, &objects);
    of_hooks(&mut guest, &objects);
    missed_hits(&mut guest, &objects);
    guest.vm.power_off(LIMIT).unwrap();
}

on_each_arch!(shipped_programs_repeat_and_cost_more_than_the_empty_one);

fn shipped_programs_repeat_and_cost_more_than_the_empty_one(arch: Arch) {
    let mut guest = Guest::boot(arch);
    for mechanism in [Fentry, Kprobe] {
        let mut hit = |shipped: Shipped| {
            let reply = guest.hit_sent(3, mechanism, shipped.sent(), None).unwrap();
            assert_eq!(reply.remarks, [], "{shipped:?}");
            let (trace, symbols) = guest.recorded();
            let cost = branch::trigger_cost(&trace, &symbols, &reply, None).unwrap();
            assert!(cost.agreeing_hits > 0, "{shipped:?}: {cost:?}");
            cost.instructions()
        };
        let costs = Shipped::ALL.map(&mut hit);
        assert!(costs[1..].iter().all(|&cost| cost > costs[0]), "{mechanism}: {costs:?}");
        let [_, arr_inc, hash_inc, _, get_stackid, ringbuf, get_func_ip] = costs;
        assert!(arr_inc < hash_inc && get_func_ip < ringbuf && ringbuf < get_stackid, "{costs:?}");
        if arch == Arch::X86_64 {
            let again = Shipped::ALL.map(&mut hit);
            for ((shipped, cost), again) in Shipped::ALL.into_iter().zip(costs).zip(again) {
                // Where a stack's addresses lie decides how the kernel searches for their frames.
                let most = if shipped == Shipped::GetStackid { cost / 100 } else { 0 };
                assert!(cost.abs_diff(again) <= most, "{mechanism} {shipped:?}: {cost}, {again}");
            }
        }
    }
    // A raw tracepoint traces no function.
    match guest.hit_sent(3, RawTp, Shipped::GetFuncIp.sent(), None) {
        Err(GuestError::Unsupported(why)) => assert!(why.contains("get_func_ip"), "{why}"),
        other => panic!("{other:?}"),
    }
    guest.vm.power_off(LIMIT).unwrap();
}

/// Numbers that are known: the empty program's, and those of more instructions.
fn costs_of_hits(guest: &mut Guest, objects: &Objects, own: &[Mechanism]) {
    let program = |name: &str| objects.read(&format!("programs.bpf.o:{name}"));
    for &mechanism in own {
        let empty = program(&named("empty", mechanism));
        assert_eq!((empty.mechanism(), empty.facts.instructions), (mechanism, 2));
        let (theirs, ours) = (guest.counts(mechanism, Some(&empty)), guest.counts(mechanism, None));
        assert_eq!(theirs, ours, "{mechanism}");
    }
    let (instructions, branches) = guest.counts(Fentry, None);
    let seven_more = guest.counts(Fentry, Some(&program("seven_more")));
    assert_eq!(seven_more, (instructions + 7, branches));
    let accesses = |cost: TriggerCost| (cost.reads().unwrap(), cost.writes().unwrap());
    let [(reads, writes), more] = ["stores_and_loads", "more_stores_and_loads"]
        .map(|name| accesses(guest.cost(Fentry, Some(&program(name))).unwrap()));
    assert_eq!(more, (reads + 2, writes + 3));
    let sleepable = program("empty_sleepable");
    assert!(guest.cost(Fentry, Some(&sleepable)).is_ok());
    // A program of bcc, at the function in its section's name.
    let vfs_read = objects.read("vfsstat.bpf.o:fentry_vfs_read");
    let cost = guest.cost(Fentry, Some(&vfs_read)).unwrap();
    assert!(cost.instructions() > instructions && cost.agreeing_hits > 0, "{cost:?}");
    let whole = guest.counts(Kprobe, Some(&program("with_functions")));
    let empty = guest.counts(Kprobe, None);
    // Five calls of the callback, each of which calls a function, and their returns.
    assert!(whole.1 >= empty.1 + 20, "{whole:?} {empty:?}");
    let [six, seven] = ["6", "0x7"]
        .map(|n| guest.counts(Kprobe, Some(&program(&format!("with_functions,loops={n}")))));
    // The object says five.
    assert!(six.1 >= whole.1 + 4, "{whole:?} {six:?}");
    assert_eq!((six.0 - whole.0, six.1 - whole.1), (seven.0 - six.0, seven.1 - six.1));
    by_values(guest, &program);
    splits(guest, &program, own);
}

/// The empty program calls nothing. More code of a program is its own, more of a helper the
/// helper's, and nothing of either is the mechanism's.
fn splits(guest: &mut Guest, program: &dyn Fn(&str) -> Program, own: &[Mechanism]) {
    for &mechanism in own {
        let Split { mechanism: way, program, helpers } = guest.split(mechanism, None);
        assert_eq!(helpers, Share::default(), "{mechanism}");
        let returns = mechanism.points().len() as u32;
        assert!(program.branches == returns && program.instructions <= 20 * returns, "{program:?}");
        assert!(way.instructions > 3 * program.instructions, "{mechanism} {way:?}");
    }
    let empty = guest.split(Fentry, None);
    let longer = guest.split(Fentry, Some(&program("seven_more")));
    let instructions = empty.program.instructions + 7;
    assert_eq!(longer, Split { program: Share { instructions, ..empty.program }, ..empty });
    let [five, six] = ["5", "6"]
        .map(|n| guest.split(Kprobe, Some(&program(&format!("with_functions,loops={n}")))));
    assert_eq!(five.mechanism, six.mechanism);
    assert!(six.program.branches >= five.program.branches + 4, "{five:?} {six:?}");
    let looks_up = guest.split(Fentry, Some(&program("finds_nothing")));
    assert_eq!(looks_up.mechanism, empty.mechanism);
    assert!(looks_up.helpers.instructions > 20, "{looks_up:?}");
    // A call, a branch and the return.
    assert!((2..=4).contains(&looks_up.program.branches), "{looks_up:?}");
}

/// Values of every type reach the program. Each one but the last ends the program early.
fn by_values(guest: &mut Guest, program: &dyn Fn(&str) -> Program) {
    let mut cost = |values: [&str; 4]| {
        let [verbose, mode, prefix, scale] = values;
        let given = format!("verbose={verbose},mode={mode},prefix={prefix},scale={scale}");
        guest.counts(Fentry, Some(&program(&format!("by_values,{given}")))).0
    };
    let all = cost(["true", "MODE_ON", "xyz", "-3"]);
    assert_eq!(all, cost(["1", "1", "xyz", "-0x3"]));
    assert_eq!(all, cost(["true", "MODE_ON", "xyz", "3"]) + 4);
    for values in [
        ["false", "MODE_ON", "xyz", "-3"],
        ["true", "MODE_OFF", "xyz", "-3"],
        ["true", "MODE_ON", "xxz", "-3"],
    ] {
        assert!(cost(values) < all - 4, "{values:?}");
    }
}

fn waste(guest: &mut Guest, objects: &Objects, own: &[Mechanism]) {
    for &mechanism in own {
        let capture = objects.read(&format!("capture.bpf.o:{}", named("capture", mechanism)));
        let theirs = guest.waste(mechanism, Some(capture.sent)).unwrap();
        let ours = guest.waste(mechanism, None).unwrap();
        let counts = |waste: &LbrWaste| -> Vec<_> {
            waste.points.iter().map(|point| (point.point, point.wasted.clone())).collect()
        };
        assert_eq!(counts(&theirs), counts(&ours), "{mechanism}");
    }
    let program = |name: &str| Some(objects.read(&format!("programs.bpf.o:{name}")).sent);
    assert_eq!(
        guest.waste(Fentry, program("empty_fentry")),
        Err(CaptureError::NoSnapshot { program: "empty_fentry".to_owned() })
    );
    if own.contains(&KprobeSession) {
        let waste = guest.waste(KprobeSession, program("snapshot_at_exit")).unwrap();
        assert_eq!(waste.points.iter().map(|p| p.point).collect::<Vec<_>>(), [Point::Exit]);
        let error = guest.waste(KprobeSession, program("skips_exit")).unwrap_err().to_string();
        assert!(error.contains("returns 1 at the entry"), "{error}");
    }
}

fn attached(guest: &mut Guest, objects: &Objects) {
    // A number of functions begins with the one in the section's name.
    let vfs_read = objects.read("vfsstat.bpf.o:fentry_vfs_read");
    let reply = guest.attach(&vfs_read, 3).unwrap();
    assert_eq!((reply.functions[0].as_str(), reply.functions.len()), ("vfs_read", 3));
    assert_eq!((reply.programs, reply.links), (3, 3));
    let kprobe = objects.read("vfsstat.bpf.o:kprobe_vfs_read");
    let reply = guest.attach(&kprobe, 2).unwrap();
    assert_eq!((reply.functions[0].as_str(), reply.programs, reply.links), ("vfs_read", 1, 2));
    let other = objects.read("programs.bpf.o:empty_sched_switch");
    assert_eq!(guest.attach(&other, 1).unwrap().functions, ["sched_switch"]);
}

/// Objects whose own user space sets sizes of maps and chooses functions.
fn of_other_loaders(guest: &mut Guest, objects: &Objects) {
    let program = |name: &str| objects.read(&format!("loaders.bpf.o:{name}"));
    let set =
        |map: &str, attribute, value| Remark::MapSet { map: map.to_owned(), attribute, value };
    let keeps_stack = program("keeps_stack");
    assert_eq!(keeps_stack.placeholder.as_deref(), Some("kprobe/skb-1"));
    let reply = guest.hit(Kprobe, Some(&keeps_stack)).unwrap();
    let expected = [
        set("stacks", MapAttribute::ValueSize, 127 * 8),
        set("stacks", MapAttribute::MaxEntries, 1 << 10),
        set("events", MapAttribute::ValueSize, 0),
        set("trie", MapAttribute::MaxEntries, 1 << 10),
        set("bloom", MapAttribute::MaxEntries, 1 << 10),
    ];
    assert_eq!(reply.remarks, expected);
    for (name, function) in
        [("classic", "__set_task_comm"), ("call", "_sys_getppid"), ("call_exit", "_sys_getppid")]
    {
        let program = program(name);
        let reply = guest.hit(program.mechanism(), Some(&program)).unwrap();
        assert!(reply.function.name.ends_with(function), "{name}: {reply:?}");
        assert_eq!(reply.remarks, expected, "{name}");
        let cost = guest.cost(program.mechanism(), Some(&program)).unwrap();
        assert!(cost.instructions() > 0 && cost.agreeing_hits > 0, "{name}: {cost:?}");
    }
    // It looks into a trie and a filter that the object leaves without a size.
    assert!(guest.cost(Fentry, Some(&program("looks_up"))).unwrap().agreeing_hits > 0);
    for (name, words) in [
        ("killed", "nothing hits mark_victim; tried: getppid(2), bpf(2)"),
        ("mistyped", "no tracepoint task/task_renamed; did you mean task/task_rename?"),
        ("mistyped_too", "the kernel has no tracepoint sys_entry; did you mean sys_enter?"),
    ] {
        let program = program(name);
        match guest.hit(program.mechanism(), Some(&program)) {
            Err(GuestError::Unsupported(why)) => assert!(why.contains(words), "{name}: {why}"),
            other => panic!("{name}: {other:?}"),
        }
    }
    // The empty tp_btf program of tramplab's is at another tracepoint.
    for name in ["entered", "left", "any_entered"] {
        let program = program(name);
        let reply = guest.hit(program.mechanism(), Some(&program)).unwrap();
        let trigger = reply.trigger.unwrap();
        assert_eq!((reply.hits, trigger.hits), (8, 1), "{name}: {trigger:?}");
        let cost = guest.cost(program.mechanism(), Some(&program)).unwrap();
        assert!(cost.instructions() > 20 && cost.agreeing_hits > 0, "{name}: {cost:?}");
    }
    // Only larger work hits it.
    let forked = program("forked");
    for reply in [guest.hit(RawTp, Some(&forked)), guest.hit_by(RawTp, &forked, "/bin/true")] {
        let reply = reply.unwrap();
        assert!(reply.function.name == "copy_process" && reply.hits > 0, "{reply:?}");
    }
    let reply = guest.attach(&program("classic"), 3).unwrap();
    assert_eq!((reply.programs, reply.links), (1, 3));
    // None is attached to another target in silence.
    for (name, words) in [
        ("mistyped", "task_renamed, which the program's section names, is not among"),
        ("entered", "sys_enter_getppid, which the program's section names, is not among"),
        ("keeps_small", "bpf_fentry_test1 is a kfunc, which tracing multi refuses"),
    ] {
        match guest.attach(&program(name), 1) {
            Err(GuestError::Unsupported(why)) => assert!(why.contains(words), "{name}: {why}"),
            other => panic!("{name}: {other:?}"),
        }
    }
}

/// A real hit finds room in its buffer, however small: what user space would read is read between
/// hits.
fn with_buffers(guest: &mut Guest, objects: &Objects) {
    let program = |name: &str| objects.read(&format!("loaders.bpf.o:{name}"));
    let [small, large, one] = ["keeps_small", "keeps_large", "keeps_one"]
        .map(|name| guest.cost(Fentry, Some(&program(name))).unwrap());
    // The buffer that is never full takes the same way, and wakes no reader either.
    assert_eq!((small.instructions(), small.branches()), (large.instructions(), large.branches()));
    // All hits but the first, which wakes.
    assert!(small.agreeing_hits >= 7, "{small:?}");
    let calls = |cost: &TriggerCost, function: &str| {
        let is_it =
            |name: &Option<String>| name.as_ref().is_some_and(|of| of.starts_with(function));
        cost.parts.iter().flat_map(|part| &part.records).any(|record| is_it(&record.to.symbol))
    };
    assert!(calls(&small, "bpf_ringbuf_submit") && calls(&one, "bpf_ringbuf_submit"), "{one:?}");
    // More records than the buffer of a perf event has room for.
    let outputs = program("outputs");
    for warmup in [3, 1000] {
        let output = guest.cost_after(warmup, Fentry, Some(&outputs)).unwrap();
        assert!(calls(&output, "bpf_get_stackid"), "{warmup}: {output:?}");
    }
}

/// A probe that is hit while another one's program runs is missed, in attach cells as well: reading
/// the memory calls `vfs_read`, whose program asks for a stack.
fn missed_hits(guest: &mut Guest, objects: &Objects) {
    let program = objects.read("loaders.bpf.o:keeps_stack");
    let among = ["vfs_read", "get_perf_callchain"].map(|name| name.parse().unwrap());
    let request = Command::Attach(AttachRequest {
        mechanism: Kprobe,
        program: Some(program.sent),
        functions: Functions::All,
        among: among.into(),
        binary: None,
        beside: BesideSet::default(),
        // Links are asked in the last of several.
        rounds: 2,
        seed: 1,
        seconds: None,
    });
    let Response::Attach(reply) = guest.vm.request(request, LIMIT).unwrap().unwrap() else {
        panic!()
    };
    let is_missed = |remark: &&Remark| matches!(remark, Remark::Missed { .. });
    let missed = reply.remarks.iter().find(is_missed).unwrap_or_else(|| panic!("{reply:?}"));
    assert!(matches!(missed, Remark::Missed { by: Missing::Probe, hits: 1.. }), "{missed}");
}

/// Programs of LSM hooks, on a kernel whose security module `bpf` is active.
fn of_hooks(guest: &mut Guest, objects: &Objects) {
    let program = |name: &str| objects.read(&format!("loaders.bpf.o:{name}"));
    for (name, mechanism, function) in [
        ("any_hook", Lsm, "bpf_lsm_task_prctl"),
        ("opened", Lsm, "bpf_lsm_file_open"),
        ("asked", LsmSleepable, "bpf_lsm_bpf"),
    ] {
        let program = program(name);
        assert_eq!(program.mechanism(), mechanism, "{name}");
        assert_eq!(guest.hit(mechanism, Some(&program)).unwrap().function.name, function);
        let cost = guest.cost(mechanism, Some(&program)).unwrap();
        assert!(cost.instructions() > 20 && cost.agreeing_hits > 0, "{name}: {cost:?}");
    }
    // Only larger work hits it.
    let executed = program("executed");
    for reply in [guest.hit(Lsm, Some(&executed)), guest.hit_by(Lsm, &executed, "/bin/true")] {
        assert!(reply.as_ref().is_ok_and(|reply| reply.hits > 0), "{reply:?}");
    }
    for (name, words) in [
        ("freed", "returns nothing"),
        ("no_hook", "the kernel has no LSM hook file_opened; did you mean file_open?"),
    ] {
        match guest.hit(Lsm, Some(&program(name))) {
            Err(GuestError::Unsupported(why)) => assert!(why.contains(words), "{name}: {why}"),
            other => panic!("{name}: {other:?}"),
        }
    }
    let reply = guest.attach(&program("opened"), 3).unwrap();
    assert_eq!((reply.functions[0].as_str(), reply.programs), ("bpf_lsm_file_open", 3));
    assert!(reply.functions.iter().all(|name| name.starts_with("bpf_lsm_")), "{reply:?}");
}

/// Nothing calls programs of hooks on a kernel that starts without their security module.
#[test]
fn names_the_security_module_that_is_not_active() {
    let objects = Objects::compile();
    let mut guest = Guest::boot_with(Arch::X86_64, |spec| spec.append.push("lsm=".to_owned()));
    for name in ["any_hook", "opened"] {
        let program = objects.read(&format!("loaders.bpf.o:{name}"));
        match guest.hit(Lsm, Some(&program)) {
            Err(GuestError::Unsupported(why)) => {
                assert!(why.contains("--config-axis lsm=bpf"), "{name}: {why}");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
    guest.vm.power_off(LIMIT).unwrap();
}

fn refused(guest: &mut Guest, objects: &Objects) {
    let program = |name: &str| objects.read(&format!("programs.bpf.o:{name}"));
    let rejected = program("writes_nowhere");
    let errors =
        [guest.cost(Fentry, Some(&rejected)).unwrap_err(), guest.attach(&rejected, 1).unwrap_err()];
    for error in errors {
        let GuestError::Rejected { reason, by: By::Verifier, log } = error else {
            panic!("{error}")
        };
        for text in [&reason, &log] {
            assert!(text.contains("invalid mem access"), "{text}");
        }
        // With the line of the source.
        assert!(log.contains("*(volatile int *)0x10 = 1;"), "{log}");
    }
    let unmade = guest.cost(Fentry, Some(&objects.read("unmade.bpf.o"))).unwrap_err();
    let GuestError::Rejected { reason, by: By::Libbpf, log } = unmade else { panic!("{unmade}") };
    for text in [&reason, &log] {
        assert!(text.contains("map 'unmade': failed to create"), "{text}");
    }
    let missing = objects.read("missing.bpf.o");
    match guest.cost(missing.mechanism(), Some(&missing)) {
        Err(GuestError::Unsupported(_)) => {}
        other => panic!("{other:?}"),
    }
}

/// A suite with one group, and the command that runs it on the tests' kernel.
fn vm_test(objects: &Objects, group: &str) -> Process {
    let (dir, suite) = (objects.0.path(), objects.0.path().join("suite.yaml"));
    let head = "name: t\ndescription: d\nkernels: [\"6.12\"]\ntests:\n";
    fs::write(&suite, format!("{head}  - {group}\n")).unwrap();
    let mut command = tramplab();
    command.args(["vm-test", "--accel", "tcg", "--kernel"]);
    command.arg(from_env("TRAMPLAB_TEST_KERNEL_X86_64"));
    command.arg("--runs").arg(dir.join("runs")).arg("--suite").arg(suite);
    command
}

/// The file may change meanwhile.
#[test]
fn keeps_programs_and_their_verifiers_logs_with_the_run() {
    let objects = Objects::compile();
    let file = objects.0.path().join("programs.bpf.o");
    let group = "trigger: { mechanisms: [fentry], throughput: false, programs: [\"programs.bpf.o:\
                 finds_nothing,scale=0x2\", programs.bpf.o:writes_nowhere] }";
    let output = vm_test(&objects, group).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    // `--rerun` would read the same copy.
    let words = said(&output);
    assert!(words.contains("change the programs") && !words.contains("--rerun"), "{words}");
    let runs = objects.0.path().join("runs");
    let check = || {
        let run = stored(&runs);
        let folder = RunDir::new(runs.join("latest"));
        let names: Vec<&str> = run.programs.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["finds_nothing", "writes_nowhere"]);
        let globals = [("scale".to_owned(), "2".to_owned())].into();
        assert_eq!(run.programs[0].globals, globals);
        assert!(run.programs[1].globals.is_empty());
        let copy = fs::read(folder.program(&run.programs[0].sha256)).unwrap();
        let rejected = run.cells.iter().find(|cell| {
            cell.id.test.program().is_some_and(|name| name.as_str() == "writes_nowhere")
        });
        let rejected = rejected.unwrap();
        let reason = rejected.outcome.reason().unwrap();
        assert!(matches!(rejected.outcome, Outcome::Error { kind: ErrorKind::Program, .. }));
        assert!(reason.contains("invalid mem access"), "{reason}");
        let log = fs::read_to_string(folder.cell(&rejected.id).join("verifier.log")).unwrap();
        assert!(log.contains("invalid mem access"), "{log}");
        let passed = run.cells.iter().filter(|cell| cell.outcome == Outcome::Pass).count();
        assert_eq!((passed, run.cells.len()), (1, 2));
        says_where_a_hit_runs(&run);
        copy
    };
    let object = fs::read(&file).unwrap();
    assert_eq!(check(), object);
    fs::write(&file, "no object any more").unwrap();
    let mut again = tramplab();
    again.args(["vm-test", "--rerun"]).arg(runs.join("latest")).arg("--runs").arg(&runs);
    again.arg("--kernel").arg(from_env("TRAMPLAB_TEST_KERNEL_X86_64"));
    let rerun = again.arg("--suite").arg(objects.0.path().join("suite.yaml")).output().unwrap();
    assert_eq!(rerun.status.code(), Some(3), "{}", said(&rerun));
    assert_eq!(check(), object);
}

/// The map that the program looks into is filled by nothing, so most of the program does not run.
fn says_where_a_hit_runs(run: &Run) {
    let cell = run.cells.iter().find(|cell| cell.outcome == Outcome::Pass).unwrap();
    assert_eq!(cell.remarks, [Remark::MapEmpty { map: "started".to_owned() }]);
    let Some(Measurement::Trigger(trigger)) = &cell.measurement else { panic!("{cell:?}") };
    let (cost, program) = (trigger.cost.as_ref().unwrap(), trigger.program.as_ref().unwrap());
    let split = branch::split(cost, program);
    assert_eq!(sum(split), (cost.instructions(), cost.branches()));
    let Split { mechanism, program, helpers } = split;
    let shares = [mechanism, program, helpers].map(|share| share.instructions.to_string());
    let text = terminal::render(run, &View::default(), terminal::Style::default());
    for words in [
        &format!("{} = {}", cost.instructions(), shares.join(" + ")),
        "Sums are mechanism + program + helpers.",
        "% of the program's own code: it returned early",
        "the program's map started was empty after the recorded hits.",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn rejects_programs_that_the_suite_cannot_measure() {
    let objects = Objects::compile();
    let at = |name: &str| objects.0.path().join(name).display().to_string();
    let mut other = fs::read(at("programs.bpf.o")).unwrap();
    other.push(0);
    fs::write(at("other.bpf.o"), other).unwrap();
    for (programs, words) in [
        (vec!["programs.bpf.o:empty_kprobe"], "has no lbr_waste, trigger or attach tests for"),
        (
            vec!["programs.bpf.o:empty_fentry", "programs.bpf.o:empty_kprobe"],
            "no test of the suite `t` is for kprobe",
        ),
        (
            vec!["programs.bpf.o:empty_fentry", "other.bpf.o:empty_fentry"],
            "both have the program empty_fentry",
        ),
        (
            vec!["programs.bpf.o:by_values,scale=1", "programs.bpf.o:by_values,scale=2"],
            "both have the program by_values",
        ),
        (
            vec!["programs.bpf.o:by_values,size=1"],
            "variable or replaceable function `size`; there are: ",
        ),
        (vec!["programs.bpf.o:by_values,scale=32768"], "a number from -32768 to 32767"),
        (vec!["programs.bpf.o:by_values,mode=HALF"], "expected one of: MODE_OFF, MODE_ON"),
        (vec!["programs.bpf.o:by_values,verbose=yes"], "expected true or false"),
        (vec!["programs.bpf.o:by_values,prefix=long"], "expected at most 3 bytes"),
        (vec!["programs.bpf.o:by_values,pointer=1"], "pointer is neither a number"),
        (vec!["programs.bpf.o:by_values,scale=1,scale=2"], "scale has two values"),
        (
            vec!["freplace.bpf.o:asks_kprobe,policy=asks_kprobe"],
            "cannot replace the function policy: expected a program of SEC(\"freplace/policy\"); \
             there are: longer, of_another_type, same",
        ),
        (vec!["freplace.bpf.o:asks_kprobe,policy=same,policy=same"], "policy has two values"),
        (
            vec!["freplace.bpf.o:asks_kprobe,hidden=same"],
            "replaceable function `hidden`; there are: policy",
        ),
        (vec!["programs.bpf.o:by_values,scale"], "expected NAME=VALUE"),
    ] {
        let mut command = vm_test(&objects, "trigger: { mechanisms: [fentry] }");
        programs.iter().for_each(|name| {
            command.arg("--program").arg(at(name));
        });
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{programs:?}: {}", said(&output));
        assert!(said(&output).contains(words), "{programs:?}: {}", said(&output));
    }
}
