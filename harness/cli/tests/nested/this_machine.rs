// SPDX-License-Identifier: MIT OR Apache-2.0
//! `--vm none` on a machine that a guest plays: a Debian userspace with the installed program.
//! Nothing is attached on the machine of the developers.

use super::{
    LIMIT, NOBODY, Steps,
    kernel::kernel,
    machine::{Machine, SHARED},
};
use crate::{command::stored, installed::Installation};
use fastrand::Rng;
use std::{collections::BTreeSet, env, fs};
use tramplab_analysis::branch::{Branch, Filter};
use tramplab_model::run::{Accel, Arch, Backend, BranchSource, Cell, Measurement, Outcome, Run};

/// Prints all that may not change: settings, mounts, modules, and what is attached to functions.
/// Left out are counts and random numbers of the kernel, which change by themselves.
const STATE: &str = "\
grep -rs . /proc/sys | sort |
    grep -vE '/(random/|[a-z]*-(state|nr):|ns_last_pid|pty/nr|drop_caches|sched_domain)'
cut -d' ' -f1-4 /proc/mounts /proc/modules
cat /sys/kernel/tracing/enabled_functions /sys/kernel/tracing/kprobe_events
";

/// As docs/this-machine.md says.
const CAPABLE: &str = "setpriv --reuid 65534 --regid 65534 --clear-groups \
    --inh-caps +bpf,+perfmon,+sys_admin,+syslog,+dac_read_search,+ipc_lock,+sys_resource \
    --ambient-caps +bpf,+perfmon,+sys_admin,+syslog,+dac_read_search,+ipc_lock,+sys_resource \
    env TRAMPLAB_CACHE=/tmp/capable";

const SUITE: &str = "name: t\ndescription: d\nkernels: [\"6.12\"]\ntests:\n  \
    - lbr_waste: { mechanisms: [fexit, kprobe.multi] }\n  \
    - trigger: { mechanisms: [fentry, kprobe.multi, tp] }\n  \
    - attach: { mechanisms: [fentry], functions: [1, 101], rounds: 2, explain: [sampled] }\n  \
    - attach: { mechanisms: [kprobe.multi], functions: [100], rounds: 2 }\n  \
    - boot: {}\nbudgets:\n  \
    - most: { trigger.fentry.instructions: 1 }\n";

/// Under two emulators, one in the other, a guest boots in minutes. Neither the inner one nor its
/// kernel's watchdogs can tell the time that the outer one did not get.
const BESIDE: &str = "name: t\ndescription: d\nkernels: [\"6.12\"]\n\
    machine: { boot_seconds: 3600, append: [nowatchdog, rcupdate.rcu_cpu_stall_suppress=1] }\n\
    tests:\n  \
    - lbr_waste: { mechanisms: [fexit], hits: 5 }\n";

/// Attaches and detaches until it is killed.
const ENDLESS: &str = "name: t\ndescription: d\nkernels: [\"6.12\"]\ntests:\n  \
    - attach: { mechanisms: [fentry, kprobe.multi], functions: [100], rounds: 100000 }\n";

/// Lists the agents, by the name that a process keeps until all of its links are gone.
const AGENTS: &str = "pgrep tramplab-agent";

/// Names the seed of the moments at which runs are killed. A new one is printed.
const SEED: &str = "TRAMPLAB_KILLS_SEED";
/// Runs that are killed at drawn moments.
const KILLS: u32 = 10;

struct Place {
    machine: Machine,
    installation: Installation,
}

impl Place {
    fn new(machine: Machine) -> Place {
        let place = Place { machine, installation: Installation::new() };
        let files = [
            ("state.sh", STATE),
            ("suite.yaml", SUITE),
            ("endless.yaml", ENDLESS),
            ("beside.yaml", BESIDE),
        ];
        for (name, text) in files {
            fs::write(place.machine.shared().join(name), text).unwrap();
        }
        place
    }

    fn vm_test(&self, suite: &str) -> String {
        let program = self.installation.program();
        format!("{} vm-test --vm none --suite {SHARED}/{suite}.yaml", program.display())
    }

    fn run(&self, script: &str) -> Steps {
        Steps(self.machine.run(&kernel(Arch::X86_64), script, LIMIT))
    }

    fn stored(&self, runs: &str) -> Run {
        stored(&self.machine.shared().join(runs))
    }
}

fn cell<'a>(run: &'a Run, name: &str) -> &'a Cell {
    let name = format!("x86_64/running/native/{name}");
    let found = run.cells.iter().find(|cell| cell.id.name() == name);
    found.unwrap_or_else(|| panic!("{name} is not in {:?}", run.cells))
}

