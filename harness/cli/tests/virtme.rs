// SPDX-License-Identifier: MIT OR Apache-2.0
//! Guests by virtme-ng beside guests by QEMU alone: equal numbers, and nothing left behind. Guests
//! that die are rows of `faults/`.

use crate::command::{said, stored, tramplab};
use std::{fs, path::PathBuf, process::Command};
use tempfile::TempDir;
use tramplab_model::run::{Backend, Measurement, Outcome};

const HEAD: &str = "name: t\ndescription: d\nkernels: [\"6.12\"]\ntests:\n";

/// A folder for runs, and one for all temporary files.
struct Place {
    dir: TempDir,
    temporary: TempDir,
}

impl Place {
    fn new() -> Place {
        // A short path: the sockets go there.
        Place {
            dir: tempfile::tempdir().unwrap(),
            temporary: tempfile::tempdir_in("/tmp").unwrap(),
        }
    }

    fn vm_test(&self, vm: &str, suite: &str) -> Command {
        fs::write(self.dir.path().join("suite.yaml"), suite).unwrap();
        let kernel =
            std::env::var_os("TRAMPLAB_TEST_KERNEL_X86_64").expect("run `cargo xtask test`");
        let mut command = tramplab();
        command
            .env("TMPDIR", self.temporary.path())
            .args(["vm-test", "--accel", "tcg", "--vm", vm, "--suite"])
            .arg(self.dir.path().join("suite.yaml"))
            .arg("--kernel")
            .arg(kernel)
            .arg("--runs")
            .arg(self.runs());
        command
    }

    fn runs(&self) -> PathBuf {
        self.dir.path().join("runs")
    }

    /// Lists processes with one of the folders in their command line: virtme-ng, its shells,
    /// virtiofsd, QEMU, the guard.
    fn processes(&self) -> Vec<String> {
        let folders =
            [&self.dir, &self.temporary].map(|dir| dir.path().to_str().unwrap().to_owned());
        let lines = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
            let line =
                String::from_utf8_lossy(&fs::read(entry.path().join("cmdline")).ok()?).into_owned();
            Some(line.replace('\0', " "))
        });
        lines.filter(|line| folders.iter().any(|folder| line.contains(folder))).collect()
    }

    fn temporary_files(&self) -> Vec<PathBuf> {
        fs::read_dir(self.temporary.path()).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    fn assert_nothing_is_left(&self, said: &str) {
        assert_eq!(self.processes(), Vec::<String>::new(), "{said}");
        assert_eq!(self.temporary_files(), Vec::<PathBuf>::new(), "{said}");
    }
}

/// Returns the values that must not depend on the backend.
fn exact(measurement: &Measurement) -> String {
    match measurement {
        Measurement::LbrWaste(waste) => {
            let points =
                waste.points.iter().map(|point| (point.point, &point.digest, &point.wasted));
            format!("{:?} {:?}", waste.function.name, points.collect::<Vec<_>>())
        }
        Measurement::Trigger(trigger) => {
            let cost = trigger.cost.as_ref().expect("counted under TCG");
            // The digest covers all records by symbol; addresses change with every boot.
            let parts =
                cost.parts.iter().map(|part| (part.point, part.instructions, part.branches));
            format!("{:?} {} {:?}", trigger.function.name, cost.digest, parts.collect::<Vec<_>>())
        }
        Measurement::Attach(attach) => {
            let boot = &attach.boots[0];
            let counts =
                (boot.functions, boot.programs, boot.links, &boot.refused, boot.rounds.len());
            format!("{counts:?} {}", boot.list_sha256)
        }
        Measurement::Boot => String::new(),
        other => panic!("not run by virtme-ng: {other:?}"),
    }
}

#[test]
#[ignore = "full: a whole run by each; a shell by virtme-ng runs in every change"]
fn both_backends_agree_on_exact_values() {
    let suite = format!(
        "{HEAD}  - lbr_waste: {{ mechanisms: [fexit, kprobe, kretprobe.multi] }}\n  \
         - trigger: {{ mechanisms: [fentry, kprobe.multi] }}\n  \
         - attach: {{ mechanisms: [kprobe.multi], functions: [100], rounds: 1 }}\n"
    );
    let measured =
        [("qemu", Backend::Qemu), ("virtme-ng", Backend::VirtmeNg)].map(|(vm, backend)| {
            let place = Place::new();
            let output = place.vm_test(vm, &suite).output().unwrap();
            let said = said(&output);
            assert_eq!(output.status.code(), Some(0), "{said}");
            let run = stored(&place.runs());
            let machine = &run.machines[0];
            assert_eq!(machine.vm, backend);
            // The run and its report name virtme-ng.
            let version = machine.backend_version.as_ref();
            assert_eq!(version.is_some(), backend == Backend::VirtmeNg);
            assert_eq!(said.contains("virtme-ng 1."), backend == Backend::VirtmeNg, "{said}");
            place.assert_nothing_is_left(&said);
            let of = |cell: &tramplab_model::run::Cell| {
                (
                    cell.id.test.name(),
                    exact(cell.measurement.as_ref().unwrap_or_else(|| panic!("{said}"))),
                )
            };
            run.cells.iter().map(of).collect::<Vec<_>>()
        });
    assert_eq!(measured[0].len(), 6);
    for (qemu, virtme) in measured[0].iter().zip(&measured[1]) {
        assert_eq!(qemu, virtme);
    }
}

#[test]
fn skips_the_exact_clock_under_virtme() {
    let suite = format!(
        "{HEAD}  - attach: {{ mechanisms: [raw_tp], functions: [1], rounds: 1, clock: exact }}\n"
    );
    let place = Place::new();
    let output = place.vm_test("virtme-ng", &suite).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let run = stored(&place.runs());
    let Outcome::Skip { reason } = &run.cells[0].outcome else { panic!("{:#?}", run.cells) };
    assert!(reason.contains("exact clock") && reason.contains("--vm qemu"), "{reason}");
}
