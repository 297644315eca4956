// SPDX-License-Identifier: MIT OR Apache-2.0
//! A kernel's first guest shows, once in a run, if the kernel boots. Cells are separate processes,
//! so a file keeps the answer.
//!
//! ```text
//! RUN/kernels/ARCH/KERNEL.ACCEL.boots  locked while the first guest boots; empty until one did
//! RUN/cells/ARCH/KERNEL/ACCEL/boot/    cell `boot` of the kernel, an error if the first did not
//! ```

use nix::fcntl::{Flock, FlockArg};
use std::{fs, io, path::Path};
use tramplab_host::runs::RunDir;
use tramplab_model::run::{Cell, CellId, Clock, ErrorKind, Outcome, Test};
use tramplab_vm::VmError;

/// A cell's permission to boot a kernel.
pub(super) enum Turn {
    /// Boot it. Either a guest has booted before, or this guest is the first, and others wait until
    /// the lock is dropped.
    Boot(#[allow(dead_code, reason = "held for its drop")] Option<Flock<fs::File>>),
    /// The kernel does not boot: its cell `boot`.
    Dead(Box<Cell>),
}

/// A kernel of a run.
pub(super) struct Kernel<'a> {
    run_dir: &'a RunDir,
    /// Its cell `boot`.
    id: CellId,
}

impl<'a> Kernel<'a> {
    pub fn of(run_dir: &'a RunDir, cell: &CellId) -> Kernel<'a> {
        Kernel { run_dir, id: CellId { test: Test::Boot, ..cell.clone() } }
    }

    /// Waits while another cell boots the kernel's first guest. A guest with the exact clock
    /// reports only after it has measured, so it waits but makes no other guest wait.
    pub fn turn(&self, clock: Clock) -> io::Result<Turn> {
        if self.boots() {
            return Ok(Turn::Boot(None));
        }
        let lock = Some(self.lock()?).filter(|_| clock == Clock::Free);
        Ok(match self.dead() {
            Some(cell) => Turn::Dead(Box::new(cell)),
            // A guest may have booted during the wait.
            None => Turn::Boot(lock.filter(|_| !self.boots())),
        })
    }

    /// Records that a guest has booted. An error is ignored: then other cells boot their own first
    /// guest.
    pub fn has_booted(&self) {
        if !self.boots() {
            let _ = self.folder().and_then(|()| fs::write(self.marker(), "boots\n"));
        }
    }

    /// Saves the failure of the kernel's first guest, with its console. Returns none if the failure
    /// does not show that the kernel cannot boot.
    pub fn failed(
        &self,
        error: &VmError,
        clock: Clock,
        guest: &Path,
        duration_ms: u64,
    ) -> Option<Cell> {
        // A guest with the exact clock is silent until it has measured, which may take too long.
        let is_silent = clock == Clock::Exact && error.kind == ErrorKind::BootTimeout;
        if error.booted || is_silent || !is_verdict(error.kind) || self.boots() {
            return None;
        }
        let (kind, message) = (error.kind, error.message.clone());
        let mut cell = Cell::without_result(self.id.clone(), Outcome::Error { kind, message });
        cell.console_tail.clone_from(&error.console_tail);
        cell.duration_ms = duration_ms;
        self.run_dir.save_cell(&cell).ok()?;
        // Copy the console to the folder of the cell `boot`, unless that cell's own guest was the
        // first.
        let own = self.run_dir.cell(&self.id);
        if guest != own {
            let _ = fs::copy(guest.join(CONSOLE_LOG), own.join(CONSOLE_LOG));
        }
        Some(cell)
    }

    fn boots(&self) -> bool {
        fs::metadata(self.marker()).is_ok_and(|file| file.len() > 0)
    }

    fn dead(&self) -> Option<Cell> {
        let cell = self.run_dir.load_cell(&self.id).ok().flatten()?;
        matches!(cell.outcome, Outcome::Error { kind, .. } if is_verdict(kind)).then_some(cell)
    }

    fn lock(&self) -> io::Result<Flock<fs::File>> {
        self.folder()?;
        let file = fs::File::options().create(true).append(true).open(self.marker())?;
        Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| errno.into())
    }

    fn folder(&self) -> io::Result<()> {
        fs::create_dir_all(self.marker().parent().expect("in the run's folder"))
    }

    fn marker(&self) -> std::path::PathBuf {
        let CellId { arch, kernel, accel, .. } = &self.id;
        self.run_dir.kernels().join(arch.name()).join(format!("{kernel}.{}.boots", accel.name()))
    }
}

/// Returns true if this error of a first guest means that no guest boots. Other errors may come
/// from this machine, or from the moment.
fn is_verdict(kind: ErrorKind) -> bool {
    kind.is_kernel_death() || kind == ErrorKind::BootTimeout
}

const CONSOLE_LOG: &str = "console.log";