fn skip<'a>(run: &'a Run, name: &str) -> &'a str {
    match &cell(run, name).outcome {
        Outcome::Skip { reason } => reason,
        other => panic!("{name}: {other:?}"),
    }
}

#[test]
fn this_machine_is_measured_and_left_as_it_is() {
    if Arch::host() != Some(Arch::X86_64) {
        return;
    }
    let place = Place::new(Machine::x86());
    let (vm_test, endless) = (place.vm_test("suite"), place.vm_test("endless"));
    let state = format!("sh {SHARED}/state.sh");
    // The run is killed, not its cells and not the agent: both must end.
    let killed = format!(
        "{endless} --yes --runs {SHARED}/killed kprobe.multi & \
         until grep -q . /sys/kernel/tracing/enabled_functions; do sleep 0.1; done; \
         kill -KILL $!; while pgrep -x tramplab || {AGENTS}; do sleep 0.1; done >/dev/null"
    );
    let script = format!(
        "step before {state}\n\
         umount /whole/sys/kernel/tracing\n\
         step bare {vm_test} --yes --runs {SHARED}/bare attach/fentry/1\n\
         mount -t tracefs none /whole/sys/kernel/tracing\n\
         step unasked {vm_test}\n\
         step root {vm_test} --yes --runs {SHARED}/root\n\
         step after {state}\n\
         step nobody {NOBODY} {vm_test} --yes --runs /tmp/nobody-runs attach/fentry/1\n\
         step capable {CAPABLE} {vm_test} --yes --runs /tmp/capable-runs fentry/1 kprobe.multi\n\
         cp -r /whole/tmp/capable-runs {SHARED}/capable\n\
         step killed sh -c {}\n\
         step at-last {state}\n",
        shell_words::quote(&killed)
    );
    let steps = place.run(&script);

    steps.assert_code("root", 0);
    let run = place.stored("root");
    let machine = &run.machines[0];
    assert_eq!((machine.vm, machine.qemu.as_ref()), (Backend::None, None));
    assert!(run.cells.iter().all(|cell| cell.id.accel == Accel::Native));
    assert!(run.kernels[0].source.starts_with("running 6.12."), "{}", run.kernels[0].source);
    for name in ["attach/fentry/1", "attach/kprobe.multi/100"] {
        let cell = cell(&run, name);
        assert_eq!(cell.outcome, Outcome::Pass, "{name}");
        let Some(Measurement::Attach(attach)) = &cell.measurement else { panic!("{cell:?}") };
        assert!(attach.boots[0].rounds.iter().all(|round| round.attach_ns > 0), "{attach:?}");
        assert!(attach.boots[0].rounds.iter().all(|round| round.memory_kib.is_none()));
    }
    for name in ["trigger/fentry", "trigger/kprobe.multi", "trigger/tp"] {
        let cell = cell(&run, name);
        assert_eq!(cell.outcome, Outcome::Pass, "{name}");
        let Some(Measurement::Trigger(trigger)) = &cell.measurement else { panic!("{cell:?}") };
        assert!(trigger.cost.is_none() && trigger.attached_ns.iter().all(|&ns| ns > 0));
        // An emulated CPU counts nothing, of seven events in user space and in the kernel.
        let refused = trigger.counters.iter().filter(|counter| counter.refused.is_some());
        assert_eq!((refused.count(), trigger.counters.len()), (14, 14), "{trigger:?}");
    }
    for (name, reason) in [
        ("lbr_waste/fexit", "no branch records"),
        ("attach/fentry/101", "at most 100 functions"),
        ("boot", "has booted long ago"),
    ] {
        assert!(skip(&run, name).contains(reason), "{name}: {}", skip(&run, name));
    }
    let facts = cell(&run, "attach/fentry/1").guest.as_ref().unwrap();
    let virtual_machine = facts.conditions.iter().find(|one| one.name == "virtual machine");
    assert!(virtual_machine.is_some_and(|one| one.spoils.is_some()), "{:?}", facts.conditions);

    steps.assert_code("unasked", 2);
    assert!(steps.of("unasked").err.contains("--yes"), "{}", steps.of("unasked").err);
    let bare = place.stored("bare");
    let reason = skip(&bare, "attach/fentry/1");
    assert!(reason.contains("mount -t tracefs"), "{reason}");
    steps.assert_code("capable", 0);
    let capable = place.stored("capable");
    for name in ["attach/fentry/1", "attach/kprobe.multi/100", "trigger/kprobe.multi"] {
        assert_eq!(cell(&capable, name).outcome, Outcome::Pass, "{name}");
    }
    steps.assert_code("nobody", 0);
    let nobody = &steps.of("nobody").out;
    assert!(nobody.contains("run as root"), "{nobody}");

    let state = |name: &str| steps.of(name).out.lines().collect::<BTreeSet<_>>();
    let before = state("before");
    assert!(before.len() > 500, "{before:?}");
    for name in ["after", "at-last"] {
        let changed = state(name).symmetric_difference(&before).copied().collect::<Vec<_>>();
        assert_eq!(changed, [""; 0], "{name}");
    }
    assert_eq!(steps.of("killed").out, "");
}

