// SPDX-License-Identifier: MIT OR Apache-2.0
//! KVM for real, on any x86-64 machine: an outer guest under TCG has a CPU with virtualization, and
//! the program runs in it. Run the long tests with `cargo xtask test --full -- kvm_`.

mod arm64;
mod kernel;
mod machine;
mod this_machine;

use machine::{Machine, SHARED, Step};
use std::{collections::BTreeMap, env, fs, panic, time::Duration};
use tramplab_model::run::{Accel, Arch, Outcome};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tramplab");
/// All that a busy machine may need. A quiet one needs a fifth.
const LIMIT: Duration = Duration::from_secs(1200);

/// Without root's right to open every device for writing. It may still read all that root can: a
/// home may be closed to others.
const NOBODY: &str = "setpriv --reuid 65534 --regid 65534 --clear-groups \
                      --inh-caps +dac_read_search --ambient-caps +dac_read_search \
                      env TRAMPLAB_CACHE=/tmp/nobody";

fn image() -> String {
    env::var("TRAMPLAB_TEST_KERNEL_X86_64").expect("run `cargo xtask test`")
}

/// Boots a guest under KVM, or exits with code 3.
fn shell() -> String {
    format!("{PROGRAM} shell --accel kvm --kernel {}", image())
}

/// Writes a suite for the inner guests. Builds on this machine what the outer guest would build a
/// hundred times slower.
fn suite(machine: &Machine, cpus: u32, tests: &str) -> String {
    let text = format!(
        "name: t\ndescription: d\nkernels: [a]\nmachine: {{ cpus: {cpus}, boot_seconds: 3600 }}\n\
         tests:\n{tests}"
    );
    let path = machine.shared().join("suite.yaml");
    fs::write(&path, text).unwrap();
    let mut list = crate::command::tramplab();
    list.args(["vm-test", "--list", "--accel", "tcg", "--kernel", &image(), "--suite"]).arg(path);
    let output = list.output().unwrap();
    assert!(output.status.success(), "{}", crate::command::said(&output));
    format!("{PROGRAM} vm-test --suite {SHARED}/suite.yaml --kernel {}", image())
}

struct Steps(BTreeMap<String, Step>);

impl Steps {
    fn of(&self, name: &str) -> &Step {
        self.0.get(name).unwrap_or_else(|| panic!("{name} is not in {:#?}", self.0))
    }

    fn assert_code(&self, name: &str, code: i32) {
        let step = self.of(name);
        assert_eq!(step.code, Some(code), "{name}: {}{}", step.out, step.err);
    }

    /// The state of KVM in the output of `doctor --json`, and the command that mends it.
    fn kvm(&self, name: &str) -> (String, Option<String>) {
        let step = self.of(name);
        let checkup: serde_json::Value = serde_json::from_str(&step.out)
            .unwrap_or_else(|error| panic!("{name}: {error}: {}{}", step.out, step.err));
        let checks = checkup["checks"].as_array().unwrap();
        let check = checks.iter().find(|check| check["name"] == "KVM").unwrap();
        let mend = check["mend"].as_str().map(str::to_owned);
        (check["state"].as_str().unwrap().to_owned(), mend)
    }

    fn assert_missing(&self, name: &str, mend: &str) {
        let (state, found) = self.kvm(name);
        assert_eq!(state, "missing", "{name}");
        assert!(found.as_ref().is_some_and(|line| line.starts_with(mend)), "{name}: {found:?}");
    }
}

/// Runs a test of an outer guest, on x86-64 only. The emulated virtualization resets an inner guest
/// now and then. A fault of the program fails both attempts.
fn attempted(test: fn()) {
    if Arch::host() != Some(Arch::X86_64) {
        return;
    }
    if panic::catch_unwind(test).is_err() {
        test();
    }
}

/// KVM works, is denied, and is gone.
#[test]
fn kvm_is_told_exactly_where_it_runs_guests() {
    attempted(tells_of_kvm_exactly_where_it_runs_guests);
}

fn tells_of_kvm_exactly_where_it_runs_guests() {
    let doctor = format!("{PROGRAM} doctor --json");
    let script = format!(
        "step works {doctor}\n\
         step denied {NOBODY} {doctor}\n\
         rmmod kvm_amd\n\
         step unloaded-shell {} -- true\n",
        shell()
    );
    let steps = Steps(Machine::x86().run(&kernel::kernel(Arch::X86_64), &script, LIMIT));
    assert_eq!(steps.kvm("works"), ("ok".to_owned(), None));
    steps.assert_missing("denied", "sudo chown root:kvm /dev/kvm");
    steps.assert_code("unloaded-shell", 3);
}

#[test]
#[ignore = "full: boots two guests in a guest"]
fn kvm_is_used_exactly_where_it_runs_guests() {
    attempted(uses_kvm_exactly_where_it_runs_guests);
}