/// The error of a cell whose kernel's cell `boot` is this one.
pub(super) fn outcome(boot: &Cell, cell: &CellId) -> (ErrorKind, String) {
    match &boot.outcome {
        Outcome::Error { kind, message } if cell.test == Test::Boot => (*kind, message.clone()),
        Outcome::Error { kind, message } => {
            (*kind, format!("does not boot: {}", message.lines().next().unwrap_or_default()))
        }
        other => (ErrorKind::Harness, format!("the cell boot ended as {}", other.name())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tramplab_model::{
        kinds::lbr_waste,
        run::{Accel, Arch},
    };
    use tramplab_protocol::Mechanism;

    fn id(kernel: &str) -> CellId {
        let mechanism = Mechanism::Fexit;
        let test = Test::LbrWaste(lbr_waste::Test { mechanism, program: None, function: None });
        CellId { arch: Arch::X86_64, kernel: kernel.to_owned(), accel: Accel::Tcg, test }
    }

    fn death(kind: ErrorKind, booted: bool) -> VmError {
        let (message, console_tail) = ("oh\nno".to_owned(), vec!["oh".to_owned()]);
        VmError { kind, message, console_tail, booted, doubted: false, starved: Duration::ZERO }
    }

    #[test]
    fn condemns_a_kernel_only_by_its_first_boot() {
        use Clock::{Exact, Free};
        for (kind, clock, booted, before, is_dead) in [
            (ErrorKind::Panic, Free, false, false, true),
            (ErrorKind::Panic, Exact, false, false, true),
            (ErrorKind::BootTimeout, Free, false, false, true),
            // It may have booted, and measures still.
            (ErrorKind::BootTimeout, Exact, false, false, false),
            // Errors of the measurement, of QEMU and of the host.
            (ErrorKind::Panic, Free, true, false, false),
            (ErrorKind::QemuExit, Free, false, false, false),
            (ErrorKind::Harness, Free, false, false, false),
            // Another guest of the kernel has booted.
            (ErrorKind::Panic, Free, false, true, false),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let run_dir = RunDir::new(folder.path());
            let kernel = Kernel::of(&run_dir, &id("k"));
            if before {
                kernel.has_booted();
            }
            for clock in [Clock::Free, Clock::Exact] {
                let Turn::Boot(lock) = kernel.turn(clock).unwrap() else { panic!("{kind:?}") };
                assert_eq!(lock.is_some(), clock == Clock::Free && !before);
            }
            let what = format!("{kind:?} {clock:?} {booted} {before}");
            assert_eq!(
                kernel.failed(&death(kind, booted), clock, folder.path(), 7).is_some(),
                is_dead,
                "{what}"
            );
            for clock in [Clock::Free, Clock::Exact] {
                match kernel.turn(clock).unwrap() {
                    Turn::Dead(cell) => {
                        assert!(is_dead, "{what}");
                        assert_eq!(cell.console_tail, ["oh"]);
                        assert_eq!(
                            outcome(&cell, &id("k")),
                            (kind, "does not boot: oh".to_owned())
                        );
                        assert_eq!(outcome(&cell, &cell.id), (kind, "oh\nno".to_owned()));
                    }
                    Turn::Boot(_) => assert!(!is_dead, "{what}"),
                }
            }
            // Another kernel of the run is not affected.
            let other = Kernel::of(&run_dir, &id("other"));
            assert!(matches!(other.turn(Clock::Free).unwrap(), Turn::Boot(Some(_))), "{what}");
        }
    }

    /// The suite has a cell `boot`, and its guest is the first one.
    #[test]
    fn keeps_the_console_and_counts_only_boot_failures() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        let kernel = Kernel::of(&run_dir, &id("k"));
        let own = run_dir.cell(&kernel.id);
        fs::create_dir_all(&own).unwrap();
        fs::write(own.join(CONSOLE_LOG), "oh\n").unwrap();
        assert!(kernel.failed(&death(ErrorKind::Panic, false), Clock::Free, &own, 7).is_some());
        assert_eq!(fs::read_to_string(own.join(CONSOLE_LOG)).unwrap(), "oh\n");
        for (kind, is_dead) in [(ErrorKind::BootTimeout, true), (ErrorKind::QemuExit, false)] {
            let outcome = Outcome::Error { kind, message: "oh".to_owned() };
            run_dir.save_cell(&Cell::without_result(kernel.id.clone(), outcome)).unwrap();
            assert_eq!(
                matches!(kernel.turn(Clock::Free).unwrap(), Turn::Dead(_)),
                is_dead,
                "{kind:?}"
            );
        }
    }

    #[test]
    fn waits_while_the_first_guest_boots() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        let kernel = Kernel::of(&run_dir, &id("k"));
        let first = kernel.turn(Clock::Free).unwrap();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| Kernel::of(&run_dir, &id("k")).turn(Clock::Free).unwrap());
            let dead =
                kernel.failed(&death(ErrorKind::Panic, false), Clock::Free, folder.path(), 7);
            assert!(dead.is_some());
            drop(first);
            assert!(matches!(other.join().unwrap(), Turn::Dead(_)));
        });
    }
}