/// Kills the run, its cell or its agent. The other processes must end by themselves, and take along
/// all that is attached.
#[test]
#[ignore = "full: another outer guest; one runs in every change"]
fn this_machine_keeps_nothing_of_runs_that_are_killed_at_random() {
    if Arch::host() != Some(Arch::X86_64) {
        return;
    }
    let place = Place::new(Machine::x86());
    let seed = env::var(SEED).map_or_else(|_| Rng::new().u64(..), |seed| seed.parse().unwrap());
    println!("{SEED}={seed}");
    let mut rng = Rng::with_seed(seed);
    let endless = place.vm_test("endless");
    let state = format!("sh {SHARED}/state.sh");
    let mut script = format!("step before {state}\n");
    for time in 0..KILLS {
        let cell = ["attach/fentry/100", "attach/kprobe.multi/100"][rng.usize(..2)];
        // A run has a process of its own, and one for its cell.
        let victims = ["pgrep -o -x tramplab", "pgrep -n -x tramplab", AGENTS];
        let victim = victims[rng.usize(..victims.len())];
        let begun = match time % 2 {
            0 => "until grep -q . /sys/kernel/tracing/enabled_functions; do sleep 0.1; done;",
            _ => "",
        };
        let seconds = f64::from(rng.u32(..60)) / 10.0;
        let killed = format!(
            "{endless} --yes --runs {SHARED}/killed-{time} {cell} & \
             {begun} sleep {seconds}; \
             timeout 120 sh -c 'until kill -KILL $({victim}); do sleep 0.1; done' 2>&1; \
             wait; while pgrep -x tramplab || {AGENTS}; do sleep 0.1; done"
        );
        let killed = shell_words::quote(&killed);
        script += &format!("step killed-{time} sh -c {killed}\nstep after-{time} {state}\n");
    }
    let steps = place.run(&script);
    let state = |name: &str| steps.of(name).out.lines().collect::<BTreeSet<_>>();
    let before = state("before");
    assert!(before.len() > 500, "{before:?}");
    for time in 0..KILLS {
        let after = state(&format!("after-{time}"));
        let changed = after.symmetric_difference(&before).copied().collect::<Vec<_>>();
        assert_eq!(changed, [""; 0], "kill {time} of seed {seed}");
    }
}