fn uses_kvm_exactly_where_it_runs_guests() {
    let kernel = kernel::kernel(Arch::X86_64);
    let machine = Machine::x86();
    let tests = "  - attach: { mechanisms: [fentry], functions: [1], rounds: 1 }\n";
    let (vm_test, doctor) = (suite(&machine, 1, tests), format!("{PROGRAM} doctor --json"));
    let script = format!(
        "step cell {vm_test} --accel auto --runs {SHARED}/runs\n\
         chown 0:104 /dev/kvm; chmod 0660 /dev/kvm\n\
         step denied-to-group {NOBODY} {doctor}\n\
         rmmod kvm_amd\n\
         step unloaded {doctor}\n\
         insmod /modules/*-kvm-amd.ko npt=0\n\
         step shadow-shell {} -- true\n\
         step shadow {doctor}\n",
        shell()
    );
    let steps = Steps(machine.run(&kernel, &script, LIMIT));
    steps.assert_missing("denied-to-group", "sudo usermod -aG kvm");
    steps.assert_missing("unloaded", "sudo modprobe");
    steps.assert_code("cell", 0);
    let run = crate::command::stored(&machine.shared().join("runs"));
    let cells = run.cells.iter().map(|cell| (cell.id.accel, &cell.outcome));
    assert_eq!(Vec::from_iter(cells), [(Accel::Kvm, &Outcome::Pass)]);
    // Without nested paging KVM may run guests or not. The doctor must know.
    let runs_guests = steps.of("shadow-shell").code == Some(0);
    steps.assert_code("shadow-shell", if runs_guests { 0 } else { 3 });
    assert_eq!(steps.kvm("shadow").0, if runs_guests { "ok" } else { "broken" });
}

/// No command mends such a CPU: the modules refuse to load.
#[test]
#[ignore = "full: another outer guest; one runs in every change"]
fn kvm_has_no_mend_on_a_cpu_without_virtualization() {
    attempted(|| {
        let script = format!("step absent {PROGRAM} doctor --json\n");
        let steps =
            Steps(Machine::without_svm().run(&kernel::kernel(Arch::X86_64), &script, LIMIT));
        assert_eq!(steps.kvm("absent"), ("missing".to_owned(), None));
    });
}

#[test]
#[ignore = "full: boots several guests in a guest"]
fn kvm_runs_every_kind_of_guest() {
    attempted(runs_every_kind_of_guest);
}

fn runs_every_kind_of_guest() {
    let kernel = kernel::kernel(Arch::X86_64);
    let machine = Machine::x86();
    let tests = "  - attach: { mechanisms: [fentry], functions: [1], rounds: 1 }\n  \
                 - trigger: { mechanisms: [fentry] }\n  \
                 - lbr_waste: { mechanisms: [fentry] }\n";
    // Under two emulators, one in the other, a guest boots in minutes: counting cells are only
    // listed.
    let (vm_test, shell) = (suite(&machine, 2, tests), shell());
    // With job control, so that the shell does not ignore SIGINT for its child. The pattern does
    // not match this line.
    let interrupted = format!(
        "{vm_test} --accel kvm --runs {SHARED}/interrupted & \
         until cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -aq 'cpu hos[t]'; \
         do sleep 0.1; kill -0 $! || break; done; kill -INT $!; wait $!"
    );
    let left = "ls -A /tmp/interrupted; \
                cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -ax 'hos[t]'; true";
    let quoted = |line: &str| shell_words::quote(line).into_owned();
    let script = format!(
        "step cells {vm_test} --accel auto --runs {SHARED}/runs attach trigger\n\
         step list {vm_test} --accel auto --list\n\
         step shell {shell} -- 'nproc; exit 7'\n\
         step virtme-ng {shell} --vm virtme-ng -- 'uname -n; exit 7'\n\
         step interrupted bash -mc {}\n\
         step left sh -c {}\n",
        quoted(&interrupted),
        quoted(left)
    );
    let steps = Steps(machine.run(&kernel, &script, 3 * LIMIT));

    steps.assert_code("cells", 0);
    let run = crate::command::stored(&machine.shared().join("runs"));
    assert_eq!(run.cells.len(), 2);
    for cell in &run.cells {
        assert_eq!((&cell.outcome, cell.id.accel), (&Outcome::Pass, Accel::Kvm), "{:?}", cell.id);
        // Guests under KVM boot.
        assert!(!cell.restored, "{:?}", cell.id);
    }
    // The list takes the answer of the run.
    let listed = &steps.of("list").out;
    for cell in ["/kvm/attach/fentry/1", "/kvm/trigger/fentry", "/tcg/lbr_waste/fentry"] {
        assert!(listed.contains(cell), "{cell}: {listed}");
    }

    for (name, output) in [("shell", "1\n"), ("virtme-ng", "virtme-ng\n")] {
        steps.assert_code(name, 7);
        assert_eq!(steps.of(name).out, output);
    }
    steps.assert_code("interrupted", 130);
    assert_eq!(steps.of("left").out, "");
}