/// A machine on which others trace, one without BTF, and one that is locked down more and more.
#[test]
#[ignore = "full: another outer guest; one runs in every change"]
fn this_machine_says_what_it_lacks_and_minds_other_tracers() {
    if Arch::host() != Some(Arch::X86_64) {
        return;
    }
    let place = Place::new(Machine::x86());
    let measured = |name: &str| {
        let vm_test = place.vm_test("suite");
        format!("step {name} {vm_test} --yes --runs {SHARED}/{name} fentry/1 trigger/fentry\n")
    };
    let locked =
        |how: &str| format!("echo {how} >/whole/sys/kernel/security/lockdown\n{}", measured(how));
    // As `perf probe` and `perf record` do.
    let tracing = "/sys/kernel/tracing";
    let event = format!("{tracing}/events/kprobes/other/enable");
    let script = format!(
        "step begin sh -c 'echo p:other bpf_fentry_test1 >{tracing}/kprobe_events; \
         echo 1 >{event}'\n\
         {}step traced cat {tracing}/enabled_functions\n\
         step many {} --yes --runs {SHARED}/many fentry/101\n\
         step end sh -c 'echo 0 >{event}; echo >{tracing}/kprobe_events'\n\
         mount -t tmpfs tmpfs /whole/sys/kernel/btf\n{}umount /whole/sys/kernel/btf\n\
         mount -t securityfs securityfs /whole/sys/kernel/security\n{}{}",
        measured("traced-by-other"),
        place.vm_test("suite").replace("--vm none", "--vm none:101"),
        measured("no-btf"),
        locked("integrity"),
        locked("confidentiality")
    );
    let steps = place.run(&script);
    // Its own function would be counted with the other's cost; drawn ones are not the other's.
    let run = place.stored("traced-by-other");
    let refused = &cell(&run, "trigger/fentry").outcome;
    assert!(
        matches!(refused, Outcome::Error { message, .. } if message.contains("another tracer"))
    );
    assert_eq!(cell(&run, "attach/fentry/1").outcome, Outcome::Pass);
    let traced = &steps.of("traced").out;
    assert!(traced.starts_with("bpf_fentry_test1 (1)"), "{traced}");
    // As many functions as the user allows.
    assert_eq!(cell(&place.stored("many"), "attach/fentry/101").outcome, Outcome::Pass);
    for (name, reasons) in [
        ("no-btf", [Some("BTF"); 2]),
        ("integrity", [None; 2]),
        ("confidentiality", [Some("lockdown"); 2]),
    ] {
        steps.assert_code(name, 0);
        let run = place.stored(name);
        for (test, reason) in ["attach/fentry/1", "trigger/fentry"].into_iter().zip(reasons) {
            match reason {
                Some(reason) => {
                    let told = skip(&run, test);
                    assert!(told.contains(reason), "{name} {test}: {told}");
                }
                None => assert_eq!(cell(&run, test).outcome, Outcome::Pass, "{name} {test}"),
            }
        }
        let facts = run.cells.iter().find_map(|cell| cell.guest.as_ref());
        let level = facts.and_then(|facts| {
            facts.conditions.iter().find(|one| one.name == "lockdown").map(|one| &*one.value)
        });
        assert_eq!(level, Some(name).filter(|name| *name != "no-btf"));
    }
}

/// The kernel's own driver hands over the records of a CPU, on which everything behind a PMU runs.
#[test]
#[ignore = "full: another outer guest, with a CPU that the plugin plays, and guests in it"]
fn this_machine_hands_over_emulated_records_as_its_image_has_them() {
    if Arch::host() != Some(Arch::X86_64) {
        return;
    }
    let place = Place::new(Machine::with_branch_records("skylake"));
    let kernel = kernel(Arch::X86_64);
    // By 9p a large cache takes long to measure.
    let beside = format!(
        "env TRAMPLAB_CACHE=/tmp/own {} vm-test --vm none,qemu --suite {SHARED}/beside.yaml",
        place.installation.program().display()
    );
    let vm_test = place.vm_test("suite");
    let script = format!(
        "step waste {vm_test} --yes --runs {SHARED}/runs lbr_waste\n\
         {}step beside {beside} --accel tcg --yes --runs {SHARED}/beside\n",
        kernel.install(),
    );
    let steps = Steps(place.machine.run(&kernel, &script, 3 * LIMIT));
    steps.assert_code("beside", 0);
    let ids = place.stored("beside").cells.into_iter().map(|cell| cell.id.name());
    let expected = ["running-image/tcg", "running/native"];
    let expected = expected.map(|cell| format!("x86_64/{cell}/lbr_waste/fexit"));
    assert_eq!(ids.collect::<BTreeSet<_>>(), BTreeSet::from(expected));
    // The guest of the same kernel has each of the records.
    let out = &steps.of("beside").out;
    assert_eq!(out.matches("the same records").count(), 1, "{out}");
    steps.assert_code("waste", 0);
    let run = place.stored("runs");
    // `wasted` and `driver` of docs/mechanisms.json together.
    for (name, expected) in [
        ("lbr_waste/fexit", [Some(14), Some(8), Some(5), None, None, None, Some(8)]),
        ("lbr_waste/kprobe.multi", [Some(17), Some(10), None, None, None, None, Some(8)]),
    ] {
        let cell = cell(&run, name);
        assert_eq!(cell.outcome, Outcome::Pass, "{name}");
        let Some(Measurement::LbrWaste(waste)) = &cell.measurement else { panic!("{cell:?}") };
        assert_eq!((waste.source, waste.depth), (BranchSource::Hardware, Some(32)), "{name}");
        let by_filter = waste.points[0].wasted.values().next().unwrap();
        let wasted = Branch::ALL.map(|branch| by_filter[&Filter::of(branch).to_string()].wasted);
        assert_eq!(wasted, expected, "{name}");
        assert_eq!(waste.agreeing_hits, waste.hits, "{name}");
    }
}
